//! A directory by its descriptor: every name is looked up in the directory that was opened,
//! whatever lies at its path by now.
//!
//! A path may come to lead elsewhere while a store is open: the folder is moved, or removed, and a
//! backup or another store takes its place. Names that are looked up by path would then change the
//! other one. Here they never do; and [`Folder::displaced`] tells what has become of the path.

use super::descriptors;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::retry_on_intr;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Rights of new files, before the umask of the process.
const MODE: Mode = Mode::from_raw_mode(0o666);
/// The suffix of the path that the kernel shows for a removed directory.
const REMOVED: &str = " (deleted)";

/// An open directory.
#[derive(Debug)]
pub(super) struct Folder {
    /// Absolute, as it was when the directory was opened.
    path: PathBuf,
    directory: File,
}

impl Folder {
    /// Opens the directory at an absolute path.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let directory = File::open(&path)?;
        Ok(Self { path, directory })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory itself.
    pub(super) fn file(&self) -> &File {
        &self.directory
    }

    /// Opens a file of the directory; `.` is the directory.
    pub(super) fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let name = c_name(name)?;
        let open = || rustix::fs::openat(&self.directory, &*name, flags | OFlags::CLOEXEC, MODE);
        descriptors::open(|| Ok(File::from(retry_on_intr(open)?)))
    }

    /// Names of all that is in the directory but directories, in no order.
    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let kind = match entry.file_type() {
                FileType::Unknown => match self.stat_of_link(name) {
                    // Removed meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    found => FileType::from_raw_mode(found?.st_mode),
                },
                known => known,
            };
            if kind != FileType::Directory {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        let name = c_name(name)?;
        Ok(rustix::fs::unlinkat(&self.directory, &*name, AtFlags::empty())?)
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (c_name(from)?, c_name(to)?);
        Ok(rustix::fs::renameat(&self.directory, &*from, &self.directory, &*to)?)
    }

    pub(super) fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (c_name(from)?, c_name(to)?);
        let directory = &self.directory;
        Ok(rustix::fs::linkat(directory, &*from, directory, &*to, AtFlags::empty())?)
    }

    /// The metadata of the file of a name.
    pub(super) fn stat(&self, name: &str) -> io::Result<Stat> {
        let name = c_name(name)?;
        Ok(rustix::fs::statat(&self.directory, &*name, AtFlags::empty())?)
    }

    fn stat_of_link(&self, name: &str) -> io::Result<Stat> {
        let name = c_name(name)?;
        Ok(rustix::fs::statat(&self.directory, &*name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Whether the file of a name is this open one.
    pub(super) fn is_named(&self, file: &File, name: &str) -> io::Result<bool> {
        match self.stat(name) {
            Ok(named) => Ok(is_one(&named, &rustix::fs::fstat(file)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The fate of the directory, if its path no longer leads to it, else `None`. Costs two system
    /// calls, and no access to the device.
    pub(super) fn displaced(&self) -> io::Result<Option<String>> {
        let own = rustix::fs::fstat(&self.directory)?;
        let found = match rustix::fs::statat(CWD, &self.path, AtFlags::empty()) {
            Ok(found) if is_one(&own, &found) => return Ok(None),
            Ok(_) => true,
            // A part of the path is gone, or no directory any more.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => false,
            Err(error) => return Err(error.into()),
        };
        let path = self.path.display();
        let what = match self.now_at() {
            // Directories have no second names: one without any was removed.
            _ if own.st_nlink == 0 => format!("the folder that was opened at {path} was removed"),
            Some(now) if now.ends_with(REMOVED) => {
                format!("the folder that was opened at {path} was removed")
            }
            Some(now) => format!("the folder that was opened at {path} is at {now} now"),
            None => format!("the folder that was opened at {path} was moved or removed"),
        };
        let there = if found { "another one is in its place" } else { "none is in its place" };
        Ok(Some(format!("{what}, and {there}")))
    }

    /// The current path of the directory according to the system, if known.
    fn now_at(&self) -> Option<String> {
        use std::os::fd::AsRawFd;
        let link = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
        Some(std::fs::read_link(link).ok()?.to_string_lossy().into_owned())
    }
}

/// Whether both are of one file.
fn is_one(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

fn c_name(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(io::Error::from)
}
