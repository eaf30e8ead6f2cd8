//! Whether a store is still where it was opened, and still the one that may be written.
//!
//! All names are looked up in the folder that was opened, so another folder at its path is never
//! touched. But a commit that goes to a folder that was moved, or is gone, is not where anybody
//! looks for it: it is refused, and goes on once the folder is back. A lock file that is not the
//! locked one any more may mean another writer: then nothing is written until the store is opened
//! again.

use super::{Inner, Store, cold};
use crate::error::{Result, bail};
use crate::planted::{self, Bug};
use std::sync::atomic::Ordering;

impl Store {
    /// Description of what happened to the store's folder, or to its cold directory, if the path by
    /// which it was opened no longer leads there; `None` if it does. While it is displaced, commits
    /// are refused (`NotFound`), and writes from the first refused commit on. Rows can be read.
    ///
    /// *Errors*: `Io` where the path cannot be looked at. *Blocking*: two calls of the system, none
    /// of which reads the device.
    pub fn displaced(&self) -> Result<Option<String>> {
        self.inner.check_call()?;
        self.inner.medium.displaced()
    }
}

impl Inner {
    /// Before a commit, and before what only the last commit has is removed: the path leads to the
    /// folder that was opened, and the lock is that of its lock file.
    ///
    /// *Errors*: `NotFound` for a folder that is not in its place, until it is back; `Locked` for
    /// the lock, which the store does not forget.
    pub(super) fn check_folder(&self) -> Result<()> {
        let displaced = match planted::is(Bug::FolderUnchecked) {
            true => None,
            false => self.medium.displaced()?,
        };
        let was = self.is_displaced.swap(displaced.is_some(), Ordering::Relaxed);
        self.log_place(was, displaced.as_deref());
        if let Some(what) = displaced {
            bail!(
                NotFound,
                "store {} is not in its place: {what}; nothing is written there: put the folder \
                 that was opened back in its place, and commit again, or close this handle and \
                 open the store where it is; rows can still be read",
                self.path.display()
            );
        }
        self.poison_on_error(self.medium.check_lock())
    }

    /// Before a reader looks for a newer commit: none of a folder that is not in its place is what
    /// it was opened for.
    pub(super) fn check_place_of_reader(&self) -> Result<()> {
        let Some(what) = self.medium.displaced()? else { return Ok(()) };
        // The place of a cold directory is noted in the store.
        cold::check_unchanged(&*self.medium, &self.path)?;
        bail!(
            NotFound,
            "store {} is not in its place: {what}; this reader stays at its commit: open the store \
             again to read what is there now",
            self.path.display()
        )
    }

    /// Refuses changes from a refused commit on, until the folder is back in its place.
    pub(super) fn check_in_place(&self) -> Result<()> {
        if self.is_displaced.load(Ordering::Relaxed) { self.check_folder() } else { Ok(()) }
    }
}
