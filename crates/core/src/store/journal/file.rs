//! One journal file: a header and checked records, only ever appended to.
//!
//! Format: `docs/formats/journal.md`. The checksum of a record covers its place, so bytes of an
//! older life of the file never pass for a record. Reading stops at the first record that does not
//! check; a commit record behind it proves damage, because commit records are written only after
//! everything before them is durable. The same holds of a header that does not check; one that does
//! and is of another store was put there.

use super::{ClassRecord, TableRecord};
use crate::activation::{Branch, note};
use crate::config::StorageKind;
use crate::error::{Result, bail};
use crate::io::{File, Medium, OpenMode};
use std::ops::Range;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const MAGIC: [u8; 8] = *b"ERJOURNL";
/// Of files that know no storage but logs. Builds that read no other take a class of another kind
/// for a log, so a file in which one is recorded has the next version from its first class on.
const VERSION_OF_LOGS: u32 = 1;
const VERSION_OF_CLASSES: u32 = 2;
/// Of stores with pinned commits. Builds that know of none would write over their rows.
pub(crate) const VERSION_OF_PINS: u32 = 3;
/// Of stores with tables that were dropped, renamed or grown. Builds before that would not see it.
pub(crate) const VERSION_OF_CHANGES: u32 = 4;
const VERSION: u32 = VERSION_OF_CHANGES;
/// Offset of the version in a header.
const VERSION_AT: u64 = 8;
/// Bytes before the first record.
pub(crate) const HEADER_BYTES: u64 = 40;
const RECORD_HEADER_BYTES: usize = 16;
/// A record is at most this long; larger claims are damage.
pub(crate) const RECORD_BYTES_MAX: usize = 1 << 26;
const READ_BYTES: usize = 1 << 20;
/// Room is reserved in steps of this many bytes.
pub(super) const ALLOCATE_BYTES: u64 = 256 << 10;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// JSON: a row class.
    Class = 1,
    /// JSON: a table.
    Table = 2,
    /// Index deltas of one class.
    Deltas = 3,
    /// A piece of one table's index.
    Piece = 4,
    /// All pieces of all indexes are in this file, before here.
    CycleEnd = 5,
    /// JSON: a commit.
    Commit = 6,
    /// JSON: a table that was dropped, renamed or grown.
    TableChange = 7,
}

impl RecordKind {
    fn from_code(code: u8) -> Option<Self> {
        use RecordKind::*;
        let all = [Class, Table, Deltas, Piece, CycleEnd, Commit, TableChange];
        all.into_iter().find(|kind| *kind as u8 == code)
    }
}

/// In the number of a file that holds one pinned commit; the others are the commit's number.
const PIN_BIT: u64 = 1 << 63;
/// Prefix of the name of such a file.
pub(crate) const PIN_PREFIX: &str = "pin-";

/// The name of a journal file, or of the file of a pinned commit.
pub(crate) fn name_of(number: u64) -> String {
    match pin_of(number) {
        Some(pin) => format!("{PIN_PREFIX}{pin:010}"),
        None => format!("journal-{number:08}"),
    }
}

/// The number of the file that holds a pinned commit: it is a journal by itself.
pub(crate) fn pin_number(pin: u64) -> u64 {
    pin | PIN_BIT
}

/// The pinned commit that a file of this number holds.
pub(crate) fn pin_of(number: u64) -> Option<u64> {
    (number & PIN_BIT != 0).then_some(number & !PIN_BIT)
}

/// The pinned commit in a file's name; `None` for names that `name_of` does not give.
pub(crate) fn pin_of_name(name: &str) -> Option<u64> {
    let pin: u64 = name.strip_prefix(PIN_PREFIX)?.parse().ok()?;
    (pin & PIN_BIT == 0 && name_of(pin_number(pin)) == name).then_some(pin)
}

/// The number in a journal file's name; `None` for names that `name_of` does not give.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let number = name.strip_prefix("journal-")?.parse().ok()?;
    (pin_of(number).is_none() && name_of(number) == name).then_some(number)
}

/// The numbers of all journal files, rising.
pub(crate) fn numbers(medium: &dyn Medium) -> Result<Vec<u64>> {
    let names = medium.list("journal-")?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn header(version: u32, number: u64, seed: u64) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES as usize);
    header.extend_from_slice(&MAGIC);
    header.extend_from_slice(&version.to_le_bytes());
    header.extend_from_slice(&0u32.to_le_bytes());
    header.extend_from_slice(&number.to_le_bytes());
    header.extend_from_slice(&seed.to_le_bytes());
    header.extend_from_slice(&xxh3_64_with_seed(&header, 0).to_le_bytes());
    header
}

fn checksum(seed: u64, number: u64, position: u64, head: &[u8], payload: &[u8]) -> u64 {
    let place = xxh3_64_with_seed(&[number.to_le_bytes(), position.to_le_bytes()].concat(), seed);
    let head = xxh3_64_with_seed(head, place);
    xxh3_64_with_seed(payload, head)
}

/// A journal file being appended to.
#[derive(Debug)]
pub(crate) struct JournalFile {
    file: Arc<dyn File>,
    seed: u64,
    number: u64,
    version: u32,
    position: u64,
    allocated: u64,
    buffer: Vec<u8>,
}

impl JournalFile {
    /// The version of a file that begins with these records.
    pub(crate) fn version_for<'a>(
        mut classes: impl Iterator<Item = &'a ClassRecord>,
        mut tables: impl Iterator<Item = &'a TableRecord>,
    ) -> u32 {
        if tables.any(|table| table.dropped || table.spec.first_name.is_some()) {
            return VERSION_OF_CHANGES;
        }
        match classes.all(|class| class.storage == StorageKind::Log) {
            true => VERSION_OF_LOGS,
            false => VERSION_OF_CLASSES,
        }
    }

    /// Creates file `number`. It becomes durable with the next `sync` and `sync_dir`.
    pub(crate) fn create(
        medium: &dyn Medium,
        seed: u64,
        number: u64,
        version: u32,
    ) -> Result<Self> {
        let file = medium.open(&name_of(number), OpenMode::CreateNew)?;
        Self::begin(file, seed, number, version)
    }

    /// As `create`, in place of what a crash before the first commit has left in the file, whose
    /// name stays durable: the files of rows that came after it have none without.
    pub(crate) fn create_again(medium: &dyn Medium, seed: u64, number: u64) -> Result<Self> {
        let file = medium.open(&name_of(number), OpenMode::ReadWrite)?;
        file.set_len(0)?;
        file.sync()?;
        Self::begin(file, seed, number, VERSION_OF_LOGS)
    }

    fn begin(file: Arc<dyn File>, seed: u64, number: u64, version: u32) -> Result<Self> {
        file.allocate(0, ALLOCATE_BYTES)?;
        file.write_at(&header(version, number, seed), 0)?;
        Ok(Self {
            file,
            seed,
            number,
            version,
            position: HEADER_BYTES,
            allocated: ALLOCATE_BYTES,
            buffer: Vec::new(),
        })
    }

    /// Goes on behind `position`, cutting off what follows.
    pub(crate) fn resume(
        medium: &dyn Medium,
        seed: u64,
        number: u64,
        position: u64,
    ) -> Result<Self> {
        let file = medium.open(&name_of(number), OpenMode::ReadWrite)?;
        if file.len()? > position {
            note(Branch::TailCut);
        }
        file.set_len(position)?;
        file.sync()?;
        let mut version = [0; 4];
        file.read_at(&mut version, VERSION_AT)?;
        let version = u32::from_le_bytes(version);
        Ok(Self { file, seed, number, version, position, allocated: position, buffer: Vec::new() })
    }

    /// Gives the file another version, durably. A crash may leave the header damaged, so the file
    /// has no commit.
    pub(crate) fn set_version(&mut self, version: u32) -> Result<()> {
        self.file.write_at(&header(version, self.number, self.seed), 0)?;
        self.file.sync()?;
        self.version = version;
        Ok(())
    }

    /// Appends the records of another file from `begin`, the end of a record, to its end.
    pub(crate) fn append_from(
        &mut self,
        medium: &dyn Medium,
        other: &JournalFile,
        begin: u64,
    ) -> Result<()> {
        let mut reader = JournalReader::open_unchecked(medium, self.seed, other.number)?;
        reader.go_to(begin);
        while reader.position() < other.position {
            let Some(kind) = reader.next()? else {
                bail!(
                    Io,
                    "{} cannot be read at byte {}, although it was written since the store was \
                     opened; open the store again",
                    other.file.name(),
                    reader.position()
                );
            };
            self.append(kind, reader.payload())?;
        }
        Ok(())
    }

    /// Cuts off what follows `position`, durably.
    pub(crate) fn cut_off(&mut self, position: u64) -> Result<()> {
        self.file.set_len(position)?;
        self.file.sync()?;
        (self.position, self.allocated) = (position, position);
        Ok(())
    }

    /// Version of its format, which older builds refuse.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Makes the bytes of file `number` between two records durable, whatever became of earlier
    /// syncs. After one that failed, ext4 and xfs take pages for clean that the disk does not
    /// have: they are read back, and no later sync writes them, unless they are written again.
    pub(crate) fn write_again(
        medium: &dyn Medium,
        seed: u64,
        number: u64,
        bytes: Range<u64>,
    ) -> Result<()> {
        let file = medium.open(&name_of(number), OpenMode::ReadWrite)?;
        let mut at = bytes.start;
        let mut buffer = vec![0; READ_BYTES];
        while at < bytes.end {
            let part = &mut buffer[..((bytes.end - at) as usize).min(READ_BYTES)];
            file.read_at(part, at)?;
            file.write_at(part, at)?;
            at += part.len() as u64;
        }
        file.sync()?;
        // Such pages may have been dropped from memory since the store was opened.
        let mut reader = JournalReader::open(medium, seed, number)?;
        if let Some(reader) = &mut reader {
            reader.position = reader.position.max(bytes.start);
            while reader.position < bytes.end && reader.next()?.is_some() {}
        }
        if reader.is_none_or(|reader| reader.position != bytes.end) {
            bail!(
                Io,
                "{}: bytes {} to {} are not what they were when the store was opened: an earlier \
                 write of them has failed; open the store again",
                file.name(),
                bytes.start,
                bytes.end
            );
        }
        Ok(())
    }

    /// Number of this file.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// End of what was appended.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Bytes that the file takes.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.allocated
    }

    /// Bytes that were reserved and never used.
    pub(crate) fn unused_bytes(&self) -> u64 {
        self.allocated - self.position
    }

    /// Gives them back: nothing more will be appended.
    pub(crate) fn give_back_unused(&mut self) -> Result<()> {
        self.file.set_len(self.position)?;
        self.allocated = self.position;
        Ok(())
    }

    /// Bytes of a new file with room for `bytes` of records.
    pub(crate) fn bytes_for(bytes: u64) -> u64 {
        (HEADER_BYTES + bytes).next_multiple_of(ALLOCATE_BYTES)
    }

    /// Bytes of a record with a payload of this length.
    pub(crate) fn record_bytes(payload: usize) -> u64 {
        (RECORD_HEADER_BYTES + payload.next_multiple_of(8)) as u64
    }

    /// By how much the file would have to grow for `bytes` more.
    pub(crate) fn growth_for(&self, bytes: u64) -> u64 {
        let needed = self.position + bytes;
        if needed > self.allocated {
            needed.next_multiple_of(ALLOCATE_BYTES) - self.allocated
        } else {
            0
        }
    }

    /// Makes sure that `bytes` more can be appended; `Full` otherwise, and nothing changed.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<()> {
        let growth = self.growth_for(bytes);
        if growth > 0 {
            self.file.allocate(self.allocated, growth)?;
            self.allocated += growth;
        }
        Ok(())
    }

    /// Appends a record. Durable after `sync`.
    pub(crate) fn append(&mut self, kind: RecordKind, payload: &[u8]) -> Result<()> {
        assert!(payload.len() <= RECORD_BYTES_MAX, "a journal record is bounded");
        let padded = payload.len().next_multiple_of(8);
        self.reserve((RECORD_HEADER_BYTES + padded) as u64)?;
        self.buffer.clear();
        self.buffer.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(&[kind as u8, 0, 0, 0]);
        let sum = checksum(self.seed, self.number, self.position, &self.buffer[..8], payload);
        self.buffer.extend_from_slice(&sum.to_le_bytes());
        self.buffer.extend_from_slice(payload);
        self.buffer.resize(RECORD_HEADER_BYTES + padded, 0);
        self.file.write_at(&self.buffer, self.position)?;
        self.position += self.buffer.len() as u64;
        Ok(())
    }

    /// The file itself, to sync it.
    pub(crate) fn file(&self) -> Arc<dyn File> {
        Arc::clone(&self.file)
    }
}

/// Reads a journal file record by record.
pub(crate) struct JournalReader {
    file: Arc<dyn File>,
    seed: u64,
    number: u64,
    /// As the header has it; 0 of one that was not looked at.
    version: u32,
    len: u64,
    position: u64,
    /// Bytes read ahead, beginning at `ahead_at`.
    ahead: Vec<u8>,
    ahead_at: u64,
    /// Range in `ahead` of the payload of the record that was read last.
    payload: Range<usize>,
    /// Checksum of that record.
    checksum: u64,
}

impl JournalReader {
    /// Opens file `number` and checks its header. `None` when that does not check: the epoch that
    /// created the file has crashed, or it is damaged. *Errors*: `Corrupt` when the header is
    /// sound, and of another store or file.
    pub(crate) fn open(medium: &dyn Medium, seed: u64, number: u64) -> Result<Option<Self>> {
        Self::open_up_to(VERSION, medium, seed, number)
    }

    /// As `open`, by a build that reads files of versions up to `newest`.
    pub(in crate::store) fn open_up_to(
        newest: u32,
        medium: &dyn Medium,
        seed: u64,
        number: u64,
    ) -> Result<Option<Self>> {
        let mut reader = Self::open_unchecked(medium, seed, number)?;
        if reader.len < HEADER_BYTES {
            return Ok(None);
        }
        let file = Arc::clone(&reader.file);
        let mut header = [0; HEADER_BYTES as usize];
        file.read_at(&mut header, 0)?;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        if header[..8] != MAGIC || word(32) != xxh3_64_with_seed(&header[..32], 0) {
            return Ok(None);
        }
        let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        if !(VERSION_OF_LOGS..=newest).contains(&version) {
            bail!(
                Unsupported,
                "{} has version {version}, this build reads up to {newest}; use a newer embedrock",
                file.name()
            );
        }
        if word(24) != seed {
            bail!(
                Corrupt,
                "superblock and {} are of different stores: their checksum seeds are {seed:#x} and \
                 {:#x}; put back what belongs together, from a copy",
                file.name(),
                word(24)
            );
        }
        if word(16) != number {
            bail!(
                Corrupt,
                "{} is journal file {} under another name; restore the files from a copy",
                file.name(),
                word(16)
            );
        }
        reader.version = version;
        Ok(Some(reader))
    }

    /// The version of a file whose header was checked.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Opens file `number` whatever its header is.
    pub(crate) fn open_unchecked(medium: &dyn Medium, seed: u64, number: u64) -> Result<Self> {
        let file = crate::store::open_needed(medium, &name_of(number), OpenMode::ReadOnly)?;
        Ok(Self {
            len: file.len()?,
            file,
            seed,
            number,
            version: 0,
            position: HEADER_BYTES,
            ahead: Vec::new(),
            ahead_at: 0,
            payload: 0..0,
            checksum: 0,
        })
    }

    /// End of the last record returned.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Goes on behind a record that was read before.
    pub(crate) fn go_to(&mut self, position: u64) {
        self.position = position;
    }

    /// Bytes of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.len
    }

    fn bytes(&mut self, at: u64, len: usize) -> Result<Option<&[u8]>> {
        if at + len as u64 > self.len {
            return Ok(None);
        }
        if at < self.ahead_at || at + len as u64 > self.ahead_at + self.ahead.len() as u64 {
            let want = (len.max(READ_BYTES) as u64).min(self.len - at) as usize;
            self.ahead.resize(want, 0);
            self.ahead_at = at;
            if let Err(error) = self.file.read_at(&mut self.ahead, at) {
                self.ahead.clear();
                // A writer gives back the room behind the last record once it has begun another
                // file, whoever reads.
                let now = self.file.len()?;
                if !(at..self.len).contains(&now) {
                    return Err(error);
                }
                self.len = now;
                return self.bytes(at, len);
            }
        }
        let begin = (at - self.ahead_at) as usize;
        Ok(Some(&self.ahead[begin..begin + len]))
    }

    fn record_at(&mut self, at: u64) -> Result<Option<RecordKind>> {
        let Some(head) = self.bytes(at, RECORD_HEADER_BYTES)? else { return Ok(None) };
        let mut first = [0; 8];
        first.copy_from_slice(&head[..8]);
        let mut sum = [0; 8];
        sum.copy_from_slice(&head[8..]);
        let len = u32::from_le_bytes([first[0], first[1], first[2], first[3]]) as usize;
        let Some(kind) = RecordKind::from_code(first[4]) else { return Ok(None) };
        if len > RECORD_BYTES_MAX {
            return Ok(None);
        }
        let (seed, number) = (self.seed, self.number);
        let Some(body) = self.bytes(at + RECORD_HEADER_BYTES as u64, len)? else { return Ok(None) };
        if checksum(seed, number, at, &first, body) != u64::from_le_bytes(sum) {
            return Ok(None);
        }
        let begin = (at + RECORD_HEADER_BYTES as u64 - self.ahead_at) as usize;
        self.payload = begin..begin + len;
        self.checksum = u64::from_le_bytes(sum);
        Ok(Some(kind))
    }

    /// The next record; `None` at the end of what checks.
    pub(crate) fn next(&mut self) -> Result<Option<RecordKind>> {
        let kind = self.record_at(self.position)?;
        if kind.is_some() {
            let bytes = RECORD_HEADER_BYTES + self.payload.len().next_multiple_of(8);
            self.position += bytes as u64;
        }
        Ok(kind)
    }

    /// The payload of the record that `next` returned last.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.ahead[self.payload.clone()]
    }

    /// The checksum, of its place too, of the record that `next` returned last.
    pub(crate) fn checksum(&self) -> u64 {
        self.checksum
    }

    /// Whether a record begins behind the end of what checks; reserved bytes are none.
    pub(crate) fn is_torn(&mut self) -> Result<bool> {
        let head = self.bytes(self.position, RECORD_HEADER_BYTES)?;
        Ok(head.is_some_and(|head| head.iter().any(|byte| *byte != 0)))
    }

    /// The place of a commit record behind the end of what checks, if there is one.
    pub(crate) fn find_commit_behind(&mut self) -> Result<Option<u64>> {
        let mut at = self.position;
        while at + RECORD_HEADER_BYTES as u64 <= self.len {
            if self.bytes(at, RECORD_HEADER_BYTES)?.is_none() {
                break;
            }
            // Reserved bytes are looked at to tell index words apart without hashing what follows;
            // all that was read at once: most of it is room that was never written.
            let read = &self.ahead[(at - self.ahead_at) as usize..];
            let mut heads = read.windows(RECORD_HEADER_BYTES).step_by(8);
            let words = heads.len() as u64;
            let is_one = |head: &[u8]| head[4..8] == [RecordKind::Commit as u8, 0, 0, 0];
            let Some(found) = heads.position(is_one) else {
                at += 8 * words;
                continue;
            };
            at += 8 * found as u64;
            if self.record_at(at)? == Some(RecordKind::Commit) {
                return Ok(Some(at));
            }
            at += 8;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::SimMedium;

    // `check` beside a writer took a journal file for damaged that had just become shorter.
    #[test]
    fn a_file_that_is_cut_behind_its_records_while_it_is_read_has_all_of_them() {
        let medium = SimMedium::new(1);
        let mut file = JournalFile::create(&medium, 7, 1, 1).unwrap();
        file.reserve(8 << 20).unwrap();
        let payloads: Vec<Vec<u8>> = (0..40).map(|n| vec![n; 100_000]).collect();
        for payload in &payloads {
            file.append(RecordKind::Commit, payload).unwrap();
        }
        let mut reader = JournalReader::open(&medium, 7, 1).unwrap().unwrap();
        file.give_back_unused().unwrap();
        for payload in &payloads {
            assert_eq!(reader.next().unwrap(), Some(RecordKind::Commit));
            assert!(reader.payload() == payload);
        }
        assert_eq!(reader.next().unwrap(), None);
        assert_eq!(reader.next().unwrap(), None);
        // A file that has lost records is an error.
        let mut reader = JournalReader::open(&medium, 7, 1).unwrap().unwrap();
        reader.next().unwrap();
        medium.open(&name_of(1), OpenMode::ReadWrite).unwrap().set_len(0).unwrap();
        let error = payloads.iter().find_map(|_| reader.next().err()).unwrap();
        assert!(error.message().contains("cut short"), "{error}");
    }
}
