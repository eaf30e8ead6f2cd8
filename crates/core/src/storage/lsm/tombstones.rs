//! Keys that were deleted while the bottom may have a row of theirs.

use super::bottom::{Orders, Place, PlaceRange};
use crate::error::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// Bytes of one, with its part of the tree's nodes, of which keys that come in order fill half.
const BYTES_EACH: usize = 24;
/// Bytes of a table beside them.
const BYTES_PER_TABLE: usize = 64;

/// Deleted keys by their place, which tells the key.
#[derive(Clone, Debug, Default)]
pub(super) struct Tombstones {
    /// The positions of each table that has any. All ranks are 0.
    positions: BTreeMap<u16, BTreeSet<u64>>,
    count: usize,
}

impl Tombstones {
    /// Number of tombstones.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// True if there are none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the key at `place` was deleted.
    #[inline]
    pub(super) fn contains(&self, place: Place) -> bool {
        !self.is_empty()
            && self.positions.get(&place.table).is_some_and(|of| of.contains(&place.position))
    }

    /// Adds one; false where it was there.
    pub(super) fn insert(&mut self, place: Place) -> bool {
        debug_assert_eq!(place.rank, 0, "a tombstone of {place:?}");
        let is_new = self.positions.entry(place.table).or_default().insert(place.position);
        self.count += usize::from(is_new);
        is_new
    }

    /// Removes one; false where there was none.
    pub(super) fn remove(&mut self, place: Place) -> bool {
        let Some(of_table) = self.positions.get_mut(&place.table) else { return false };
        let was_there = of_table.remove(&place.position);
        self.count -= usize::from(was_there);
        if of_table.is_empty() {
            self.positions.remove(&place.table);
        }
        was_there
    }

    /// Removes those of a table.
    pub(super) fn remove_table(&mut self, table: u16) {
        self.count -= self.positions.remove(&table).map_or(0, |of_table| of_table.len());
    }

    /// Those in a range, in order.
    pub(super) fn in_range(&self, range: PlaceRange) -> impl Iterator<Item = Place> + '_ {
        let tables = self.positions.range(range.first.table..=range.last.table);
        tables.flat_map(move |(table, of_table)| {
            let within = within(*table, range).map(|within| of_table.range(within));
            let place = |position: &u64| Place { table: *table, rank: 0, position: *position };
            within.into_iter().flatten().map(place)
        })
    }

    /// Number of tombstones in a range.
    pub(super) fn count_in(&self, range: PlaceRange) -> usize {
        if self.is_empty() { 0 } else { self.in_range(range).count() }
    }

    /// Number of tombstones of a table.
    pub(super) fn count_of(&self, table: u16) -> usize {
        self.positions.get(&table).map_or(0, BTreeSet::len)
    }

    /// Approximate memory use in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.positions.len() * BYTES_PER_TABLE + Self::bytes_of(self.count)
    }

    /// Approximate memory use of `count` tombstones, in bytes.
    pub(super) fn bytes_of(count: usize) -> usize {
        count * BYTES_EACH
    }

    /// Appends those of a table: 8 bytes each.
    pub(super) fn write_piece(&self, orders: &Orders, table: u16, out: &mut Vec<u8>) {
        let Some(order) = orders.of(table) else { return };
        let positions = self.positions.get(&table).into_iter().flatten();
        positions.for_each(|position| out.extend_from_slice(&order.key(*position).to_le_bytes()));
    }

    /// Replaces those of a table by what `write_piece` wrote.
    pub(super) fn load_piece(&mut self, orders: &Orders, table: u16, bytes: &[u8]) -> Result<()> {
        let (keys, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            bail!(Corrupt, "tombstones of table {table} take {} bytes", bytes.len());
        }
        self.remove_table(table);
        for key in keys {
            self.insert(orders.place(table, 0, u64::from_le_bytes(*key))?);
        }
        Ok(())
    }
}

/// The positions of a table in a range, of rank 0.
fn within(table: u16, range: PlaceRange) -> Option<RangeInclusive<u64>> {
    let first = range.first.max(Place { table, ..Place::MIN });
    let last = range.last.min(Place { table, rank: 0, position: u64::MAX });
    (first <= last).then_some(first.position..=last.position)
}

#[cfg(test)]
mod tests {
    use super::super::bottom::TableOrder;
    use super::*;

    fn orders() -> Orders {
        let mut orders = Orders::default();
        orders.insert(1, TableOrder::ByKey);
        orders.insert(4, TableOrder::Mixed { salt: 5 });
        orders
    }

    #[test]
    fn those_of_a_range_come_in_order_with_their_keys() {
        let (orders, mut tombstones) = (orders(), Tombstones::default());
        let mut places = BTreeMap::new();
        for key in (0..3000).rev().step_by(7) {
            for table in [1, 4] {
                let place = orders.place(table, 0, key).unwrap();
                assert!(tombstones.insert(place) && !tombstones.insert(place));
                places.insert(place, key);
            }
        }
        assert_eq!(tombstones.len(), places.len());
        let ends: Vec<Place> = places.keys().copied().step_by(61).collect();
        let beyond = [Place::MIN, Place { table: 1, ..Place::MAX }, Place::MAX];
        for first in beyond.iter().chain(&ends) {
            for last in beyond.iter().chain(&ends).filter(|last| *last >= first) {
                let range = PlaceRange { first: *first, last: *last };
                let expected: Vec<Place> =
                    places.keys().copied().filter(|place| range.contains(*place)).collect();
                assert_eq!(tombstones.in_range(range).collect::<Vec<_>>(), expected, "{range:?}");
                assert_eq!(tombstones.count_in(range), expected.len());
            }
        }
        for (place, key) in &places {
            assert!(tombstones.contains(*place));
            assert_eq!(orders.of(place.table).unwrap().key(place.position), *key);
            assert!(tombstones.remove(*place) && !tombstones.remove(*place));
        }
        assert!(tombstones.is_empty() && tombstones.memory_bytes() == 0);
    }

    #[test]
    fn a_piece_has_the_keys_of_its_table_alone() {
        let (orders, mut tombstones) = (orders(), Tombstones::default());
        for (table, key) in [(1, 7), (1, 9), (4, u64::MAX), (4, 0)] {
            tombstones.insert(orders.place(table, 0, key).unwrap());
        }
        let mut piece = Vec::new();
        tombstones.write_piece(&orders, 4, &mut piece);
        assert_eq!(piece.len(), 16);
        let mut loaded = Tombstones::default();
        for (table, key) in [(1, 1), (4, 4)] {
            loaded.insert(orders.place(table, 0, key).unwrap());
        }
        loaded.load_piece(&orders, 4, &piece).unwrap();
        assert_eq!(loaded.len(), 3);
        for (table, key) in [(1, 1), (4, 0), (4, u64::MAX)] {
            assert!(loaded.contains(orders.place(table, 0, key).unwrap()), "{table} {key}");
        }
        assert!(loaded.load_piece(&orders, 4, &piece[1..]).is_err());
    }
}
