//! Passes over whole tables and stores: scan, warm, check, copy, reshard, and the device's rate.

use super::Inner;
use super::engine::Class;
use crate::error::Result;
use crate::storage::{Sweep, TakeRows};

pub(in crate::store) mod changes;
pub(in crate::store) mod check;
pub(in crate::store) mod copy;
pub(in crate::store) mod files;
pub(in crate::store) mod freeze;
mod rate;
pub(in crate::store) mod reshard;
pub(in crate::store) mod resize;
pub(in crate::store) mod scan;
mod warm;

impl Inner {
    /// Reads at most `most` more pages of a sweep of a class and gives `each` their rows, without
    /// the class lock; false at the end.
    fn sweep_on(
        &self,
        class: &Class,
        sweep: &mut dyn Sweep,
        most: usize,
        each: &mut TakeRows<'_>,
    ) -> Result<bool> {
        class.lock(&self.metrics).advance(sweep);
        let read = class.tier().readers().with(|reader| sweep.read(most, reader, each));
        let read = read.map_err(|error| self.after_failed_write(error))?;
        if let Some(report) = &read {
            self.metrics.add_read(report);
        }
        Ok(read.is_some())
    }
}
