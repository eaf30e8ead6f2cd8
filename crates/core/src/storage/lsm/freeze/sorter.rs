//! Puts rows that come in any order into the order of their places, in bounded memory.
//!
//! Places are cut into buckets that fit into memory. Rows wait in the buffer of their bucket; where
//! all buffers together take too much, the longest goes to a file. Then bucket after bucket is read
//! back and sorted. So each byte is written and read once more, in long requests.

use crate::error::{Result, bail};
use crate::io::{File, Medium, OpenMode};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Words before those of a row: its place, its key, its table.
const HEAD_WORDS: usize = 5;
/// Room on disk is taken for so many bytes at once.
const AHEAD_BYTES: u64 = 16 << 20;

/// A row with its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Placed<'a> {
    pub(super) place: u64,
    pub(super) table: u16,
    pub(super) key: u64,
    pub(super) words: &'a [f32],
}

/// Rows of a range of places.
#[derive(Debug, Default)]
struct Bucket {
    buffer: Vec<u32>,
    /// The ranges of the file that have the others.
    written: Vec<Range<u64>>,
}

/// Rows that wait to be put in order.
#[derive(Debug)]
pub(super) struct Sorter {
    medium: Arc<dyn Medium>,
    name: String,
    record_words: usize,
    places_per_bucket: u64,
    /// By their places, which may lie far apart.
    buckets: BTreeMap<u64, Bucket>,
    /// Bytes of all buffers, and how many there may be.
    waiting: usize,
    most: usize,
    file: Option<Arc<dyn File>>,
    file_bytes: u64,
    allocated: u64,
}

impl Sorter {
    /// For rows of `row_words` words, in about `memory` bytes; what has no room goes to the file
    /// `name`, which must not exist.
    pub(super) fn new(
        medium: Arc<dyn Medium>,
        name: String,
        row_words: usize,
        memory: usize,
    ) -> Self {
        let record_words = HEAD_WORDS + row_words;
        // A bucket is read beside the buffers, and its order takes a word for each row.
        let most = (memory / 2).max(64 << 10);
        let places_per_bucket = (most / (4 * record_words + 4)).max(1) as u64;
        Self {
            medium,
            name,
            record_words,
            places_per_bucket,
            buckets: BTreeMap::new(),
            waiting: 0,
            most,
            file: None,
            file_bytes: 0,
            allocated: 0,
        }
    }

    /// Adds a row. `Full` where there is no room on disk.
    pub(super) fn push(&mut self, row: Placed<'_>) -> Result<()> {
        let bucket = self.buckets.entry(row.place / self.places_per_bucket).or_default();
        let words = |value: u64| [value as u32, (value >> 32) as u32];
        let buffer = &mut bucket.buffer;
        buffer.extend_from_slice(&words(row.place));
        buffer.extend_from_slice(&words(row.key));
        buffer.push(u32::from(row.table));
        buffer.extend_from_slice(bytemuck::cast_slice(row.words));
        self.waiting += 4 * self.record_words;
        if self.waiting > self.most { self.write_longest() } else { Ok(()) }
    }

    fn write_longest(&mut self) -> Result<()> {
        let longest = self.buckets.values_mut().max_by_key(|bucket| bucket.buffer.len());
        let Some(bucket) = longest else { return Ok(()) };
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(self.medium.open(&self.name, OpenMode::CreateNew)?),
        };
        let bytes: &[u8] = bytemuck::cast_slice(&bucket.buffer);
        let (begin, end) = (self.file_bytes, self.file_bytes + bytes.len() as u64);
        if end > self.allocated {
            let more = (end - self.allocated).max(AHEAD_BYTES);
            match file.allocate(self.allocated, more) {
                Ok(()) => self.allocated += more,
                Err(_) => {
                    file.allocate(self.allocated, end - self.allocated)?;
                    self.allocated = end;
                }
            }
        }
        file.write_at(bytes, begin)?;
        self.file_bytes = end;
        self.waiting -= bytes.len();
        bucket.written.push(begin..end);
        bucket.buffer = Vec::new();
        Ok(())
    }

    /// The rows of the next bucket that has any, in the order of their places; `None` at the end.
    /// Each bucket is given out once.
    pub(super) fn next(&mut self) -> Result<Option<Sorted>> {
        while let Some((_, Bucket { buffer, written })) = self.buckets.pop_first() {
            self.waiting -= 4 * buffer.len();
            let in_file: u64 = written.iter().map(|range| range.end - range.start).sum();
            let mut words = vec![0u32; in_file as usize / 4];
            let mut at = 0;
            for range in written {
                let Some(file) = &self.file else {
                    bail!(Corrupt, "{} is lost, which has rows of a freeze", self.name);
                };
                let bytes = (range.end - range.start) as usize;
                let part: &mut [u8] = bytemuck::cast_slice_mut(&mut words[at / 4..][..bytes / 4]);
                file.read_at(part, range.start)?;
                at += bytes;
            }
            if words.is_empty() {
                words = buffer;
            } else {
                words.extend_from_slice(&buffer);
            }
            if !words.is_empty() {
                return Ok(Some(Sorted::new(words, self.record_words)));
            }
        }
        Ok(None)
    }

    /// Removes the file, if there is one.
    pub(super) fn remove(self) -> Result<()> {
        match self.file {
            Some(_) => self.medium.remove(&self.name),
            None => Ok(()),
        }
    }
}

/// Rows of a bucket in order.
#[derive(Debug)]
pub(super) struct Sorted {
    words: Vec<u32>,
    record_words: usize,
    order: Vec<u32>,
}

impl Sorted {
    fn new(words: Vec<u32>, record_words: usize) -> Self {
        let mut order: Vec<u32> = (0..(words.len() / record_words) as u32).collect();
        order.sort_unstable_by_key(|at| place_of(&words[*at as usize * record_words..]));
        Self { words, record_words, order }
    }

    /// The rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = Placed<'_>> {
        self.order.iter().map(|at| {
            let record = &self.words[*at as usize * self.record_words..][..self.record_words];
            Placed {
                place: place_of(record),
                key: u64::from(record[2]) | u64::from(record[3]) << 32,
                table: record[4] as u16,
                words: bytemuck::cast_slice(&record[HEAD_WORDS..]),
            }
        })
    }
}

fn place_of(record: &[u32]) -> u64 {
    u64::from(record[0]) | u64::from(record[1]) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::mix;
    use crate::io::SimMedium;

    fn sorted(medium: &Arc<dyn Medium>, rows: u64, memory: usize) -> (Vec<u64>, bool) {
        let mut sorter = Sorter::new(Arc::clone(medium), "part-0-freeze".to_owned(), 3, memory);
        for i in 0..rows {
            // Each place once, in no order; every fifth is left out.
            let place = (i * 7919) % rows;
            if !place.is_multiple_of(5) {
                let words = [place as f32, 1.5, f32::NAN];
                let table = (place % 3) as u16;
                let row = Placed { place, table, key: mix(place, 4), words: &words };
                sorter.push(row).unwrap();
            }
        }
        let mut places = Vec::new();
        while let Some(bucket) = sorter.next().unwrap() {
            for row in bucket.rows() {
                assert_eq!(row.key, mix(row.place, 4));
                assert_eq!(row.table, (row.place % 3) as u16);
                assert_eq!(row.words[..2], [row.place as f32, 1.5]);
                assert!(row.words[2].is_nan());
                places.push(row.place);
            }
        }
        let spilled = sorter.file.is_some();
        sorter.remove().unwrap();
        (places, spilled)
    }

    #[test]
    fn rows_come_in_order_of_their_places_from_memory_and_from_the_file() {
        let medium: Arc<dyn Medium> = Arc::new(SimMedium::new(1));
        for (rows, memory, spills) in [(1_000, 1 << 20, false), (30_011, 256 << 10, true)] {
            let (places, spilled) = sorted(&medium, rows, memory);
            let expected: Vec<u64> = (0..rows).filter(|place| place % 5 != 0).collect();
            assert_eq!(places, expected, "{rows} rows");
            assert_eq!(spilled, spills, "{rows} rows");
            assert!(medium.list("").unwrap().is_empty());
        }
    }

    #[test]
    fn a_full_device_is_told() {
        let sim = SimMedium::new(2);
        sim.set_capacity(Some(100 << 10));
        let medium: Arc<dyn Medium> = Arc::new(sim);
        let mut sorter = Sorter::new(Arc::clone(&medium), "part-0-freeze".to_owned(), 3, 1 << 17);
        let push = |sorter: &mut Sorter, place| {
            sorter.push(Placed { place, table: 0, key: place, words: &[0.0; 3] })
        };
        let failed = (0..100_000).find_map(|place| push(&mut sorter, place).err());
        assert_eq!(failed.map(|error| error.kind()), Some(crate::error::ErrorKind::Full));
        sorter.remove().unwrap();
        assert!(medium.list("").unwrap().is_empty());
    }
}
