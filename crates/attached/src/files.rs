//! The files of a table, as they were when they were attached.

use crate::rows::Rows;
use embedrock_core::config::IoChoice;
use embedrock_core::error::{Error, ErrorKind, Result};
use embedrock_core::io::{DirectoryMedium, File, Medium, OpenMode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::{Metadata, canonicalize};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A file is looked at again after so long.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(50);

/// A file, and its last bytes: those behind the last whole block, which no aligned request may ask
/// for.
struct Source {
    path: PathBuf,
    file: Arc<dyn File>,
    stamp: Stamp,
    tail_begin: u64,
    tail: Vec<u8>,
}

/// What tells that a file has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self { bytes: metadata.len(), changed: (metadata.mtime(), metadata.mtime_nsec()) }
    }
}

/// The files of all parts; parts of one file share it.
pub(crate) struct Files {
    /// The folder of the files, as a medium; of several the first one's makes the queues.
    media: Vec<Arc<DirectoryMedium>>,
    sources: Vec<Source>,
    /// The source of each part.
    of_part: Vec<usize>,
    looked_at: Mutex<Instant>,
}

impl Files {
    pub(crate) fn open(rows: &Rows, io: IoChoice) -> Result<Self> {
        let mut media: BTreeMap<PathBuf, Arc<DirectoryMedium>> = BTreeMap::new();
        let mut found: BTreeMap<PathBuf, usize> = BTreeMap::new();
        let (mut paths, mut of_part) = (Vec::new(), Vec::new());
        for part in rows.parts() {
            // The file itself: one of a cache of checkpoints is a link to it.
            let path = canonicalize(&part.path).map_err(|source| missing(&part.path, source))?;
            let (folder, name) = match (path.parent(), path.file_name().and_then(|n| n.to_str())) {
                (Some(folder), Some(name)) => (folder.to_owned(), name.to_owned()),
                _ => return Err(misuse(format!("{} is no file", part.path.display()))),
            };
            if !media.contains_key(&folder) {
                let medium = DirectoryMedium::open_to_read(&folder, io)?;
                media.insert(folder.clone(), Arc::new(medium));
            }
            let number = *found.entry(path.clone()).or_insert_with(|| {
                paths.push((path.clone(), folder, name));
                paths.len() - 1
            });
            of_part.push(number);
        }
        let alignment = media.values().map(|m| m.alignment()).max().expect("there is a part");
        let opened = paths.into_iter().map(|(path, folder, name)| {
            let file = media[&folder].open(&name, OpenMode::ReadOnly)?;
            Source::new(path, file, alignment as u64)
        });
        let sources = opened.collect::<Result<Vec<Source>>>()?;
        for (part, number) in rows.parts().iter().zip(&of_part) {
            let (has, end) = (sources[*number].stamp.bytes, part.end(rows.row_bytes()));
            if end.is_none_or(|end| end > has) {
                return Err(misuse(format!(
                    "{} has {has} bytes, {} rows of {} bytes from {} on, {} bytes apart, end at \
                     {}; the file is cut short, or this is not its layout",
                    part.path.display(),
                    part.rows,
                    rows.row_bytes(),
                    part.offset,
                    part.stride,
                    end.unwrap_or(u64::MAX)
                )));
            }
        }
        let media = media.into_values().collect();
        Ok(Self { media, sources, of_part, looked_at: Mutex::new(Instant::now()) })
    }

    /// The medium that makes queues.
    pub(crate) fn medium(&self) -> &DirectoryMedium {
        &self.media[0]
    }

    /// Alignment in bytes of requests.
    pub(crate) fn alignment(&self) -> usize {
        self.media.iter().map(|medium| medium.alignment()).max().expect("there is one")
    }

    pub(crate) fn direct(&self) -> bool {
        self.media.iter().all(|medium| medium.direct())
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.media.iter().flat_map(|medium| medium.notes()).collect();
        notes.sort_unstable();
        notes.dedup();
        notes
    }

    pub(crate) fn of_part(&self, part: usize) -> &Arc<dyn File> {
        &self.sources[self.of_part[part]].file
    }

    /// The place from which on requests must not read the file of a part, and its bytes there.
    pub(crate) fn tail_of_part(&self, part: usize) -> (u64, &[u8]) {
        let source = &self.sources[self.of_part[part]];
        (source.tail_begin, &source.tail)
    }

    /// Fails if a file has other bytes or another time of change than when it was attached; from
    /// then on always.
    pub(crate) fn check(&self) -> Result<()> {
        let mut looked_at = self.looked_at.lock();
        if looked_at.elapsed() >= LOOKED_AT_EVERY {
            self.sources.iter().try_for_each(Source::check)?;
            // Not after a failure: the next call looks again.
            *looked_at = Instant::now();
        }
        Ok(())
    }
}

impl Source {
    fn new(path: PathBuf, file: Arc<dyn File>, alignment: u64) -> Result<Self> {
        let stamp = Stamp::of(&metadata_of(&path, &file)?);
        let tail_begin = stamp.bytes - stamp.bytes % alignment;
        let mut tail = vec![0; (stamp.bytes - tail_begin) as usize];
        file.read_at(&mut tail, tail_begin)?;
        let source = Self { path, file, stamp, tail_begin, tail };
        source.check()?;
        Ok(source)
    }

    fn check(&self) -> Result<()> {
        let now = Stamp::of(&metadata_of(&self.path, &self.file)?);
        if now == self.stamp {
            return Ok(());
        }
        let message = format!(
            "{} has changed since it was attached: {} bytes, changed at {}.{:09}; now {} bytes, \
             changed at {}.{:09}; attach it again",
            self.path.display(),
            self.stamp.bytes,
            self.stamp.changed.0,
            self.stamp.changed.1,
            now.bytes,
            now.changed.0,
            now.changed.1
        );
        Err(Error::new(ErrorKind::Mismatch, message))
    }
}

fn metadata_of(path: &Path, file: &Arc<dyn File>) -> Result<Metadata> {
    let file = file.direct_file().expect("a file of a directory");
    file.metadata().map_err(|source| Error::os(format!("stat {}", path.display()), source))
}

fn misuse(message: String) -> Error {
    Error::new(ErrorKind::Misuse, message)
}

fn missing(path: &Path, source: std::io::Error) -> Error {
    match source.kind() {
        std::io::ErrorKind::NotFound => {
            Error::new(ErrorKind::NotFound, format!("there is no file {}", path.display()))
        }
        _ => Error::os(format!("open {}", path.display()), source),
    }
}
