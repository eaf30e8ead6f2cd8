//! The bottom of the `lsm` layout: immutable partition files of rows in order.
//!
//! The rows of a class lie in partitions, each with the rows of a range of the [`order`]. A look-up
//! finds its partition by binary search in the [`version`], the page by the [`fences`] and the row
//! in the page, so that a stored row costs one page, rarely two. A [`merge`] takes in what is
//! newer: it writes the rows of some partitions and their changes to new files, and an edit of the
//! version puts these in the place of the old ones. Readers keep the [`snapshot`] that they began
//! with, and name its files by numbers of [`pages`].
//!
//! Format: `docs/formats/partition-file.md`.

mod candidates;
pub mod fences;
pub mod file;
mod filter;
pub mod frozen;
mod increasing;
pub mod merge;
mod old_rows;
pub mod order;
mod page_writer;
pub mod pages;
pub mod partition;
mod pins;
pub mod snapshot;
pub mod version;
pub mod writer;

#[cfg(test)]
mod fences_tests;
#[cfg(test)]
mod filter_tests;
#[cfg(test)]
mod merge_tests;
#[cfg(test)]
mod pages_tests;
#[cfg(test)]
mod partition_tests;
#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod version_tests;

pub use candidates::Candidates;
pub use file::{Facts, Shape, file_name};
pub use filter::BUILDER_BYTES_PER_ROW;
pub use frozen::{CANDIDATES_MOST, FrozenWriter};
pub use merge::{
    Change, Changes, Counts, Merge, MergePlan, Merged, Newer, Taken, Unread, merge_bytes_most,
};
pub use order::{Orders, Place, PlaceRange, TableOrder};
pub use page_writer::{Finished, Room};
pub use pages::OpenPartitions;
pub use partition::{Partition, Partitions};
pub use snapshot::{Bottom, Looked, Numbered, Retired, Snapshot};
pub use version::{Edit, Version};
pub use writer::PartitionWriter;
