//! The content of a journal: its commits, the ends of its cycles of pieces, its damage.
//!
//! All files are read, several at once, and nothing is kept of deltas and pieces. A commit record
//! is written only after all before it is durable, so one behind what cannot be read proves damage.

use super::super::events::Found;
use super::super::files::head::{Head, Tells};
use super::super::journal::{CommitRecord, JournalReader, RecordKind, name_of, numbers, read_json};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{IoKind, Medium, blocks_of};

/// Files of the journal that are scanned at once.
const SCANS_AT_ONCE: usize = 4;

#[derive(Default)]
pub(super) struct Survey {
    /// Files with a sound header.
    pub(super) files: Vec<u64>,
    /// Commits that follow each other, oldest first.
    pub(super) commits: Vec<CommitRecord>,
    /// (journal file, commit at which its cycle was complete).
    pub(super) cycles: Vec<(u64, u64)>,
    pub(super) bytes: u64,
    /// The last of the files, where what checks in it ends, and whether a record is begun there.
    tail: (u64, u64, bool),
    /// Set when commits follow damage; those are not among `commits`.
    pub(super) damage: Option<Error>,
    /// Set when commits before the first of `commits` were found, but not those in between.
    pub(super) gap: Option<Error>,
}

/// The commits that are whole.
pub(super) struct Whole {
    pub(super) oldest: u64,
    /// The journal file that a replay from there starts in; `None` when there is none.
    pub(super) base: Option<u64>,
}

impl Survey {
    /// The number of the last commit, 0 without one.
    pub(super) fn newest(&self) -> u64 {
        self.commits.last().map_or(0, |c| c.info.sequence)
    }

    /// The largest sequence of a page that any commit tells of.
    pub(super) fn sequence_max(&self) -> u64 {
        let classes = self.commits.iter().flat_map(|commit| &commit.classes);
        classes.map(|class| class.sequence).max().unwrap_or(0)
    }

    /// Summary of the journal, for the log.
    pub(super) fn found(&self) -> Found {
        let (last, end, is_torn) = self.tail;
        let (files, bytes) = (self.files.len(), self.bytes);
        Found { files, bytes, last, end, is_torn, ..Found::default() }
    }

    /// The newest file whose cycle was complete at a commit.
    pub(super) fn base(&self, commit: u64) -> Option<u64> {
        let base = self.cycles.iter().rfind(|(_, complete)| *complete <= commit);
        base.map(|(file, _)| *file)
    }

    /// The commits that have all their copies, states and journal files. The last record says which
    /// were dropped for it, and the head which were dropped for commits that were given up since.
    pub(super) fn whole(&self, head: &Head) -> Whole {
        let newest = self.newest();
        let recorded = self.commits.last().map_or(0, |c| c.oldest_kept);
        let mut oldest = recorded.max(head.oldest);
        if head.sequence > newest && head.tells != Tells::All {
            // Commits that cannot be read any more have dropped as many of these.
            let kept = if newest == 0 { 0 } else { newest + 1 - recorded };
            oldest = oldest.max((head.sequence + 1).saturating_sub(kept));
        } else if head.sequence <= newest {
            // A version that noted no oldest commit may have given some up, and does not say so;
            // what it dropped for them, a journal file too, is gone all the same. The last commit
            // is whole in any case.
            let untold = match head.tells {
                Tells::All => false,
                Tells::Newest => self.base(oldest).is_none(),
                Tells::Nothing => true,
            };
            oldest = if untold { newest } else { oldest.min(newest) };
        }
        Whole { oldest, base: self.base(oldest) }
    }

    /// End of the part of commit `target`'s file that is known to be on the disk. The head names a
    /// commit only once its record was synced, and its writer had synced the commit before.
    pub(super) fn synced_to(&self, head: &Head, target: u64) -> u64 {
        let place = |sequence: u64| {
            let found = self.commits.iter().find(|c| c.info.sequence == sequence);
            found.map_or((0, 0), |c| c.place)
        };
        let (file, end) = place(target);
        if head.tells == Tells::All && head.sequence >= target {
            return end;
        }
        let (file_before, end_before) = place(target.saturating_sub(1));
        if file_before == file { end_before } else { 0 }
    }

    /// Takes the marks of one file, which `damaged`, if it is set, lies before.
    fn take(&mut self, number: u64, scan: Scan, damaged: Option<&Error>) -> Result<()> {
        let name = |e: Error| e.context(name_of(number));
        let mut ended = Vec::new();
        for Mark { kind, payload, end, checksum } in scan.marks {
            if kind == RecordKind::CycleEnd {
                ended.push(number);
                continue;
            }
            if let Some(error) = damaged {
                let what = format!("a commit follows damage: {}", error.message());
                self.damage = Some(Error::new(error.kind(), what));
                return Ok(());
            }
            let mut record: CommitRecord = read_json(&payload, "commit").map_err(name)?;
            record.verify().map_err(name)?;
            (record.place, record.checksum) = ((number, end), checksum);
            self.follow(&record)?;
            let sequence = record.info.sequence;
            self.cycles.extend(ended.drain(..).map(|file| (file, sequence)));
            self.commits.push(record);
        }
        if scan.sound {
            self.files.push(number);
            self.bytes += blocks_of(scan.position);
            self.tail = (number, scan.position, scan.is_torn);
        }
        Ok(())
    }

    /// Makes sure that a record follows the last. Files that were removed one after the other may
    /// be back after a power cut, but for some in between: what those before hold does not count.
    fn follow(&mut self, record: &CommitRecord) -> Result<()> {
        let Some(last) = self.commits.last() else { return Ok(()) };
        let (before, (number, _)) = (last.info.sequence, record.place);
        if record.info.sequence == before + 1 {
            return Ok(());
        }
        let what = format!(
            "{}: commit {} follows commit {before}; a journal file is missing; restore it from a \
             copy",
            name_of(number),
            record.info.sequence
        );
        let gap = Error::new(ErrorKind::Corrupt, what);
        if record.info.sequence <= before || last.place.0 == number {
            return Err(gap);
        }
        *self = Self { gap: Some(gap), ..Self::default() };
        Ok(())
    }
}

/// A commit record or a cycle end.
struct Mark {
    kind: RecordKind,
    payload: Vec<u8>,
    /// The position behind it.
    end: u64,
    checksum: u64,
}

/// Content of a journal file beside deltas and pieces.
struct Scan {
    /// In order.
    marks: Vec<Mark>,
    /// End of what checks.
    position: u64,
    /// Whether a record begins there nevertheless.
    is_torn: bool,
    /// Whether the header checks. One that does not is no damage by itself.
    sound: bool,
    /// A commit behind what checks.
    damage: Option<Error>,
}

impl Scan {
    /// Whether the file begins with a commit that the store has gone back to.
    fn has_gone_back(&self) -> bool {
        let commit = self.marks.iter().find(|mark| mark.kind == RecordKind::Commit);
        let read = |mark: &Mark| read_json::<CommitRecord>(&mark.payload, "commit").ok();
        commit.and_then(read).is_some_and(|record| record.gone_back)
    }
}

fn scan(medium: &dyn Medium, seed: u64, number: u64) -> Result<Scan> {
    let opened = JournalReader::open(medium, seed, number)?;
    let sound = opened.is_some();
    let mut reader = match opened {
        Some(reader) => reader,
        None => JournalReader::open_unchecked(medium, seed, number)?,
    };
    let mut marks = Vec::new();
    while sound && let Some(kind) = reader.next()? {
        if matches!(kind, RecordKind::Commit | RecordKind::CycleEnd) {
            let (payload, end) = (reader.payload().to_vec(), reader.position());
            marks.push(Mark { kind, payload, end, checksum: reader.checksum() });
        }
    }
    let position = reader.position();
    let is_torn = sound && reader.is_torn()?;
    let name = name_of(number);
    let damage = reader.find_commit_behind()?.map(|at| {
        let what = match sound {
            true => format!("{name} is damaged at byte {position}: a commit follows at byte {at}"),
            false => format!("{name} has a damaged header: a commit follows at byte {at}"),
        };
        Error::new(ErrorKind::Corrupt, what)
    });
    Ok(Scan { marks, position, is_torn, sound, damage })
}

/// Scans all files, several at once where there are cores for it. (The simulated device repeats
/// its faults only when its operations come in one order.)
fn scan_all(medium: &dyn Medium, seed: u64, numbers: &[u64]) -> Vec<Result<Scan>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if medium.kind() == IoKind::Simulated { 1 } else { cores.min(SCANS_AT_ONCE) };
    let mut found = Vec::new();
    for group in numbers.chunks(threads.max(1)) {
        let Some((first, others)) = group.split_first() else { continue };
        std::thread::scope(|scope| {
            let scans: Vec<_> =
                others.iter().map(|n| scope.spawn(move || scan(medium, seed, *n))).collect();
            found.push(scan(medium, seed, *first));
            for scan in scans {
                found.push(scan.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
        });
    }
    found
}

/// Reads what there is of a journal.
pub(super) fn survey(medium: &dyn Medium, seed: u64) -> Result<Survey> {
    let numbers = numbers(medium)?;
    let mut survey = Survey::default();
    // Damage that no commit may follow, and whether a commit is known to follow it.
    let (mut damaged, mut proven) = (None, false);
    let scans = scan_all(medium, seed, &numbers);
    // Everything before a pinned commit that the store has gone back to is given up.
    let first = scans.iter().rposition(|scan| scan.as_ref().is_ok_and(Scan::has_gone_back));
    for (number, scan) in numbers.iter().copied().zip(scans).skip(first.unwrap_or(0)) {
        let mut scan = scan?;
        let (sound, damage) = (scan.sound, scan.damage.take());
        survey.take(number, scan, damaged.as_ref())?;
        if survey.damage.is_some() {
            return Ok(survey);
        }
        if let Some(damage) = damage {
            // It tells more than that something before it cannot be read.
            (damaged, proven) = (Some(damage), true);
            break;
        }
        if !sound {
            let what = format!("{} has no valid header", name_of(number));
            damaged.get_or_insert(Error::new(ErrorKind::Corrupt, what));
        }
    }
    survey.damage = damaged.filter(|_| proven);
    Ok(survey)
}
