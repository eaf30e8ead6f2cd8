//! The batches of a run: distinct keys, read from two raw little-endian files and checked whole,
//! so that the engines never meet a key that is out of range or twice in a batch.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::error::{Doing, Error, Result};
use crate::settings::TraceFiles;
use crate::sys;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 1 << 16;

/// Keys of all batches, one after another, and where each batch begins.
#[derive(Debug)]
pub(crate) struct Trace {
    values: Vec<u64>,
    offsets: Vec<usize>,
}

impl Trace {
    /// Reads the first `batches` batches (0: all of them) for a table of `seen.len()` rows. `seen`
    /// is scratch memory, one word per row, whose content is lost.
    pub(crate) fn load(files: &TraceFiles, batches: usize, seen: &mut [u32]) -> Result<Self> {
        let mut offsets = read_words(&files.offsets, usize::MAX)?;
        if offsets.len() < 2 {
            let (count, path) = (offsets.len(), files.offsets.display());
            return Err(Error::new(format!(
                "trace {path} has {count} offsets and so no batch, expected at least 2"
            )));
        }
        if batches > 0 {
            offsets.truncate(batches.saturating_add(1));
        }
        if let Some(at) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
            let (begin, end) = (offsets[at], offsets[at + 1]);
            return Err(Error::new(format!(
                "trace {}: batch {at} goes from {begin} to {end}, expected offsets in order",
                files.offsets.display()
            )));
        }
        let end = offsets[offsets.len() - 1];
        let values = read_words(&files.values, usize::try_from(end).unwrap_or(usize::MAX))?;
        if end > values.len() as u64 {
            return Err(Error::new(format!(
                "trace {}: its batches end at value {end}, {} has {}",
                files.offsets.display(),
                files.values.display(),
                values.len()
            )));
        }
        let offsets = offsets.into_iter().map(|offset| offset as usize).collect();
        let trace = Self { values, offsets };
        trace.check(seen)?;
        Ok(trace)
    }

    fn check(&self, seen: &mut [u32]) -> Result<()> {
        seen.fill(u32::MAX);
        for batch in 0..self.len() {
            for &key in self.batch(batch) {
                let Some(last) = usize::try_from(key).ok().and_then(|key| seen.get_mut(key)) else {
                    let rows = seen.len();
                    return Err(Error::new(format!(
                        "trace: batch {batch} has key {key}, expected keys below {rows}"
                    )));
                };
                if *last == batch as u32 {
                    return Err(Error::new(format!(
                        "trace: batch {batch} has key {key} twice, expected distinct keys"
                    )));
                }
                *last = batch as u32;
            }
        }
        Ok(())
    }

    /// A trace of these batches.
    #[cfg(test)]
    pub(crate) fn of(batches: Vec<Vec<u64>>) -> Self {
        let mut offsets = vec![0];
        let ends = batches.iter().scan(0, |end, batch| {
            *end += batch.len();
            Some(*end)
        });
        offsets.extend(ends);
        Self { values: batches.concat(), offsets }
    }

    /// Number of batches.
    pub(crate) fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    pub(crate) fn batch(&self, index: usize) -> &[u64] {
        &self.values[self.offsets[index]..self.offsets[index + 1]]
    }

    /// Keys of the largest batch.
    pub(crate) fn keys_max(&self) -> usize {
        self.offsets.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }
}

/// The first words of a file of 8-byte little-endian integers, at most `words_max`. A negative
/// integer becomes one that is out of every range.
fn read_words(path: &Path, words_max: usize) -> Result<Vec<u64>> {
    let doing = || format!("trace {}", path.display());
    let mut file = File::open(path).doing(doing)?;
    let bytes = file.metadata().doing(doing)?.len();
    if bytes % 8 != 0 {
        let path = path.display();
        return Err(Error::new(format!(
            "trace {path} has {bytes} bytes, expected whole words of 8"
        )));
    }
    let mut left = words_max.min((bytes / 8) as usize);
    let mut words = Vec::with_capacity(left);
    let mut piece = vec![0; PIECE_BYTES];
    while left > 0 {
        let part = &mut piece[..PIECE_BYTES.min(8 * left)];
        match file.read_exact(part) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            other => other.doing(doing)?,
        }
        let (whole, _) = part.as_chunks::<8>();
        words.extend(whole.iter().map(|word| u64::from_le_bytes(*word)));
        left -= whole.len();
    }
    // Pages that this read into the page cache would be memory for a store that lives there.
    sys::forget_file(&file);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(values: &[u64], offsets: &[i64], batches: usize) -> Result<Trace> {
        let place = tempfile::tempdir().unwrap();
        let files = TraceFiles {
            values: place.path().join("values"),
            offsets: place.path().join("offsets"),
        };
        let bytes: Vec<u8> = values.iter().flat_map(|word| word.to_le_bytes()).collect();
        std::fs::write(&files.values, bytes).unwrap();
        let bytes: Vec<u8> = offsets.iter().flat_map(|word| word.to_le_bytes()).collect();
        std::fs::write(&files.offsets, bytes).unwrap();
        Trace::load(&files, batches, &mut [0; 10])
    }

    fn error(values: &[u64], offsets: &[i64]) -> String {
        load(values, offsets, 0).unwrap_err().to_string()
    }

    #[test]
    fn batches_are_what_the_offsets_say() {
        let trace = load(&[1, 2, 3, 1, 9], &[0, 3, 3, 5], 0).unwrap();
        assert_eq!((trace.len(), trace.keys_max()), (3, 3));
        assert_eq!(trace.batch(0), [1, 2, 3]);
        assert!(trace.batch(1).is_empty());
        assert_eq!(trace.batch(2), [1, 9]);
    }

    #[test]
    fn only_the_batches_asked_for_are_read() {
        let trace = load(&[1, 2, 3, 99], &[0, 1, 3, 4], 2).unwrap();
        assert_eq!(trace.len(), 2);
        assert_eq!(load(&[1], &[0, 1], 5).unwrap().len(), 1);
    }

    #[test]
    fn what_is_wrong_with_a_trace_is_named() {
        assert!(error(&[], &[0]).contains("no batch"));
        assert!(error(&[], &[]).contains("no batch"));
        assert!(error(&[1, 2], &[0, 2, 1]).contains("batch 1 goes from 2 to 1"));
        assert!(error(&[1, 2], &[0, 3]).contains("end at value 3"));
        assert!(error(&[1, 10], &[0, 2]).contains("key 10, expected keys below 10"));
        assert!(error(&[1, 4, 4], &[0, 1, 3]).contains("batch 1 has key 4 twice"));
        assert!(error(&[1, 2], &[-1, 2]).contains("expected offsets in order"));
    }
}
