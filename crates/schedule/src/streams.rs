//! Many streams of bytes in one temporary file: each is written at its end only, and read from its
//! beginning to its end or backwards.
//!
//! A stream is a list of chunks of the file, the last of them in memory. The file has no name: it
//! is gone with the process.

use crate::error::{Doing, Result};
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Of temporary files of this process.
static NAMES: AtomicU64 = AtomicU64::new(0);

/// Streams of a temporary file beside `path`.
#[derive(Debug)]
pub(crate) struct Streams {
    file: File,
    path: PathBuf,
    chunk_bytes: usize,
    chunks: u64,
    streams: Vec<Stream>,
}

#[derive(Debug, Default)]
struct Stream {
    /// Its full chunks, by their number in the file.
    chunks: Vec<u32>,
    /// The numbers behind these chunks.
    last: Vec<u8>,
}

impl Streams {
    /// Empty streams, whose chunks are of `chunk_bytes` each, a multiple of 8.
    ///
    /// Errors: `Io`.
    pub(crate) fn new(path: &Path, count: usize, chunk_bytes: usize) -> Result<Self> {
        debug_assert_eq!(chunk_bytes % 8, 0, "numbers do not straddle chunks");
        let (file, path) = unnamed(path)?;
        let streams = (0..count).map(|_| Stream::default()).collect();
        Ok(Self { file, path, chunk_bytes, chunks: 0, streams })
    }

    /// Writes to the end of a stream: bytes whose number divides that of a chunk.
    ///
    /// Errors: `Io`.
    #[inline(always)]
    pub(crate) fn push(&mut self, stream: usize, bytes: &[u8]) -> Result<()> {
        let found = &mut self.streams[stream];
        found.last.extend_from_slice(bytes);
        if found.last.len() < self.chunk_bytes { Ok(()) } else { self.put_out(stream) }
    }

    #[cold]
    fn put_out(&mut self, stream: usize) -> Result<()> {
        let found = &mut self.streams[stream];
        let at = self.chunks * self.chunk_bytes as u64;
        self.file.write_all_at(&found.last, at).doing("cannot write to", &self.path)?;
        let chunk = u32::try_from(self.chunks).expect("fewer chunks than 2^32: 16 TiB");
        found.chunks.push(chunk);
        found.last.clear();
        self.chunks += 1;
        Ok(())
    }

    /// Forgets what a stream has. Its chunks stay in the file.
    pub(crate) fn clear(&mut self, stream: usize) {
        self.streams[stream] = Stream::default();
    }

    /// Bytes of a stream.
    pub(crate) fn len(&self, stream: usize) -> u64 {
        let found = &self.streams[stream];
        (found.chunks.len() * self.chunk_bytes + found.last.len()) as u64
    }

    /// Reads a stream from its end to its beginning.
    pub(crate) fn backwards(&self, stream: usize) -> Backwards<'_> {
        let found = &self.streams[stream];
        let chunk = found.last.clone();
        Backwards { streams: self, left: &found.chunks, end: chunk.len(), chunk }
    }

    /// Reads a stream from its beginning.
    pub(crate) fn forwards(&self, stream: usize) -> Forwards<'_> {
        let found = &self.streams[stream];
        Forwards { streams: self, stream: found, next: 0, chunk: Vec::new(), at: 0 }
    }

    fn read(&self, chunk: u32, into: &mut Vec<u8>) -> Result<()> {
        into.resize(self.chunk_bytes, 0);
        let at = u64::from(chunk) * self.chunk_bytes as u64;
        self.file.read_exact_at(into, at).doing("cannot read", &self.path)
    }
}

/// A stream that is read backwards.
#[derive(Debug)]
pub(crate) struct Backwards<'a> {
    streams: &'a Streams,
    /// Chunks before the one at hand.
    left: &'a [u32],
    chunk: Vec<u8>,
    /// Bytes of the chunk that are still to be read.
    end: usize,
}

impl Backwards<'_> {
    /// The number before those that were read; `None` at the beginning.
    ///
    /// Errors: `Io`.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Result<Option<u64>> {
        Ok(self.take()?.map(u64::from_le_bytes))
    }

    /// The `N` bytes before those that were read; `None` at the beginning.
    ///
    /// Errors: `Io`.
    #[inline(always)]
    pub(crate) fn take<const N: usize>(&mut self) -> Result<Option<[u8; N]>> {
        if self.end == 0 && !self.turn()? {
            return Ok(None);
        }
        self.end -= N;
        Ok(Some(*self.chunk[self.end..].first_chunk().expect("chunks are whole numbers")))
    }

    #[cold]
    fn turn(&mut self) -> Result<bool> {
        let Some((last, before)) = self.left.split_last() else { return Ok(false) };
        self.streams.read(*last, &mut self.chunk)?;
        (self.left, self.end) = (before, self.chunk.len());
        Ok(true)
    }
}

/// A stream that is read from its beginning.
#[derive(Debug)]
pub(crate) struct Forwards<'a> {
    streams: &'a Streams,
    stream: &'a Stream,
    /// The chunk behind the one at hand.
    next: usize,
    chunk: Vec<u8>,
    at: usize,
}

impl Forwards<'_> {
    /// The next `N` bytes.
    ///
    /// Errors: `Io`. Panics behind the end.
    #[inline(always)]
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        if self.at == self.chunk.len() {
            self.turn()?;
        }
        let bytes = *self.chunk[self.at..].first_chunk().expect("not behind the end");
        self.at += N;
        Ok(bytes)
    }

    #[cold]
    fn turn(&mut self) -> Result<()> {
        match self.stream.chunks.get(self.next) {
            Some(chunk) => self.streams.read(*chunk, &mut self.chunk)?,
            None => self.chunk.clone_from(&self.stream.last),
        }
        self.next += 1;
        self.at = 0;
        Ok(())
    }
}

/// A file without a name in the folder of `path`, and what to call it.
fn unnamed(path: &Path) -> Result<(File, PathBuf)> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    loop {
        let number = NAMES.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".schedule-{}-{number}", std::process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            // Left by a process that had this number before.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            file => {
                let file = file.doing("cannot make the temporary file", &path)?;
                std::fs::remove_file(&path).doing("cannot remove", &path)?;
                return Ok((file, path));
            }
        }
    }
}
