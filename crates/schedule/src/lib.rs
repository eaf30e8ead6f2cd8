//! For each use of a row in a known order of training: when the row is used next.
//!
//! A store that knows the next use of a row writes it to a page of the stretch of training that
//! uses it (`docs/lookahead.md`). This crate makes that knowledge. A [`Maker`] takes the keys of
//! all batches in their order, once, and writes a file; a [`Schedule`] reads it, a batch at a time.
//! Nothing here knows of stores.
//!
//! ```
//! use embedrock_schedule::{Ends, Maker, Part, Schedule};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("clicks.schedule");
//! let mut maker = Maker::new(&path, &["ads".to_owned()], 1)?;
//! for keys in [[1, 2, 3], [2, 3, 4], [1, 4, 5]] {
//!     maker.add(&[Part { table: 0, keys: &keys }])?;
//! }
//! maker.finish(Ends::Here, |_| true)?;
//! let schedule = Schedule::open(&path)?;
//! let keys = [2, 3, 4];
//! let next = schedule.next_uses(1, &[Some(&keys)])?.expect("they are the batch's keys");
//! assert_eq!(next, [vec![0, 0, 2]]); // one more than the stretches until then, 0: none
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! The next use of a key is found by going through its uses backwards. There may be more uses, and
//! more keys, than memory holds. So keys are divided by their hash, each table's into parts of its
//! own, as they come: each part is a stream of a temporary file ([`streams`]), in the order of its
//! uses. Then part after part is gone through backwards, with one hash table of its keys
//! ([`next`]). In the end the parts' answers are merged into the order of the batches ([`file`]):
//! one byte or two of each use, written with its key, say which part it went to.
//!
//! Source: time-forward processing of external-memory algorithms (Chiang et al., *External-memory
//! graph algorithms*, SODA 1995), with a partition by hash in the place of a sort.

mod digest;
mod error;
mod file;
mod keys;
mod maker;
mod next;
mod streams;
#[cfg(test)]
mod tests;

pub use error::{Error, ErrorKind, Result};
pub use file::Schedule;
pub use maker::{Ends, Maker, Part};

/// Uses that are more stretches ahead count as so many.
pub const STRETCHES_MAX: u64 = u16::MAX as u64 - 2;
