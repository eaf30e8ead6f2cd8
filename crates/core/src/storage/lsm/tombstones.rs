//! Keys that were deleted while the bottom may have a row of theirs.

use super::bottom::{Orders, Place, PlaceRange};
use crate::error::{Result, bail};
use std::collections::BTreeMap;

/// Bytes of one, with its part of the tree's nodes.
const BYTES_EACH: usize = 48;

/// Deleted keys by their place.
#[derive(Debug, Default)]
pub(super) struct Tombstones(BTreeMap<Place, u64>);

impl Tombstones {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there is none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the key at `place` was deleted.
    #[inline]
    pub(super) fn contains(&self, place: Place) -> bool {
        !self.0.is_empty() && self.0.contains_key(&place)
    }

    /// Adds one; false where it was there.
    pub(super) fn insert(&mut self, place: Place, key: u64) -> bool {
        self.0.insert(place, key).is_none()
    }

    /// Removes one; false where there was none.
    pub(super) fn remove(&mut self, place: Place) -> bool {
        self.0.remove(&place).is_some()
    }

    /// Those in a range, in order.
    pub(super) fn in_range(&self, range: PlaceRange) -> impl Iterator<Item = (Place, u64)> + '_ {
        self.0.range(range.first..=range.last).map(|(place, key)| (*place, *key))
    }

    /// Bytes that it takes, about.
    pub(super) fn memory_bytes(&self) -> usize {
        self.0.len() * BYTES_EACH
    }

    /// Appends those of a table: 8 bytes each.
    pub(super) fn write_piece(&self, table: u16, out: &mut Vec<u8>) {
        let all = PlaceRange {
            first: Place { table, ..Place::MIN },
            last: Place { table, ..Place::MAX },
        };
        self.in_range(all).for_each(|(_, key)| out.extend_from_slice(&key.to_le_bytes()));
    }

    /// Replaces those of a table by what `write_piece` wrote.
    pub(super) fn load_piece(&mut self, orders: &Orders, table: u16, bytes: &[u8]) -> Result<()> {
        let (keys, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            bail!(Corrupt, "tombstones of table {table} take {} bytes", bytes.len());
        }
        self.0.retain(|place, _| place.table != table);
        for key in keys {
            let key = u64::from_le_bytes(*key);
            self.0.insert(orders.place(table, 0, key)?, key);
        }
        Ok(())
    }
}
