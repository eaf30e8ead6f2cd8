//! Rows that stay in memory, by number: sets of eight, of which the one that was not used longest
//! gives way (a clock of one bit a row). Sets are divided among locks, so that threads seldom meet.

use parking_lot::Mutex;

const WAYS: usize = 8;
const LOCKS: usize = 64;
/// No row has this number.
const NONE: u64 = u64::MAX;

pub(crate) struct RowCache {
    row_bytes: usize,
    sets: u64,
    parts: Vec<Mutex<Part>>,
}

/// The sets behind one lock.
struct Part {
    keys: Vec<u64>,
    used: Vec<bool>,
    hands: Vec<u8>,
    rows: Vec<u8>,
}

impl RowCache {
    /// Bytes of a set.
    fn set_bytes(row_bytes: usize) -> u64 {
        (WAYS * (row_bytes + size_of::<u64>() + 1) + 1) as u64
    }

    /// A cache of so many bytes at most for a table of `rows`; `None` where not a set fits.
    pub(crate) fn new(row_bytes: usize, rows: u64, bytes: u64) -> Option<Self> {
        let enough = (rows + rows / 2).div_ceil(WAYS as u64).max(1);
        let sets = (bytes / Self::set_bytes(row_bytes)).min(enough);
        if sets == 0 {
            return None;
        }
        let of_part = |part: u64| {
            let sets = (sets + LOCKS as u64 - 1 - part) as usize / LOCKS;
            let ways = sets * WAYS;
            Mutex::new(Part {
                keys: vec![NONE; ways],
                used: vec![false; ways],
                hands: vec![0; sets],
                rows: vec![0; ways * row_bytes],
            })
        };
        Some(Self { row_bytes, sets, parts: (0..LOCKS as u64).map(of_part).collect() })
    }

    /// Rows that it holds at most.
    pub(crate) fn rows(&self) -> u64 {
        self.sets * WAYS as u64
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.sets * Self::set_bytes(self.row_bytes)
    }

    /// The lock of a row's set, and the set's number behind it.
    #[inline]
    fn place(&self, key: u64) -> (usize, usize) {
        let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let set = ((u128::from(hash) * u128::from(self.sets)) >> 64) as usize;
        (set % LOCKS, set / LOCKS)
    }

    /// Copies a row to `to` if it is there.
    #[inline]
    pub(crate) fn get(&self, key: u64, to: &mut [u8]) -> bool {
        let (part, set) = self.place(key);
        let part = &mut *self.parts[part].lock();
        let first = set * WAYS;
        let Some(way) = part.keys[first..first + WAYS].iter().position(|one| *one == key) else {
            return false;
        };
        part.used[first + way] = true;
        let at = (first + way) * self.row_bytes;
        to.copy_from_slice(&part.rows[at..at + self.row_bytes]);
        true
    }

    /// Keeps a row, in the place of another one where the set is full.
    pub(crate) fn put(&self, key: u64, row: &[u8]) {
        let (part, set) = self.place(key);
        let part = &mut *self.parts[part].lock();
        let first = set * WAYS;
        let keys = &mut part.keys[first..first + WAYS];
        let free = keys.iter().position(|one| *one == key || *one == NONE);
        let way = free.unwrap_or_else(|| {
            let hand = &mut part.hands[set];
            loop {
                let way = usize::from(*hand);
                *hand = (*hand + 1) % WAYS as u8;
                if !std::mem::take(&mut part.used[first + way]) {
                    return way;
                }
            }
        });
        keys[way] = key;
        let at = (first + way) * self.row_bytes;
        part.rows[at..at + self.row_bytes].copy_from_slice(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_of(key: u64) -> [u8; 24] {
        std::array::from_fn(|i| (key as u8).wrapping_mul(31).wrapping_add(i as u8))
    }

    #[test]
    fn a_row_that_is_found_is_the_one_that_was_kept_and_memory_is_bounded() {
        let cache = RowCache::new(24, 1 << 20, 100_000).unwrap();
        assert!(cache.memory_bytes() <= 100_000 && cache.rows() > 2500);
        let (mut row, mut found) = ([0; 24], 0);
        for key in 0..10_000 {
            assert!(!cache.get(key, &mut row));
            cache.put(key, &row_of(key));
            assert!(cache.get(key, &mut row));
            assert_eq!(row, row_of(key));
        }
        for key in 0..10_000 {
            if cache.get(key, &mut row) {
                assert_eq!(row, row_of(key));
                found += 1;
            }
        }
        assert!(found > 2000 && found <= cache.rows(), "{found} of {}", cache.rows());
    }

    #[test]
    fn what_is_used_stays() {
        let cache = RowCache::new(24, 1 << 20, 20_000).unwrap();
        let mut row = [0; 24];
        cache.put(7, &row_of(7));
        for key in 1000..20_000 {
            assert!(cache.get(7, &mut row), "before {key}");
            cache.put(key, &row_of(key));
        }
    }

    #[test]
    fn a_small_table_takes_no_more_than_its_rows_need_and_no_memory_makes_no_cache() {
        let cache = RowCache::new(100, 10, 1 << 30).unwrap();
        assert!(cache.rows() >= 10 && cache.memory_bytes() < 4000);
        assert!(RowCache::new(100, 10, 500).is_none());
    }
}
