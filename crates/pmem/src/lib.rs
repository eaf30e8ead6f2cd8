//! Rows of embedding tables on byte-addressable persistent memory.
//!
//! A [region](Geometry) of fixed capacity is mapped from a file: on persistent memory (DAX, CXL),
//! on tmpfs, or on a disk. [`Rows`] keeps rows of one size in it, by 64-bit keys. Nothing of the
//! index is in DRAM, and opening takes the same time whatever the size. [`PetHash`] is the index
//! alone.
//!
//! Batches are durable when a call returns, as far as the [medium](Medium) allows, which
//! [`Durability`] tells. The crate knows nothing of the engine: it has no tables, no commits and no
//! threads.
//!
//! # Levels
//!
//! ```text
//! views                  rows lent out where they lie
//! rows, resize           rows by key, durable; a region of another size
//! slab, epoch            which row slots are free; who still reads replaced rows
//! hash                   look-ups and changes (batch, put, rehome, check, upgrade are parts of it)
//! slot_word              where the row of a key lies, with a check
//! region, redo, bucket   what lies where; changes of several words; a bucket's bits and its check
//! medium, map            words, and how they become durable
//! ```
//!
//! Source: Xie et al., *PetPS: Supporting Huge Embedding Models with Persistent Memory*, VLDB 2023.

mod batch;
mod bucket;
mod bucket_check;
mod check;
mod epoch;
mod error;
mod hash;
mod map;
mod medium;
mod planted;
mod put;
mod redo;
mod region;
mod rehome;
mod resize;
mod rows;
mod slab;
mod slot_word;
mod upgrade;
mod views;

#[cfg(test)]
mod shadow;
#[cfg(test)]
mod tests;

pub use batch::Prefetch;
pub use check::Checked;
pub use error::{Error, ErrorKind, Result};
pub use hash::{ABSENT, PetHash};
pub use map::Mapped;
pub use medium::{Durability, Medium, WORD_BYTES};
#[cfg(feature = "planted")]
pub use planted::plant_unchecked_buckets;
pub use region::Geometry;
pub use rehome::Rehomed;
pub use resize::{resize, resize_with};
pub use rows::Rows;
pub use slab::SlabUse;
pub use views::RowViews;
