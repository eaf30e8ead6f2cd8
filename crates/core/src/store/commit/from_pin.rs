//! Going on from a pinned commit that the journal does not have any more.
//!
//! The file of a pinned commit is a journal by itself. Its records begin another file of the
//! journal, and the record of the commit there says that all files before are given up. Until that
//! record is durable a crash leaves the newest commit, as it was; afterwards, this one.

use super::History;
use crate::error::{Result, bail};
use crate::io::{Medium, OpenMode};
use crate::store::Inner;
use crate::store::files::head::{Head, Tells};
use crate::store::files::holds;
use crate::store::journal::{
    CommitRecord, JournalFile, JournalReader, RecordKind, VERSION_OF_PINS, name_of, numbers,
    pin_number, read_json,
};

impl Inner {
    /// Goes on from the pinned commit that was opened; all commits after it are given up.
    pub(super) fn go_on_from_pin(&self, history: &mut History, head: Head) -> Result<()> {
        let (medium, last) = (&*self.medium, head.sequence);
        // First, or the journal would end before the commit that the head names. Until the new file
        // has its commit, a crash leaves the commits of the files before. The head says which of
        // those are whole: the ones between the pinned commit and them are not.
        let before = Head::read(medium, self.seed)?;
        let oldest = match before.tells {
            Tells::All => before.oldest.max(head.oldest),
            // The last commit is whole in any case.
            Tells::Newest | Tells::Nothing => u64::MAX,
        };
        self.write_head(history, Head { oldest, ..head })?;
        medium.sync_dir()?;
        let number = numbers(medium)?.last().map_or(1, |newest| newest + 1);
        let end = history.kept.last().map_or(0, |commit| commit.place.1);
        let growth = JournalFile::bytes_for(end);
        if !self.fits(history, growth, 0)? {
            let used = self.used_bytes(history);
            bail!(
                Full,
                "going back to pinned commit {last} needs {growth} bytes for its index, and {used} \
                 are in use; raise max_disk_bytes, or open the last commit and unpin another one"
            );
        }
        let begun = self.take_for_commit(history, growth, |_| {
            self.remove_if_there(&name_of(number))?;
            begin_with_pin(&*self.medium, self.seed, number, last)
        });
        let journal = begun.inspect_err(|_| {
            // Without a commit in it, opening removes it.
            let _ = self.remove_if_there(&name_of(number));
        })?;
        let place = (number, journal.position());
        for older in numbers(medium)?.into_iter().rev().filter(|older| *older < number) {
            let name = name_of(older);
            // A reader that has it open sees that its records are gone.
            medium.open(&name, OpenMode::ReadWrite)?.set_len(0)?;
            medium.remove(&name)?;
        }
        medium.sync_dir()?;
        self.write_head(history, head)?;
        // A reader may have taken its hold since these were looked at.
        holds::take_later_away(medium, last)?;
        history.cycles = vec![(number, last)];
        history.cursor = None;
        history.cycle_bytes = place.1;
        if let Some(commit) = history.kept.last_mut() {
            commit.place = place;
        }
        self.drop_given_up(history, number)?;
        history.journal = Some(journal);
        Ok(())
    }
}

/// A journal file with the records of a pinned commit, whose own comes last and makes the
/// others count.
pub(in crate::store) fn begin_with_pin(
    medium: &dyn Medium,
    seed: u64,
    number: u64,
    pin: u64,
) -> Result<JournalFile> {
    let name = name_of(pin_number(pin));
    let Some(mut reader) = JournalReader::open(medium, seed, pin_number(pin))? else {
        bail!(Corrupt, "{name} has no valid header; restore it from a copy");
    };
    let mut journal =
        JournalFile::create(medium, seed, number, reader.version().max(VERSION_OF_PINS))?;
    while let Some(kind) = reader.next()? {
        if kind != RecordKind::Commit {
            journal.append(kind, reader.payload())?;
            continue;
        }
        journal.file().sync()?;
        medium.sync_dir()?;
        let mut record: CommitRecord = read_json(reader.payload(), "commit")?;
        record.gone_back = true;
        let json = serde_json::to_vec(&record).expect("records are plain data");
        journal.append(RecordKind::Commit, &json)?;
        journal.file().sync()?;
        return Ok(journal);
    }
    bail!(
        Corrupt,
        "{name} is damaged at byte {}, before its commit; restore it from a copy",
        reader.position()
    );
}
