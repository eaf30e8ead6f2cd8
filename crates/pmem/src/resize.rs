//! A region of another capacity with the same rows, made while nobody uses the old one.

use crate::error::{Error, Result};
use crate::map::Mapped;
use crate::medium::{Durability, Medium};
use crate::region::Geometry;
use crate::rows::{Rows, sync_folder};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Copies the rows of the region `from` into a new region `to` for `capacity` rows, and returns how
/// many there are. Rows are verified. `to` gets its name once it is durable and whole; what a crash
/// leaves, `<to>.unfinished`, may be deleted. `from` stays as it is.
///
/// # Errors
/// `Misuse` where `to` exists, or what a crash has left of it; `Full` where there are more rows;
/// `Corrupt` where one is damaged, or its place in the index; `Locked`; `Io`.
pub fn resize(from: &Path, to: &Path, capacity: u64) -> Result<u64> {
    resize_with(from, to, capacity, |_, _| Ok::<(), Error>(()))
}

/// As [`resize`]; `progress(done, all)` is told of buckets of the old region and may end it, which
/// leaves nothing of the new one.
///
/// # Errors
/// As `resize`, and what `progress` returns.
pub fn resize_with<E: From<Error>>(
    from: &Path,
    to: &Path,
    capacity: u64,
    progress: impl FnMut(u64, u64) -> std::result::Result<(), E>,
) -> std::result::Result<u64, E> {
    let source = Rows::open_to_read(from)?;
    if to.exists() {
        Err(Error::misuse(format!("{} exists; choose another name", to.display())))?;
    }
    let unfinished = PathBuf::from(format!("{}.unfinished", to.display()));
    if unfinished.exists() {
        Err(Error::misuse(format!(
            "{} exists: a resize to {} was cut off; delete it and resize again",
            unfinished.display(),
            to.display()
        )))?;
    }
    let geometry = Geometry::new(capacity, source.geometry().row_bytes)?;
    let medium = Mapped::create(&unfinished, geometry.bytes())?;
    let copied = copy(&source, Deferred(medium), geometry, progress).and_then(|rows| {
        std::fs::rename(&unfinished, to)
            .map_err(|error| Error::io(format!("cannot make {}", to.display()), error))?;
        sync_folder(to)?;
        Ok(rows)
    });
    if copied.is_err() {
        // The caller gets the earlier error.
        let _ = std::fs::remove_file(&unfinished);
    }
    copied
}

fn copy<E: From<Error>>(
    source: &Rows<Mapped>,
    medium: Deferred,
    geometry: Geometry,
    mut progress: impl FnMut(u64, u64) -> std::result::Result<(), E>,
) -> std::result::Result<u64, E> {
    const BUCKETS_PER_REPORT: u64 = 4096;
    let target = Rows::format(medium, geometry)?;
    if let Some(owner) = source.owner()? {
        target.bind(owner)?;
    }
    target.set_mark(source.mark()?)?;
    let mut count = 0;
    let together = Geometry::put_rows(geometry.row_bytes);
    let mut keys = Vec::with_capacity(together);
    let mut rows = vec![0; together * geometry.row_bytes];
    let mut found = vec![false; together];
    let mut put = |keys: &mut Vec<u64>| {
        let rows = &mut rows[..keys.len() * geometry.row_bytes];
        source.get(keys, rows, &mut found[..keys.len()])?;
        if let Some(at) = found[..keys.len()].iter().position(|found| !found) {
            let name = source.medium().name();
            return Err(Error::corrupt(format!("{name}: row of key {} is not found", keys[at])));
        }
        count += keys.len() as u64;
        target.put(keys, rows)?;
        keys.clear();
        Ok::<(), Error>(())
    };
    let buckets = source.buckets();
    for bucket in 0..buckets {
        if bucket % BUCKETS_PER_REPORT == 0 {
            progress(bucket, buckets)?;
        }
        for key in source.keys_of_bucket(bucket) {
            keys.push(key?);
            if keys.len() == together {
                put(&mut keys)?;
            }
        }
    }
    put(&mut keys)?;
    target.end(count)?;
    target.medium().finish()?;
    progress(buckets, buckets)?;
    Ok(count)
}

/// A medium that nobody reopens before it is durable as a whole: single writes need not be.
struct Deferred(Mapped);

impl Deferred {
    fn finish(&self) -> Result<()> {
        self.0.flush(0..self.0.words());
        self.0.fence()
    }
}

impl Medium for Deferred {
    fn words(&self) -> usize {
        self.0.words()
    }

    fn load(&self, word: usize) -> u64 {
        self.0.load(word)
    }

    fn store(&self, word: usize, value: u64) {
        self.0.store(word, value);
    }

    fn exchange(&self, word: usize, current: u64, new: u64) -> bool {
        self.0.exchange(word, current, new)
    }

    fn flush(&self, _words: Range<usize>) {}

    fn fence(&self) -> Result<()> {
        Ok(())
    }

    fn durability(&self) -> Durability {
        Durability::Process
    }

    fn prefetch(&self, word: usize) {
        self.0.prefetch(word);
    }

    fn name(&self) -> String {
        self.0.name()
    }
}
