//! A medium of two directories: files whose names begin in one way lie apart from all others, and
//! may lie on another device.
//!
//! Files that such names had before the second directory came are found in the first one until they
//! are removed: opening, removing and looking try both, creating makes them apart. A queue serves
//! files of both, since each request has the descriptor of its own file.

use super::{
    Buffers, DeviceCurve, File, FileState, IoKind, Locking, Medium, OpenMode, Queue, RegionFolders,
};
use crate::error::{Error, ErrorKind, Result, bail};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A directory, and another one for files whose names begin in one way.
#[derive(Debug)]
pub struct RoutedMedium {
    own: Directory,
    apart: Directory,
    /// Prefix of the names of the files that lie apart.
    prefix: &'static str,
    /// Both take their room from one file system.
    shares_device: bool,
    /// Held during a sync of names: a caller that comes meanwhile waits until its changes are
    /// durable, too.
    syncing: Mutex<()>,
}

/// One of the two directories.
#[derive(Debug)]
struct Directory {
    medium: Arc<dyn Medium>,
    /// Names may have changed since the last sync. True at the beginning: earlier changes are
    /// unknown.
    is_changed: AtomicBool,
}

impl Directory {
    fn new(medium: Arc<dyn Medium>) -> Self {
        Self { medium, is_changed: AtomicBool::new(true) }
    }

    /// Does what may change names. They count as changed also where it has failed.
    fn change<R>(&self, change: impl FnOnce(&dyn Medium) -> R) -> R {
        let changed = change(&*self.medium);
        self.is_changed.store(true, Ordering::SeqCst);
        changed
    }

    fn sync_if_changed(&self) -> Result<()> {
        if !self.is_changed.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        self.medium.sync_dir().inspect_err(|_| self.is_changed.store(true, Ordering::SeqCst))
    }

    fn has(&self, name: &str) -> Result<bool> {
        match self.medium.state_of(name) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl RoutedMedium {
    /// Files whose names begin with `prefix` lie in `apart`, all others in `own`. Both are of one
    /// kind; `shares_device` where room that one takes is missing in the other.
    pub fn new(
        own: Arc<dyn Medium>,
        apart: Arc<dyn Medium>,
        prefix: &'static str,
        shares_device: bool,
    ) -> Self {
        assert_eq!(own.kind(), apart.kind(), "a queue serves files of one kind");
        let (own, apart) = (Directory::new(own), Directory::new(apart));
        Self { own, apart, prefix, shares_device, syncing: Mutex::new(()) }
    }

    /// The directory to which a new file of this name belongs.
    fn home(&self, name: &str) -> &Directory {
        if name.starts_with(self.prefix) { &self.apart } else { &self.own }
    }

    /// The directory that has the file of this name, or to which it would belong.
    fn holder(&self, name: &str) -> Result<&Directory> {
        let home = self.home(name);
        let is_left = std::ptr::eq(home, &self.apart) && !home.has(name)? && self.own.has(name)?;
        Ok(if is_left { &self.own } else { home })
    }
}

impl Medium for RoutedMedium {
    fn kind(&self) -> IoKind {
        self.own.medium.kind()
    }

    fn direct(&self) -> bool {
        self.own.medium.direct() && self.apart.medium.direct()
    }

    fn alignment(&self) -> usize {
        self.own.medium.alignment().max(self.apart.medium.alignment())
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>> {
        let home = self.home(name);
        if mode != OpenMode::CreateNew {
            // Opened before it is looked for elsewhere: the usual file costs one call.
            return match home.medium.open(name, mode) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let holder = self.holder(name)?;
                    if std::ptr::eq(holder, home) {
                        Err(error)
                    } else {
                        holder.medium.open(name, mode)
                    }
                }
                opened => opened,
            };
        }
        if !std::ptr::eq(self.holder(name)?, home) {
            let source = std::io::Error::from_raw_os_error(libc::EEXIST);
            return Err(Error::os(format!("open {name}"), source));
        }
        home.change(|medium| medium.open(name, mode))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names = self.own.medium.list(prefix)?;
        // The other one is asked only for what may lie there: it may be away.
        if !prefix.starts_with(self.prefix) && !self.prefix.starts_with(prefix) {
            return Ok(names);
        }
        let apart = self.apart.medium.list(prefix)?;
        // Other files there do not belong to the store.
        names.extend(apart.into_iter().filter(|name| name.starts_with(self.prefix)));
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.holder(name)?.change(|medium| medium.remove(name))
    }

    fn link(&self, from: &str, to: &str) -> Result<bool> {
        let holder = self.holder(from)?;
        if !std::ptr::eq(holder, self.home(to)) {
            return Ok(false);
        }
        holder.change(|medium| medium.link(from, to))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let holder = self.holder(from)?;
        if !std::ptr::eq(holder, self.home(to)) {
            bail!(Misuse, "{from} cannot be renamed to {to}, which belongs in another directory");
        }
        holder.change(|medium| medium.rename(from, to))
    }

    fn lock(&self, name: &str) -> Result<Locking> {
        self.home(name).change(|medium| medium.lock(name))
    }

    fn lock_to_look(&self, name: &str) -> Result<Locking> {
        self.home(name).medium.lock_to_look(name)
    }

    fn state_of(&self, name: &str) -> Result<FileState> {
        self.holder(name)?.medium.state_of(name)
    }

    fn sync_dir(&self) -> Result<()> {
        let _syncing = self.syncing.lock();
        // Both are tried, so that one that fails leaves no more to do than it must.
        self.apart.sync_if_changed().and(self.own.sync_if_changed())
    }

    fn free_bytes(&self) -> Result<u64> {
        self.own.medium.free_bytes()
    }

    fn free_bytes_in_all(&self) -> Result<u64> {
        let own = self.own.medium.free_bytes()?;
        if self.shares_device {
            return Ok(own);
        }
        Ok(own.saturating_add(self.apart.medium.free_bytes()?))
    }

    fn queue(&self, depth: usize, buffers: Buffers) -> Result<Box<dyn Queue>> {
        // A transfer that came short goes on at a multiple of the queue's alignment.
        let is_apart = self.apart.medium.alignment() > self.own.medium.alignment();
        let directory = if is_apart { &self.apart } else { &self.own };
        directory.medium.queue(depth, buffers)
    }

    fn known_curve(&self) -> Option<DeviceCurve> {
        self.own.medium.known_curve()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.own.medium.notes();
        for note in self.apart.medium.notes() {
            if !notes.contains(&note) {
                notes.push(format!("cold directory: {note}"));
            }
        }
        notes
    }

    fn path(&self) -> Option<&Path> {
        self.own.medium.path()
    }

    fn displaced(&self) -> Result<Option<String>> {
        let own = self.own.medium.displaced()?;
        Ok(own.or(self.apart.medium.displaced()?))
    }

    fn check_lock(&self) -> Result<()> {
        self.own.medium.check_lock()?;
        self.apart.medium.check_lock()
    }

    fn regions(&self) -> Option<RegionFolders> {
        self.own.medium.regions()
    }

    fn apart(&self) -> Option<&Arc<dyn Medium>> {
        Some(&self.apart.medium)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::SimMedium;

    fn routed(device: &SimMedium) -> RoutedMedium {
        let apart = Arc::new(device.folder("apart"));
        RoutedMedium::new(Arc::new(device.clone()), apart, "part-", true)
    }

    fn create(medium: &dyn Medium, name: &str) {
        let file = medium.open(name, OpenMode::CreateNew).unwrap();
        file.write_at(name.as_bytes(), 0).unwrap();
        file.sync().unwrap();
    }

    #[test]
    fn names_say_where_a_file_lies_and_a_list_has_those_of_both() {
        let device = SimMedium::new(1);
        let (medium, apart) = (routed(&device), device.folder("apart"));
        for name in ["part-0-1", "rows-0", "part-0-2"] {
            create(&medium, name);
        }
        create(&apart, "notes.txt");
        assert_eq!(device.list("").unwrap(), ["rows-0"]);
        assert_eq!(apart.list("").unwrap(), ["notes.txt", "part-0-1", "part-0-2"]);
        assert_eq!(medium.list("").unwrap(), ["part-0-1", "part-0-2", "rows-0"]);
        assert_eq!(medium.list("part-").unwrap(), ["part-0-1", "part-0-2"]);
        medium.remove("part-0-1").unwrap();
        assert_eq!(apart.list("").unwrap(), ["notes.txt", "part-0-2"]);
        let error = medium.rename("part-0-2", "rows-1").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    }

    #[test]
    fn files_from_before_are_found_where_they_lie_and_not_made_twice() {
        let device = SimMedium::new(2);
        create(&device, "part-0-7");
        let medium = routed(&device);
        create(&medium, "part-0-8");
        assert_eq!(medium.list("").unwrap(), ["part-0-7", "part-0-8"]);
        for name in ["part-0-7", "part-0-8"] {
            let mut text = [0; 8];
            let file = medium.open(name, OpenMode::ReadOnly).unwrap();
            file.read_at(&mut text, 0).unwrap();
            assert_eq!(text, name.as_bytes());
            assert_eq!(medium.state_of(name).unwrap().bytes, 8);
            assert_eq!(medium.open(name, OpenMode::CreateNew).unwrap_err().kind(), ErrorKind::Io);
        }
        medium.remove("part-0-7").unwrap();
        assert!(device.list("").unwrap().is_empty());
        assert_eq!(medium.remove("part-0-7").unwrap_err().kind(), ErrorKind::NotFound);
        let missing = medium.open("part-0-7", OpenMode::ReadOnly).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_sync_of_names_reaches_each_directory_whose_names_changed_and_no_other() {
        let device = SimMedium::new(3);
        let medium = routed(&device);
        let syncs = |change: &dyn Fn()| {
            change();
            let before = device.counters().dir_syncs;
            medium.sync_dir().unwrap();
            device.counters().dir_syncs - before
        };
        assert_eq!(syncs(&|| ()), 2, "what was before is not known");
        assert_eq!(syncs(&|| ()), 0);
        assert_eq!(syncs(&|| create(&medium, "part-0-1")), 1);
        assert_eq!(syncs(&|| create(&medium, "rows-0")), 1);
        let both = || {
            medium.remove("part-0-1").unwrap();
            medium.rename("rows-0", "rows-1").unwrap();
        };
        assert_eq!(syncs(&both), 2);
        // One that fails is made up for.
        create(&medium, "part-0-2");
        device.fail_sync(0);
        assert!(medium.sync_dir().is_err());
        assert_eq!(syncs(&|| ()), 1);
    }

    #[test]
    fn names_apart_are_durable_after_a_sync_of_the_medium() {
        for seed in 0..40 {
            let device = SimMedium::new(seed);
            let medium = routed(&device);
            create(&medium, "part-0-1");
            create(&medium, "rows-0");
            medium.sync_dir().unwrap();
            create(&medium, "part-0-2");
            medium.remove("part-0-1").unwrap();
            medium.sync_dir().unwrap();
            let found = routed(&device.reboot(seed));
            assert_eq!(found.list("").unwrap(), ["part-0-2", "rows-0"], "seed {seed}");
        }
    }

    #[test]
    fn the_sync_of_one_directory_leaves_the_names_of_the_other_to_chance() {
        let device = SimMedium::new(5);
        let apart = device.folder("apart");
        create(&apart, "part-0-1");
        create(&device, "rows-0");
        device.sync_dir().unwrap();
        let after = |seed| device.reboot(seed);
        assert!((0..40).all(|seed| after(seed).list("").unwrap() == ["rows-0"]));
        let kept = (0..40).filter(|seed| after(*seed).folder("apart").list("").unwrap().len() == 1);
        assert!((1..40).contains(&kept.count()));
        apart.sync_dir().unwrap();
        assert!((0..40).all(|seed| after(seed).folder("apart").list("").unwrap().len() == 1));
    }

    #[test]
    fn room_counts_once_where_both_lie_on_one_device() {
        let device = SimMedium::new(4);
        device.set_capacity(Some(1 << 20));
        let apart: Arc<dyn Medium> = Arc::new(device.folder("apart"));
        for (shares, times) in [(true, 1), (false, 2)] {
            let own = Arc::new(device.clone());
            let medium = RoutedMedium::new(own, apart.clone(), "part-", shares);
            assert_eq!(medium.free_bytes().unwrap(), 1 << 20);
            assert_eq!(medium.free_bytes_in_all().unwrap(), times << 20);
        }
    }
}
