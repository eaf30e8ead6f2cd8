//! The files of one commit, for keeping them somewhere else, and a store made of them again.
//!
//! A reader's hold keeps what the commit needs while its files are read beside a writer. The
//! journal is cut behind the commit's record and the head names that commit alone, so what came
//! later is not part of it. Of a file of pages only the blocks are named that have rows of the
//! commit; what else lies in them may change while they are read, and nobody asks for it.

use super::check::{CheckReport, check_commit};
use super::copy::open_commit;
use crate::config::{CommitInfo, Memory, StoreOptions};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::{DirectoryMedium, IoChoice, Medium, OpenMode};
use crate::store::commit::from_pin::begin_with_pin;
use crate::store::engine::Table;
use crate::store::files::class_file::{PARTITION_PREFIX, class_file_name};
use crate::store::files::head::Head;
use crate::store::files::pins;
use crate::store::files::place::{UNFINISHED, absolute};
use crate::store::files::superblock::{self, Superblock};
use crate::store::journal::{JournalReader, name_of, numbers, pin_of, pin_of_name};
use crate::store::{Store, has_file};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// The least that a block of a file of pages has: no page is longer.
const BLOCK_BYTES_MIN: u64 = 64 << 10;

/// A file of a commit, or what of it the commit needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitFile {
    /// Its name in a store.
    pub name: String,
    /// Its present path.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// The ranges that the commit needs, rising: offsets and lengths. All else reads as zeros.
    pub ranges: Vec<(u64, u64)>,
    /// Ranges that must have room on disk, so that a writer may fill them.
    pub room: Vec<(u64, u64)>,
}

/// One commit of a store, held while its files are read.
pub struct CommitFiles {
    store: Store,
    commit: CommitInfo,
}

impl CommitFiles {
    /// Holds the last commit of the store at `path`, or that of `step` or `pin`, which may be in
    /// use. `cold_directory` is where its partitions are, if they were moved.
    ///
    /// *Errors*: as [`Store::open`]; `NotFound` for a store without commits, `Unsupported` where a
    /// table has storage `pmem`. *Memory*: the index of the commit.
    pub fn open(
        path: &Path,
        step: Option<u64>,
        pin: Option<String>,
        cold_directory: Option<PathBuf>,
    ) -> Result<Self> {
        // No verb runs, so no cache is planned and the budget does not matter.
        let store = open_commit(path, step, pin, Memory::Bytes(0), cold_directory)?;
        let engine = store.inner.engine.read();
        let is_direct = |table: &&Table| table.record.spec.storage.is_direct();
        if let Some(table) = engine.tables.iter().find(is_direct) {
            bail!(
                Unsupported,
                "table '{}' has storage \"pmem\", whose rows are newer than any commit: no commit \
                 of {} has files of its own; copy it with storage=\"log\", and push the copy",
                table.record.spec.name,
                store.path().display()
            );
        }
        drop(engine);
        let Some(commit) = store.last_commit() else {
            bail!(NotFound, "{} has no commit", store.path().display());
        };
        Ok(Self { store, commit })
    }

    /// The commit.
    pub fn commit(&self) -> &CommitInfo {
        &self.commit
    }

    /// Identifies the store among all others.
    pub fn uuid(&self) -> u128 {
        self.store.inner.superblock.uuid
    }

    /// Bytes of all files of rows of the store.
    pub fn rows_bytes(&self) -> u64 {
        self.store.inner.rows_disk_bytes.load(Ordering::Relaxed)
    }

    /// The files of the commit but its head, those of pages in whole blocks of `block_bytes`, a
    /// power of two.
    ///
    /// *Errors*: `Misuse` for other blocks, `CommitGone`, `Corrupt`, `Io`. *Blocking*: reads the
    /// journal.
    pub fn list(&self, block_bytes: u64) -> Result<Vec<CommitFile>> {
        if !block_bytes.is_power_of_two() || block_bytes < BLOCK_BYTES_MIN {
            bail!(
                Misuse,
                "blocks have {block_bytes} bytes, expected a power of two from {BLOCK_BYTES_MIN} on"
            );
        }
        let listed = self.list_all(block_bytes);
        self.store.inner.expect_commit()?;
        listed
    }

    fn list_all(&self, block_bytes: u64) -> Result<Vec<CommitFile>> {
        let inner = &*self.store.inner;
        let medium = &*inner.medium;
        let mut files = vec![self.whole(superblock::NAME.to_owned())?];
        let history = inner.history.lock();
        let record = history.kept.last().cloned();
        let base = history.cycles.last().map(|(file, _)| *file);
        drop(history);
        let (Some(record), Some(base)) = (record, base) else {
            bail!(Corrupt, "no journal file of {} holds the whole index", inner.path.display());
        };
        let (last, end) = record.place;
        let journal = match pin_of(last) {
            Some(_) => vec![last],
            None => numbers(medium)?.into_iter().filter(|n| (base..=last).contains(n)).collect(),
        };
        for number in journal {
            let Some(mut reader) = JournalReader::open(medium, inner.seed, number)? else {
                continue;
            };
            let until = if number == last { end } else { u64::MAX };
            while reader.position() < until && reader.next()?.is_some() {}
            if number == last && reader.position() != end {
                bail!(Corrupt, "{} ends before the commit's record", name_of(number));
            }
            files.push(self.part(name_of(number), reader.position())?);
        }
        if let Some(state) = &record.state {
            files.push(self.part(state.file.clone(), state.bytes())?);
        }
        let engine = inner.engine.read();
        for class in &engine.classes {
            let log = class.log.lock();
            let parts = log.parts();
            let segment_bytes = class.record.segment_bytes;
            let last = parts.segments.last().map_or(0, |(_, last)| u64::from(*last));
            let name = class_file_name(class.record.id);
            // One without rows may be its header alone.
            let length = medium.open(&name, OpenMode::ReadOnly)?.len()?;
            let bytes = length.min((last + 1) * segment_bytes);
            let mut ranges = log.blocks(block_bytes);
            // The header.
            if ranges.first().is_none_or(|(at, _)| *at > 0) {
                ranges.insert(0, (0, block_bytes));
            }
            ranges.iter_mut().for_each(|(at, length)| *length = (*length).min(bytes - *at));
            let room = parts.segments.iter().map(|(first, last)| {
                let (first, last) = (u64::from(*first), u64::from(*last));
                (first * segment_bytes, (last + 1 - first) * segment_bytes)
            });
            let room = room.collect();
            let path = self.path_of(&name)?;
            files.push(CommitFile { name, path, bytes, ranges, room });
            for (number, _) in &parts.partitions {
                let name = format!("{PARTITION_PREFIX}{}-{number}", class.record.id);
                files.push(self.whole(name)?);
            }
        }
        Ok(files)
    }

    /// Content of the file `head` of a store that has this commit alone.
    pub fn head(&self) -> Result<Vec<u8>> {
        let inner = &*self.store.inner;
        let term = Head::read(&*inner.medium, inner.seed)?.term;
        let sequence = self.commit.sequence;
        Ok(Head::new(sequence, sequence, term).encode(inner.seed))
    }

    /// Checks that all reads of the files until now are of the commit.
    ///
    /// *Errors*: `CommitGone` where the commit was dropped, because its hold was taken away or this
    /// process could not take one.
    pub fn expect(&self) -> Result<()> {
        self.store.inner.expect_commit()
    }

    fn whole(&self, name: String) -> Result<CommitFile> {
        let bytes = self.store.inner.medium.open(&name, OpenMode::ReadOnly)?.len()?;
        self.part(name, bytes)
    }

    fn part(&self, name: String, bytes: u64) -> Result<CommitFile> {
        let path = self.path_of(&name)?;
        let ranges = if bytes > 0 { vec![(0, bytes)] } else { Vec::new() };
        Ok(CommitFile { name, path, bytes, room: ranges.clone(), ranges })
    }

    fn path_of(&self, name: &str) -> Result<PathBuf> {
        let medium = &self.store.inner.medium;
        if let Some(apart) = medium.apart().filter(|_| name.starts_with(PARTITION_PREFIX))
            && has_file(&**apart, name)?
            && let Some(folder) = apart.path()
        {
            return Ok(folder.join(name));
        }
        Ok(self.store.path().join(name))
    }
}

/// Makes a store of the files of a commit that lie in the directory at `path`, with the mark that
/// it is none yet: reads and verifies every page of commit `sequence`, and takes the mark away.
/// `progress(done, all)` counts pages and may end it by an error.
///
/// *Errors*: `Misuse` where the mark is missing, `Corrupt` naming what is damaged; the directory
/// then stays none. *Durability*: complete on return, if the files were.
pub fn finish_pull(
    path: &Path,
    sequence: u64,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<CheckReport> {
    let path = &absolute(path)?;
    let medium = DirectoryMedium::open(path, IoChoice::default())?;
    if !has_file(&medium, UNFINISHED)? {
        bail!(Misuse, "{} has no file {UNFINISHED}: nothing is pulled there", path.display());
    }
    let seed = Superblock::read(&medium)?.checksum_seed();
    unpack_pin(&medium, seed)?;
    let options = StoreOptions { read_only: true, ..StoreOptions::new(Memory::Bytes(0)) };
    let store = Store::open_any(path, StoreOptions { create: false, ..options })?;
    let found = store.last_commit().map_or(0, |commit| commit.sequence);
    if found != sequence {
        bail!(Corrupt, "{} has commit {found} as its last, expected {sequence}", path.display());
    }
    let mut report = CheckReport::default();
    check_commit(&store, &mut report, progress)?;
    if let Some(first) = report.problems.first() {
        let more = match report.problem_count - 1 {
            0 => String::new(),
            more => format!(", and {more} more problems"),
        };
        let what = format!("{}: {}{more}", path.display(), first.message);
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    drop(store);
    medium.remove(UNFINISHED)?;
    medium.sync_dir()?;
    Ok(report)
}

/// The file of a pinned commit becomes the journal of a store that has it alone.
fn unpack_pin(medium: &dyn Medium, seed: u64) -> Result<()> {
    for name in pins::files(medium)? {
        let Some(pin) = pin_of_name(&name) else { continue };
        for number in numbers(medium)? {
            medium.remove(&name_of(number))?;
        }
        let mut journal = begin_with_pin(medium, seed, 1, pin)?;
        journal.give_back_unused()?;
        journal.file().sync()?;
        medium.remove(&name)?;
    }
    medium.sync_dir()
}
