//! Recovery: from the files of a store to the index of one commit.
//!
//! Reads the journal twice: once to learn which commits there are, once to replay from the newest
//! file whose cycle was complete at the oldest kept commit. Files are scanned at once, and a second
//! thread reads and checks ahead of the replay. Never writes; what a crashed epoch left behind is
//! cut off later, before the first write.
//!
//! # How a store opens
//!
//! `Store::open` (`store/open.rs`) opens the directory (`DirectoryMedium::open` finds out what the
//! kernel and the file system allow), takes the `WriterLock` and reads the superblock. A reader
//! takes a `Hold` on the commit instead (`store/unheld.rs` if it may not). If the store has a cold
//! directory, `cold::join` (`store/cold.rs`) puts a `RoutedMedium` over both; a new or moved one is
//! recorded (`Notes::write`) after everything below has succeeded. Then `recover` reads the journal
//! twice:
//!
//! 1. `survey` (`recovery/survey.rs`) finds the commits, and the places where cycles of pieces were
//!    complete; files are scanned in parallel. A commit behind damage, a head beyond the last
//!    commit, or files that no commit explains (`leftovers.rs`) are `Corrupt`. `Survey::whole`
//!    determines the kept commits from the last record and the head (`head.rs`).
//! 2. The target is the commit of `step`, or the last one. `Replay` starts in the newest file that
//!    was complete at the oldest kept commit, and hands every record to its class, in a log a
//!    `LogRecovery` (`storage/log/recovery.rs`): table records make empty indexes, `piece` loads
//!    pieces, and `changes` applies deltas and notes which outdated copies kept commits still have.
//!    It stops at the target's record.
//! 3. `build` makes the classes, each from `StorageRecovery::finish`. In a log, the header of the
//!    file is checked, `count_copies` counts newest and retained copies per segment, and segments
//!    without any are free. `Fillings` has followed the deltas too, and gives the lowest sequence
//!    that pages of each segment may have.
//! 4. `Inner::plan` divides the budget (`store/memory/budget.rs`) and builds caches and readers;
//!    each log makes buffers of its share (`storage/log/demand.rs`).
//!
//! Pages of an uncommitted epoch are in segments that the recovered counts call free, and are
//! overwritten. `prepare_writing` cuts the journal's tail before the first change, or before a
//! schedule moves a row; until then, a store that is only read stays as it is. Opening at an
//! earlier step works alike. Later commits are given up at the first change
//! (`store/commit/first_write.rs`): the head is made durable first, because it alone remembers what
//! they had dropped. A commit whose sync may have failed is written again before that.
//!
//! A refreshed reader (`store/refresh.rs`) copies its indexes, part by part beside the verbs
//! (`StorageRefresh`), and replays the journal after its commit on the copy. Rows that a delta
//! names leave the cache, and so do rows that were admitted since (`cache/arrivals.rs`); all others
//! stay. Then the copy takes the place of what was read, and verbs wait only for that. If anything
//! fails earlier, the reader stays where it was. A reader that goes back recovers the whole index,
//! with an empty cache.

mod survey;

use super::events::Found as FoundInJournal;
use super::files::head::{Head, Tells};
use super::files::leftovers::refuse_unexplained;
use super::files::pins::{Pinned, Pins};
use super::journal::{
    ChangeOf, ClassRecord, CommitRecord, JournalReader, RecordKind, TableChange, TableRecord,
    name_of, pin_number, read_json, read_piece_header,
};
use crate::arena::trim_heap;
use crate::config::{Merging, StoreOptions};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::Medium;
use crate::planted::{self, Bug};
use crate::storage::{self, StorageRecovery};
use std::mem::take;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Instant;
use survey::{Survey, Whole, survey};

/// Payload bytes that the reading thread hands over at once, and how many such it may be ahead.
const BATCH_BYTES: usize = 256 << 10;
const BATCHES_AHEAD: usize = 3;

/// A store as a commit has it.
#[derive(Default)]
pub(super) struct Recovered {
    pub(super) classes: Vec<ClassRecord>,
    /// Their storage in recovery, in the same order.
    pub(super) logs: Vec<Box<dyn StorageRecovery>>,
    /// By id, rising.
    pub(super) tables: Vec<TableRecord>,
    /// Tables that were dropped, in any order.
    pub(super) dropped: Vec<TableRecord>,
    /// Kept commits up to the one that was opened, oldest first.
    pub(super) commits: Vec<CommitRecord>,
    /// Journal files that a commit of this store may need, and the bytes they take.
    pub(super) journal_bytes: u64,
    /// Newest cycle end: (journal file, commit at which it was complete).
    pub(super) cycles: Vec<(u64, u64)>,
    /// Up to here the journal file of the opened commit is known to be on the disk; from here to
    /// the end of the commit a sync may have failed.
    pub(super) synced_to: u64,
    /// The newest commit of the journal.
    pub(super) newest: u64,
    /// The largest sequence of a page that any commit of the journal tells of.
    pub(super) sequence_max: u64,
    /// State of the journal, to be logged.
    pub(super) found: FoundInJournal,
}

/// The commit to rebuild, of the kept ones.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// The last one.
    Last,
    /// The last one of this step.
    Step(u64),
    /// The one of this number.
    Sequence(u64),
    /// The one that is pinned under this name.
    Pin(String),
}

impl Target {
    /// The commit at which a store is to be opened.
    pub(super) fn of(options: &StoreOptions) -> Self {
        match (options.step, &options.pin) {
            (Some(step), _) => Self::Step(step),
            (None, Some(pin)) => Self::Pin(pin.clone()),
            (None, None) => Self::Last,
        }
    }

    /// The pinned commit that is meant, if there is one. Those without a name are for readers that
    /// have them open already.
    fn among<'p>(&self, pins: &'p Pins) -> Option<&'p Pinned> {
        match self {
            Self::Last => None,
            Self::Step(step) => pins.named().rfind(|pinned| pinned.step == *step),
            Self::Sequence(sequence) => pins.named().find(|pinned| pinned.sequence == *sequence),
            Self::Pin(name) => pins.of_name(name),
        }
    }
}

/// Place of a commit.
enum Found {
    /// There is none.
    Nowhere,
    /// In the journal, which keeps it.
    Kept(u64),
    /// In a file of its own.
    Pinned(Pinned),
}

/// State of a store's files before any index is rebuilt.
struct Look {
    head: Head,
    survey: Survey,
    whole: Whole,
}

impl Look {
    fn at(medium: &dyn Medium, seed: u64) -> Result<Self> {
        // Before the journal: a writer beside may commit meanwhile, and the head must not lead.
        let head = Head::read(medium, seed)?;
        let survey = survey(medium, seed)?;
        let whole = survey.whole(&head);
        Ok(Self { head, survey, whole })
    }

    fn kept(&self) -> impl Iterator<Item = &CommitRecord> {
        self.survey.commits.iter().filter(|c| c.info.sequence >= self.whole.oldest)
    }

    fn steps(&self) -> Vec<String> {
        self.kept().map(|c| c.info.step.to_string()).collect()
    }

    /// The commit that is meant, in the journal where it is kept.
    fn find(&mut self, medium: &dyn Medium, seed: u64, target: &Target) -> Result<Found> {
        if matches!(target, Target::Last) {
            return self.number_of(medium, seed, target, &Pins::default());
        }
        let pins = Pins::read(medium, seed);
        let none = Pins::default();
        let kept = self.number_of(medium, seed, target, pins.as_ref().unwrap_or(&none));
        match (kept, pins) {
            (Ok(found), _) => Ok(found),
            // A pinned commit needs nothing of a journal that is damaged.
            (Err(error), Ok(pins)) => match target.among(&pins) {
                Some(pinned) => Ok(Found::Pinned(pinned.clone())),
                None => Err(error),
            },
            (Err(error), Err(damage)) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::CommitGone => Err(damage),
                _ => Err(error),
            },
        }
    }

    /// The commit that is meant, where the journal keeps it.
    fn number_of(
        &mut self,
        medium: &dyn Medium,
        seed: u64,
        target: &Target,
        pins: &Pins,
    ) -> Result<Found> {
        let (damage, gap) = (self.survey.damage.take(), self.survey.gap.take());
        let (newest, oldest) = (self.survey.newest(), self.whole.oldest);
        let lost = self.head.sequence > newest;
        if let Some(damage) = damage.or_else(|| lost_end(newest, self.head.sequence)) {
            // Without a head beyond it, nobody knows which commits before the damage are kept.
            let open = if lost && self.whole.base.is_some() { self.steps() } else { Vec::new() };
            if open.is_empty() || matches!(target, Target::Last) {
                return Err(with_way_out(&damage, &open));
            }
        }
        let first = self.survey.commits.first().map_or(0, |c| c.info.sequence);
        if let Some(gap) = gap.filter(|_| first > oldest) {
            return Err(gap);
        }
        if newest == 0 {
            refuse_unexplained(medium, seed)?;
        }
        let found = |sequence: u64| match sequence {
            0 => Found::Nowhere,
            sequence => Found::Kept(sequence),
        };
        let pinned = match pins.spelled() {
            names if names.is_empty() => names,
            names => format!(", and pinned ones: {names}"),
        };
        match target {
            Target::Last => Ok(found(newest)),
            Target::Sequence(sequence) => {
                if !(oldest..=newest).contains(sequence) {
                    bail!(
                        CommitGone,
                        "commit {sequence} is gone; the store has {oldest} to {newest}{pinned}"
                    );
                }
                Ok(found(*sequence))
            }
            Target::Pin(name) => match pins.of_name(name) {
                Some(found) if (oldest..=newest).contains(&found.sequence) => {
                    Ok(Found::Kept(found.sequence))
                }
                _ => bail!(
                    NotFound,
                    "no commit is pinned as '{name}'; the store keeps steps [{}]{pinned}",
                    self.steps().join(", ")
                ),
            },
            Target::Step(step) => match self.kept().filter(|c| c.info.step == *step).last() {
                Some(commit) => Ok(Found::Kept(commit.info.sequence)),
                None => bail!(
                    NotFound,
                    "there is no commit of step {step}; the store keeps steps [{}]{pinned}{}",
                    self.steps().join(", "),
                    if self.head.tells == Tells::Nothing && newest > 0 {
                        " (its head is missing or damaged: older ones may not be whole)"
                    } else {
                        ""
                    }
                ),
            },
        }
    }
}

/// The record of a commit; `None` where there are no commits. No index is rebuilt.
pub(super) fn find(
    medium: &dyn Medium,
    seed: u64,
    target: &Target,
) -> Result<Option<CommitRecord>> {
    let mut look = Look::at(medium, seed)?;
    match look.find(medium, seed, target)? {
        Found::Nowhere => Ok(None),
        Found::Kept(number) => {
            Ok(look.survey.commits.into_iter().find(|c| c.info.sequence == number))
        }
        Found::Pinned(pinned) => read_pinned(medium, seed, &pinned).map(Some),
    }
}

/// The record of a pinned commit, in the file that has it.
fn read_pinned(medium: &dyn Medium, seed: u64, pinned: &Pinned) -> Result<CommitRecord> {
    let number = pin_number(pinned.sequence);
    let name = |e: Error| e.context(name_of(number));
    let damage = |at: u64| {
        let what = format!(
            "{} is damaged at byte {at}: the pinned commit cannot be read; restore it from a copy, \
             or unpin it",
            name_of(number)
        );
        Error::new(ErrorKind::Corrupt, what)
    };
    let Some(mut reader) = JournalReader::open(medium, seed, number)? else {
        return Err(damage(0));
    };
    while let Some(kind) = reader.next()? {
        if kind != RecordKind::Commit {
            continue;
        }
        let mut record: CommitRecord = read_json(reader.payload(), "commit").map_err(name)?;
        record.verify().map_err(name)?;
        (record.place, record.checksum) = ((number, reader.position()), reader.checksum());
        if record.info.sequence != pinned.sequence || reader.position() != pinned.end {
            return Err(damage(reader.position()));
        }
        return Ok(record);
    }
    Err(damage(reader.position()))
}

/// Rebuilds the store at a commit.
pub(super) fn recover(
    medium: &dyn Medium,
    seed: u64,
    options: &StoreOptions,
    target: &Target,
) -> Result<Recovered> {
    let begun = Instant::now();
    let mut recovered = recover_now(medium, seed, options, target)?;
    recovered.found.took = begun.elapsed();
    Ok(recovered)
}

fn recover_now(
    medium: &dyn Medium,
    seed: u64,
    options: &StoreOptions,
    target: &Target,
) -> Result<Recovered> {
    let mut look = Look::at(medium, seed)?;
    let target = match look.find(medium, seed, target)? {
        Found::Nowhere => 0,
        Found::Kept(number) => number,
        Found::Pinned(pinned) => {
            let record = read_pinned(medium, seed, &pinned)?;
            return recover_pinned(medium, seed, options, &look.survey, record);
        }
    };
    let commits = look.kept().filter(|c| c.info.sequence <= target).cloned().collect();
    let Look { head, survey, whole } = look;
    let oldest = whole.oldest;
    let recovered = Recovered {
        commits,
        journal_bytes: survey.bytes,
        newest: survey.newest(),
        sequence_max: survey.sequence_max(),
        cycles: survey.cycles.iter().copied().filter(|(_, at)| *at <= target).collect(),
        synced_to: survey.synced_to(&head, target),
        found: survey.found(),
        ..Default::default()
    };
    let Some(end) = recovered.commits.last().map(|c| c.place) else { return Ok(recovered) };
    let stored = recovered.commits.last().and_then(|commit| commit.top_share);
    let merging = options.with_stored(stored).merging();
    let Some(base) = whole.base else {
        bail!(Corrupt, "no journal file holds the whole index; restore from a copy");
    };
    let files: Vec<u64> =
        survey.files.iter().copied().filter(|n| (base..=end.0).contains(n)).collect();
    let replayed =
        Replay { recovered, merging, oldest, ..Default::default() }.run(medium, seed, &files, end);
    // The budget does not know of what reading took.
    trim_heap();
    replayed
}

/// Rebuilds the store at a commit that is not kept any more, but that a reader holds: its record
/// and the journal files that lead there stay as long.
///
/// *Errors*: `CommitGone` where they are not there.
pub(super) fn recover_held(
    medium: &dyn Medium,
    seed: u64,
    merging: Merging,
    sequence: u64,
) -> Result<Recovered> {
    let survey = survey(medium, seed)?;
    let record = survey.commits.iter().find(|commit| commit.info.sequence == sequence).cloned();
    let Some((record, base)) = record.zip(survey.base(sequence)) else {
        bail!(CommitGone, "the journal does not lead to commit {sequence} any more");
    };
    let (oldest, end) = (sequence, record.place);
    let files: Vec<u64> =
        survey.files.iter().copied().filter(|n| (base..=end.0).contains(n)).collect();
    let recovered =
        Recovered { commits: vec![record], newest: survey.newest(), ..Default::default() };
    let replayed =
        Replay { recovered, merging, oldest, ..Default::default() }.run(medium, seed, &files, end);
    trim_heap();
    replayed
}

/// Rebuilds the store at a pinned commit, from the file that has it.
fn recover_pinned(
    medium: &dyn Medium,
    seed: u64,
    options: &StoreOptions,
    survey: &Survey,
    record: CommitRecord,
) -> Result<Recovered> {
    let merging = options.with_stored(record.top_share).merging();
    let (place, oldest) = (record.place, record.info.sequence);
    let recovered = Recovered {
        commits: vec![record],
        journal_bytes: survey.bytes,
        newest: survey.newest().max(oldest),
        sequence_max: survey.sequence_max(),
        cycles: vec![(place.0, oldest)],
        synced_to: place.1,
        found: survey.found(),
        ..Default::default()
    };
    let replay = Replay { recovered, merging, oldest, ..Default::default() };
    let replayed = replay.run(medium, seed, &[place.0], place);
    trim_heap();
    replayed
}

/// The damage of a journal that ends before the commit that the head names.
fn lost_end(newest: u64, head: u64) -> Option<Error> {
    let what = format!(
        "the journal ends at commit {newest}, but commit {head} was made: a journal file was \
         truncated, damaged or removed"
    );
    (head > newest).then(|| Error::new(ErrorKind::Corrupt, what))
}

/// Damage with what can be done about it: these steps can still be opened.
fn with_way_out(damage: &Error, steps: &[String]) -> Error {
    let earlier = if steps.is_empty() {
        String::new()
    } else {
        format!(", or open an earlier commit with step=, one of [{}]", steps.join(", "))
    };
    Error::new(damage.kind(), format!("{}; restore from a copy{earlier}", damage.message()))
}

/// Whether the store keeps this very commit, or has pinned it. Another one of the same number takes
/// its place when a writer goes on from an earlier commit.
pub(super) fn is_kept(medium: &dyn Medium, seed: u64, record: &CommitRecord) -> Result<bool> {
    if let Some(pinned) = Pins::read(medium, seed)?.get(record.info.sequence)
        && read_pinned(medium, seed, pinned)?.is_same(record)
    {
        return Ok(true);
    }
    // Before the journal, as in `recover`.
    let head = Head::read(medium, seed)?;
    let mut survey = survey(medium, seed)?;
    if let Some(damage) = survey.damage.take() {
        return Err(damage);
    }
    let oldest = survey.whole(&head).oldest;
    Ok(record.info.sequence >= oldest && survey.commits.iter().any(|c| c.is(record)))
}

/// Records on their way from the thread that reads and checks them.
#[derive(Default)]
struct Batch {
    file: u64,
    file_bytes: u64,
    bytes: Vec<u8>,
    /// Kind, payload within `bytes`, position behind the record.
    records: Vec<(RecordKind, Range<usize>, u64)>,
}

/// Reads and checks the records of `files`, of the first those behind a position, until the one
/// that ends at `end`, batch by batch.
fn read_ahead(
    medium: &dyn Medium,
    seed: u64,
    (files, behind): (&[u64], Option<u64>),
    end: (u64, u64),
    to: &SyncSender<Result<Batch>>,
    used: &Receiver<Batch>,
) {
    let read = || -> Result<()> {
        for file in files {
            let Some(mut reader) = JournalReader::open(medium, seed, *file)? else { continue };
            let file_bytes = reader.file_bytes();
            if let Some(behind) = behind.filter(|_| files.first() == Some(file)) {
                reader.go_to(behind);
            }
            let mut more = true;
            while more {
                let mut batch = used.try_recv().unwrap_or_default();
                batch.bytes.clear();
                batch.records.clear();
                (batch.file, batch.file_bytes) = (*file, file_bytes);
                while more && batch.bytes.len() < BATCH_BYTES {
                    let Some(kind) = reader.next()? else {
                        more = false;
                        break;
                    };
                    let begin = batch.bytes.len();
                    batch.bytes.extend_from_slice(reader.payload());
                    batch.records.push((kind, begin..batch.bytes.len(), reader.position()));
                    more = (*file, reader.position()) != end;
                }
                if to.send(Ok(batch)).is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    };
    if let Err(error) = read() {
        // If nobody receives this error any more, an earlier one was found.
        let _ = to.send(Err(error));
    }
}

/// Tells the classes what the journal says of them.
#[derive(Default)]
pub(super) struct Replay<'a> {
    recovered: Recovered,
    /// Options of merges, for the storages.
    merging: Merging,
    /// The first file is not a base but goes on where the indexes end, behind this position.
    behind: Option<u64>,
    /// Hears of every row that a delta names.
    changed: Option<&'a mut dyn FnMut(u16, u64)>,
    in_base: bool,
    /// Bytes of the file being read.
    file_bytes: u64,
    seed: u64,
    oldest: u64,
    epoch: u64,
}

impl<'a> Replay<'a> {
    /// Goes on from the indexes of a commit; `changed` hears of every row that a delta names.
    pub(super) fn behind(
        recovered: Recovered,
        merging: Merging,
        from: &CommitRecord,
        to: u64,
        changed: &'a mut dyn FnMut(u16, u64),
    ) -> Self {
        Self {
            recovered,
            merging,
            behind: Some(from.place.1),
            changed: Some(changed),
            oldest: to,
            epoch: from.info.sequence + 1,
            ..Default::default()
        }
    }

    /// Replays `files`, of which the first is the base, up to the record that ends at `end`. A
    /// second thread reads and checks ahead of this one; it is gone on return.
    pub(super) fn run(
        mut self,
        medium: &dyn Medium,
        seed: u64,
        files: &[u64],
        end: (u64, u64),
    ) -> Result<Recovered> {
        self.seed = seed;
        std::thread::scope(|scope| {
            let (to, batches) = sync_channel(BATCHES_AHEAD);
            let (give_back, used) = channel();
            let behind = self.behind;
            let reader = move || read_ahead(medium, seed, (files, behind), end, &to, &used);
            std::thread::Builder::new()
                .spawn_scoped(scope, reader)
                .map_err(|source| Error::os("start a thread that reads the journal", source))?;
            for batch in batches {
                let batch = batch?;
                self.in_base = self.behind.is_none() && files.first() == Some(&batch.file);
                self.file_bytes = batch.file_bytes;
                for (kind, payload, position) in &batch.records {
                    self.record(*kind, &batch.bytes[payload.clone()])
                        .map_err(|e| e.context(super::journal::name_of(batch.file)))?;
                    if (batch.file, *position) == end {
                        return self.finish();
                    }
                }
                // The reader may have ended.
                let _ = give_back.send(batch);
            }
            bail!(Corrupt, "the journal changed while it was read; try again")
        })
    }

    fn record(&mut self, kind: RecordKind, payload: &[u8]) -> Result<()> {
        match kind {
            RecordKind::Class => {
                let mut record: ClassRecord = read_json(payload, "class")?;
                if self.recovered.classes.iter().all(|c| c.id != record.id) {
                    record.verify(&self.recovered.classes)?;
                    let facts = record.facts(self.seed, self.merging);
                    let fillings = take(&mut record.fillings);
                    let log = storage::recovery(&facts, &fillings, self.epoch, self.oldest)?;
                    self.recovered.logs.push(log);
                    self.recovered.classes.push(record);
                }
            }
            RecordKind::Table => self.table(read_json(payload, "table")?)?,
            RecordKind::TableChange => self.change(read_json(payload, "change of a table")?)?,
            RecordKind::Piece => self.piece(payload)?,
            RecordKind::Deltas => {
                self.deltas(payload)?;
                if planted::is(Bug::DeltasReplayedTwice) {
                    self.deltas(payload)?;
                }
            }
            RecordKind::CycleEnd => {}
            RecordKind::Commit => {
                let record: CommitRecord = read_json(payload, "commit")?;
                let number = record.info.sequence;
                self.epoch = number + 1;
                for (class, log) in self.recovered.logs.iter_mut().enumerate() {
                    let counters = record.classes.iter().find(|c| usize::from(c.id) == class);
                    log.commit(number, counters.and_then(|counters| counters.began));
                }
            }
        }
        Ok(())
    }

    fn table(&mut self, record: TableRecord) -> Result<()> {
        let Recovered { classes, logs, tables, dropped, .. } = &mut self.recovered;
        if tables.iter().chain(&*dropped).any(|table| table.id == record.id) {
            return Ok(());
        }
        record.verify(tables.iter().chain(&*dropped), classes, self.file_bytes)?;
        // Ids of classes are positions, as the catalog's check says.
        let log = &mut logs[usize::from(record.class)];
        if record.dropped {
            log.drop_table(&record.facts())?;
            dropped.push(record);
        } else {
            log.table(&record.facts())?;
            tables.push(record);
        }
        Ok(())
    }

    fn change(&mut self, change: TableChange) -> Result<()> {
        let Recovered { logs, tables, dropped, .. } = &mut self.recovered;
        let id = change.id;
        let Some(at) = tables.iter().position(|table| table.id == id) else {
            bail!(Corrupt, "a change names table {id}, which does not exist");
        };
        change.verify(&tables[at], tables)?;
        let change = change.change;
        change.apply(&mut tables[at]);
        let log = &mut logs[usize::from(tables[at].class)];
        match change {
            ChangeOf::Drop => {
                log.drop_table(&tables[at].facts())?;
                dropped.push(tables.remove(at));
            }
            ChangeOf::Grow(ids) => log.grow_table(id, ids)?,
            ChangeOf::Rename(_) => {}
        }
        Ok(())
    }

    fn piece(&mut self, payload: &[u8]) -> Result<()> {
        if !self.in_base {
            return Ok(());
        }
        let (table, piece, content) = read_piece_header(payload)?;
        let Recovered { logs, tables, .. } = &mut self.recovered;
        let Ok(at) = tables.binary_search_by_key(&table, |record| record.id) else {
            bail!(Corrupt, "a piece names table {table}, which does not exist");
        };
        logs[usize::from(tables[at].class)].piece(table, piece, content)
    }

    fn deltas(&mut self, payload: &[u8]) -> Result<()> {
        let Some((class, deltas)) = payload.split_first_chunk::<8>() else {
            bail!(Corrupt, "a delta record of {} bytes is too short", payload.len());
        };
        let class = u64::from_le_bytes(*class);
        let Some(log) = self.recovered.logs.get_mut(class as usize) else {
            bail!(Corrupt, "a delta record names class {class}, which does not exist");
        };
        let changed = self.changed.as_mut();
        log.changes(deltas, changed.map(|changed| &mut **changed as &mut dyn FnMut(u16, u64)))
    }

    fn finish(self) -> Result<Recovered> {
        if let Some(commit) = self.recovered.commits.last() {
            let Recovered { tables, classes, .. } = &self.recovered;
            commit.verify_catalog(tables.iter().map(|table| table.id), classes.len())?;
        }
        self.recovered.logs.iter().try_for_each(|log| log.check_complete())?;
        Ok(self.recovered)
    }
}
