//! Files of schedules: `docs/formats/schedule.md`.

use crate::digest::Digest;
use crate::error::{Doing, Error, ErrorKind, Result};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const MAGIC: [u8; 8] = *b"ERSCHED\0";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
/// Bytes of the header that its checksum covers.
const CHECKED_BYTES: usize = 56;
const REPEATS: u32 = 1;
const NAMES_BYTES_MAX: u32 = 1 << 26;
const BUFFER_BYTES: usize = 1 << 20;

/// The uses of a batch, without the keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Tables, in ascending order, and the number of keys that the batch has of each.
    pub(crate) parts: Vec<(u32, u32)>,
    pub(crate) digest: u32,
}

/// The fields of the header.
#[derive(Clone, Copy, Debug, Default)]
struct Header {
    tables: u32,
    names_bytes: u32,
    batches: u64,
    uses: u64,
    index: u64,
    stretch_batches: u32,
    furthest: u32,
    flags: u32,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        for number in [VERSION, self.tables] {
            bytes.extend(number.to_le_bytes());
        }
        for number in [self.batches, self.uses, self.index] {
            bytes.extend(number.to_le_bytes());
        }
        for number in [self.names_bytes, self.stretch_batches, self.furthest, self.flags] {
            bytes.extend(number.to_le_bytes());
        }
        let checksum = xxh3_64(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes.try_into().expect("as long as a header")
    }

    fn decode(bytes: &[u8; HEADER_BYTES], path: &Path) -> Result<Self> {
        let corrupt = |what| Err(Error::corrupt(path, what));
        if bytes[..8] != MAGIC {
            return corrupt("it is no schedule".to_owned());
        }
        let version = u32_at(bytes, 8);
        if version > VERSION {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} has version {version}, this build reads {VERSION}", path.display()),
            ));
        }
        if u64_at(bytes, CHECKED_BYTES) != xxh3_64(&bytes[..CHECKED_BYTES]) {
            return corrupt("its header is damaged".to_owned());
        }
        Ok(Self {
            tables: u32_at(bytes, 12),
            batches: u64_at(bytes, 16),
            uses: u64_at(bytes, 24),
            index: u64_at(bytes, 32),
            names_bytes: u32_at(bytes, 40),
            stretch_batches: u32_at(bytes, 44),
            furthest: u32_at(bytes, 48),
            flags: u32_at(bytes, 52),
        })
    }
}

/// Writes a file of batches, in their order.
#[derive(Debug)]
pub(crate) struct Writer {
    to: BufWriter<File>,
    path: PathBuf,
    /// The file until it is whole.
    unfinished: PathBuf,
    header: Header,
    at: u64,
    /// Offset of the record of each batch, and the end of the last one.
    begins: Vec<u64>,
    record: Vec<u8>,
    is_done: bool,
}

impl Writer {
    pub(crate) fn new(path: &Path, names: &[String]) -> Result<Self> {
        let mut encoded = Vec::new();
        for name in names {
            encoded.extend((name.len() as u32).to_le_bytes());
            encoded.extend(name.as_bytes());
        }
        let checksum = xxh3_64(&encoded);
        encoded.extend(checksum.to_le_bytes());
        let mut unfinished = path.to_owned().into_os_string();
        unfinished.push(format!(".unfinished-{}", std::process::id()));
        let unfinished = PathBuf::from(unfinished);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).open(&unfinished);
        let file = file.doing("cannot make", &unfinished)?;
        let at = (HEADER_BYTES + encoded.len()) as u64;
        let names_bytes = encoded.len() as u32;
        let mut made = Self {
            to: BufWriter::with_capacity(BUFFER_BYTES, file),
            path: path.to_owned(),
            unfinished,
            header: Header { tables: names.len() as u32, names_bytes, ..Header::default() },
            at,
            begins: vec![at],
            record: Vec::new(),
            is_done: false,
        };
        made.put(&[0; HEADER_BYTES])?;
        made.put(&encoded)?;
        Ok(made)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.to.write_all(bytes).doing("cannot write to", &self.unfinished)
    }

    /// Writes the next batch: `next` are the next uses of all its parts, one part after another.
    pub(crate) fn write(&mut self, shape: &Shape, next: &[u16]) -> Result<()> {
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        record.extend(shape.digest.to_le_bytes());
        record.extend((shape.parts.len() as u32).to_le_bytes());
        for (table, uses) in &shape.parts {
            record.extend((*table as u16).to_le_bytes());
            record.extend(uses.to_le_bytes());
        }
        next.iter().for_each(|next| record.extend_from_slice(&next.to_le_bytes()));
        let checksum = xxh3_64_with_seed(&record, self.header.batches);
        record.extend((checksum as u32).to_le_bytes());
        self.put(&record)?;
        self.at += record.len() as u64;
        self.begins.push(self.at);
        let furthest = next.iter().map(|next| u32::from(next.saturating_sub(1))).max();
        self.header.furthest = self.header.furthest.max(furthest.unwrap_or(0));
        self.header.batches += 1;
        self.header.uses += next.len() as u64;
        self.record = record;
        Ok(())
    }

    /// Gives the file its name; returns once it is on disk.
    pub(crate) fn finish(mut self, stretch_batches: u32, repeats: bool) -> Result<()> {
        let index: Vec<u8> = self.begins.iter().flat_map(|begin| begin.to_le_bytes()).collect();
        self.put(&index)?;
        self.header.index = self.at;
        self.header.stretch_batches = stretch_batches;
        self.header.flags = if repeats { REPEATS } else { 0 };
        self.to.flush().doing("cannot write to", &self.unfinished)?;
        let file = self.to.get_ref();
        file.write_all_at(&self.header.encode(), 0).doing("cannot write to", &self.unfinished)?;
        file.sync_all().doing("cannot sync", &self.unfinished)?;
        std::fs::rename(&self.unfinished, &self.path).doing("cannot make", &self.path)?;
        self.is_done = true;
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        File::open(folder).and_then(|folder| folder.sync_all()).doing("cannot sync", folder)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = std::fs::remove_file(&self.unfinished);
        }
    }
}

/// A schedule: the next use of each use of a row, batch by batch.
#[derive(Debug)]
pub struct Schedule {
    file: File,
    path: PathBuf,
    bytes: u64,
    header: Header,
    names: Vec<String>,
}

impl Schedule {
    /// Opens the file of a schedule.
    ///
    /// Errors: `Io`; `Corrupt` for what is no schedule or a damaged one; `Unsupported` for a newer
    /// version.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).doing("cannot open", path)?;
        let bytes = file.metadata().doing("cannot open", path)?.len();
        let mut header = [0; HEADER_BYTES];
        if bytes < HEADER_BYTES as u64 {
            return Err(Error::corrupt(path, "it is no schedule"));
        }
        file.read_exact_at(&mut header, 0).doing("cannot read", path)?;
        let header = Header::decode(&header, path)?;
        let expected = header.batches.checked_add(1).and_then(|n| n.checked_mul(8));
        let ends = expected.and_then(|index| index.checked_add(header.index));
        if ends != Some(bytes) || header.names_bytes > NAMES_BYTES_MAX {
            return Err(Error::corrupt(path, format!("it has {bytes} bytes, and was longer")));
        }
        let mut names = vec![0; header.names_bytes as usize];
        file.read_exact_at(&mut names, HEADER_BYTES as u64).doing("cannot read", path)?;
        let names = decode_names(&names, header.tables)
            .ok_or_else(|| Error::corrupt(path, "the names of its tables are damaged"))?;
        Ok(Self { file, path: path.to_owned(), bytes, header, names })
    }

    /// The names of its tables.
    pub fn tables(&self) -> &[String] {
        &self.names
    }

    /// Number of batches.
    pub fn batches(&self) -> u64 {
        self.header.batches
    }

    /// Number of uses in these batches.
    pub fn uses(&self) -> u64 {
        self.header.uses
    }

    /// Batches of each stretch but the last.
    pub fn stretch_batches(&self) -> u32 {
        self.header.stretch_batches
    }

    /// Largest number of stretches that a next use is ahead.
    pub fn furthest(&self) -> u32 {
        self.header.furthest
    }

    /// Whether the batches come again behind the last.
    pub fn repeats(&self) -> bool {
        self.header.flags & REPEATS != 0
    }

    /// The next uses of the keys of a batch, for each table in the order of `keys`: one more than
    /// the stretches until then, 0 where none is known. `keys` has those of each table, `None` for
    /// one that the batch does not use. `None` where the batch has other keys, or others in number
    /// or order.
    ///
    /// Errors: `Misuse` for a batch that there is not; `Corrupt`, `Io`.
    pub fn next_uses(&self, batch: u64, keys: &[Option<&[u64]>]) -> Result<Option<Vec<Vec<u16>>>> {
        if batch >= self.header.batches {
            let batches = self.header.batches;
            return Err(Error::misuse(format!("batch {batch} of a schedule of {batches}")));
        }
        let record = self.record(batch)?;
        let corrupt = || Error::corrupt(&self.path, format!("batch {batch} is damaged"));
        let (shape, mut next) = decode_shape(&record).ok_or_else(corrupt)?;
        let mut digest = Digest::default();
        let mut found = vec![Vec::new(); keys.len()];
        let mut parts = shape.parts.iter();
        for (table, keys) in keys.iter().enumerate() {
            let Some(keys) = keys else { continue };
            if parts.next() != Some(&(table as u32, keys.len() as u32)) {
                return Ok(None);
            }
            digest.add(table as u32, keys);
            let (part, behind) = next.split_at_checked(2 * keys.len()).ok_or_else(corrupt)?;
            let numbers = part.chunks_exact(2).map(|next| u16::from_le_bytes([next[0], next[1]]));
            found[table] = numbers.collect();
            next = behind;
        }
        let is_the_same = parts.next().is_none() && digest.value() as u32 == shape.digest;
        Ok(is_the_same.then_some(found))
    }

    /// The first batch from `from` on that has these keys, as `next_uses` takes them; then those
    /// before it are looked at.
    ///
    /// Errors: `Corrupt`, `Io`.
    pub fn find(&self, from: u64, keys: &[Option<&[u64]>]) -> Result<Option<u64>> {
        let mut digest = Digest::default();
        let used = (0u32..).zip(keys).filter_map(|(table, keys)| Some((table, (*keys)?)));
        let mut parts = Vec::new();
        for (table, keys) in used {
            digest.add(table, keys);
            parts.push((table, keys.len() as u32));
        }
        let wanted = Shape { parts, digest: digest.value() as u32 };
        for batch in (from..self.header.batches).chain(0..from.min(self.header.batches)) {
            let record = self.record(batch)?;
            let found = decode_shape(&record);
            if found.is_some_and(|(shape, _)| shape == wanted) {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// The record of a batch, whose checksum was looked at.
    fn record(&self, batch: u64) -> Result<Vec<u8>> {
        let corrupt = || Error::corrupt(&self.path, format!("batch {batch} is damaged"));
        let mut ends = [0; 16];
        let at = self.header.index + 8 * batch;
        self.file.read_exact_at(&mut ends, at).doing("cannot read", &self.path)?;
        let (begin, end) = (u64_at(&ends, 0), u64_at(&ends, 8));
        if begin >= end || end > self.bytes || end - begin < 12 {
            return Err(corrupt());
        }
        let mut record = vec![0; (end - begin) as usize];
        self.file.read_exact_at(&mut record, begin).doing("cannot read", &self.path)?;
        let checksum = u32_at(&record, record.len() - 4);
        record.truncate(record.len() - 4);
        if xxh3_64_with_seed(&record, batch) as u32 != checksum {
            return Err(corrupt());
        }
        Ok(record)
    }
}

/// The uses of a batch, and the next uses behind them.
fn decode_shape(record: &[u8]) -> Option<(Shape, &[u8])> {
    let (digest, rest) = record.split_first_chunk()?;
    let (count, mut rest) = rest.split_first_chunk()?;
    let mut parts = Vec::new();
    for _ in 0..u32::from_le_bytes(*count) {
        let (table, behind) = rest.split_first_chunk()?;
        let (uses, behind) = behind.split_first_chunk()?;
        parts.push((u16::from_le_bytes(*table).into(), u32::from_le_bytes(*uses)));
        rest = behind;
    }
    Some((Shape { parts, digest: u32::from_le_bytes(*digest) }, rest))
}

fn decode_names(bytes: &[u8], tables: u32) -> Option<Vec<String>> {
    let (mut rest, checksum) = bytes.split_last_chunk()?;
    if xxh3_64(rest) != u64::from_le_bytes(*checksum) {
        return None;
    }
    let mut names = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk() {
        let (name, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        names.push(String::from_utf8(name.to_vec()).ok()?);
        rest = behind;
    }
    (names.len() == tables as usize && rest.is_empty()).then_some(names)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("within the bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("within the bytes"))
}
