//! Dirty rows on their way to storage: those that wait, and writing them.

use super::ClassLog;
use crate::error::Result;
use crate::storage::DirtyRow;

impl ClassLog {
    /// Rows that wait.
    pub fn parked(&self) -> usize {
        self.buffer.len()
    }

    /// Rows that can still be parked before a flush.
    pub fn room(&self) -> usize {
        self.buffer.free()
    }

    /// Lets a row wait that does not yet. Panics when there is no room: the owner flushes before.
    #[inline]
    pub fn park(&mut self, row: DirtyRow<'_>) {
        self.buffer.push(row);
    }

    /// Whether a row waits.
    #[inline]
    pub fn is_parked(&self, table: u16, key: u64) -> bool {
        self.buffer.find(table, key).is_some()
    }

    /// Takes a waiting row out, because it went back to the cache or its key was deleted; false
    /// where none waits.
    #[inline]
    pub fn unpark(&mut self, table: u16, key: u64) -> bool {
        self.buffer.remove(table, key)
    }

    /// Writes the rows that wait, those dirty for longest first, and says how many they were. `now`
    /// is the newest stamp. May wait for the device.
    pub fn flush(&mut self, now: u32) -> Result<u64> {
        let rows = self.buffer.len() as u64;
        let mut order = std::mem::take(&mut self.order);
        self.buffer.longest_dirty_first(now, &mut order);
        let mut words = std::mem::take(&mut self.scratch);
        for at in &order {
            let row = self.buffer.at(*at);
            words.clear();
            words.extend_from_slice(row.words);
            let DirtyRow { table, key, dirty_since, origin, .. } = row;
            self.append(DirtyRow { table, key, dirty_since, origin, words: &words })?;
        }
        self.buffer.clear();
        self.order = order;
        self.scratch = words;
        Ok(rows)
    }
}
