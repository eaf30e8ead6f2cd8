//! Hot sets that clients have sent, and the thread that makes their rows fast.
//!
//! Clients count the keys they ask for and send the most frequent ones, so that the threads that
//! serve need not count. A set waits until the thread comes to it: of each table the newest alone,
//! and of all tables no more keys than `WAITING_MAX`. Dropped keys come again, with the next set.

use crate::shared::Shared;
use embedrock_core::{ErrorKind, Result, TableId};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// Keys that wait, of all tables together: 8 MiB of them.
const WAITING_MAX: usize = 1 << 20;
/// Keys of a set. A server that stops waits for so many reads.
pub(crate) const KEYS_MAX: usize = 1 << 16;
/// Keys between two looks whether the server stops.
const AT_ONCE: usize = 1024;

/// Sets that wait.
#[derive(Default)]
pub(crate) struct HotSets {
    waiting: Mutex<Waiting>,
    came: Condvar,
}

/// Guards itself alone.
#[derive(Default)]
struct Waiting {
    sets: VecDeque<(TableId, Vec<u64>)>,
    keys: usize,
    is_over: bool,
}

impl HotSets {
    /// Has a set wait in the place of the one before, of the same table. False where there is no
    /// room for so many keys.
    pub(crate) fn send(&self, table: TableId, keys: &[u64]) -> bool {
        let mut waiting = self.waiting.lock();
        if let Some(at) = waiting.sets.iter().position(|(other, _)| *other == table)
            && let Some((_, old)) = waiting.sets.remove(at)
        {
            waiting.keys -= old.len();
        }
        let has_room = waiting.keys + keys.len() <= WAITING_MAX;
        if has_room && !keys.is_empty() {
            waiting.keys += keys.len();
            waiting.sets.push_back((table, keys.to_vec()));
            self.came.notify_one();
        }
        has_room
    }

    /// No more sets are taken, and what waits is dropped.
    pub(crate) fn end(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_over = true;
        self.came.notify_all();
    }

    fn is_over(&self) -> bool {
        self.waiting.lock().is_over
    }

    /// The next set, when there is one; `None` at the end.
    fn take(&self) -> Option<(TableId, Vec<u64>)> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.is_over {
                return None;
            }
            if let Some((table, keys)) = waiting.sets.pop_front() {
                waiting.keys -= keys.len();
                return Some((table, keys));
            }
            self.came.wait(&mut waiting);
        }
    }
}

/// Makes rows fast until the server stops.
pub(crate) fn run(shared: &Arc<Shared>) {
    while let Some((table, keys)) = shared.hot.take() {
        let portions = keys.chunks(AT_ONCE).take_while(|_| !shared.hot.is_over());
        match portions.map(|keys| shared.store.promote(table, keys)).sum::<Result<u64>>() {
            Ok(rows) => drop(shared.metrics.rows_promoted.inc_by(rows)),
            // The store has moved to a commit with other tables.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::KeyRange) => {}
            // A client that asks for such a row gets the error.
            Err(_) => drop(shared.metrics.hot_failures.inc()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_table_the_newest_set_waits_and_no_more_keys_than_the_bound() {
        let hot = HotSets::default();
        let table = |number: u16| -> TableId { serde_json::from_value(number.into()).unwrap() };
        assert!(hot.send(table(0), &[1, 2, 3]) && hot.send(table(1), &[4]));
        assert!(hot.send(table(0), &[5]));
        assert_eq!(hot.waiting.lock().keys, 2);
        assert!(!hot.send(table(2), &vec![0; WAITING_MAX]));
        assert!(hot.send(table(2), &vec![0; WAITING_MAX - 2]));
        assert_eq!(hot.take(), Some((table(1), vec![4])));
        assert_eq!(hot.take(), Some((table(0), vec![5])));
        assert_eq!(hot.take().map(|(_, keys)| keys.len()), Some(WAITING_MAX - 2));
        assert_eq!(hot.waiting.lock().keys, 0);
        assert!(hot.send(table(0), &[7]));
        hot.end();
        assert_eq!(hot.take(), None);
    }
}
