//! Parts of replies on their way out.

use super::kernel::Piece;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The memory of a chunk beside its bytes.
const CHUNK_BYTES: usize = 96;
const WORD_BYTES: usize = size_of::<u64>();

/// Rows where they lie, which stay as they are until this is dropped.
pub trait RowViews: Send + Sync {
    /// The words that begin with the row's bytes; `None` where a key has no row.
    fn row(&self, position: usize) -> Option<&[AtomicU64]>;

    /// Whether a writer waits for room that these rows may hold. Takes no lock.
    fn is_wanted(&self) -> bool {
        false
    }
}

impl RowViews for embedrock_core::RowViews {
    fn row(&self, position: usize) -> Option<&[AtomicU64]> {
        self.row(position)
    }

    fn is_wanted(&self) -> bool {
        self.is_wanted()
    }
}

/// Bytes that go out together.
#[derive(Debug)]
pub(crate) enum Chunk {
    Text(Vec<u8>),
    /// The first values of a buffer, and whether they are to be sent without another copy.
    Rows(Vec<f32>, usize, bool),
    Views(Views),
}

/// Rows where they lie.
pub(crate) struct Views {
    rows: Box<dyn RowViews>,
    count: usize,
    row_bytes: usize,
    /// Positions of keys without a row, ascending, and what is sent for them, one after the other.
    missing: Vec<u32>,
    initial: Vec<f32>,
    is_zero_copy: bool,
}

impl Views {
    /// Views of `count` rows. *Panics* unless there is one initial row for each that is missing.
    pub(crate) fn new(
        rows: Box<dyn RowViews>,
        (count, row_bytes): (usize, usize),
        (missing, initial): (Vec<u32>, Vec<f32>),
        is_zero_copy: bool,
    ) -> Self {
        assert_eq!(initial.len() * size_of::<f32>(), missing.len() * row_bytes);
        Self { rows, count, row_bytes, missing, initial, is_zero_copy }
    }

    fn len(&self) -> usize {
        self.count * self.row_bytes
    }

    /// Whether a writer waits for room that the rows may hold.
    pub(crate) fn is_wanted(&self) -> bool {
        self.rows.is_wanted()
    }

    /// The bytes behind the first `skip`, a piece for each row.
    fn pieces(&self, skip: usize) -> impl Iterator<Item = Piece<'_>> {
        let first = skip / self.row_bytes;
        (first..self.count).map(move |at| {
            let skip = if at == first { skip % self.row_bytes } else { 0 };
            let bytes = self.row_bytes - skip;
            match (self.rows.row(at), self.missing.binary_search(&(at as u32))) {
                (Some(words), Err(_)) => Piece::Words(words, skip, bytes),
                (_, Ok(index) | Err(index)) => {
                    let begin = index * self.row_bytes;
                    let initial: &[u8] = bytemuck::cast_slice(&self.initial);
                    Piece::Bytes(&initial[begin..begin + self.row_bytes][skip..])
                }
            }
        })
    }
}

/// Rows that were given back.
struct NoRows;

impl RowViews for NoRows {
    fn row(&self, _: usize) -> Option<&[AtomicU64]> {
        None
    }
}

impl fmt::Debug for Views {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Views({} rows of {} bytes)", self.count, self.row_bytes)
    }
}

impl Chunk {
    /// Number of bytes to send.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Text(bytes) => bytes.len(),
            Self::Rows(_, len, _) => len * size_of::<f32>(),
            Self::Views(views) => views.len(),
        }
    }

    /// Its bytes, where they lie together.
    pub(crate) fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Text(bytes) => Some(bytes),
            Self::Rows(values, len, _) => Some(bytemuck::cast_slice(&values[..*len])),
            Self::Views(_) => None,
        }
    }

    /// The pieces of the bytes after the first `skip`.
    pub(crate) fn pieces(&self, skip: usize) -> impl Iterator<Item = Piece<'_>> {
        let bytes = self.as_bytes().map(|bytes| &bytes[skip..]).filter(|bytes| !bytes.is_empty());
        let views = self.views().map(|views| views.pieces(skip));
        bytes.map(Piece::Bytes).into_iter().chain(views.into_iter().flatten())
    }

    /// The rows that it lends.
    pub(crate) fn views(&self) -> Option<&Views> {
        match self {
            Self::Views(views) => Some(views),
            _ => None,
        }
    }

    /// Gives the rows back that it lends. Nothing of it is sent any more.
    pub(crate) fn without_rows(mut self) -> Self {
        if let Self::Views(views) = &mut self {
            views.rows = Box::new(NoRows);
        }
        self
    }

    /// Whether it is to be sent without a copy.
    pub(crate) fn is_zero_copy(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Rows(_, _, is_zero_copy) => *is_zero_copy,
            Self::Views(views) => views.is_zero_copy,
        }
    }

    /// The bytes of lent rows behind the first `skip`, copied.
    pub(crate) fn copied(&self, skip: usize) -> Option<Vec<u8>> {
        let Self::Views(views) = self else { return None };
        let mut bytes = Vec::with_capacity(views.len() - skip);
        views.pieces(skip).for_each(|piece| piece.copy_to(&mut bytes));
        Some(bytes)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        CHUNK_BYTES
            + match self {
                Self::Text(bytes) => bytes.capacity(),
                Self::Rows(values, ..) => values.capacity() * size_of::<f32>(),
                // Rows that are lent are the storage's memory; where they lie takes a word each.
                Self::Views(views) => {
                    let missing = (views.initial.capacity() + views.missing.capacity()) * 4;
                    views.count * WORD_BYTES + missing
                }
            }
    }
}

impl Piece<'_> {
    /// Appends its bytes.
    pub(crate) fn copy_to(self, to: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => to.extend(bytes),
            Self::Words(words, skip, bytes) => {
                let end = skip + bytes;
                let places = skip / WORD_BYTES..end.div_ceil(WORD_BYTES);
                for (word, at) in words[places.clone()].iter().zip(places) {
                    let (word, begin) = (word.load(Ordering::Relaxed), at * WORD_BYTES);
                    let part = skip.max(begin) - begin..end.min(begin + WORD_BYTES) - begin;
                    to.extend(&word.to_le_bytes()[part]);
                }
            }
        }
    }
}
