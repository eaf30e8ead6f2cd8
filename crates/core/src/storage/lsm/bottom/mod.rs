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
pub(crate) mod fences;
pub(crate) mod file;
mod filter;
pub(crate) mod frozen;
mod increasing;
pub(crate) mod merge;
mod old_rows;
pub(crate) mod order;
mod page_writer;
pub(crate) mod pages;
pub(crate) mod partition;
mod pins;
pub(crate) mod snapshot;
pub(crate) mod version;
pub(crate) mod writer;

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

pub(crate) use file::{Facts, Shape, file_name};
pub(crate) use filter::BUILDER_BYTES_PER_ROW;
pub(crate) use frozen::FrozenWriter;
pub(crate) use merge::{
    Change, Changes, Merge, MergePlan, Merged, Newer, Taken, Unread, merge_bytes_most,
};
pub(crate) use order::{Orders, Place, PlaceRange, TableOrder};
pub(crate) use page_writer::Room;
pub(crate) use pages::OpenPartitions;
pub(crate) use partition::Partition;
pub(crate) use snapshot::{Bottom, Looked, Numbered, Retired};
pub(crate) use version::{Edit, Version};
