//! The layout of a row class: the only module that selects code by kind while no storage exists.

use super::{ClassFacts, Storage, StorageRecovery, log, lsm, pmem};
use crate::config::StorageKind;
use crate::error::Result;
use crate::io::{File, Medium};
use std::sync::Arc;

/// A storage without tables in a new file, whose header is durable on return; `epoch` is the number
/// of the commit to come.
pub(crate) fn create(
    facts: &ClassFacts,
    file: Arc<dyn File>,
    epoch: u64,
    medium: &Arc<dyn Medium>,
) -> Result<Box<dyn Storage>> {
    match facts.kind {
        StorageKind::Log => log::create(facts, file, epoch, medium),
        StorageKind::Lsm | StorageKind::Pages => lsm::create(facts, file, epoch, medium),
        StorageKind::Pmem => pmem::create(facts, file, epoch, medium),
    }
}

/// The recovery of a class that has no tables yet, from `epoch` on. `begun` is the part of its
/// record that describes its files; commits before `oldest` are not kept.
pub(crate) fn recovery(
    facts: &ClassFacts,
    begun: &str,
    epoch: u64,
    oldest: u64,
) -> Result<Box<dyn StorageRecovery>> {
    match facts.kind {
        StorageKind::Log => Ok(Box::new(log::LogRecovery::new(facts, begun, epoch, oldest)?)),
        StorageKind::Lsm | StorageKind::Pages => {
            Ok(Box::new(lsm::LsmRecovery::new(facts, begun, epoch, oldest)?))
        }
        StorageKind::Pmem => Ok(Box::new(pmem::PmemRecovery::new(facts, begun)?)),
    }
}

/// Refuses the record of a class that no storage of its kind can have. The newest rows of each kind
/// lie in a log.
pub(crate) fn check_class(facts: &ClassFacts) -> Result<()> {
    match facts.kind {
        // No page of it is read, and its rows need fit none.
        StorageKind::Pmem => log::check_class(&ClassFacts { row_bytes: 4, ..*facts }),
        _ => log::check_class(facts),
    }
}
