//! The journal's cycles: each file holds every piece of every index once, written a few at each
//! commit, so that older files can go. And what goes when a commit is not kept any more.

use super::super::engine::{Class, Engine, Table};
use super::super::files::state;
use super::super::journal::{
    ClassRecord, CommitRecord, JOURNAL_BYTES_PER_COMMIT, JournalFile, RecordKind, TableRecord,
    VERSION_OF_PINS, name_of, number_of, piece_header, verify_catalog,
};
use super::super::{Inner, has_file};
use super::history::{CycleCursor, History, InFlightCommit, json};
use crate::activation::{Branch, note};
use crate::error::{Error, ErrorKind, Result};
use crate::io::blocks_of;
use crate::planted::{self, Bug};
use crate::storage::Storage;
use std::sync::atomic::Ordering;

/// A commit writes at least this many bytes of index pieces while a cycle is under way.
const PIECE_BYTES_MIN: u64 = 64 << 10;

impl CycleCursor {
    /// Whether the table is the one at hand, or comes behind it.
    fn is_at(&self, table: &Table) -> bool {
        (table.class, u32::from(table.id())) >= (self.class, self.table)
    }

    /// Goes on with a table, from its begin where it is another one: the one at hand may have been
    /// dropped.
    fn go_to(&mut self, table: &Table) {
        let id = u32::from(table.id());
        if (table.class, id) != (self.class, self.table) {
            *self = Self { class: table.class, table: id, piece: 0 };
        }
    }
}

impl Inner {
    /// Bytes of pieces that a byte of deltas pays for while a cycle is under way. Under a disk
    /// bound a cycle is over sooner, and with it the file before.
    fn pieces_per_delta(&self) -> u64 {
        if self.options.max_disk_bytes.is_some() { 4 } else { 2 }
    }

    /// Writes pieces of the indexes of a class that is being closed, as many as the changes of this
    /// epoch pay for. All its deltas so far are in the journal.
    pub(super) fn write_index_pieces(
        &self,
        engine: &Engine,
        class: &Class,
        log: &dyn Storage,
        history: &mut History,
    ) -> Result<()> {
        let Some(mut cursor) = history.cursor else { return Ok(()) };
        let most = if history.journal_was_full || history.hurries {
            // The sooner the round is complete, the sooner the older files go.
            u64::MAX
        } else {
            (self.pieces_per_delta() * history.epoch_deltas).max(PIECE_BYTES_MIN)
        };
        // Pieces are worth only room that rows to be written and the commit itself do not need.
        let to_come = class.journal_bytes(log) + engine.journal_bytes_beside(class);
        let kept = to_come + self.journal_bytes_of_commits(history);
        // Class by class, as they are closed, so that one commit can write all.
        let mut tables: Vec<&Table> = engine.tables.iter().collect();
        tables.sort_by_key(|table| table.class);
        let mut payload = std::mem::take(&mut history.payload);
        while history.epoch_pieces < most {
            let Some(table) = tables.iter().find(|table| cursor.is_at(table)) else {
                let before = history.journal().position();
                history.journal().append(RecordKind::CycleEnd, &[])?;
                let bytes = history.journal().position() - before;
                self.metrics.journal_bytes.fetch_add(bytes, Ordering::Relaxed);
                let file = history.journal().number();
                history.cycles.push((file, history.next_sequence));
                history.cursor = None;
                history.hurries = false;
                history.payload = payload;
                return Ok(());
            };
            if engine.classes[table.class].record.id != class.record.id {
                break;
            }
            cursor.go_to(table);
            let pieces = log.pieces(table.id());
            if cursor.piece >= pieces {
                cursor =
                    CycleCursor { class: table.class, table: u32::from(table.id()) + 1, piece: 0 };
                continue;
            }
            if planted::is(Bug::PieceLost) && cursor.piece + 1 == pieces {
                cursor.piece += 1;
                continue;
            }
            payload.clear();
            payload.extend_from_slice(&piece_header(table.id(), cursor.piece));
            log.write_piece(table.id(), cursor.piece, &mut payload);
            let before = history.journal().position();
            match self.reserve_journal(history, payload.len() as u64 + kept, 0) {
                Ok(()) => history.journal().append(RecordKind::Piece, &payload)?,
                Err(error) if error.kind() == ErrorKind::Full => break,
                Err(error) => return Err(error),
            }
            let bytes = history.journal().position() - before;
            self.metrics.piece_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.metrics.journal_bytes.fetch_add(bytes, Ordering::Relaxed);
            history.cycle_pieces += bytes;
            history.epoch_pieces += bytes;
            cursor.piece += 1;
        }
        history.cursor = Some(cursor);
        history.payload = payload;
        Ok(())
    }

    /// The oldest commit that stays beside the one being made.
    pub(super) fn oldest_to_keep(&self, history: &History) -> u64 {
        let fewer = usize::from(planted::is(Bug::KeepOffByOne));
        let keep = (self.options.keep - fewer).max(1) as u64;
        let first = history.kept.first().map_or(history.next_sequence, |c| c.info.sequence);
        (history.next_sequence + 1).saturating_sub(keep).max(first)
    }

    /// Removes the files that only commits before `released` need, and forgets those before
    /// `oldest_kept`.
    pub(super) fn drop_old_files(
        &self,
        history: &mut History,
        oldest_kept: u64,
        released: u64,
    ) -> Result<()> {
        self.medium.check_lock()?;
        history.held_state_bytes = 0;
        // If the holds cannot be read, all states stay.
        let held = self.held_before(oldest_kept).ok();
        let is_held = |sequence| {
            held.as_ref().is_none_or(|held| held.iter().any(|one| one.sequence == sequence))
        };
        for name in self.medium.list(state::PREFIX)? {
            match state::sequence_of(&name) {
                Some(sequence) if sequence < oldest_kept && self.pins.lock().has(sequence) => {
                    history.held_state_bytes += blocks_of(self.medium.state_of(&name)?.bytes);
                }
                Some(sequence)
                    if sequence < released || sequence < oldest_kept && !is_held(sequence) =>
                {
                    self.medium.remove(&name)?;
                }
                Some(sequence) if sequence < oldest_kept => {
                    history.held_state_bytes += blocks_of(self.medium.state_of(&name)?.bytes);
                }
                _ => {}
            }
        }
        history.drop_before(oldest_kept);
        let base = history.cycles.iter().rfind(|(_, complete)| *complete <= released);
        if let Some(&(base, _)) = base {
            history.cycles.retain(|(file, _)| *file >= base);
            for name in self.medium.list("journal-")? {
                if number_of(&name).is_some_and(|number| number < base) {
                    note(Branch::JournalDropped);
                    self.medium.remove(&name)?;
                }
            }
            let current = history.journal().number();
            history.old_journal_bytes = self.bytes_of_journals_beside(current)?;
        }
        Ok(())
    }

    /// Bytes that all journal files take but one.
    fn bytes_of_journals_beside(&self, current: u64) -> Result<u64> {
        let mut bytes = 0;
        for name in self.medium.list("journal-")? {
            if number_of(&name).is_some_and(|number| number != current) {
                bytes += blocks_of(self.medium.state_of(&name)?.bytes);
            }
        }
        Ok(bytes)
    }

    /// Removes the states of commits after the last kept one, which were given up or never made,
    /// and counts what lies beside what is in use. No journal file may name those commits any more.
    pub(in crate::store) fn drop_given_up(
        &self,
        history: &mut History,
        current: u64,
    ) -> Result<()> {
        let sequence = |commit: Option<&CommitRecord>| commit.map_or(0, |c| c.info.sequence);
        let (first, last) = (sequence(history.kept.first()), sequence(history.kept.last()));
        let mut held_bytes = 0;
        for name in self.medium.list(state::PREFIX)? {
            match state::sequence_of(&name) {
                Some(sequence) if sequence > last => self.medium.remove(&name)?,
                Some(sequence) if sequence < first => {
                    held_bytes += blocks_of(self.medium.state_of(&name)?.bytes);
                }
                _ => {}
            }
        }
        history.held_state_bytes = held_bytes;
        history.old_journal_bytes = self.bytes_of_journals_beside(current)?;
        Ok(())
    }

    /// Bytes of deltas and records with which another cycle begins, where the indexes have so many.
    fn cycle_bytes_due(&self, history: &History, index_bytes: u64) -> u64 {
        // Under a disk bound the journal has to stay short.
        let usual = index_bytes / if self.options.max_disk_bytes.is_some() { 2 } else { 1 };
        if history.journal_was_full {
            PIECE_BYTES_MIN
        } else {
            usual.max(self.options.journal_bytes_min)
        }
    }

    /// Whether a journal file may begin with the commit that is being captured. If one is due
    /// although this is false, the file begins with the next commit.
    pub(super) fn cycle_may_be_due(
        &self,
        engine: &Engine,
        history: &History,
        record_bytes: u64,
    ) -> bool {
        // The rows that are to be written, and as many that are moved for them.
        let deltas = 2 * engine.journal_bytes();
        let more = deltas + JOURNAL_BYTES_PER_COMMIT + record_bytes;
        let due = self.cycle_bytes_due(history, history.index_bytes);
        history.cycle_bytes.saturating_add(more) >= due
    }

    /// Begins a new journal file, and with it a new round of index pieces, when the deltas since
    /// the last round are as long as the indexes. All deltas of the commit `made` are in the
    /// journal, and none of later ones.
    pub(super) fn begin_cycle_if_due(
        &self,
        engine: &Engine,
        history: &mut History,
        made: &InFlightCommit,
    ) -> Result<()> {
        let index = made.index_bytes;
        history.index_bytes = index;
        history.refused.commit_made();
        let short = history.journal_was_full;
        let is_due = history.cycle_bytes >= self.cycle_bytes_due(history, index);
        if history.cursor.is_some() || (is_due && !made.wants_fillings) {
            return Ok(());
        }
        history.journal_was_full = false;
        if !is_due {
            return Ok(());
        }
        let room = self.options.max_disk_bytes.map_or(u64::MAX, |most| {
            let unused = history.journal().unused_bytes() + history.spare.bytes();
            (most + unused).saturating_sub(self.used_bytes(history))
        });
        // Rows that were changed meanwhile have room for their deltas in the old file.
        let deltas = engine.journal_bytes();
        let commits = self.journal_bytes_of_commits(history);
        let catalog = catalog(engine, made);
        check_catalog(&catalog, made)?;
        let catalog_bytes: u64 =
            catalog.iter().map(|(_, record)| JournalFile::record_bytes(record.len())).sum();
        if room < index + deltas + commits + JOURNAL_BYTES_PER_COMMIT {
            return Ok(());
        }
        let number = history.journal().number() + 1;
        let reserved = if deltas == 0 { 0 } else { deltas + commits };
        let growth = JournalFile::bytes_for(catalog_bytes + reserved);
        let mut version = engine.catalog_version();
        if !self.pins.lock().is_empty() {
            version = version.max(VERSION_OF_PINS);
        }
        let next = self.take_for_commit(history, growth, |_| {
            self.next_journal(number, version, &catalog, reserved)
        });
        match next {
            Ok(next) => {
                note(Branch::JournalBegun);
                history.journal().give_back_unused()?;
                history.old_journal_bytes += blocks_of(history.journal().disk_bytes());
                history.journal = Some(next);
            }
            // The commit is made; without room the old file goes on.
            Err(error) if error.kind() == ErrorKind::Full => {
                history.journal_was_full |= short;
                return self.remove_if_there(&name_of(number));
            }
            Err(error) => return Err(error),
        }
        history.hurries = short;
        history.cursor = Some(CycleCursor::default());
        history.cycle_bytes = 0;
        history.cycle_pieces = 0;
        Ok(())
    }

    pub(in crate::store) fn remove_if_there(&self, name: &str) -> Result<()> {
        if has_file(&*self.medium, name)? { self.medium.remove(name) } else { Ok(()) }
    }

    /// A new journal file that begins with the catalog, with room for `reserved` bytes more.
    fn next_journal(
        &self,
        number: u64,
        version: u32,
        catalog: &[(RecordKind, Vec<u8>)],
        reserved: u64,
    ) -> Result<JournalFile> {
        self.remove_if_there(&name_of(number))?;
        let mut next = JournalFile::create(&*self.medium, self.seed, number, version)?;
        for (kind, record) in catalog {
            next.append(*kind, record)?;
        }
        next.reserve(reserved)?;
        self.medium.sync_dir()?;
        self.metrics.journal_bytes.fetch_add(next.position(), Ordering::Relaxed);
        Ok(next)
    }
}

/// The records that a journal file begins with, for a commit whose fillings were wanted.
fn catalog(engine: &Engine, made: &InFlightCommit) -> Vec<(RecordKind, Vec<u8>)> {
    let classes = engine.classes.iter().map(|class| {
        let fillings = made.fillings.iter().find(|(id, _)| *id == class.record.id);
        let fillings = fillings.map(|(_, fillings)| fillings.clone()).unwrap_or_default();
        (RecordKind::Class, json(&ClassRecord { fillings, ..class.record.clone() }))
    });
    let tables = engine.table_records().into_iter().map(|record| {
        let mut record = TableRecord { born: false, ..record.clone() };
        if !record.dropped {
            let partitions = made.partitions.iter().find(|(id, _)| *id == record.id);
            let partitions = partitions.map(|(_, partitions)| *partitions);
            record.partitions = partitions.filter(|_| !planted::is(Bug::RecordRefused));
        }
        (RecordKind::Table, json(&record))
    });
    classes.chain(tables).collect()
}

/// Refuses to begin a file that the next opening would refuse: the files before it would go, and
/// with them the store.
fn check_catalog(catalog: &[(RecordKind, Vec<u8>)], made: &InFlightCommit) -> Result<()> {
    if planted::is(Bug::RecordRefused) {
        return Ok(());
    }
    verify_catalog(catalog).map_err(|error| {
        let what = format!(
            "commit {} is made, but the journal file to follow it could not be read again ({}); it \
             was not begun, and the store opens at this commit; please report this",
            made.info.sequence,
            error.message()
        );
        Error::new(error.kind(), what)
    })
}
