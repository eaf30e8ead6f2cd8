//! Opening: from a path to a store at one commit.

use super::cold::{self, Joined, Notes};
use super::commit::first_write::held_beside;
use super::commit::left_held::keep_left_held;
use super::commit::{History, KeptSums, Refused, Spare};
use super::engine::{Class, Engine, Table};
use super::events;
use super::files::class_file::class_file_name;
use super::files::head;
use super::files::holds::Hold;
use super::files::lock::WriterLock;
use super::files::pairing;
use super::files::pins::{self, Pins};
use super::files::place::{absolute, check_place, is_directory, is_there};
use super::files::superblock::{self, Superblock};
use super::journal::ClassRecord;
use super::pins::{keep_pinned, pins_bytes};
use super::recovery::{Recovered, Target, find, recover};
use super::space::Scheduler;
use super::sweeps::copy;
use super::unheld::Noted;
use super::{Guarded, Inner, Store, open_needed};
use crate::config::StoreOptions;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::{DirectoryMedium, Medium, OpenMode};
use crate::metrics::Metrics;
use crate::storage::{self, OpenAt};
use parking_lot::{Mutex, RwLock};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_128;

/// Number of tries of a reader on a store that changes meanwhile.
const TRIES_MAX: usize = 20;
/// The first of them have no pause in between.
const TRIES_AT_ONCE: usize = 5;
/// Changes within one tick of the clock of a file system have the same time. A tick takes 10 ms at
/// most.
const REST_MIN: Duration = Duration::from_millis(100);

/// Joins the directories of a store into one medium.
type Join<'a> = &'a dyn Fn(&Arc<dyn Medium>, &StoreOptions, &Superblock) -> Result<Joined>;

impl Store {
    /// Opens the store at `path`, at its last commit or at the commit of `options.step`; creates
    /// it when there is none and `options.create` allows it. A later change of the working
    /// directory does not move it.
    ///
    /// A reader holds its commit, unless it may not write in the directory, on a read-only medium
    /// for example ([`Store::is_held`]).
    ///
    /// *Errors*: `NotFound`, `Locked` naming who writes to it, `Corrupt` and `Unsupported` naming
    /// what cannot be read, `Budget` naming a memory that works, `Io`. *Blocking*: reads
    /// the journal; row pages are not read.
    pub fn open(path: impl AsRef<Path>, options: StoreOptions) -> Result<Self> {
        let path = absolute(path.as_ref())?;
        copy::refuse_unfinished(&path)?;
        if options.create && !options.read_only {
            check_place(&path)?;
        }
        Self::open_any(&path, options)
    }

    /// Opens also what a copy has not finished.
    pub(super) fn open_any(path: &Path, options: StoreOptions) -> Result<Self> {
        if options.create && !options.read_only && !is_there(&path.join(superblock::NAME))? {
            cold::check_for_new(path, &options)?;
        }
        if !is_directory(path)? {
            if is_there(path)? {
                bail!(Misuse, "{} is a file, expected a directory", path.display());
            }
            if !options.create || options.read_only {
                bail!(NotFound, "there is no store at {}", path.display());
            }
            std::fs::create_dir_all(path).map_err(|e| Error::os(path.display(), e))?;
        }
        let medium = DirectoryMedium::open(path, options.io)?;
        let medium = medium.with_regions_in(apart_of_regions(&options)?);
        let path = medium.path().to_path_buf();
        Self::open_in(Arc::new(medium), path, options, &cold::join)
    }

    /// Opens a store on any medium: for tests on the simulated device.
    #[cfg(any(test, feature = "testing"))]
    pub fn open_on(medium: Arc<dyn Medium>, options: StoreOptions) -> Result<Self> {
        Self::open_in(medium, PathBuf::from("simulated"), options, &cold::join)
    }

    /// `join` puts the store's cold directory beside its own.
    pub(super) fn open_in(
        medium: Arc<dyn Medium>,
        path: PathBuf,
        options: StoreOptions,
        join: Join<'_>,
    ) -> Result<Self> {
        if (options.read_only || !options.create) && !Superblock::exists(&*medium)? {
            bail!(NotFound, "there is no store at {}", path.display());
        }
        options.validate()?;
        if options.read_only {
            let target = Target::of(&options);
            let superblock = Superblock::read(&*medium)?;
            // Again each time: a writer may give the store another cold directory meanwhile.
            let join = || Ok(join(&medium, &options, &superblock)?.medium);
            return Self::open_reader(&medium, &path, &options, &target, &join);
        }
        let lock = WriterLock::take(&*medium, &path)?;
        let medium = lock.guard(medium)?;
        let superblock = if Superblock::exists(&*medium)? {
            Superblock::read(&*medium)?
        } else {
            let superblock = new_superblock(&path, options.seed);
            superblock.create(&*medium)?;
            superblock
        };
        events::log_notes(&path, &*medium);
        let Joined { medium, lock: of_cold, notes } = join(&medium, &options, &superblock)?;
        let store = Self::open_with(medium, path, options, Some(lock.with_cold(of_cold)), None)?;
        // Before the first partition is written.
        notes.map_or(Ok(()), Notes::write)?;
        Ok(store)
    }

    /// Opens the commit of this number, to read only.
    pub(super) fn open_commit(
        medium: &Arc<dyn Medium>,
        path: &Path,
        options: &StoreOptions,
        sequence: u64,
    ) -> Result<Self> {
        let join = || Ok(Arc::clone(medium));
        Self::open_reader(medium, path, options, &Target::Sequence(sequence), &join)
    }

    /// Opens beside a writer: holds the commit first, then checks that it is still kept. Changes of
    /// the writer meanwhile may look like damage, and are looked at again.
    fn open_reader(
        medium: &Arc<dyn Medium>,
        path: &Path,
        options: &StoreOptions,
        target: &Target,
        join: &dyn Fn() -> Result<Arc<dyn Medium>>,
    ) -> Result<Self> {
        while_changing(
            || files_of_commits(&**medium),
            || {
                let medium = &join()?;
                let superblock = Superblock::read(&**medium)?;
                let found = find(&**medium, superblock.checksum_seed(), target)?;
                let sequence = found.map_or(0, |commit| commit.info.sequence);
                let hold = Hold::take(medium, sequence)?;
                let claim = Some(Claim { hold, sequence });
                Self::open_with(medium.clone(), path.to_path_buf(), options.clone(), None, claim)
            },
        )
    }

    fn open_with(
        medium: Arc<dyn Medium>,
        path: PathBuf,
        options: StoreOptions,
        lock: Option<WriterLock>,
        claim: Option<Claim>,
    ) -> Result<Self> {
        let begun = Instant::now();
        let superblock = Superblock::read(&*medium)?;
        let seed = superblock.checksum_seed();
        // A reader opens what it claims, whatever was committed since.
        let target = match &claim {
            Some(claim) => Target::Sequence(claim.sequence),
            None => Target::of(&options),
        };
        let mut recovered = recover(&*medium, seed, &options, &target)?;
        events::recovered(&path, &recovered, true);
        let stored = recovered.commits.last().and_then(|commit| commit.top_share);
        let options = options.with_stored(stored);
        if !matches!(Target::of(&options), Target::Last) {
            refuse_earlier(&*medium, &path, &recovered)?;
        }
        let (mut pins, mut later_pins) = (Pins::default(), Pins::default());
        let mut older = Vec::new();
        if !options.read_only {
            pins = Pins::read(&*medium, seed)?;
            let opened = recovered.commits.last().map_or(0, |commit| commit.info.sequence);
            match options.later_pins_stay {
                true => later_pins = pins.after(opened),
                false => pins.refuse_going_back(&*medium, &path, opened)?,
            }
            pins.forget_after(opened);
            older = held_beside(&*medium, &path, &recovered.commits, &pins)?;
        }
        let hold = claim.and_then(|claim| claim.hold);
        let noted = match recovered.commits.last() {
            Some(record) if options.read_only => Some(Noted::of(&*medium, record)?),
            _ => None,
        };
        let term = head::next_term(&*medium, seed, recovered.sequence_max)?;
        let mut engine = Engine::default();
        let mut rows_disk_bytes = build(&mut engine, &medium, &options, term, &mut recovered)?;
        if !pins.is_empty() {
            keep_pinned(&engine, &pins)?;
            rows_disk_bytes = engine.classes.iter().map(|c| c.log.lock().disk_bytes()).sum();
        }
        let left_held = keep_left_held(&engine, &medium, &path, &options, seed, &older)?;
        if !left_held.is_empty() {
            rows_disk_bytes = engine.classes.iter().map(|c| c.log.lock().disk_bytes()).sum();
        }
        let mut history = history_of(&recovered);
        history.pins_bytes = pins_bytes(&*medium)?;
        let scheduler = Scheduler::new(options.upkeep_scheduler);
        let window = super::window::Window::new(&path);
        let inner = Inner {
            path,
            medium,
            options,
            superblock,
            seed,
            term,
            pid: std::process::id(),
            writer: drawn(),
            engine: RwLock::new(engine),
            history: Mutex::new(history),
            pins: Mutex::new(pins),
            later_pins: Mutex::new(later_pins),
            left_held: Mutex::new(left_held),
            pinning: Mutex::new(()),
            commit_gate: super::CommitGate::default(),
            metrics: Metrics::default(),
            window,
            scheduler,
            limits: events::Limits::default(),
            rows_disk_bytes: AtomicU64::new(rows_disk_bytes),
            device_free_bytes: AtomicU64::new(u64::MAX),
            room_is_settled: AtomicBool::new(false),
            writing: AtomicBool::new(false),
            poison: Mutex::new(None),
            poisoned: AtomicBool::new(false),
            is_displaced: AtomicBool::new(false),
            ended_scans: Mutex::default(),
            batches_since_commit: AtomicU64::new(0),
            rows_since_commit: AtomicU64::new(0),
            modifying: AtomicU64::new(0),
            unheld: AtomicBool::new(hold.is_none()),
            divided: Mutex::default(),
            was_divided: AtomicBool::new(false),
            hold: Mutex::new(hold),
            noted: Mutex::new(noted),
            refreshing: Mutex::new(()),
            moves: AtomicU64::new(0),
            creating: Mutex::new(()),
            lock: Mutex::new(lock),
        };
        let store = Store { inner: Arc::new(Guarded(Some(inner))) };
        if !store.inner.options.read_only {
            let engine = store.inner.engine.read();
            let tables: Vec<u16> = engine.tables.iter().map(Table::id).collect();
            // By their paths.
            store.inner.check_folder()?;
            storage::remove_other_regions(&*store.inner.medium, &tables)?;
        }
        // A budget that cannot work is refused here; a reader may only want to look.
        let writes = !store.inner.options.read_only;
        if writes && !store.inner.engine.read().tables.is_empty() {
            store.inner.plan()?;
        }
        store.log_open(recovered.newest, begun);
        Ok(store)
    }
}

/// The commit that a reader is to open, and what keeps it, if anything can.
struct Claim {
    hold: Option<Hold>,
    sequence: u64,
}

/// Tries until it succeeds, or fails although nothing that `look` sees has changed meanwhile; at
/// most so often that a writer which never rests does not keep a reader for ever. `look` says, too,
/// for how long nothing had changed then.
///
/// *Errors*: what looks like damage, but something has changed each time, is `CommitGone`: nothing
/// is known of damage then.
pub(super) fn while_changing<T, S: PartialEq>(
    mut look: impl FnMut() -> Result<(S, Duration)>,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let (mut before, mut rested) = look()?;
    let mut tries = 0;
    loop {
        let error = match attempt() {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let (now, rests) = look()?;
        tries += 1;
        // After a rest a change has another time than the one before.
        if now == before && rested >= REST_MIN {
            return Err(error);
        }
        if tries == TRIES_MAX {
            return Err(match error.kind() {
                ErrorKind::Corrupt => while_it_changed(&error),
                _ => error,
            });
        }
        if tries >= TRIES_AT_ONCE {
            // A burst of commits may be over then.
            std::thread::sleep(Duration::from_millis(tries as u64));
        }
        (before, rested) = (now, rests);
    }
}

/// The error for apparent damage in files that changed meanwhile.
fn while_it_changed(error: &Error) -> Error {
    let message = format!(
        "a writer has changed the store each of {TRIES_MAX} times that it was looked at; try again \
         while it commits less often, or raise keep= there (at last: {})",
        error.message()
    );
    Error::new(ErrorKind::CommitGone, message)
}

/// Name, length and stamp of a file.
pub(super) type Seen = (String, u64, u128);

/// The files that tell where commits are, and how long ago the last change of all was.
pub(super) fn files_of_commits(medium: &dyn Medium) -> Result<(Vec<Seen>, Duration)> {
    let mut files = Vec::new();
    let mut ago = Duration::MAX;
    let others = [head::NAME, pins::NAME, pairing::NAME].into_iter();
    for name in medium.list("journal-")?.into_iter().chain(others.map(str::to_owned)) {
        match medium.state_of(&name) {
            Ok(state) => {
                files.push((name, state.bytes, state.stamp));
                ago = ago.min(state.ago);
            }
            // A file that is not there, or gone by now, is missing in the next look, too.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok((files, ago))
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

/// A number that no other opening of a store draws, of 16 decimal digits: records of commits have
/// one length.
fn drawn() -> u64 {
    const LEAST: u64 = 1_000_000_000_000_000;
    // Its keys are random in each process, and others in each call.
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    if let Ok(since) = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
        hasher.write_u128(since.as_nanos());
    }
    LEAST + hasher.finish() % (9 * LEAST)
}

/// The folder that options name for regions, absolute.
fn apart_of_regions(options: &StoreOptions) -> Result<Option<PathBuf>> {
    options.pmem_directory.as_deref().map(absolute).transpose()
}

/// Refuses a commit that is not the newest of a store with tables on persistent memory.
fn refuse_earlier(medium: &dyn Medium, path: &Path, recovered: &Recovered) -> Result<()> {
    let opened = recovered.commits.last().map_or(0, |commit| commit.info.sequence);
    // A region goes with the commit that drops its table: earlier ones lack it.
    let has_tables = recovered.tables.iter().any(|table| table.spec.storage.is_direct());
    if opened >= recovered.newest || !(has_tables || storage::has_regions(medium)?) {
        return Ok(());
    }
    bail!(
        Unsupported,
        "store {} has tables with storage \"pmem\", whose rows are durable with each update and \
         newer than any commit: an earlier step cannot be opened; open it without step=",
        path.display()
    )
}

/// Fills the engine from what recovery found; returns the bytes of all files of rows.
pub(super) fn build(
    engine: &mut Engine,
    medium: &Arc<dyn Medium>,
    options: &StoreOptions,
    term: u64,
    recovered: &mut Recovered,
) -> Result<u64> {
    let last = recovered.commits.last().cloned();
    let last = last.as_ref();
    let mode = if options.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let mut bytes = 0;
    check_alignment(&**medium, recovered)?;
    let logs = std::mem::take(&mut recovered.logs);
    for (record, log) in recovered.classes.iter().zip(logs) {
        let file = open_needed(&**medium, &class_file_name(record.id), mode)?;
        let counters = last.and_then(|c| c.classes.iter().find(|c| c.id == record.id));
        let at = OpenAt {
            commit: last.map_or(0, |c| c.info.sequence),
            position: counters.map_or(0, |c| c.sequence),
            is_newest: last.map_or(0, |c| c.info.sequence) >= recovered.newest,
            // A page of an epoch without commit must not pass for a page of this term.
            write_after: (!options.read_only).then(|| head::sequence_of_term(term)),
        };
        let log = log.finish(&at, file, medium)?;
        bytes += log.disk_bytes();
        engine.classes.push(Class::new(record.clone(), log));
    }
    engine.dropped = std::mem::take(&mut recovered.dropped);
    let counters = last.map(|c| c.tables.clone()).unwrap_or_default();
    for record in std::mem::take(&mut recovered.tables) {
        let id = record.id;
        engine.add_table(record)?;
        if let (Some(found), Some(table)) =
            (counters.iter().find(|c| c.id == id), engine.tables.last())
        {
            if table.region.is_none() {
                table.rows.store(found.rows, Ordering::Relaxed);
            }
            table.updates.store(found.updates, Ordering::Relaxed);
        }
    }
    Ok(bytes)
}

/// Refuses a place whose disk cannot read single pages of the store.
fn check_alignment(medium: &dyn Medium, recovered: &Recovered) -> Result<()> {
    let needed = medium.alignment();
    let unfit = |class: &&ClassRecord| !class.page_bytes.is_multiple_of(needed);
    let Some(class) = recovered.classes.iter().find(unfit) else { return Ok(()) };
    let where_it_is = match medium.apart() {
        Some(cold) if cold.alignment() == needed => "the cold directory",
        _ => "the store",
    };
    bail!(
        Unsupported,
        "the disk of {where_it_is} is read in blocks of {needed} bytes, and the store has pages of \
         {}; open it on the disk where it was, and use embedrock copy: a copy has pages that fit",
        class.page_bytes
    )
}

pub(super) fn history_of(recovered: &Recovered) -> History {
    let last = recovered.commits.last();
    let complete = match (last, recovered.cycles.last()) {
        (Some(commit), Some((file, _))) => commit.place.0 == *file,
        _ => last.is_none(),
    };
    History {
        kept: recovered.commits.clone(),
        kept_sums: KeptSums::of(&recovered.commits),
        journal: None,
        old_journal_bytes: recovered.journal_bytes,
        held_state_bytes: 0,
        pins_bytes: 0,
        cycles: recovered.cycles.clone(),
        cursor: None,
        // Without a complete cycle in the newest file a new one begins with the next commit.
        cycle_bytes: if complete { last.map_or(0, |c| c.place.1) } else { u64::MAX / 2 },
        epoch_deltas: 0,
        index_bytes: 0,
        epoch_pieces: 0,
        cycle_pieces: 0,
        refused: Refused::default(),
        journal_was_full: false,
        hurries: false,
        spare: Spare::default(),
        synced_to: recovered.synced_to,
        next_sequence: last.map_or(0, |c| c.info.sequence) + 1,
        in_flight: None,
        written_before: 0,
        rows_before: 0,
        payload: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::IoChoice;
    use std::cell::Cell;
    use std::time::SystemTime;

    fn damage() -> Error {
        Error::new(ErrorKind::Corrupt, "damage")
    }

    // A reader of a damaged store that nobody writes to recovered it twenty times.
    #[test]
    fn damage_is_looked_at_again_only_when_something_changed_meanwhile() {
        let long_ago = Duration::from_secs(3600);
        // The state and the time since its last change that each look finds; the number of tries.
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
            let error = while_changing(look, attempt).unwrap_err();
            // A store that never rests gives no proof of damage.
            let wanted = if tries < TRIES_MAX { ErrorKind::Corrupt } else { ErrorKind::CommitGone };
            assert_eq!(error.kind(), wanted, "{error}");
            assert!(error.message().contains("damage"), "{error}");
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
        let medium = DirectoryMedium::open(directory.path(), IoChoice::Pread).unwrap();
        let files = || files_of_commits(&medium).unwrap();
        assert_eq!(files(), (Vec::new(), Duration::MAX));
        write("rows-0", b"12");
        assert_eq!(files().0, Vec::new());
        write("journal-1", b"12");
        write(head::NAME, b"1");
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
        let stamp = Duration::from_secs(5).as_nanos();
        assert!(later.0.iter().any(|(_, length, changed)| (*length, *changed) == (3, stamp)));
    }
}
