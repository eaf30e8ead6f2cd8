//! A medium for a writer: names change only while a lock is held, and files that have further names
//! are never written in place.
//!
//! A lock belongs to a file, and anybody can remove a file. The next process then makes and locks a
//! new one, and there are two writers. So the lock is checked before each change of a name, because
//! that could remove the other writer's files; the store checks it before it writes pages, too.
//!
//! A file with two names is one file: a backup made of hard links would change with it. A file with
//! further names that is opened to be written is copied first, and the copy takes its name.

use super::{
    Buffers, DeviceCurve, File, FileLock, FileState, IoKind, Locking, Medium, OpenMode, Queue,
    RegionFolders,
};
use crate::error::{ErrorKind, Result, bail};
use crate::planted::{self, Bug};
use std::path::Path;
use std::sync::{Arc, Weak};

/// The prefix of the names of copies, until they replace their originals.
const COPY_PREFIX: &str = "own-";
/// Bytes that are copied at once.
const PORTION_BYTES: usize = 1 << 20;

/// A directory whose names change only under a lock.
#[derive(Debug)]
pub(crate) struct GuardedMedium {
    medium: Arc<dyn Medium>,
    /// Gone once it was given back.
    lock: Weak<dyn FileLock>,
    /// Whether files of a name are written in place.
    is_written_in_place: fn(&str) -> bool,
}

impl GuardedMedium {
    /// `lock` is on a file of this medium. Removes what a crash has left of copies.
    pub(crate) fn new(
        medium: Arc<dyn Medium>,
        lock: &Arc<dyn FileLock>,
        is_written_in_place: fn(&str) -> bool,
    ) -> Result<Self> {
        let guarded = Self { medium, lock: Arc::downgrade(lock), is_written_in_place };
        for name in guarded.list(COPY_PREFIX)? {
            if is_written_in_place(&name[COPY_PREFIX.len()..]) {
                guarded.remove(&name)?;
            }
        }
        Ok(guarded)
    }

    /// Gives a file that has further names a copy of its own.
    fn separate(&self, name: &str) -> Result<()> {
        let links = match self.medium.state_of(name) {
            Ok(state) => state.links,
            // Opening it reports that it is missing.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if links < 2 || !(self.is_written_in_place)(name) {
            return Ok(());
        }
        let copied = self.copy(name).map_err(|error| {
            let what = format!("{name} has {links} names, as in a backup of hard links");
            error.context(what).followed_by(
                "it is copied before it is written, so that the others keep what they have: make \
                 room for it, or remove the others",
            )
        });
        if copied.is_err() {
            let _ = self.medium.remove(&copy_of(name));
        }
        copied
    }

    fn copy(&self, name: &str) -> Result<()> {
        let medium = &*self.medium;
        let from = medium.open(name, OpenMode::ReadOnly)?;
        let (bytes, copy) = (from.len()?, copy_of(name));
        match medium.remove(&copy) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let to = medium.open(&copy, OpenMode::CreateNew)?;
        // All of its room, because writes of the store count on that.
        to.allocate(0, bytes)?;
        let mut portion = vec![0; PORTION_BYTES.min(bytes as usize)];
        let mut at = 0;
        while at < bytes {
            let part = &mut portion[..PORTION_BYTES.min((bytes - at) as usize)];
            from.read_at(part, at)?;
            if part.iter().any(|byte| *byte != 0) {
                to.write_at(part, at)?;
            }
            at += part.len() as u64;
        }
        to.sync()?;
        self.check_lock()?;
        medium.rename(&copy, name)?;
        medium.sync_dir()
    }
}

fn copy_of(name: &str) -> String {
    format!("{COPY_PREFIX}{name}")
}

impl Medium for GuardedMedium {
    fn kind(&self) -> IoKind {
        self.medium.kind()
    }

    fn direct(&self) -> bool {
        self.medium.direct()
    }

    fn alignment(&self) -> usize {
        self.medium.alignment()
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>> {
        if mode != OpenMode::ReadOnly {
            self.check_lock()?;
        }
        if mode == OpenMode::ReadWrite {
            self.separate(name)?;
        }
        self.medium.open(name, mode)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.medium.list(prefix)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.check_lock()?;
        self.medium.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.check_lock()?;
        self.medium.rename(from, to)
    }

    fn link(&self, from: &str, to: &str) -> Result<bool> {
        self.check_lock()?;
        self.medium.link(from, to)
    }

    fn lock(&self, name: &str) -> Result<Locking> {
        self.medium.lock(name)
    }

    fn lock_to_look(&self, name: &str) -> Result<Locking> {
        self.medium.lock_to_look(name)
    }

    fn state_of(&self, name: &str) -> Result<FileState> {
        self.medium.state_of(name)
    }

    fn sync_dir(&self) -> Result<()> {
        self.medium.sync_dir()
    }

    fn free_bytes(&self) -> Result<u64> {
        self.medium.free_bytes()
    }

    fn free_bytes_in_all(&self) -> Result<u64> {
        self.medium.free_bytes_in_all()
    }

    fn queue(&self, depth: usize, buffers: Buffers) -> Result<Box<dyn Queue>> {
        self.medium.queue(depth, buffers)
    }

    fn known_curve(&self) -> Option<DeviceCurve> {
        self.medium.known_curve()
    }

    fn notes(&self) -> Vec<String> {
        self.medium.notes()
    }

    fn path(&self) -> Option<&Path> {
        self.medium.path()
    }

    fn displaced(&self) -> Result<Option<String>> {
        self.medium.displaced()
    }

    fn check_lock(&self) -> Result<()> {
        let is_current = match self.lock.upgrade() {
            Some(lock) => planted::is(Bug::FolderUnchecked) || lock.is_current()?,
            None => false,
        };
        if is_current {
            return Ok(());
        }
        let place =
            self.medium.path().map_or_else(String::new, |path| format!(" of {}", path.display()));
        bail!(
            Locked,
            "the lock file{place} is not the one that this handle has locked: it was removed or \
             replaced, and another writer may be there; close this handle and open the store \
             again, and never remove that file, which locks nothing once its process has ended"
        )
    }

    fn regions(&self) -> Option<RegionFolders> {
        self.medium.regions()
    }

    fn apart(&self) -> Option<&Arc<dyn Medium>> {
        self.medium.apart()
    }
}
