//! Recovery: from the files of a store to the index of one commit.
//!
//! Reads the journal twice: once to learn which commits there are, once to replay from the newest
//! file whose cycle was complete at the oldest kept commit. Files are scanned at once, and a second
//! thread reads and checks ahead of the replay. Never writes; what a crashed epoch left behind is
//! cut off later, before the first write.

mod survey;

use super::files::head::{Head, Tells};
use super::files::leftovers::refuse_unexplained;
use super::journal::{
    ClassRecord, CommitRecord, JournalReader, RecordKind, TableRecord, read_json, read_piece_header,
};
use super::pieces::{pieces_of, write_piece_into};
use crate::arena::trim_heap;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::hash::{mix, table_salt};
use crate::index::{DenseIndex, SparseIndex};
use crate::io::Medium;
use crate::planted::{self, Bug};
use crate::storage::PageLayout;
use crate::storage::log::TableIndex;
use crate::storage::log::delta::{Decoded, Delta, DenseRow, decode, id_of};
use crate::storage::log::fillings::Fillings;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use survey::{Survey, Whole, survey};

/// Payload bytes that the reading thread hands over at once, and how many such it may be ahead.
const BATCH_BYTES: usize = 256 << 10;
const BATCHES_AHEAD: usize = 3;
/// Deltas that are decoded before the first of them is applied: the time that a word of the index
/// takes to come from memory.
const BLOCK_DELTAS: usize = 32;

/// A table as a commit has it.
pub(super) struct RecoveredTable {
    pub(super) record: TableRecord,
    pub(super) index: TableIndex,
}

/// A store as a commit has it.
#[derive(Default)]
pub(super) struct Recovered {
    pub(super) classes: Vec<ClassRecord>,
    pub(super) tables: Vec<RecoveredTable>,
    /// Kept commits up to the one that was opened, oldest first.
    pub(super) commits: Vec<CommitRecord>,
    /// Outdated copies that kept commits still have: (class, epoch, slot).
    pub(super) retained: Vec<(u16, u64, u32)>,
    /// Journal files that a commit of this store may need, and the bytes they take.
    pub(super) journal_bytes: u64,
    /// Newest cycle end: (journal file, commit at which it was complete).
    pub(super) cycles: Vec<(u64, u64)>,
    /// Up to here the journal file of the opened commit is known to be on the disk; from here to
    /// the end of the commit a sync may have failed.
    pub(super) synced_to: u64,
    /// Where the fillings of segments began, by class.
    pub(super) fillings: Vec<Fillings>,
    /// The largest sequence of a page that any commit of the journal tells of.
    pub(super) sequence_max: u64,
}

/// Which commit to rebuild: of the kept ones, unless it is held.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// The last one.
    Last,
    /// The last one of this step.
    Step(u64),
    /// The one of this number.
    Sequence(u64),
    /// The one of this number, which the caller holds, kept or not.
    Held(u64),
}

/// What the files of a store say before any index is rebuilt.
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

    /// The number of the commit that is meant; 0 where there is none.
    fn number_of(&mut self, medium: &dyn Medium, seed: u64, target: Target) -> Result<u64> {
        let (damage, gap) = (self.survey.damage.take(), self.survey.gap.take());
        let (newest, oldest) = (self.survey.newest(), self.whole.oldest);
        if let Target::Held(sequence) = target {
            // Damage behind it does not concern it.
            if self.survey.commits.iter().all(|c| c.info.sequence != sequence) {
                bail!(CommitGone, "commit {sequence} is gone, although it was held");
            }
            self.whole = Whole { oldest: sequence, base: self.survey.base(sequence) };
            return Ok(sequence);
        }
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
        match target {
            Target::Last => Ok(newest),
            Target::Sequence(sequence) | Target::Held(sequence) => {
                if !(oldest..=newest).contains(&sequence) {
                    bail!(
                        CommitGone,
                        "commit {sequence} is gone; the store has {oldest} to {newest}"
                    );
                }
                Ok(sequence)
            }
            Target::Step(step) => match self.kept().filter(|c| c.info.step == step).last() {
                Some(commit) => Ok(commit.info.sequence),
                None => bail!(
                    NotFound,
                    "there is no commit of step {step}; the store keeps steps [{}]{}",
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
pub(super) fn find(medium: &dyn Medium, seed: u64, target: Target) -> Result<Option<CommitRecord>> {
    let mut look = Look::at(medium, seed)?;
    let number = look.number_of(medium, seed, target)?;
    Ok(look.survey.commits.into_iter().find(|c| c.info.sequence == number))
}

/// Rebuilds the store at a commit.
pub(super) fn recover(medium: &dyn Medium, seed: u64, target: Target) -> Result<Recovered> {
    let mut look = Look::at(medium, seed)?;
    let target = look.number_of(medium, seed, target)?;
    let commits = look.kept().filter(|c| c.info.sequence <= target).cloned().collect();
    let Look { head, survey, whole } = look;
    let oldest = whole.oldest;
    let recovered = Recovered {
        commits,
        journal_bytes: survey.bytes,
        sequence_max: survey
            .commits
            .iter()
            .flat_map(|commit| commit.classes.iter().map(|class| class.sequence))
            .max()
            .unwrap_or(0),
        cycles: survey.cycles.iter().copied().filter(|(_, at)| *at <= target).collect(),
        synced_to: survey.synced_to(&head, target),
        ..Default::default()
    };
    let Some(end) = recovered.commits.last().map(|c| c.place) else { return Ok(recovered) };
    let Some(base) = whole.base else {
        bail!(Corrupt, "no journal file holds the whole index; restore from a copy");
    };
    let files: Vec<u64> =
        survey.files.iter().copied().filter(|n| (base..=end.0).contains(n)).collect();
    let replayed =
        Replay { recovered, oldest, ..Default::default() }.run(medium, seed, &files, end);
    // The budget does not know of what reading took.
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

/// Whether the store keeps this very commit. Another one of the same number takes its place when a
/// writer goes on from an earlier commit.
pub(super) fn is_kept(medium: &dyn Medium, seed: u64, record: &CommitRecord) -> Result<bool> {
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
        // Whoever does not wait for it any more has found an error before it.
        let _ = to.send(Err(error));
    }
}

/// Applies what the journal says to indexes.
#[derive(Default)]
pub(super) struct Replay<'a> {
    recovered: Recovered,
    /// By table, which pieces are missing; `None` when none are.
    missing: Vec<Option<Vec<bool>>>,
    /// The first file is not a base but goes on where the indexes end, behind this position.
    behind: Option<u64>,
    /// Hears of every row that a delta names.
    changed: Option<&'a mut dyn FnMut(u16, u64)>,
    in_base: bool,
    /// Bytes of the file being read.
    file_bytes: u64,
    oldest: u64,
    epoch: u64,
    /// Slots written in this epoch, by class: first → one past the last.
    written: BTreeMap<(u16, u32), u32>,
}

impl<'a> Replay<'a> {
    /// Goes on from the indexes of a commit; `changed` hears of every row that a delta names.
    /// Which copies earlier commits have is not counted.
    pub(super) fn behind(
        recovered: Recovered,
        from: &CommitRecord,
        to: u64,
        changed: &'a mut dyn FnMut(u16, u64),
    ) -> Self {
        Self {
            missing: vec![None; recovered.tables.len()],
            recovered,
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
                    let ClassRecord { row_bytes, page_bytes, segment_bytes, .. } = record;
                    let layout = PageLayout::new(page_bytes, row_bytes, record.id, 0)?;
                    let pages = segment_bytes / page_bytes as u64;
                    let text = std::mem::take(&mut record.fillings);
                    let fillings = Fillings::new(layout.rows_per_page, pages, &text)?;
                    self.recovered.fillings.push(fillings);
                    self.recovered.classes.push(record);
                }
            }
            RecordKind::Table => self.table(read_json(payload, "table")?)?,
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
                self.epoch = record.info.sequence + 1;
                self.written.clear();
                for (class, fillings) in self.recovered.fillings.iter_mut().enumerate() {
                    let counters = record.classes.iter().find(|c| usize::from(c.id) == class);
                    fillings.commit(counters.and_then(|counters| counters.began));
                }
            }
        }
        Ok(())
    }

    fn table(&mut self, record: TableRecord) -> Result<()> {
        if self.recovered.tables.iter().any(|t| t.record.id == record.id) {
            return Ok(());
        }
        let known = self.recovered.tables.iter().map(|t| &t.record);
        record.verify(known, &self.recovered.classes, self.file_bytes)?;
        let spec = &record.spec;
        let index = match (spec.num_embeddings, record.partitions) {
            (Some(rows), _) => TableIndex::Dense(DenseIndex::new(rows)?),
            (None, Some(partitions)) => {
                let expected = spec.expected_rows.unwrap_or(0);
                let index = SparseIndex::restore(partitions, expected)?;
                TableIndex::Sparse(index, table_salt(&spec.name))
            }
            (None, None) => bail!(Corrupt, "growing table '{}' has no partitions", spec.name),
        };
        let all = || vec![true; pieces_of(&index) as usize];
        self.missing.push((!record.born).then(all).filter(|missing| !missing.is_empty()));
        self.recovered.tables.push(RecoveredTable { record, index });
        Ok(())
    }

    fn piece(&mut self, payload: &[u8]) -> Result<()> {
        if !self.in_base {
            return Ok(());
        }
        let (table, piece, content) = read_piece_header(payload)?;
        let Some(at) = self.position_of(table) else {
            bail!(Corrupt, "a piece names table {table}, which does not exist");
        };
        write_piece_into(&mut self.recovered.tables[at].index, piece, content)?;
        if let Some(missing) = &mut self.missing[at]
            && let Some(flag) = missing.get_mut(piece as usize)
            && std::mem::replace(flag, false)
            && !missing.contains(&true)
        {
            self.missing[at] = None;
        }
        Ok(())
    }

    /// Where a table is among those recovered. Ids are positions, as the catalog's check says.
    fn position_of(&self, table: u16) -> Option<usize> {
        let at = usize::from(table);
        self.recovered.tables.get(at).filter(|t| t.record.id == table).map(|_| at)
    }

    fn deltas(&mut self, payload: &[u8]) -> Result<()> {
        let Some((class, deltas)) = payload.split_first_chunk::<8>() else {
            bail!(Corrupt, "a delta record of {} bytes is too short", payload.len());
        };
        let class = u64::from_le_bytes(*class);
        let kinds: Vec<Option<bool>> = self
            .recovered
            .tables
            .iter()
            .map(|t| (u64::from(t.record.class) == class).then(|| t.index.is_sparse()))
            .collect();
        let kind = |table: u16| kinds.get(usize::from(table)).copied().flatten();
        let mut block = Vec::with_capacity(BLOCK_DELTAS);
        // Nothing is decoded of a class without tables.
        let mut fillings = match self.recovered.fillings.get_mut(class as usize) {
            Some(fillings) => std::mem::take(fillings),
            None => Fillings::default(),
        };
        let decoded = decode(deltas, &kind, &mut |decoded| match decoded {
            Decoded::One(delta) => {
                if let Delta::Row { table, key, slot, .. } = delta
                    && let Some(at) = self.position_of(table)
                {
                    fillings.appended(u64::from(slot)..u64::from(slot) + 1);
                    self.recovered.tables[at].index.prefetch(key);
                }
                block.push(delta);
                if block.len() < BLOCK_DELTAS {
                    return Ok(());
                }
                block.drain(..).try_for_each(|delta| self.delta(delta))
            }
            Decoded::Dense { table, first, rows } => {
                fillings.appended(u64::from(first)..u64::from(first) + rows.len() as u64);
                block.drain(..).try_for_each(|delta| self.delta(delta))?;
                self.dense_rows(table, first, rows)
            }
        });
        if let Some(place) = self.recovered.fillings.get_mut(class as usize) {
            *place = fillings;
        }
        decoded?;
        block.drain(..).try_for_each(|delta| self.delta(delta))
    }

    /// Rows of a dense table, stored at `first` and behind it. Where no commit before the target
    /// is kept and all pieces are there, nothing but the index changes, and all rows at once.
    fn dense_rows(&mut self, table: u16, first: u32, rows: &[DenseRow]) -> Result<()> {
        let at = self.position_of(table).expect("the decoder checked the table");
        let plain = self.epoch <= self.oldest && self.missing[at].is_none();
        if plain && let TableIndex::Dense(index) = &mut self.recovered.tables[at].index {
            let most = rows.iter().map(id_of).max().unwrap_or(0);
            check_id(index, u64::from(most))?;
            index.set_all(rows, id_of, first);
            if let Some(changed) = &mut self.changed {
                rows.iter().for_each(|row| changed(table, u64::from(id_of(row))));
            }
            return Ok(());
        }
        for (row, slot) in rows.iter().zip(first..) {
            self.delta(Delta::Row { table, key: u64::from(id_of(row)), old: 0, slot })?;
        }
        Ok(())
    }

    fn delta(&mut self, delta: Delta) -> Result<()> {
        let (Delta::Row { table, .. }
        | Delta::Delete { table, .. }
        | Delta::Refresh { table, .. }
        | Delta::Split { table }
        | Delta::Merge { table }) = delta;
        let at = self.position_of(table).expect("the decoder checked the table");
        let found = &mut self.recovered.tables[at];
        let class = found.record.class;
        let missing = self.missing[at].as_mut();
        let outdated = match &mut found.index {
            TableIndex::Dense(index) => dense(index, missing.as_deref(), delta)?,
            TableIndex::Sparse(index, salt) => sparse(index, *salt, missing, delta)?,
        };
        if let Delta::Row { slot, .. } = delta {
            self.note_written(class, slot);
        }
        if let (Delta::Row { key, .. } | Delta::Delete { key, .. }, Some(changed)) =
            (delta, &mut self.changed)
        {
            changed(table, key);
        }
        if outdated != 0 && self.epoch > self.oldest && !self.was_written(class, outdated) {
            self.recovered.retained.push((class, self.epoch, outdated));
        }
        Ok(())
    }

    fn note_written(&mut self, class: u16, slot: u32) {
        if self.epoch <= self.oldest {
            return;
        }
        if let Some(((c, _), end)) = self.written.range_mut(..=(class, slot)).next_back()
            && *c == class
            && *end >= slot
        {
            *end = (*end).max(slot + 1);
            return;
        }
        self.written.insert((class, slot), slot + 1);
    }

    fn was_written(&self, class: u16, slot: u32) -> bool {
        let before = self.written.range(..=(class, slot)).next_back();
        before.is_some_and(|((c, _), end)| *c == class && slot < *end)
    }

    fn finish(self) -> Result<Recovered> {
        if let Some(commit) = self.recovered.commits.last() {
            let Recovered { tables, classes, .. } = &self.recovered;
            commit.verify_catalog(tables.len(), classes.len())?;
        }
        let mut missing = self.missing.iter().enumerate();
        if let Some((table, missing)) = missing.find_map(|(i, m)| Some((i, m.as_ref()?))) {
            let count = missing.iter().filter(|m| **m).count();
            bail!(Corrupt, "the journal lacks {count} pieces of the index of table {table}");
        }
        Ok(self.recovered)
    }
}

fn check_id(index: &DenseIndex, id: u64) -> Result<()> {
    if id >= index.num_embeddings() {
        bail!(Corrupt, "a delta names id {id} of {}", index.num_embeddings());
    }
    Ok(())
}

/// Applies a delta to a dense index; returns the slot it outdated.
fn dense(index: &mut DenseIndex, missing: Option<&Vec<bool>>, delta: Delta) -> Result<u32> {
    let (key, slot) = match delta {
        Delta::Row { key, slot, .. } => (key, slot),
        Delta::Delete { key, .. } => (key, 0),
        _ => bail!(Corrupt, "a dense table has a delta of a growing one"),
    };
    check_id(index, key)?;
    if missing.is_some_and(|m| m[index.piece_of(key)]) {
        return Ok(0);
    }
    Ok(index.set(key, slot))
}

/// Applies a delta to a growing table's index; returns the slot it outdated.
fn sparse(
    index: &mut SparseIndex,
    salt: u64,
    mut missing: Option<&mut Vec<bool>>,
    delta: Delta,
) -> Result<u32> {
    let skip = |missing: &Option<&mut Vec<bool>>, index: &SparseIndex, key: u64| {
        let partition = index.partition_of(mix(key, salt)) as usize;
        missing.as_ref().is_some_and(|m| m[partition])
    };
    let lost = |key: u64, slot: u32| {
        let what = format!("key {key} is not indexed at slot {slot}, as its delta says");
        Error::new(ErrorKind::Corrupt, what)
    };
    match delta {
        Delta::Row { key, old, slot, .. } => {
            if skip(&missing, index, key) {
                return Ok(0);
            }
            if old == 0 {
                index.insert(mix(key, salt), slot);
            } else if !index.replace(mix(key, salt), old, slot) {
                return Err(lost(key, old));
            }
            Ok(old)
        }
        Delta::Delete { key, old, .. } => {
            if skip(&missing, index, key) {
                return Ok(0);
            }
            if !index.remove(mix(key, salt), old) {
                return Err(lost(key, old));
            }
            Ok(old)
        }
        Delta::Refresh { key, slot, .. } => {
            if !skip(&missing, index, key) && !index.replace(mix(key, salt), slot, slot) {
                return Err(lost(key, slot));
            }
            Ok(0)
        }
        Delta::Split { .. } => {
            let split = index.split(&mut |slot| {
                bail!(Corrupt, "the index entry of slot {slot} has no tag bits left")
            })?;
            if let Some(missing) = &mut missing {
                let parent = missing[split.parent as usize];
                missing.push(parent);
            }
            Ok(0)
        }
        Delta::Merge { .. } => {
            if missing.is_some() || index.merge().is_none() {
                bail!(Corrupt, "a partition was merged while its index was being written");
            }
            Ok(0)
        }
    }
}

#[cfg(test)]
mod tests;
