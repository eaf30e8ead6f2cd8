//! The journal's version: raised before the first record that builds of an earlier one misread.
//!
//! Such a build reads the header of a file before its records, so it refuses the file as one of a
//! newer version and never comes to the record. A file that commits lie in is not touched: another
//! one goes on from the last of them.

use super::{Engine, History};
use crate::error::{ErrorKind, Result, bail};
use crate::io::blocks_of;
use crate::store::Inner;
use crate::store::journal::{JournalFile, name_of};
use std::sync::atomic::Ordering;

impl Inner {
    /// Makes sure that the journal's file has this version, or a later one. The engine is taken
    /// alone, so no commit is under way. `what` needs it. *Errors*: `Full`, and nothing changed.
    pub(in crate::store) fn begin_version(
        &self,
        engine: &Engine,
        version: u32,
        what: &str,
    ) -> Result<()> {
        let history = &mut *self.history.lock();
        if history.journal().version() >= version {
            return Ok(());
        }
        let number = history.journal().number();
        let end = match history.kept.last().map(|commit| commit.place) {
            Some((file, end)) if file == number => end,
            // Nothing is lost if a crash damages the header of a file without a commit.
            _ => {
                return match history.journal().set_version(version) {
                    // The header is as it was, and so is the table that asked.
                    Err(error) if error.kind() == ErrorKind::Full => Err(error),
                    other => self.poison_on_error(other),
                };
            }
        };
        // Rows that were changed have room for their deltas in the old file.
        let reserved = engine.journal_bytes() + self.journal_bytes_of_commits(history);
        let tail = history.journal().position() - end;
        let growth = JournalFile::bytes_for(tail + reserved);
        if !self.fits(history, growth, 0)? {
            let used = self.used_bytes(history);
            bail!(
                Full,
                "{what} begins a journal file of {growth} bytes, and {used} are in use; raise \
                 max_disk_bytes"
            );
        }
        let next = self.take(history, growth, 0, |history| {
            self.go_on_in(history, number + 1, version, end, reserved)
        });
        let next = next.inspect_err(|_| {
            // Without a commit in it, opening removes it.
            let _ = self.remove_if_there(&name_of(number + 1));
        })?;
        // A file that another follows ends with a commit, which proves damage before it.
        self.poison_on_error(history.journal().cut_off(end))?;
        history.old_journal_bytes += blocks_of(end);
        history.journal = Some(next);
        history.hurries = false;
        history.cycle_pieces = 0;
        if history.cursor.take().is_some() {
            // All pieces of a cycle lie in one file: another begins with the next commit.
            history.cycle_bytes = u64::MAX / 2;
        }
        Ok(())
    }

    /// A new journal file with what lies behind `end` in the present one, and with room for
    /// `reserved` bytes more.
    fn go_on_in(
        &self,
        history: &mut History,
        number: u64,
        version: u32,
        end: u64,
        reserved: u64,
    ) -> Result<JournalFile> {
        let medium = &*self.medium;
        self.remove_if_there(&name_of(number))?;
        let mut next = JournalFile::create(medium, self.seed, number, version)?;
        next.append_from(medium, history.journal(), end)?;
        next.reserve(reserved)?;
        medium.sync_dir()?;
        self.metrics.journal_bytes.fetch_add(next.position(), Ordering::Relaxed);
        Ok(next)
    }
}
