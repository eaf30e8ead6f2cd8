//! Readers side by side: a sorted batch is cut into pieces of neighbouring keys, and each thread
//! reads one piece after another. Stores that read one block at a time per thread need it to keep
//! a device busy. With one reader there are no threads at all.
//!
//! At most one batch is in work, and so many of its pieces that every reader has some.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::error::{Error, Result};
use crate::sorted::Sorted;

/// Pieces that wait or are read, for each reader.
const PIECES_PER_READER: usize = 8;

/// Reads rows of keys that are in order.
pub(crate) trait Reader {
    /// Reads the row of each key into `rows`; one that is missing becomes NaN.
    fn read(&mut self, keys: &[u64], rows: &mut [f32]) -> Result<()>;
}

/// Neighbouring keys of a batch, and their rows once they are read.
pub(crate) struct Piece {
    first: usize,
    keys: Vec<u64>,
    rows: Vec<f32>,
}

/// One reader, or several on threads of their own.
pub(crate) enum Crew<R> {
    Alone { reader: R, sorted_rows: Vec<f32> },
    Threads(Threads),
}

/// Threads that read; dropping this waits until they have ended, and with them their readers.
pub(crate) struct Threads {
    /// None once no more work will come.
    work: Option<Sender<Piece>>,
    done: Receiver<(Piece, Result<()>)>,
    idle: Vec<Piece>,
    piece_keys: usize,
    handles: Vec<JoinHandle<()>>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.work = None;
        for handle in self.handles.drain(..) {
            // A reader that panicked said so on standard error.
            let _ = handle.join();
        }
    }
}

impl<R: Reader + Send + 'static> Crew<R> {
    /// A crew of `readers`; several of them read pieces of `piece_keys` keys.
    pub(crate) fn new(mut readers: Vec<R>, piece_keys: usize) -> Result<Self> {
        if readers.len() <= 1 {
            let reader = readers.pop().ok_or_else(|| Error::new("threads: 0, expected above 0"))?;
            return Ok(Self::Alone { reader, sorted_rows: Vec::new() });
        }
        if piece_keys == 0 {
            return Err(Error::new("piece_keys: 0, expected above 0"));
        }
        let (work, pieces) = channel::<Piece>();
        let (finished, done) = channel();
        let pieces = Arc::new(Mutex::new(pieces));
        let spawn = |mut reader: R| {
            let (pieces, finished) = (Arc::clone(&pieces), finished.clone());
            thread::spawn(move || {
                // The guard is dropped before the piece is read.
                let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok(mut piece) = next() {
                    let read = reader.read(&piece.keys, &mut piece.rows);
                    if finished.send((piece, read)).is_err() {
                        return;
                    }
                }
            })
        };
        let handles = readers.into_iter().map(spawn).collect();
        Ok(Self::Threads(Threads { work: Some(work), done, idle: Vec::new(), piece_keys, handles }))
    }

    /// Reads the rows of a batch, each of `words` words, to where they belong in `rows`.
    pub(crate) fn get(&mut self, sorted: &Sorted, words: usize, rows: &mut [f32]) -> Result<()> {
        match self {
            Self::Alone { reader, sorted_rows } => {
                sorted_rows.resize(rows.len(), 0.0);
                reader.read(sorted.keys(), sorted_rows)?;
                sorted.scatter(words, 0, sorted_rows, rows);
                Ok(())
            }
            Self::Threads(threads) => threads.get(sorted, words, rows),
        }
    }
}

impl Threads {
    fn get(&mut self, sorted: &Sorted, words: usize, rows: &mut [f32]) -> Result<()> {
        let ended = || Error::new("all readers ended");
        let work = self.work.as_ref().ok_or_else(ended)?;
        let most = PIECES_PER_READER * self.handles.len();
        let (mut under_way, mut outcome) = (0, Ok(()));
        let mut parts = sorted.keys().chunks(self.piece_keys).enumerate();
        loop {
            if under_way < most
                && let Some((index, part)) = parts.next()
            {
                let mut piece = self.idle.pop().unwrap_or_else(Piece::empty);
                piece.set(index * self.piece_keys, part, words);
                work.send(piece).map_err(|_| ended())?;
                under_way += 1;
                continue;
            }
            if under_way == 0 {
                return outcome;
            }
            let (piece, read) = self.done.recv().map_err(|_| ended())?;
            sorted.scatter(words, piece.first, &piece.rows, rows);
            self.idle.push(piece);
            outcome = outcome.and(read);
            under_way -= 1;
        }
    }
}

impl Piece {
    fn empty() -> Self {
        Self { first: 0, keys: Vec::new(), rows: Vec::new() }
    }

    fn set(&mut self, first: usize, keys: &[u64], words: usize) {
        self.first = first;
        self.keys.clear();
        self.keys.extend_from_slice(keys);
        self.rows.resize(keys.len() * words, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    impl Reader for Echo {
        fn read(&mut self, keys: &[u64], rows: &mut [f32]) -> Result<()> {
            for (key, row) in keys.iter().zip(rows.chunks_exact_mut(2)) {
                row.copy_from_slice(&[*key as f32, -(*key as f32)]);
            }
            if keys.contains(&999) { Err(Error::new("999")) } else { Ok(()) }
        }
    }

    #[test]
    fn rows_come_back_in_the_order_of_the_batch() {
        for threads in [1, 3] {
            let readers = (0..threads).map(|_| Echo).collect();
            let mut crew = Crew::new(readers, 4).unwrap();
            let mut sorted = Sorted::default();
            for count in [0, 1, 4, 37, 101, 9] {
                let keys: Vec<u64> = (0..count).map(|index| (index * 29 + count) % 101).collect();
                sorted.set(&keys);
                let mut rows = vec![0.0; 2 * keys.len()];
                crew.get(&sorted, 2, &mut rows).unwrap();
                let expected: Vec<f32> =
                    keys.iter().flat_map(|&key| [key as f32, -(key as f32)]).collect();
                assert_eq!(rows, expected);
            }
        }
    }

    #[test]
    fn an_error_of_one_reader_is_the_error_of_the_batch() {
        let mut crew = Crew::new(vec![Echo, Echo], 1).unwrap();
        let mut sorted = Sorted::default();
        sorted.set(&[1, 999, 2]);
        assert!(crew.get(&sorted, 2, &mut [0.0; 6]).is_err());
        sorted.set(&[1, 2]);
        assert!(crew.get(&sorted, 2, &mut [0.0; 4]).is_ok());
    }
}
