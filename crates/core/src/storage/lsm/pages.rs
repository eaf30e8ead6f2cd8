//! The files of an `lsm` storage by the numbers that page addresses have: 0 is the top's, the
//! others are those of open partitions.

use super::bottom::OpenPartitions;
use super::select::select;
use crate::error::Result;
use crate::io::File;
use crate::storage::{PageAddress, PageSource, Want};
use std::sync::Arc;

/// The file number of the top.
pub(super) const TOP: u16 = 0;

/// Pages of the top and of all partitions.
pub(super) struct LsmPages {
    pub(super) top: Arc<dyn PageSource>,
    pub(super) partitions: Arc<OpenPartitions>,
    /// Whether rows have replicas in the pages of partitions.
    pub(super) has_replicas: bool,
}

impl PageSource for LsmPages {
    fn file(&self, number: u16) -> Arc<dyn File> {
        match number {
            TOP => self.top.file(TOP),
            number => self.partitions.file(number),
        }
    }

    fn page_bytes(&self) -> usize {
        self.top.page_bytes()
    }

    fn verify(&self, at: PageAddress, page: &[u8]) -> Result<()> {
        match at.file {
            TOP => self.top.verify(at, page),
            _ => self.partitions.verify(at, page),
        }
    }

    fn select(&self, wants: &mut Vec<Want>) -> bool {
        self.has_replicas && select(wants, |at| at.file != TOP)
    }
}
