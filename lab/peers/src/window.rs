//! Rows of a window of batches, read together before the first of them is used.
//!
//! While a window is used, a thread reads the rows of the next one, each once and in the order of
//! their keys, or of the batches that use them first. A row that both windows have is not read:
//! every change of it is in the buffer of the first, from where it moves when the second begins. So
//! no row is read while it may change.
//!
//! Two buffers are in memory, of as many rows as their windows have distinct keys.
//! *Source*: RecDB's look-ahead window, key sorter and EV buffer (section 4.2).

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::engines::ReadAhead;
use crate::error::{Error, Result};
use crate::settings::Window;
use crate::sorted::Sorted;
use crate::trace::Trace;

/// The rows of a window.
#[derive(Default)]
struct Buffer {
    /// Distinct, in order.
    keys: Vec<u64>,
    rows: Vec<f32>,
    /// Positions of the rows that the window before has.
    shared: Vec<u32>,
}

/// A trace whose rows are read ahead, window by window.
pub(crate) struct Windows {
    words: usize,
    batches: usize,
    /// Windows of the trace.
    count: usize,
    /// None once nothing more will be asked for.
    asks: Option<Sender<usize>>,
    filled: Receiver<Result<Buffer>>,
    thread: Option<JoinHandle<()>>,
    /// The rows of the window at hand, and its number from 1 on.
    buffer: Buffer,
    begun: usize,
    /// The batch at hand, and where its rows are in the buffer, in the order of its keys.
    sorted: Sorted,
    slots: Vec<u32>,
}

impl Windows {
    /// Begins to read the first window, of so many batches as all others.
    pub(crate) fn new(
        trace: &Arc<Trace>,
        window: Window,
        words: usize,
        reader: Box<dyn ReadAhead>,
    ) -> Result<Self> {
        let Window { batches, sorted, .. } = window;
        let (asks, asked) = channel();
        let (fills, filled) = channel();
        let before = Vec::new();
        let mut filler =
            Filler { trace: Arc::clone(trace), batches, words, sorted, reader, before };
        let thread = thread::spawn(move || {
            for window in asked {
                if fills.send(filler.fill(window)).is_err() {
                    return;
                }
            }
        });
        let windows = Self {
            words,
            batches,
            count: trace.len().div_ceil(batches),
            asks: Some(asks),
            filled,
            thread: Some(thread),
            buffer: Buffer::default(),
            begun: 0,
            sorted: Sorted::default(),
            slots: Vec::new(),
        };
        windows.ask(0)?;
        Ok(windows)
    }

    /// Whether this batch is the first of its window.
    pub(crate) fn begins(&self, batch: usize) -> bool {
        batch.is_multiple_of(self.batches)
    }

    /// Waits for the rows of the next window, and asks for those of the one behind it; how long it
    /// waited.
    pub(crate) fn begin(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        let mut next = self.filled.recv().map_err(|_| ended())??;
        let waited = begun.elapsed();
        let mut from = 0;
        for &place in &next.shared {
            from += slot_of(&self.buffer.keys[from..], next.keys[place as usize])?;
            let row = &self.buffer.rows[from * self.words..][..self.words];
            next.rows[place as usize * self.words..][..self.words].copy_from_slice(row);
        }
        self.buffer = next;
        self.begun += 1;
        if self.begun < self.count {
            self.ask(self.begun)?;
        }
        Ok(waited)
    }

    /// Copies the rows of a batch of the window.
    pub(crate) fn get(&mut self, keys: &[u64], rows: &mut [f32]) -> Result<()> {
        self.sorted.set(keys);
        self.slots.clear();
        let mut from = 0;
        for &key in self.sorted.keys() {
            from += slot_of(&self.buffer.keys[from..], key)?;
            self.slots.push(from as u32);
        }
        let (mut slots, words) = (self.slots.iter(), self.words);
        self.sorted.gather(words, rows, |_, row| {
            let slot = slots.next().map_or(0, |slot| *slot as usize);
            row.copy_from_slice(&self.buffer.rows[slot * words..][..words]);
        });
        Ok(())
    }

    /// Takes the rows of the batch that was read last, which have changed.
    pub(crate) fn put(&mut self, rows: &[f32]) {
        for ((_, row), &slot) in self.sorted.rows(self.words, rows).zip(&self.slots) {
            self.buffer.rows[slot as usize * self.words..][..self.words].copy_from_slice(row);
        }
    }

    fn ask(&self, window: usize) -> Result<()> {
        let asks = self.asks.as_ref().ok_or_else(ended)?;
        asks.send(window).map_err(|_| ended())
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked said so on standard error.
            let _ = thread.join();
        }
    }
}

fn ended() -> Error {
    Error::new("the thread that reads ahead ended")
}

/// Index of a key among keys in order.
fn slot_of(keys: &[u64], key: u64) -> Result<usize> {
    let slot = keys.partition_point(|&one| one < key);
    match keys.get(slot) {
        Some(&found) if found == key => Ok(slot),
        _ => Err(Error::new(format!("key {key} is not among those that were read ahead"))),
    }
}

/// Reads windows, one after another.
struct Filler {
    trace: Arc<Trace>,
    batches: usize,
    words: usize,
    sorted: bool,
    reader: Box<dyn ReadAhead>,
    /// Keys of the window before.
    before: Vec<u64>,
}

impl Filler {
    fn fill(&mut self, window: usize) -> Result<Buffer> {
        let end = ((window + 1) * self.batches).min(self.trace.len());
        let mut keys = Vec::new();
        (window * self.batches..end).for_each(|batch| keys.extend(self.trace.batch(batch)));
        keys.sort_unstable();
        keys.dedup();
        keys.shrink_to_fit();
        let (mut fresh, mut shared, mut from) = (vec![], vec![], 0);
        for (place, &key) in keys.iter().enumerate() {
            from += self.before[from..].partition_point(|&one| one < key);
            let is_shared = self.before.get(from) == Some(&key);
            if is_shared { &mut shared } else { &mut fresh }.push(place as u32);
        }
        if !self.sorted {
            self.order_by_use(&keys, window * self.batches..end, &mut fresh);
        }
        self.before.clone_from(&keys);
        let mut sorted = Sorted::default();
        let fresh_keys: Vec<u64> = fresh.iter().map(|&place| keys[place as usize]).collect();
        sorted.set_placed(&fresh_keys, &fresh);
        let mut rows = vec![f32::NAN; keys.len() * self.words];
        self.reader.read(&sorted, &mut rows)?;
        Ok(Buffer { keys, rows, shared })
    }

    /// Brings places among `keys` into the order of the batches that use them first. Those that are
    /// read together are in order.
    fn order_by_use(&self, keys: &[u64], batches: Range<usize>, places: &mut [u32]) {
        let mut first_use = vec![u32::MAX; keys.len()];
        for batch in batches.rev() {
            for key in self.trace.batch(batch) {
                first_use[keys.partition_point(|one| one < key)] = batch as u32;
            }
        }
        places.sort_by_key(|&place| first_use[place as usize]);
        places.chunks_mut(self.reader.piece_keys()).for_each(<[u32]>::sort_unstable);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Rows of one word, the key, and how many were read.
    struct Echo(Arc<AtomicUsize>);

    const PIECE: usize = 2;
    const WINDOW: Window = Window { batches: 2, compute_ns: 0, sorted: true };

    impl ReadAhead for Echo {
        fn piece_keys(&self) -> usize {
            PIECE
        }

        fn read(&mut self, sorted: &Sorted, rows: &mut [f32]) -> Result<()> {
            assert!(sorted.keys().chunks(PIECE).all(<[u64]>::is_sorted));
            self.0.fetch_add(sorted.keys().len(), Ordering::Relaxed);
            sorted.gather(1, rows, |key, row| row[0] = key as f32);
            Ok(())
        }
    }

    fn trace() -> Arc<Trace> {
        Arc::new(Trace::of(vec![vec![5, 1], vec![9, 5], vec![5, 2], vec![], vec![2, 7]]))
    }

    #[test]
    fn rows_are_read_once_and_keep_what_was_put() {
        for sorted in [true, false] {
            let read = Arc::new(AtomicUsize::new(0));
            let trace = trace();
            let reader = Box::new(Echo(Arc::clone(&read)));
            let mut windows = Windows::new(&trace, Window { sorted, ..WINDOW }, 1, reader).unwrap();
            let mut changed = std::collections::HashMap::new();
            for batch in 0..trace.len() {
                if windows.begins(batch) {
                    windows.begin().unwrap();
                }
                let keys = trace.batch(batch);
                let mut rows = vec![0.0; keys.len()];
                windows.get(keys, &mut rows).unwrap();
                for (key, row) in keys.iter().zip(&mut rows) {
                    assert_eq!(*row, changed.get(key).copied().unwrap_or(*key as f32), "{key}");
                    *row += 100.0;
                    changed.insert(*key, *row);
                }
                windows.put(&rows);
            }
            drop(windows);
            // 1, 5, 9 of the first window, 2 of the second, 7 of the third: 5 and 2 were there.
            assert_eq!(read.load(Ordering::Relaxed), 5);
        }
    }

    #[test]
    fn rows_come_in_the_order_of_the_batches_where_they_are_not_sorted() {
        let batches = vec![vec![8, 1], vec![9, 8, 3], vec![2, 1, 0]];
        let filler = Filler {
            trace: Arc::new(Trace::of(batches)),
            batches: 3,
            words: 1,
            sorted: false,
            reader: Box::new(Echo(Arc::default())),
            before: vec![],
        };
        let (keys, mut places) = ([0, 1, 2, 3, 8, 9], [0, 1, 2, 3, 4, 5]);
        filler.order_by_use(&keys, 0..3, &mut places);
        assert_eq!(places.map(|place| keys[place as usize]), [1, 8, 3, 9, 0, 2]);
    }

    #[test]
    fn a_key_of_another_window_is_an_error() {
        let trace = trace();
        let reader = Box::new(Echo(Arc::default()));
        let mut windows = Windows::new(&trace, WINDOW, 1, reader).unwrap();
        windows.begin().unwrap();
        assert!(windows.get(&[7], &mut [0.0]).unwrap_err().to_string().contains("key 7"));
    }
}
