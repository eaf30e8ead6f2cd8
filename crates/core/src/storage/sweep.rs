//! Passes over stored rows: what a sweep, a check and a measurement of the device hand out.

use super::PageReader;
use crate::error::{Error, Result};
use crate::io::File;
use crate::metrics::ReadReport;
use std::any::Any;
use std::sync::Arc;

/// A stored row that a sweep has come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SweptRow<'a> {
    /// Table of the row.
    pub table: u16,
    /// Its key.
    pub key: u64,
    /// The place of this copy, as an origin: the layout's own word, to ask whether it is still the
    /// newest.
    pub place: u32,
    /// Values and state.
    pub words: &'a [f32],
}

/// Takes rows that are stored together.
pub(crate) type TakeRows<'a> = dyn FnMut(&mut dyn Iterator<Item = SweptRow<'_>>) -> Result<()> + 'a;

/// A pass over the newest stored copies of a table, or of all, as they were when it began, in the
/// order of the file. One of all tables may come to outdated copies, too. Rows may be written and
/// moved meanwhile; what it names stays as it was until its ticket ends. It needs no lock.
pub(crate) trait Sweep: Any + Send + Sync {
    /// Reads at most `most` more pages and hands their rows over; `None` at the end. Each page is
    /// verified before.
    fn read(
        &mut self,
        most: usize,
        reader: &mut PageReader,
        each: &mut TakeRows<'_>,
    ) -> Result<Option<ReadReport>>;

    /// The ticket for `end_read` when it is over.
    fn ticket(&self) -> u64;
}

/// Something wrong that a check has found.
#[derive(Debug)]
pub(crate) enum Finding {
    /// A page cannot be read, or is not what was written.
    Damage(Error),
    /// A table has more rows, or fewer, than were found.
    Rows {
        /// The table.
        table: u16,
        /// Its rows by its index.
        indexed: u64,
        /// Those found where the index says.
        found: u64,
    },
}

/// The amount that a check has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Pages read.
    pub pages: u64,
    /// Rows found where the index says.
    pub rows: u64,
}

/// Parts of a file that hold written pages, equally long.
pub(crate) struct Areas {
    /// The file.
    pub file: Arc<dyn File>,
    /// Their begins.
    pub begins: Vec<u64>,
    /// Bytes of each.
    pub area_bytes: u64,
}
