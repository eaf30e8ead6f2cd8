//! Opening: from a path to a store at one commit, and the first write after that.

use super::commit::{History, Spare};
use super::engine::{Class, Engine};
use super::holds::{self, Hold};
use super::journal::{ClassRecord, CommitRecord, JournalFile, RecordKind, name_of, number_of};
use super::lock::WriterLock;
use super::recovery::{Recovered, Target, recover};
use super::superblock::{HEAD_NAME, Superblock, lower_head};
use super::{Guarded, Inner, Store, open_needed};
use crate::config::StoreOptions;
use crate::error::{Error, Result, bail};
use crate::io::{DirectoryMedium, File, Medium, OpenMode};
use crate::metrics::Metrics;
use crate::storage::log::{PageLayout, Segments, TableIndex};
use parking_lot::{Mutex, RwLock};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

const CLASS_MAGIC: [u8; 8] = *b"ERROWS\x01\0";
const CLASS_HEADER_BYTES: usize = 512;
/// How often a reader looks at a store that changes meanwhile.
const TRIES_MAX: usize = 20;
/// Changes within one tick of the clock of a file system have the same time. A tick takes 10 ms at
/// most.
const REST_MIN: Duration = Duration::from_millis(100);

/// Where a store is.
#[derive(Clone)]
struct Place {
    path: PathBuf,
    /// False on the simulated device.
    on_disk: bool,
}

impl Store {
    /// Opens the store at `path`, at its last commit or at the commit of `options.step`; creates
    /// it when there is none and `options.create` allows it.
    ///
    /// *Errors*: `NotFound`, `Locked` naming who writes to it, `Corrupt` and `Unsupported` naming
    /// what cannot be read, `Budget` naming the smallest memory that works, `Io`. *Blocking*: reads
    /// the journal; row pages are not read.
    pub fn open(path: impl AsRef<Path>, options: StoreOptions) -> Result<Self> {
        let path = path.as_ref();
        if !path.is_dir() {
            if path.exists() {
                bail!(Misuse, "{} is a file, expected a directory", path.display());
            }
            if !options.create || options.read_only {
                bail!(NotFound, "there is no store at {}", path.display());
            }
            std::fs::create_dir_all(path).map_err(|e| Error::os(path.display(), e))?;
        }
        let read_only = options.read_only;
        if read_only || !options.create {
            let probe = DirectoryMedium::open(path, options.io)?;
            if !Superblock::exists(&probe)? {
                bail!(NotFound, "there is no store at {}", path.display());
            }
        }
        let lock = if read_only { None } else { Some(WriterLock::take(path)?) };
        let directory = DirectoryMedium::open(path, options.io)?;
        let place = Place { path: path.to_path_buf(), on_disk: true };
        let medium: Arc<dyn Medium> = Arc::new(directory);
        if !read_only {
            return Self::open_with(medium, place, options, lock, None);
        }
        let target = options.step.map_or(Target::Last, Target::Step);
        Self::open_reader(medium, &place, options, target)
    }

    /// Opens the commit of this number, to read only.
    pub(super) fn open_commit(path: &Path, options: StoreOptions, sequence: u64) -> Result<Self> {
        let medium = DirectoryMedium::open(path, options.io)?;
        let place = Place { path: path.to_path_buf(), on_disk: true };
        Self::open_reader(Arc::new(medium), &place, options, Target::Sequence(sequence))
    }

    /// Opens beside a writer: holds the commit first, then checks that it is still kept. What the
    /// writer changes meanwhile may look like damage, and is looked at again.
    fn open_reader(
        medium: Arc<dyn Medium>,
        place: &Place,
        options: StoreOptions,
        target: Target,
    ) -> Result<Self> {
        while_changing(
            || files_of_commits(&place.path),
            || {
                let superblock = Superblock::read(&*medium)?;
                let found = recover(&*medium, superblock.checksum_seed(), target)?;
                let sequence = found.commits.last().map_or(0, |c| c.info.sequence);
                drop(found);
                let hold = Some((Hold::take(&place.path, sequence)?, sequence));
                Self::open_with(medium.clone(), place.clone(), options.clone(), None, hold)
            },
        )
    }

    /// Opens a store on any medium, without writer lock: for tests on the simulated device.
    #[cfg(any(test, feature = "testing"))]
    pub fn open_on(medium: Arc<dyn Medium>, options: StoreOptions) -> Result<Self> {
        let place = Place { path: PathBuf::from("simulated"), on_disk: false };
        Self::open_with(medium, place, options, None, None)
    }

    fn open_with(
        medium: Arc<dyn Medium>,
        place: Place,
        options: StoreOptions,
        lock: Option<WriterLock>,
        hold: Option<(Hold, u64)>,
    ) -> Result<Self> {
        let Place { path, on_disk } = place;
        if options.keep == 0 {
            bail!(Misuse, "keep is 0, expected at least 1 commit to keep");
        }
        let superblock = if Superblock::exists(&*medium)? {
            Superblock::read(&*medium)?
        } else {
            let superblock = new_superblock(&path, options.seed);
            superblock.create(&*medium)?;
            superblock
        };
        let seed = superblock.checksum_seed();
        // A reader opens what it holds, whatever was committed since.
        let (hold, target) = match hold {
            Some((hold, sequence)) => (Some(hold), Target::Sequence(sequence)),
            None => (None, options.step.map_or(Target::Last, Target::Step)),
        };
        let mut recovered = recover(&*medium, seed, target)?;
        if on_disk && !options.read_only {
            refuse_held_beside(&path, &recovered.commits)?;
        }
        let mut engine = Engine::default();
        let rows_disk_bytes = build(&mut engine, &*medium, &options, seed, &mut recovered)?;
        let history = history_of(&recovered);
        let inner = Inner {
            path,
            medium,
            options,
            superblock,
            seed,
            pid: std::process::id(),
            engine: RwLock::new(engine),
            history: Mutex::new(history),
            committing: super::Committing::default(),
            metrics: Metrics::default(),
            window: super::window::Window::new(),
            rows_disk_bytes: AtomicU64::new(rows_disk_bytes),
            device_free_bytes: AtomicU64::new(u64::MAX),
            room_is_settled: AtomicBool::new(false),
            on_disk,
            writing: AtomicBool::new(false),
            poison: Mutex::new(None),
            poisoned: AtomicBool::new(false),
            ended_scans: Mutex::default(),
            batches_since_commit: AtomicU64::new(0),
            rows_since_commit: AtomicU64::new(0),
            _hold: hold,
            _lock: lock,
        };
        let store = Store { inner: Arc::new(Guarded(Some(inner))) };
        // A budget that cannot work is refused here; a reader may only want to look.
        let writes = !store.inner.options.read_only;
        if writes && !store.inner.engine.read().tables.is_empty() {
            store.inner.plan()?;
        }
        Ok(store)
    }
}

/// Tries until it succeeds, or fails although nothing that `look` sees has changed meanwhile; at
/// most so often that a writer which never rests does not keep a reader for ever. `look` says, too,
/// for how long nothing had changed then.
fn while_changing<T, S: PartialEq>(
    mut look: impl FnMut() -> Result<(S, Duration)>,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let (mut before, mut rested) = look()?;
    for _ in 1..TRIES_MAX {
        let error = match attempt() {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let (now, rests) = look()?;
        // After a rest a change has another time than the one before.
        if now == before && rested >= REST_MIN {
            return Err(error);
        }
        (before, rested) = (now, rests);
    }
    attempt()
}

/// Name, length and time of the last change of a file.
type FileState = (OsString, u64, SystemTime);

/// The files that a commit changes, and how long ago the last change of all was.
fn files_of_commits(path: &Path) -> Result<(Vec<FileState>, Duration)> {
    let what = |error| Error::os(path.display(), error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(what)? {
        let entry = entry.map_err(what)?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        if !text.starts_with("journal-") && text != HEAD_NAME {
            continue;
        }
        // A file that is gone by now is missing in the next look, too.
        if let Ok(found) = entry.metadata() {
            files.push((name, found.len(), found.modified().map_err(what)?));
        }
    }
    files.sort_unstable();
    let last = files.iter().map(|(_, _, changed)| *changed).max();
    // A time in the future says nothing.
    let ago = last.map_or(Ok(Duration::MAX), |last| last.elapsed()).unwrap_or_default();
    Ok((files, ago))
}

/// Refuses to write while a reader holds a commit outside the kept ones: older, because a crash
/// forgot whose copies it needs; later, because going on from an earlier one overwrites them.
fn refuse_held_beside(path: &Path, kept: &[CommitRecord]) -> Result<()> {
    let sequence = |commit: Option<&CommitRecord>| commit.map_or(0, |c| c.info.sequence);
    let (first, last) = (sequence(kept.first()), sequence(kept.last()));
    // Commit 0 is a store without commits: its readers need nothing.
    let Some((oldest, newest)) = holds::span(path) else { return Ok(()) };
    let (held, which) = match (oldest, newest) {
        (_, newest) if newest > last => (newest, "later than the commit to go on from"),
        (oldest @ 1.., _) if oldest < first => (oldest, "older than the kept commits"),
        _ => return Ok(()),
    };
    bail!(
        Locked,
        "a reader of {} holds commit {held}, which is {which}; wait until it is done or stop it, \
         or open with read_only=True",
        path.display()
    )
}

fn new_superblock(path: &Path, seed: u64) -> Superblock {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |d| d.as_nanos());
    let text = format!("{}\0{now}\0{}", path.display(), std::process::id());
    Superblock {
        uuid: xxh3_128(text.as_bytes()),
        seed,
        created_by: concat!("embedrock ", env!("CARGO_PKG_VERSION")).to_owned(),
    }
}

/// Fills the engine from what recovery found; returns the bytes of all files of rows.
fn build(
    engine: &mut Engine,
    medium: &dyn Medium,
    options: &StoreOptions,
    seed: u64,
    recovered: &mut Recovered,
) -> Result<u64> {
    let last = recovered.commits.last().cloned();
    let last = last.as_ref();
    let epoch = last.map_or(0, |c| c.info.sequence) + 1;
    let mode = if options.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let mut bytes = 0;
    for record in &recovered.classes {
        let mut layout = PageLayout::new(record.page_bytes, record.row_bytes, record.id, seed)?;
        let file = open_needed(medium, &class_file_name(record.id), mode)?;
        check_class_header(&*file, record, seed)?;
        let per_segment = record.segment_bytes / record.page_bytes as u64;
        // The file grows by whole segments, and a commit makes its length durable.
        let pages = file.len()? / record.segment_bytes * per_segment;
        let mut segments = Segments::new(per_segment as u32, layout.rows_per_page as u32, epoch);
        for _ in 0..pages / per_segment {
            segments.grow();
        }
        count_copies(&mut segments, record, &layout, recovered, pages)?;
        segments.recovered(epoch).map_err(|error| error.context(file.name()))?;
        let counters = last.and_then(|c| c.classes.iter().find(|c| c.id == record.id));
        let sequence = counters.map_or(0, |c| c.sequence);
        if options.read_only {
            layout.sequence_max = sequence;
        }
        let class = Class::new(record.clone(), layout, file, segments, sequence, medium)?;
        bytes += class.log.lock().disk_bytes();
        engine.classes.push(class);
    }
    let counters = last.map(|c| c.tables.clone()).unwrap_or_default();
    for table in std::mem::take(&mut recovered.tables) {
        let id = table.record.id;
        engine.add_table(table.record, table.index)?;
        if let (Some(found), Some(table)) =
            (counters.iter().find(|c| c.id == id), engine.tables.last())
        {
            table.rows.store(found.rows, Ordering::Relaxed);
            table.updates.store(found.updates, Ordering::Relaxed);
        }
    }
    Ok(bytes)
}

/// Counts which slots the opened commit and the kept ones before it hold.
fn count_copies(
    segments: &mut Segments,
    record: &ClassRecord,
    layout: &PageLayout,
    recovered: &Recovered,
    pages: u64,
) -> Result<()> {
    let name = class_file_name(record.id);
    let page_of = |slot: u32| slot / layout.rows_per_page as u32;
    let fits = |slot: u32| u64::from(page_of(slot)) < pages;
    let rows_per_page = layout.rows_per_page as u64;
    for table in recovered.tables.iter().filter(|t| t.record.class == record.id) {
        if let TableIndex::Dense(index) = &table.index
            && segments.recovered_all(index.words(), rows_per_page..pages * rows_per_page)
        {
            continue;
        }
        for slot in table.index.slots() {
            if page_of(slot) == 0 {
                bail!(
                    Corrupt,
                    "table {:?} has a row at slot {slot} of {name}, where its header is",
                    table.record.spec.name
                );
            }
            if !fits(slot) {
                bail!(
                    Corrupt,
                    "{name} was truncated: table {:?} has rows in page {}, the file has {pages} \
                     pages; restore from a copy",
                    table.record.spec.name,
                    page_of(slot)
                );
            }
            segments.recovered_newest(slot);
        }
    }
    for (class, epoch, slot) in &recovered.retained {
        if *class == record.id && fits(*slot) {
            segments.recovered_retained(*slot, *epoch);
        }
    }
    Ok(())
}

fn history_of(recovered: &Recovered) -> History {
    let last = recovered.commits.last();
    let complete = match (last, recovered.cycles.last()) {
        (Some(commit), Some((file, _))) => commit.place.0 == *file,
        _ => last.is_none(),
    };
    History {
        kept: recovered.commits.clone(),
        journal: None,
        old_journal_bytes: recovered.journal_bytes,
        held_state_bytes: 0,
        cycles: recovered.cycles.clone(),
        cursor: None,
        // Without a complete cycle in the newest file a new one begins with the next commit.
        cycle_bytes: if complete { last.map_or(0, |c| c.place.1) } else { u64::MAX / 2 },
        epoch_deltas: 0,
        index_bytes: 0,
        epoch_pieces: 0,
        cycle_pieces: 0,
        refused_rows: 0,
        refused_bytes: 0,
        short_of_journal: false,
        hurries: false,
        spare: Spare::default(),
        next_sequence: last.map_or(0, |c| c.info.sequence) + 1,
        under_way: None,
        written_before: 0,
        rows_before: 0,
        payload: Vec::new(),
    }
}

/// The file of a class's pages.
pub(super) fn class_file_name(class: u16) -> String {
    format!("rows-{class}")
}

/// Creates the file of a new class, durable with its name.
pub(super) fn create_class_file(
    medium: &dyn Medium,
    record: &ClassRecord,
    seed: u64,
) -> Result<Arc<dyn File>> {
    let name = class_file_name(record.id);
    if medium.list(&name)?.contains(&name) {
        // Left by an epoch that never committed.
        medium.remove(&name)?;
    }
    let file = medium.open(&name, OpenMode::CreateNew)?;
    file.allocate(0, CLASS_HEADER_BYTES as u64)?;
    file.write_at(&class_header(record, seed), 0)?;
    file.sync()?;
    medium.sync_dir()?;
    Ok(file)
}

fn class_header(record: &ClassRecord, seed: u64) -> Vec<u8> {
    let mut header = CLASS_MAGIC.to_vec();
    header.extend_from_slice(&u64::from(record.id).to_le_bytes());
    header.extend_from_slice(&(record.page_bytes as u64).to_le_bytes());
    header.extend_from_slice(&(record.row_bytes as u64).to_le_bytes());
    header.extend_from_slice(&record.segment_bytes.to_le_bytes());
    header.extend_from_slice(&seed.to_le_bytes());
    header.extend_from_slice(&xxh3_64(&header).to_le_bytes());
    header.resize(CLASS_HEADER_BYTES, 0);
    header
}

fn check_class_header(file: &dyn File, record: &ClassRecord, seed: u64) -> Result<()> {
    let mut header = vec![0; CLASS_HEADER_BYTES];
    file.read_at(&mut header, 0)?;
    if header != class_header(record, seed) {
        bail!(
            Corrupt,
            "{}, bytes 0 to {CLASS_HEADER_BYTES}: not the header of this class; restore from a \
             copy",
            file.name()
        );
    }
    Ok(())
}

impl Inner {
    /// Cuts off what an epoch without commit left, and opens the journal to append. Done once,
    /// before the first change, so that a store that is only read stays as it is.
    pub(super) fn prepare_writing(&self) -> Result<()> {
        if self.writing.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut history = self.history.lock();
        if history.journal.is_some() {
            return Ok(());
        }
        let last = history.kept.last().map(|c| (c.info.sequence, c.place));
        let (sequence, (number, position)) = last.unwrap_or((0, (1, 0)));
        if self.on_disk {
            refuse_held_beside(&self.path, &history.kept)?;
        }
        lower_head(&*self.medium, self.seed, sequence)?;
        for name in self.medium.list("journal-")? {
            if number_of(&name).is_some_and(|n| n > number || last.is_none()) {
                self.medium.remove(&name)?;
            }
        }
        self.medium.sync_dir()?;
        history.spare = Spare::open(&*self.medium)?;
        if last.is_some() {
            let journal = JournalFile::resume(&*self.medium, self.seed, number, position)?;
            history.old_journal_bytes =
                history.old_journal_bytes.saturating_sub(journal.disk_bytes());
            history.journal = Some(journal);
        } else {
            let mut journal = JournalFile::create(&*self.medium, self.seed, 1)?;
            journal.append(RecordKind::CycleEnd, &[])?;
            self.medium.sync_dir()?;
            history.journal = Some(journal);
            history.cycles = vec![(1, 0)];
            history.old_journal_bytes = 0;
        }
        debug_assert!(self.medium.list(&name_of(number)).is_ok());
        // Pairs with the acquire above: who sees it finds the journal open.
        self.writing.store(true, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use std::cell::Cell;

    fn damage() -> Error {
        Error::new(ErrorKind::Corrupt, "damage")
    }

    // A reader of a damaged store that nobody writes to recovered it twenty times.
    #[test]
    fn damage_is_looked_at_again_only_when_something_changed_meanwhile() {
        let long_ago = Duration::from_secs(3600);
        // What each look sees and how long that has rested, and how often it is tried then.
        let cases: [(&[(u32, Duration)], usize); 5] = [
            (&[(1, long_ago)], 1),
            (&[(1, long_ago), (2, Duration::ZERO), (2, long_ago)], 3),
            (&[(1, Duration::ZERO), (1, Duration::ZERO), (1, long_ago)], 3),
            (&[(1, long_ago), (2, long_ago), (3, long_ago)], 3),
            (&[(1, Duration::ZERO)], TRIES_MAX),
        ];
        for (looks, tries) in cases {
            let (looked, tried) = (Cell::new(0), Cell::new(0));
            let look = || {
                let at = looked.replace(looked.get() + 1);
                Ok(looks[at.min(looks.len() - 1)])
            };
            let attempt = || -> Result<()> {
                tried.set(tried.get() + 1);
                Err(damage())
            };
            assert_eq!(while_changing(look, attempt).unwrap_err().message(), "damage");
            assert_eq!(tried.get(), tries, "{looks:?}");
        }
    }

    #[test]
    fn what_a_writer_changed_meanwhile_is_tried_until_it_succeeds() {
        let (looked, tried) = (Cell::new(0), Cell::new(0));
        let look = || Ok((looked.replace(looked.get() + 1), Duration::ZERO));
        let attempt = || {
            tried.set(tried.get() + 1);
            if tried.get() == 7 { Ok("opened") } else { Err(damage()) }
        };
        assert_eq!(while_changing(look, attempt).unwrap(), "opened");
        assert_eq!(tried.get(), 7);
    }

    #[test]
    fn a_look_sees_every_change_of_a_file_that_commits_change() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(directory.path().join(name), bytes).unwrap();
        };
        let files = || files_of_commits(directory.path()).unwrap();
        assert_eq!(files(), (Vec::new(), Duration::MAX));
        write("rows-0", b"12");
        assert_eq!(files().0, Vec::new());
        write("journal-1", b"12");
        write(HEAD_NAME, b"1");
        let before = files();
        assert_eq!(before.0.len(), 2);
        assert!(before.1 < Duration::from_secs(60), "{:?}", before.1);
        assert_eq!(files().0, before.0);
        write("journal-2", b"");
        assert_ne!(files().0, before.0);
        std::fs::remove_file(directory.path().join("journal-2")).unwrap();
        assert_eq!(files().0, before.0);
        write("journal-1", b"123");
        assert_ne!(files().0, before.0);
        // The same length, at another time.
        let file = std::fs::File::options().write(true).open(directory.path().join("journal-1"));
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        file.unwrap().set_modified(then).unwrap();
        let later = files();
        assert!(later.0.iter().any(|(_, length, changed)| (*length, *changed) == (3, then)));
    }
}
