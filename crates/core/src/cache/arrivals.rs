//! Notes of the rows that arrive while they are wanted: a reader that is about to move to another
//! commit drops the rows that changed, and those that came again in the meantime.

use super::Cache;
use parking_lot::Mutex;
use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering};

/// Arrivals that are remembered at most: 32 MB.
const MOST: usize = 2 << 20;

/// Rows that came, by table and key.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    is_noted: AtomicBool,
    /// Taken under the lock of a set.
    rows: Mutex<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    came: Vec<(u16, u64)>,
    /// More came than are remembered.
    is_full: bool,
}

impl Cache {
    /// Notes from now on which rows come: of a row that is looked for later than this and is not
    /// resident, or is removed, it is known when it comes.
    pub fn note_arrivals(&self) {
        *self.arrivals.rows.lock() = Rows::default();
        // The lock of a set orders this with the notes of arrivals.
        self.arrivals.is_noted.store(true, Ordering::Relaxed);
    }

    /// Whether arrivals are noted, and all of them are remembered.
    pub fn knows_arrivals(&self) -> bool {
        self.arrivals.is_noted.load(Ordering::Relaxed) && !self.arrivals.rows.lock().is_full
    }

    /// The rows that came since the last call, by table and key, some of them twice.
    pub fn take_arrivals(&self) -> Vec<(u16, u64)> {
        take(&mut self.arrivals.rows.lock().came)
    }

    /// Arrivals are not wanted any more.
    pub fn forget_arrivals(&self) {
        self.arrivals.is_noted.store(false, Ordering::Relaxed);
        *self.arrivals.rows.lock() = Rows::default();
    }

    /// Notes a row that has come; its set is locked.
    #[inline(always)]
    pub(super) fn note_arrival(&self, table: u16, key: u64) {
        if self.arrivals.is_noted.load(Ordering::Relaxed) {
            self.arrivals.note(table, key);
        }
    }
}

impl Arrivals {
    #[cold]
    fn note(&self, table: u16, key: u64) {
        let mut rows = self.rows.lock();
        if rows.came.len() < MOST {
            rows.came.push((table, key));
        } else {
            rows.is_full = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CacheShape, PolicyKind};
    use super::*;

    #[test]
    fn rows_that_come_are_noted_while_they_are_wanted() {
        let policy = PolicyKind::Lru;
        let shape = CacheShape { row_bytes: 4, sets: 2, ways: 4, policy, headers: true };
        let cache = Cache::new(shape).unwrap();
        let admit = |key: u64| {
            let at = cache.locate_hashed(key << 40);
            cache.admit(at, 0, key, 0, |row, _| row.words.fill(0.5), |_| ());
        };
        admit(1);
        assert!(!cache.knows_arrivals());
        cache.note_arrivals();
        (1..4).for_each(admit);
        assert!(cache.knows_arrivals());
        assert_eq!(cache.take_arrivals(), [(0, 2), (0, 3)]);
        assert_eq!(cache.take_arrivals(), []);
        (0..=MOST as u64).for_each(|key| admit(10 + key));
        assert!(!cache.knows_arrivals());
        cache.forget_arrivals();
        admit(5);
        assert_eq!(cache.take_arrivals(), []);
    }
}
