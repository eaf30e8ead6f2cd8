//! The log lines of a store, in one place: texts, levels, and limits to one line a second.
//!
//! `error`: data are at risk, or the store refuses changes from here on. `warn`: it coped, and
//! somebody should know. `info`: what an operator wants to have seen. `debug`: every commit, and
//! where merges begin. Errors that a call returns are the caller's to log; told here are those that
//! change what the store does afterwards, and refusals for want of room. Each line begins with the
//! store's path. Callers may hold locks of the store, so a logger must not call it.

use super::engine::{Class, Engine};
use super::recovery::Recovered;
use super::{Inner, Store};
use crate::config::{CommitInfo, Memory, StoreOptions, Uncommitted};
use crate::error::{Error, ErrorKind};
use crate::io::Medium;
use crate::logs::{Bytes, LeftOut, Limit, Seconds, without_keys};
use crate::storage::{MergeCounts, Storage};
use log::{debug, error, info, warn};
use std::fmt::{self, Display};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Targets of the lines, for filters.
const STORE: &str = "embedrock::store";
const RECOVERY: &str = "embedrock::recovery";
const COMMIT: &str = "embedrock::commit";
const READER: &str = "embedrock::reader";
const SPACE: &str = "embedrock::space";
const MERGE: &str = "embedrock::merge";
const WINDOW: &str = "embedrock::window";
const SWEEP: &str = "embedrock::sweep";

/// Limits of what a store may have to say often.
#[derive(Debug, Default)]
pub(super) struct Limits {
    refused: Limit,
    cleaning: Limit,
    merged: Limit,
    merge_failed: Limit,
    window: Limit,
    displaced: Limit,
}

/// State of the journal as recovery has found it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    /// Files, and their bytes.
    pub(super) files: usize,
    pub(super) bytes: u64,
    /// The last file, and where the records in it end that check.
    pub(super) last: u64,
    pub(super) end: u64,
    /// Whether a record is begun there that does not check.
    pub(super) is_torn: bool,
    pub(super) took: Duration,
}

/// A commit, by step and number.
struct Of<'a>(Option<&'a CommitInfo>);

impl Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(commit) => write!(f, "step {} (commit {})", commit.step, commit.sequence),
            None => f.write_str("no commit"),
        }
    }
}

/// The budget as it was asked for.
struct Budget(Memory);

impl Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Memory::Bytes(bytes) => write!(f, "{}", Bytes(bytes)),
            Memory::Percent(percent) => write!(f, "{percent}% of the rows"),
        }
    }
}

/// The tables of a class, by name.
struct Tables<'a>(&'a Engine, u16);

impl Display for Tables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 4;
        let of_class = self.0.tables.iter().filter(|table| table.record.class == self.1);
        let names: Vec<&str> = of_class.map(|table| table.record.spec.name.as_str()).collect();
        let shown = names[..names.len().min(MOST)].join(", ");
        match names.len() - names.len().min(MOST) {
            0 => f.write_str(&shown),
            more => write!(f, "{shown} and {more} more"),
        }
    }
}

/// A recovery is over, of a store that is opened at `commit` or of a reader that could not follow.
pub(super) fn recovered(path: &Path, recovered: &Recovered, is_opening: bool) {
    let (path, found) = (path.display(), recovered.found);
    let Some(commit) = recovered.commits.last() else { return };
    let (file, end) = commit.place;
    let behind = match found.last == file {
        true => found.end.saturating_sub(end),
        false => found.end,
    };
    let level = if is_opening { log::Level::Info } else { log::Level::Debug };
    log::log!(
        target: RECOVERY,
        level,
        "{path}: recovered {} from {} journal files of {} in {}, {} behind it that no commit has",
        Of(Some(&commit.info)),
        found.files,
        Bytes(found.bytes),
        Seconds(found.took),
        Bytes(behind),
    );
    if found.is_torn && is_opening {
        warn!(
            target: RECOVERY,
            "{path}: journal file {} ends in a torn record at byte {}: the process that wrote it, \
             or its machine, stopped amid a write; the store goes on from its last commit, and the \
             first change cuts off what lies behind it",
            found.last,
            found.end,
        );
    }
}

impl Store {
    /// It is open, and was not before.
    pub(super) fn log_open(&self, newest: u64, begun: Instant) {
        let inner = &*self.inner;
        let options = &inner.options;
        let path = inner.path.display();
        let last = inner.history.lock().kept.last().map(|commit| commit.info.clone());
        let engine = inner.engine.read();
        let rows: u64 = engine.tables.iter().map(|t| t.rows.load(Ordering::Relaxed)).sum();
        let mut kinds: Vec<&str> =
            engine.tables.iter().map(|table| table.record.spec.storage.name()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let kinds = match kinds[..] {
            [] => String::new(),
            _ => format!(" ({})", kinds.join(", ")),
        };
        info!(
            target: STORE,
            "{path}: opened to {} at {}, {} tables{kinds} with {rows} rows, {} on disk, memory {}, \
             {}, in {}",
            what_for(options, inner.is_held()),
            Of(last.as_ref()),
            engine.tables.len(),
            Bytes(inner.rows_disk_bytes.load(Ordering::Relaxed)),
            Budget(options.memory),
            inner.medium.kind(),
            Seconds(begun.elapsed()),
        );
        let opened = last.as_ref().map_or(0, |commit| commit.sequence);
        if !options.read_only && opened < newest {
            info!(
                target: STORE,
                "{path}: goes back to {}: with the first change commits up to {newest} are given \
                 up",
                Of(last.as_ref()),
            );
        }
    }
}

fn what_for(options: &StoreOptions, is_held: bool) -> &'static str {
    match (options.read_only, is_held) {
        (false, _) => "write",
        (true, true) => "read",
        (true, false) => "read without a hold",
    }
}

impl Inner {
    /// It is closed, and what had no commit is gone.
    pub(super) fn log_closed(&self, lost: Uncommitted) {
        let path = self.path.display();
        match lost.batches {
            0 => info!(target: STORE, "{path}: closed"),
            batches => info!(
                target: STORE,
                "{path}: closed, {batches} batches with {} rows that no commit has are given up",
                lost.rows
            ),
        }
    }

    /// It refuses changes from here on.
    pub(super) fn log_poisoned(&self, because: &Error) {
        error!(
            target: STORE,
            "{}: refuses changes and commits from here on, until it is opened again at its last \
             commit: {}",
            self.path.display(),
            without_keys(because.message()),
        );
    }

    /// A look at the folder has found it in its place, or not, which it was before.
    pub(super) fn log_place(&self, was_displaced: bool, displaced: Option<&str>) {
        let path = self.path.display();
        match displaced {
            Some(what) if !was_displaced => {
                if let Some(left_out) = self.limits.displaced.pass() {
                    error!(
                        target: STORE,
                        "{path}: the folder is not in its place, changes and commits are refused \
                         until it is back: {what}{left_out}"
                    );
                }
            }
            None if was_displaced => info!(target: STORE, "{path}: the folder is in its place"),
            _ => {}
        }
    }

    pub(super) fn log_committed(&self, made: &CommitInfo, took: Duration) {
        debug!(
            target: COMMIT,
            "{}: committed {}, {} rows and {} written, state {}, in {}",
            self.path.display(),
            Of(Some(made)),
            made.rows_flushed,
            Bytes(made.bytes_written),
            Bytes(made.state_bytes),
            Seconds(took),
        );
    }

    /// A commit that was captured has failed: the store is poisoned, which was told.
    pub(super) fn log_commit_failed(&self, because: &Error) {
        error!(
            target: COMMIT,
            "{}: a commit has failed, the one before stays the last: {}",
            self.path.display(),
            without_keys(because.message()),
        );
    }

    /// A verb or a commit was refused. Told where it was for want of room; other refusals are the
    /// caller's mistakes, or told already.
    pub(super) fn log_refused(&self, what: &str, because: &Error) {
        if !matches!(because.kind(), ErrorKind::Full | ErrorKind::Budget) {
            return;
        }
        if let Some(left_out) = self.limits.refused.pass() {
            let of = if because.kind() == ErrorKind::Full { "disk" } else { "memory" };
            warn!(
                target: SPACE,
                "{}: {what} was refused for want of {of}: {}{left_out}",
                self.path.display(),
                without_keys(because.message()),
            );
        }
    }

    /// Cleaning has made room that somebody lacked.
    pub(super) fn log_cleaned(&self, engine: &Engine, class: &Class, units: u64, lacking: u64) {
        if units == 0 {
            return;
        }
        if let Some(left_out) = self.limits.cleaning.pass() {
            warn!(
                target: SPACE,
                "{}: tables {}: cleaned {units} units under pressure, for {} that others lack\
                 {left_out}",
                self.path.display(),
                Tables(engine, class.record.id),
                Bytes(lacking),
            );
        }
    }

    /// Holds of readers on a commit were taken away.
    pub(super) fn log_holds_taken(&self, sequence: u64, holds: usize, most: u64) {
        warn!(
            target: SPACE,
            "{}: took {holds} holds of readers on commit {sequence} away, which kept more than {}: \
             they get CommitGone once they need what is dropped, until they refresh",
            self.path.display(),
            Bytes(most),
        );
    }

    /// A reader has lost its hold.
    pub(super) fn log_hold_lost(&self) {
        let last = self.history.lock().kept.last().map(|commit| commit.info.clone());
        warn!(
            target: READER,
            "{}: this reader of {} has lost its hold: what the writer drops it cannot read any \
             more; refresh it",
            self.path.display(),
            Of(last.as_ref()),
        );
    }

    pub(super) fn log_refreshed(
        &self,
        before: Option<&CommitInfo>,
        to: &CommitInfo,
        took: Duration,
    ) {
        info!(
            target: READER,
            "{}: refreshed from {} to {} in {}",
            self.path.display(),
            Of(before),
            Of(Some(to)),
            Seconds(took),
        );
    }

    pub(super) fn log_merge_begun(&self, engine: &Engine, class: &Class) {
        debug!(
            target: MERGE,
            "{}: tables {}: a merge begins",
            self.path.display(),
            Tables(engine, class.record.id),
        );
    }

    /// Logs a merge whose outcome was taken over: the counts of merges before it and now.
    pub(super) fn log_merged(
        &self,
        (engine, class): (&Engine, &Class),
        before: &MergeCounts,
        now: &MergeCounts,
    ) {
        if now.merges == before.merges {
            return;
        }
        if let Some(left_out) = self.limits.merged.pass() {
            info!(
                target: MERGE,
                "{}: tables {}: merged {} rows into {}, {} read and {} written, {} of work in {}\
                 {left_out}",
                self.path.display(),
                Tables(engine, class.record.id),
                now.taken - before.taken,
                now.rows - before.rows,
                Bytes(now.bytes_read - before.bytes_read),
                Bytes(now.bytes_written - before.bytes_written),
                Seconds(now.busy.saturating_sub(before.busy)),
                Seconds(now.latency.saturating_sub(before.latency)),
            );
        }
    }

    /// A merge was given up because of an error.
    pub(super) fn log_merge_failed(&self, because: &Error) {
        if let Some(left_out) = self.limits.merge_failed.pass() {
            warn!(
                target: MERGE,
                "{}: a merge was given up: {}{left_out}",
                self.path.display(),
                without_keys(because.message()),
            );
        }
    }

    /// Upkeep has met damage that it did not know of.
    pub(super) fn log_damage(&self, log: &dyn Storage, known: usize) {
        for damage in log.damage().iter().skip(known) {
            error!(
                target: MERGE,
                "{}: damage: {}",
                self.path.display(),
                without_keys(damage)
            );
        }
    }

    /// The look-ahead window is set aside, or works again.
    pub(super) fn log_window(&self, was_off: bool, is_off: bool) {
        if was_off == is_off {
            return;
        }
        if let Some(left_out) = self.limits.window.pass() {
            let path = self.path.display();
            match is_off {
                true => info!(
                    target: WINDOW,
                    "{path}: look-ahead is set aside: the budget has no room for it, or it would \
                     not pay{left_out}"
                ),
                false => info!(target: WINDOW, "{path}: look-ahead is in use{left_out}"),
            }
        }
    }
}

/// A read ahead has failed; verbs read what it lacks.
pub(super) fn log_read_ahead_failed(path: &Path, error: &str, left_out: LeftOut) {
    warn!(
        target: WINDOW,
        "{}: a read ahead has failed, calls read their rows themselves: {}{left_out}",
        path.display(),
        without_keys(error)
    );
}

/// A schedule was wrong about most next uses.
pub(super) fn log_schedule_set_aside(path: &Path) {
    warn!(
        target: WINDOW,
        "{}: the schedule is set aside: most rows were not used next in the stretch that it says; \
         it belongs to other data, another order or another seed",
        path.display()
    );
}

/// The threads of a window rest.
pub(super) fn log_starved(path: &Path, left_out: LeftOut) {
    info!(
        target: WINDOW,
        "{}: look-ahead rests for a while: its threads had no core while a call waited{left_out}",
        path.display()
    );
}

/// A pass over a whole store, which is told when it begins and when it ends, however that is.
pub(super) struct Sweep {
    what: String,
    begun: Instant,
    is_done: bool,
}

impl Sweep {
    /// It begins: `what` is a noun, such as "copy", of the store at `path`, and maybe to another.
    pub(super) fn begin(what: &str, path: &Path, to: Option<&Path>) -> Self {
        let what = match to {
            Some(to) => format!("{}: {what} to {}", path.display(), to.display()),
            None => format!("{}: {what}", path.display()),
        };
        info!(target: SWEEP, "{what} begins");
        Self { what, begun: Instant::now(), is_done: false }
    }

    /// It is done: with so many rows, and so many bytes on disk.
    pub(super) fn done(mut self, rows: u64, bytes: u64) {
        self.is_done = true;
        let (what, took) = (&self.what, Seconds(self.begun.elapsed()));
        info!(target: SWEEP, "{what} is done: {rows} rows, {} on disk, in {took}", Bytes(bytes));
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        if !self.is_done {
            let (what, took) = (&self.what, Seconds(self.begun.elapsed()));
            warn!(target: SWEEP, "{what} was ended before it was done, after {took}");
        }
    }
}

/// Logs the features that a medium lacks, once, as it is opened.
pub(super) fn log_notes(path: &Path, medium: &dyn Medium) {
    for note in medium.notes() {
        info!(target: STORE, "{}: {note}", path.display());
    }
}
