//! Readers without a hold: on a read-only medium, in a directory of another user, or after the
//! writer took the hold away.
//!
//! Nothing keeps their commit. Their reads are nevertheless of that commit or an error: a page that
//! was written again has a later sequence number; and a writer that goes on from an earlier commit
//! cuts the reader's commit record off first. (A reader that has read pages looks whether it still
//! has its hold, for that may go at any time.) Files that are missing and pages that do not check
//! are `CommitGone` when the store says that the commit is not kept any more, and damage only when
//! it still is.

use super::Inner;
use super::journal::{CommitRecord, RecordKind, name_of};
use super::open::{files_of_commits, while_changing};
use super::recovery::is_kept;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{File, Medium, OpenMode};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A record's header, whose checksum covers the record and its place.
const HEADER_BYTES: usize = 16;

/// A reader's note of its commit's record.
#[derive(Debug)]
pub(super) struct Noted {
    journal: Arc<dyn File>,
    position: u64,
    header: [u8; HEADER_BYTES],
    gone: bool,
}

impl Noted {
    /// Notes the record. *Errors*: `CommitGone` when it is not there any more.
    pub(super) fn of(medium: &dyn Medium, record: &CommitRecord) -> Result<Self> {
        let (number, end) = record.place;
        let dropped = || {
            let message = format!("commit {} was dropped meanwhile", record.info.sequence);
            Error::new(ErrorKind::CommitGone, message)
        };
        // The record was read from it just now.
        let opened = medium.open(&name_of(number), OpenMode::ReadOnly);
        let journal = opened.map_err(|error| match error.kind() {
            ErrorKind::NotFound => dropped(),
            _ => error,
        })?;
        if let Some(position) = record_before(&*journal, end)? {
            let mut header = [0; HEADER_BYTES];
            journal.read_at(&mut header, position)?;
            if header[HEADER_BYTES - 8..] == record.checksum.to_le_bytes() {
                return Ok(Self { journal, position, header, gone: false });
            }
        }
        Err(dropped())
    }

    /// False once the writer has gone on from an earlier commit. If true, the reads before this
    /// call were of the commit.
    ///
    /// *Errors*: `Io` where the device does not tell.
    pub(super) fn is_in_place(&mut self) -> Result<bool> {
        let mut header = [0; HEADER_BYTES];
        match self.journal.read_at(&mut header, self.position) {
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            // A file that was cut.
            Err(_) => self.gone = true,
            Ok(()) => self.gone |= header != self.header,
        }
        Ok(!self.gone)
    }
}

/// Offset of the commit record that ends at `end`. Its payload is text, which contains no header.
fn record_before(journal: &dyn File, end: u64) -> Result<Option<u64>> {
    let mut bytes = vec![0; 4096];
    loop {
        let begin = end.saturating_sub(bytes.len() as u64);
        let part = &mut bytes[..(end - begin) as usize];
        journal.read_at(part, begin)?;
        let mut at = part.len();
        while at >= HEADER_BYTES + 8 {
            at -= 8;
            let header = &part[at - HEADER_BYTES..at];
            let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
            if header[4..8] == [RecordKind::Commit as u8, 0, 0, 0]
                && length.next_multiple_of(8) == part.len() - at
            {
                return Ok(Some(begin + (at - HEADER_BYTES) as u64));
            }
        }
        if begin == 0 {
            return Ok(None);
        }
        bytes.resize(2 * bytes.len(), 0);
    }
}

impl Inner {
    /// True while nobody can drop the commit at hand: a writer's own, or one that a reader holds.
    pub(super) fn is_held(&self) -> bool {
        if !self.options.read_only {
            return true;
        }
        let hold = self.hold.lock();
        hold.as_ref().is_some_and(|hold| hold.is_current().unwrap_or(false))
    }

    /// A reader has read pages: notices when the writer has taken its hold away.
    pub(super) fn note_read(&self) {
        let is_lost =
            self.options.read_only && !self.unheld.load(Ordering::Relaxed) && !self.is_held();
        // Of threads that notice at the same time one says so.
        if is_lost && !self.unheld.swap(true, Ordering::Relaxed) {
            self.log_hold_lost();
        }
    }

    /// The result of a read, or `CommitGone` if it may not be of the reader's commit any more.
    pub(super) fn as_committed<T>(&self, result: Result<T>) -> Result<T> {
        if !self.options.read_only {
            return result;
        }
        match &result {
            Ok(_) if self.unheld.load(Ordering::Relaxed) => {
                // The read came before this look, which finds the record in place.
                let mut noted = self.noted.lock();
                if noted.as_mut().map_or(Ok(true), Noted::is_in_place)? {
                    return result;
                }
                drop(noted);
                Err(self.commit_gone())
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
                    && self.is_gone() =>
            {
                Err(self.commit_gone())
            }
            _ => result,
        }
    }

    /// `CommitGone` when nobody holds the commit at hand and the store does not keep it any more.
    pub(super) fn expect_commit(&self) -> Result<()> {
        if self.is_gone() { Err(self.commit_gone()) } else { Ok(()) }
    }

    /// True when the store does not keep the commit at hand any more.
    fn is_gone(&self) -> bool {
        if self.is_held() {
            return false;
        }
        let Some(record) = self.history.lock().kept.last().cloned() else { return false };
        // Changes of a writer meanwhile may look like damage.
        let look = || files_of_commits(&*self.medium);
        match while_changing(look, || is_kept(&*self.medium, self.seed, &record)) {
            Ok(kept) => !kept,
            // It has dropped commits all the while, and nobody keeps this one.
            Err(error) => error.kind() == ErrorKind::CommitGone,
        }
    }

    pub(super) fn commit_gone(&self) -> Error {
        let last = self.history.lock().kept.last().map_or(0, |c| c.info.sequence);
        let message = format!(
            "commit {last} of {} was dropped by the writer, and this reader does not hold it; \
             refresh() to the newest commit, or open the store again",
            self.path.display()
        );
        Error::new(ErrorKind::CommitGone, message)
    }
}
