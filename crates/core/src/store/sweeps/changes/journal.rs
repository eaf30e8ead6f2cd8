//! The part of a journal between two commits, to be read as often as need be.
//!
//! The files are opened at once: a writer that drops commits meanwhile removes names only. One that
//! goes back cuts them, which shows as records that are missing.

use crate::config::CommitInfo;
use crate::error::{Error, Result, bail};
use crate::io::Medium;
use crate::store::has_file;
use crate::store::journal::{
    CommitRecord, JournalReader, RecordKind, TableChange, TableRecord, name_of, numbers, read_json,
};

/// The part of a journal file that lies between two commits.
struct Part {
    number: u64,
    reader: JournalReader,
    begin: u64,
    end: u64,
}

/// The records between two commits, oldest first.
pub(super) struct Between {
    parts: Vec<Part>,
}

/// A record of a table.
pub(super) enum OfTable {
    Record(TableRecord),
    Change(TableChange),
}

/// Result of a search in a journal.
pub(super) enum Found {
    /// It leads from the earlier commit to the later one.
    Between(Between),
    /// It does not; these are the commits from which it does, newest first.
    From(Vec<CommitInfo>),
}

/// Looks from the commit `to` back for the last one that `is_since` says is meant.
pub(super) fn look_back(
    medium: &dyn Medium,
    seed: u64,
    to: &CommitRecord,
    is_since: &dyn Fn(&CommitInfo) -> bool,
) -> Result<Found> {
    let (mut parts, mut known): (Vec<Part>, Vec<CommitInfo>) = (Vec::new(), Vec::new());
    for number in numbers(medium)?.into_iter().rev() {
        let opened = match JournalReader::open(medium, seed, number) {
            // A writer has dropped it meanwhile, and those before.
            Err(_) if !has_file(medium, &name_of(number))? => break,
            opened => opened?,
        };
        // One without a header has no commit: the writer begins it just now, or had crashed.
        let Some(mut reader) = opened else { continue };
        let begin = reader.position();
        let mut commits = commits_of(&mut reader, number)?;
        if known.is_empty() {
            // One pinned has its record in a file of its own, too.
            let Some(at) = commits.iter().rposition(|commit| commit.is_same(to)) else { continue };
            commits.truncate(at + 1);
        } else {
            let follows = |last: &CommitRecord| {
                known.last().is_some_and(|next| last.info.sequence + 1 == next.sequence)
            };
            if !commits.last().is_some_and(follows) {
                break;
            }
        }
        let Some(end) = commits.last().map(|last| last.place.1) else { continue };
        let mut has_gone_back = false;
        for commit in commits.iter().rev() {
            if is_since(&commit.info) {
                parts.push(Part { number, reader, begin: commit.place.1, end });
                parts.reverse();
                return Ok(Found::Between(Between { parts }));
            }
            known.push(commit.info.clone());
            has_gone_back |= commit.gone_back;
            if has_gone_back {
                break;
            }
        }
        if has_gone_back {
            break;
        }
        parts.push(Part { number, reader, begin, end });
    }
    Ok(Found::From(known))
}

/// The commits of a file, with their ends.
fn commits_of(reader: &mut JournalReader, number: u64) -> Result<Vec<CommitRecord>> {
    let name = |error: Error| error.context(name_of(number));
    let mut commits = Vec::new();
    while let Some(kind) = reader.next()? {
        if kind == RecordKind::Commit {
            let mut record: CommitRecord = read_json(reader.payload(), "commit").map_err(name)?;
            record.verify().map_err(name)?;
            record.place = (number, reader.position());
            commits.push(record);
        }
    }
    Ok(commits)
}

impl Between {
    /// Bytes of what it reads each time.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.end - part.begin).sum()
    }

    /// Hands over the changes of each class, by its number, and the records of tables, in their
    /// order.
    pub(super) fn read(
        &mut self,
        each: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
        of_table: &mut dyn FnMut(OfTable) -> Result<()>,
    ) -> Result<()> {
        for Part { number, reader, begin, end } in &mut self.parts {
            let name = |error: Error| error.context(name_of(*number));
            reader.go_to(*begin);
            while reader.position() < *end {
                let Some(kind) = reader.next()? else {
                    bail!(
                        Corrupt,
                        "{} ends at byte {}, and had records up to byte {end}: it was cut or \
                         damaged; open the store again",
                        name_of(*number),
                        reader.position()
                    );
                };
                match kind {
                    RecordKind::Table => {
                        let record = read_json(reader.payload(), "table").map_err(name)?;
                        of_table(OfTable::Record(record)).map_err(name)?;
                    }
                    RecordKind::TableChange => {
                        let change = read_json(reader.payload(), "change of a table");
                        of_table(OfTable::Change(change.map_err(name)?)).map_err(name)?;
                    }
                    _ => {}
                }
                if kind != RecordKind::Deltas {
                    continue;
                }
                let Some((class, changes)) = reader.payload().split_first_chunk::<8>() else {
                    let bytes = reader.payload().len();
                    bail!(Corrupt, "a delta record of {bytes} bytes is too short");
                };
                each(u64::from_le_bytes(*class) as usize, changes).map_err(name)?;
            }
        }
        Ok(())
    }
}
