//! The order in which the bottom keeps its rows.
//!
//! Rows are in order of their [`Place`]: first by table, then by rank, then by position. The
//! position of a row is its key in a dense table. In a growing one it is the mixed key, its bits in
//! reverse, so that new keys fall into all partitions alike. [`mix`] is a bijection for a fixed
//! salt. Hence two rows of one table and rank never share a place, and no tie has to be broken. The
//! index of the log divides a growing table by the low bits of the mixed key. In reverse they are
//! the upper ones of the position, so the keys of a part of the index lie side by side. The rank
//! sets rows of a table apart that are read differently; the writer of a row gives its rank, 0 if
//! it has none.

use crate::error::{Result, bail};
use crate::hash::{mix, unmix};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a stored place.
pub(super) const PLACE_BYTES: usize = 16;

/// The place of a row in the order: places compare by table, then rank, then position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    /// Table of the row.
    pub table: u16,
    /// Its rank within the table.
    pub rank: u8,
    /// Its position within the rank.
    pub position: u64,
}

impl Place {
    /// The first place that there is.
    pub(crate) const MIN: Self = Self { table: 0, rank: 0, position: 0 };
    /// The last place that there is.
    pub(crate) const MAX: Self = Self { table: u16::MAX, rank: u8::MAX, position: u64::MAX };

    /// The place as a number of 88 bits, in the same order.
    fn number(self) -> u128 {
        u128::from(self.table) << 72 | u128::from(self.rank) << 64 | u128::from(self.position)
    }

    fn of_number(number: u128) -> Self {
        Self { table: (number >> 72) as u16, rank: (number >> 64) as u8, position: number as u64 }
    }

    /// The place behind this one; `None` behind the last.
    pub(crate) fn next(self) -> Option<Self> {
        (self != Self::MAX).then(|| Self::of_number(self.number() + 1))
    }

    /// The place before this one; `None` before the first.
    pub(crate) fn previous(self) -> Option<Self> {
        (self != Self::MIN).then(|| Self::of_number(self.number() - 1))
    }

    pub(super) fn encode(self) -> [u8; PLACE_BYTES] {
        let mut bytes = [0; PLACE_BYTES];
        bytes[..2].copy_from_slice(&self.table.to_le_bytes());
        bytes[2] = self.rank;
        bytes[8..].copy_from_slice(&self.position.to_le_bytes());
        bytes
    }

    /// The place that `encode` wrote; `None` for bytes that it does not write.
    pub(super) fn decode(bytes: &[u8; PLACE_BYTES]) -> Option<Self> {
        let [table_low, table_high, rank, zeros @ .., p0, p1, p2, p3, p4, p5, p6, p7] = *bytes;
        (zeros == [0; 5]).then_some(Self {
            table: u16::from_le_bytes([table_low, table_high]),
            rank,
            position: u64::from_le_bytes([p0, p1, p2, p3, p4, p5, p6, p7]),
        })
    }
}

/// A part of the order, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlaceRange {
    /// Its first place.
    pub first: Place,
    /// Its last place.
    pub last: Place,
}

impl PlaceRange {
    /// All places.
    pub(crate) const ALL: Self = Self { first: Place::MIN, last: Place::MAX };

    /// True when `place` lies in it.
    pub(crate) fn contains(&self, place: Place) -> bool {
        (self.first..=self.last).contains(&place)
    }
}

/// Mapping of a table's keys to positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableOrder {
    /// The position is the key: of dense tables.
    ByKey,
    /// The position is the mixed key with its bits in reverse: of growing tables.
    Mixed {
        /// The salt of the table.
        salt: u64,
    },
}

impl TableOrder {
    /// The position of a key.
    #[inline]
    pub(crate) fn position(self, key: u64) -> u64 {
        match self {
            Self::ByKey => key,
            Self::Mixed { salt } => mix(key, salt).reverse_bits(),
        }
    }

    /// The key at a position.
    pub(crate) fn key(self, position: u64) -> u64 {
        match self {
            Self::ByKey => position,
            Self::Mixed { salt } => unmix(position.reverse_bits(), salt),
        }
    }
}

/// The order of the table that was asked for last. Rows of a table follow each other, so few
/// need a look into the map of [`Orders`].
#[derive(Debug, Default)]
pub(super) struct LastOrder {
    of: Option<OrderOf>,
}

#[derive(Clone, Copy, Debug)]
struct OrderOf {
    table: u16,
    order: TableOrder,
}

impl LastOrder {
    /// The place of a key, as `orders` has it; of one store these never change.
    #[inline]
    pub(super) fn place(
        &mut self,
        orders: &Orders,
        table: u16,
        rank: u8,
        key: u64,
    ) -> Result<Place> {
        let order = match self.of {
            Some(last) if last.table == table => last.order,
            _ => {
                let order = orders.known(table)?;
                self.of = Some(OrderOf { table, order });
                order
            }
        };
        Ok(Place { table, rank, position: order.position(key) })
    }
}

/// The orders of the tables of a row class. Partitions may have rows of tables that were dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    all: BTreeMap<u16, TableOrder>,
    dropped: BTreeSet<u16>,
}

impl Orders {
    /// Adds a table, or says its order again.
    pub(crate) fn insert(&mut self, table: u16, order: TableOrder) {
        self.all.insert(table, order);
    }

    /// Takes a table out.
    pub(crate) fn remove(&mut self, table: u16) {
        self.all.remove(&table);
    }

    /// Notes that a table was dropped, whose order stays.
    pub(crate) fn drop(&mut self, table: u16) {
        self.dropped.insert(table);
    }

    /// Whether a table is there, and was not dropped.
    pub(crate) fn has(&self, table: u16) -> bool {
        self.all.contains_key(&table) && !self.is_dropped(table)
    }

    /// Whether a table was dropped.
    #[inline]
    pub(crate) fn is_dropped(&self, table: u16) -> bool {
        !self.dropped.is_empty() && self.dropped.contains(&table)
    }

    /// All tables that were not dropped, in order.
    pub(crate) fn tables(&self) -> impl Iterator<Item = u16> + '_ {
        self.all.keys().copied().filter(|table| !self.is_dropped(*table))
    }

    /// Number of tables.
    pub(crate) fn table_count(&self) -> usize {
        self.all.len() - self.dropped.len()
    }

    /// The order of a table, dropped or not; `None` for a table of another class.
    pub(crate) fn of(&self, table: u16) -> Option<TableOrder> {
        self.all.get(&table).copied()
    }

    /// The order of a table. `Misuse` for a table of another class.
    pub(super) fn known(&self, table: u16) -> Result<TableOrder> {
        match self.of(table) {
            Some(order) => Ok(order),
            None => {
                let tables = self.all.keys();
                bail!(Misuse, "table {table} has no order here, expected one of {tables:?}")
            }
        }
    }

    /// A number in the order of places, nearly: rows of neighbouring numbers are neighbours.
    pub(crate) fn write_place(&self, table: u16, key: u64) -> u64 {
        let position = self.of(table).map_or(key, |order| order.position(key));
        // Dense tables have small positions, growing ones any.
        let upper = match self.of(table) {
            Some(TableOrder::ByKey) => position.min(u64::MAX >> 16),
            _ => position >> 16,
        };
        u64::from(table) << 48 | upper
    }

    /// The place of a key. `Misuse` for a table of another class.
    pub(crate) fn place(&self, table: u16, rank: u8, key: u64) -> Result<Place> {
        Ok(Place { table, rank, position: self.known(table)?.position(key) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixed_keys_can_be_unmixed_so_no_two_keys_share_a_position() {
        let mut key = 1u64;
        for round in 0..100_000u64 {
            key = key.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(round);
            for key in [key, round, u64::MAX - round, 1 << (round % 64)] {
                let order = TableOrder::Mixed { salt: !round };
                assert_eq!(order.key(order.position(key)), key);
            }
        }
    }

    #[test]
    fn keys_with_equal_low_bits_of_their_hash_lie_side_by_side() {
        let order = TableOrder::Mixed { salt: 11 };
        let mut keys: Vec<u64> = (0..4096).collect();
        keys.sort_unstable_by_key(|key| order.position(*key));
        for bits in 1..=8 {
            let part = |key: &u64| mix(*key, 11) & ((1 << bits) - 1);
            let mut parts: Vec<u64> = keys.iter().map(part).collect();
            parts.dedup();
            // Each part once, and none in two pieces.
            assert_eq!(parts.len(), 1 << bits, "{bits} bits");
            parts.sort_unstable();
            parts.dedup();
            assert_eq!(parts.len(), 1 << bits, "{bits} bits");
        }
    }

    #[test]
    fn the_last_order_gives_the_places_that_the_map_does() {
        let mut orders = Orders::default();
        orders.insert(0, TableOrder::ByKey);
        orders.insert(1, TableOrder::Mixed { salt: 11 });
        orders.insert(2, TableOrder::Mixed { salt: 12 });
        let mut last = LastOrder::default();
        for (table, key) in [(0, 7), (0, 8), (1, 7), (2, 7), (2, 9), (1, 7), (0, 7)] {
            let expected = orders.place(table, 3, key).unwrap();
            assert_eq!(last.place(&orders, table, 3, key).unwrap(), expected);
        }
        assert!(last.place(&orders, 3, 0, 7).is_err());
        assert_eq!(last.place(&orders, 0, 0, 7).unwrap().position, 7);
    }

    #[test]
    fn places_compare_by_table_then_rank_then_position_and_survive_encoding() {
        let place = |table, rank, position| Place { table, rank, position };
        let sorted = [
            Place::MIN,
            place(0, 0, u64::MAX),
            place(0, 1, 0),
            place(0, u8::MAX, u64::MAX),
            place(1, 0, 7),
            place(256, 0, 0),
            Place::MAX,
        ];
        assert!(sorted.is_sorted_by(|a, b| a < b && a.number() < b.number()));
        for place in sorted {
            assert_eq!(Place::decode(&place.encode()), Some(place));
            let next = place.next();
            assert_eq!(next.and_then(Place::previous), next.map(|_| place));
            assert!(next.is_none_or(|next| place < next));
        }
        assert_eq!(sorted[1].next(), Some(sorted[2]));
        assert_eq!(sorted[3].next(), Some(place(1, 0, 0)));
        assert_eq!((Place::MAX.next(), Place::MIN.previous()), (None, None));
        let mut bytes = sorted[4].encode();
        bytes[5] = 1;
        assert_eq!(Place::decode(&bytes), None);
    }
}
