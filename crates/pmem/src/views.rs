//! Rows where they lie, lent out: for a kernel that sends them without a copy.

use crate::epoch::Lent;
use crate::error::Result;
use crate::hash::ABSENT;
use crate::medium::Medium;
use crate::region::ROW_HEAD_WORDS;
use crate::rows::{ROWS_AHEAD, Rows};
use crate::slot_word::slot_of;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Rows of a batch as they were when they were lent out, whatever is put meanwhile.
///
/// It blocks no other thread: writers write elsewhere, and other readers find the new rows. But row
/// slots that were replaced since are not used again before it is dropped. If writers have no
/// others left they wait, 5 seconds at most, and are then refused as `Full`. So it is to be dropped
/// within a second or two, and soon once it [`is_wanted`](Self::is_wanted); a holder that cannot do
/// that copies its rows. A holder must not wait for a writer, which may wait for it.
pub struct RowViews<M: Medium> {
    rows: Arc<Rows<M>>,
    slots: Vec<u64>,
    lent: Lent,
}

impl<M: Medium> Rows<M> {
    /// Lends the rows of keys out: `keys (N,)`. Each is verified. `None` where 512 batches are lent
    /// out already, or the medium's words cannot be shared: [`get`](Self::get) them.
    ///
    /// # Errors
    /// `Corrupt` where a row is not what was put, naming the key.
    pub fn views(self: &Arc<Self>, keys: &[u64]) -> Result<Option<RowViews<M>>> {
        let Some(lent) = self.readings.lend() else { return Ok(None) };
        if self.medium().share(0..0).is_none() {
            self.readings.end(lent);
            return Ok(None);
        }
        // It ends the reading, whatever fails from here on.
        let mut views = RowViews { rows: Arc::clone(self), slots: Vec::new(), lent };
        views.slots = self.look_up(keys)?;
        let mut row = vec![0; self.geometry().row_bytes];
        for (at, (key, slot)) in keys.iter().zip(&views.slots).enumerate() {
            self.prefetch_row(&views.slots, at + ROWS_AHEAD);
            if *slot != ABSENT {
                self.read(*key, *slot, &mut row)?;
            }
        }
        Ok(Some(views))
    }
}

impl<M: Medium> RowViews<M> {
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True where there is no key.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether a writer waits for room of rows that were replaced. Takes no lock.
    pub fn is_wanted(&self) -> bool {
        self.rows.slab.pauses().0
    }

    /// The words of the row of a key, by its position; the last one may have more bytes than the
    /// row. `None` for a key without a row.
    pub fn row(&self, position: usize) -> Option<&[AtomicU64]> {
        let slot = *self.slots.get(position).filter(|slot| **slot != ABSENT)?;
        let geometry = self.rows.geometry();
        let first = geometry.row_word(slot_of(slot));
        self.rows.medium().share(first + ROW_HEAD_WORDS..first + geometry.row_words())
    }
}

impl<M: Medium> Drop for RowViews<M> {
    fn drop(&mut self) {
        self.rows.readings.end(self.lent);
    }
}
