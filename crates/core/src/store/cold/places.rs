//! Checks of the place of a cold directory: paths, and the files that are there.

use crate::error::{Error, Result, bail};
use crate::io::Medium;
use crate::store::files::pairing::{MARKER, is_begun_marker};
use crate::store::files::place::absolute;
use crate::store::files::{lock, superblock};
use std::fs;
use std::io::{self, ErrorKind::NotADirectory, ErrorKind::NotFound};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files that are allowed, beside hidden ones, in a directory that is to become a cold one.
const HARMLESS: [&str; 3] = [lock::NAME, MARKER, "lost+found"];

/// The place that a caller means, in one spelling.
///
/// *Errors*: `Misuse` for no path, and for one that a shell was to expand.
pub(super) fn named(path: &Path) -> Result<PathBuf> {
    if path.as_os_str().is_empty() {
        bail!(Misuse, "cold_directory is empty, expected a path");
    }
    if path.as_os_str().as_encoded_bytes().starts_with(b"~") {
        bail!(
            Misuse,
            "cold_directory {} begins with ~, which only a shell expands: write the path out, or \
             use os.path.expanduser",
            path.display()
        );
    }
    Ok(absolute(path)?.components().collect())
}

/// Refuses a place that can be no cold directory of the store at `store`, which may still be made:
/// a file, one without a folder around it, one inside a store, and one around this store.
///
/// *Errors*: `Misuse`, `Io`.
pub(super) fn check(directory: &Path, store: &Path) -> Result<()> {
    let name = directory.display();
    for part in directory.ancestors() {
        match fs::metadata(part) {
            Ok(found) if found.is_dir() => break,
            Ok(_) => bail!(
                Misuse,
                "cold_directory {name}: {} is a file, expected a directory",
                part.display()
            ),
            Err(error) if [NotFound, NotADirectory].contains(&error.kind()) => {}
            Err(error) => return Err(failed(directory, error)),
        }
        if part.is_symlink() {
            let link = part.display();
            bail!(Misuse, "cold_directory {name}: the symbolic link {link} leads nowhere");
        }
    }
    let (real, store) = (resolved(directory)?, resolved(store)?);
    if real == store {
        bail!(Misuse, "cold_directory is {name}, the store's own; name another directory");
    }
    for around in real.ancestors() {
        if around == store || superblock::is_in(around)? {
            let around = around.display();
            bail!(
                Misuse,
                "cold_directory {name} is inside the store at {around}; name one beside it"
            );
        }
    }
    if store.starts_with(&real) {
        let store = store.display();
        bail!(Misuse, "store {store} is inside cold_directory {name}; name one beside it");
    }
    let parent = directory.parent().unwrap_or(directory);
    if !parent.is_dir() {
        let parent = parent.display();
        bail!(Misuse, "cold directory {name} cannot be made: there is no folder {parent}");
    }
    Ok(())
}

/// The path without symbolic links, as far as it is there.
fn resolved(path: &Path) -> Result<PathBuf> {
    for part in path.ancestors() {
        match fs::canonicalize(part) {
            // Parts of the path that are missing have no links.
            Ok(real) => {
                let rest = path.strip_prefix(part).unwrap_or(Path::new(""));
                return Ok(if rest == Path::new("") { real } else { real.join(rest) });
            }
            Err(error) if error.kind() == NotFound => {}
            Err(error) => return Err(failed(path, error)),
        }
    }
    Ok(path.to_path_buf())
}

/// Whether there is no directory of this name.
pub(super) fn is_missing(directory: &Path) -> Result<bool> {
    match fs::metadata(directory) {
        Ok(found) => Ok(!found.is_dir()),
        Err(error) if [NotFound, NotADirectory].contains(&error.kind()) => Ok(true),
        Err(error) => Err(failed(directory, error)),
    }
}

/// Refuses a directory with files of others, hidden ones apart. The marker is not looked into.
pub(super) fn check_fresh(cold: &dyn Medium) -> Result<()> {
    let Some(directory) = cold.path() else { return Ok(()) };
    let mut strange = Vec::new();
    for entry in fs::read_dir(directory).map_err(|error| failed(directory, error))? {
        let entry = entry.map_err(|error| failed(directory, error))?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if !HARMLESS.contains(&&*file) && !file.starts_with('.') && !is_begun_marker(&file) {
            strange.push(file);
        }
    }
    strange.sort_unstable();
    if let Some(first) = strange.first() {
        bail!(
            Misuse,
            "cold_directory {} holds {} files already, {first:?} for one; name a directory \
             that is empty or not there yet",
            directory.display(),
            strange.len()
        );
    }
    Ok(())
}

/// Makes a directory. Its name is durable with `sync_name`.
pub(super) fn make(directory: &Path) -> Result<()> {
    // Looked into first, for what cannot be synced is not to be made.
    parent(directory)?;
    fs::create_dir(directory).map_err(|error| failed(directory, error))
}

/// Makes the name of a directory durable: what is in it counts for nothing while that is not. A
/// folder that this user may not read is left to the user who made the directory in it.
pub(super) fn sync_name(cold: &dyn Medium) -> Result<()> {
    let Some(directory) = cold.path() else { return Ok(()) };
    match parent(directory) {
        Err(error) if error.is_refusal() => Ok(()),
        Err(error) => Err(error),
        Ok(parent) => parent.sync_all().map_err(|error| failed(directory, error)),
    }
}

fn parent(directory: &Path) -> Result<fs::File> {
    let parent = directory.parent().unwrap_or(directory);
    fs::File::open(parent).map_err(|error| {
        failed(parent, error).followed_by(format!(
            "to make cold directory {} durable its folder is read: let this user read it, or make \
             the directory yourself",
            directory.display()
        ))
    })
}

/// Whether room that one takes is missing in the other.
pub(super) fn share_device(own: &dyn Medium, cold: &dyn Medium) -> Result<bool> {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
    let (Some(own), Some(cold)) = (own.path(), cold.path()) else { return Ok(true) };
    let own = device(own).map_err(|error| failed(own, error))?;
    Ok(own == device(cold).map_err(|error| failed(cold, error))?)
}

/// The path as files note it.
pub(super) fn spelled(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            bail!(Misuse, "{} is not UTF-8, and a store with it cannot note it", path.display())
        }
    }
}

pub(super) fn is_same_directory(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    place(one).is_some_and(|found| place(other) == Some(found))
}

/// Whether two directories have the same superblock.
pub(super) fn is_same_store(one: &Path, other: &Path) -> bool {
    let read = |path: &Path| fs::read(path.join(superblock::NAME)).ok();
    read(one).is_some_and(|bytes| read(other) == Some(bytes))
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::os(format!("cold directory: {}", path.display()), error)
}
