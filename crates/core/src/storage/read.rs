//! The types that a storage and its readers exchange: pages that may hold a row, in the order of
//! the device, and the result of looking into them.

use crate::error::Result;
use crate::io::File;
use std::sync::Arc;

/// A page of a storage. In order, neighbours lie side by side on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageAddress {
    /// The file, by a number that the storage gives it.
    pub file: u16,
    /// Its number within the file.
    pub page: u32,
}

/// A page that may hold the row of a miss. In order, wants of a page follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Want {
    /// The page.
    pub at: PageAddress,
    /// The place in it, in the storage's own terms.
    pub hint: u32,
    /// The miss, by the caller's number.
    pub miss: u32,
}

/// The place of a key, as far as memory tells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Found<'a> {
    /// Never written, or deleted.
    Absent,
    /// It waits to be written.
    Parked {
        /// Values and state.
        words: &'a [f32],
        /// The time since which it is dirty, as a stamp of the cache.
        dirty_since: u32,
        /// Stored copy that it outdates, 0 for none; `None` where the index tells.
        origin: Option<u32>,
    },
    /// Stored, and no page has to be read: the row, or its page, is still in memory.
    InMemory {
        /// Values and state.
        words: &'a [f32],
        /// Its stored copy.
        origin: u32,
    },
    /// Stored, perhaps, in the pages that were added to the wants; only they can tell.
    Stored {
        /// Its stored copy, where no page is needed to know.
        origin: Option<u32>,
    },
}

/// The result of an arrived page for a miss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Resolved<'p> {
    /// Its row.
    Row {
        /// Values and state.
        words: &'p [f32],
        /// Its stored copy.
        origin: u32,
    },
    /// The row of another key.
    Other,
    /// Its row, which has been written elsewhere meanwhile.
    Moved,
}

/// The files behind page addresses, and how their pages are verified: what a reader needs without
/// the lock of the storage.
pub(crate) trait PageSource: Send + Sync {
    /// A file.
    fn file(&self, number: u16) -> Arc<dyn File>;
    /// Bytes of a page.
    fn page_bytes(&self) -> usize;
    /// Checks the bytes of a page. `Corrupt` names what is damaged.
    fn verify(&self, at: PageAddress, page: &[u8]) -> Result<()>;
    /// Leaves out wants of a batch whose rows other wants of it bring, too; those of a miss follow
    /// each other. Returns whether there were any.
    fn select(&self, wants: &mut Vec<Want>) -> bool {
        let _ = wants;
        false
    }
}
