//! The files at a path, and whether a store may be made there: in a folder of its own, below one
//! that exists.
//!
//! A mistyped path would otherwise become folders, and a store among the files of something else.

use crate::error::{Error, Result, bail};
use crate::store::files::leftovers::is_of_a_store;
use crate::store::files::{lock, superblock};
use std::fs::Metadata;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::{Path, PathBuf};

/// Lies in the directory of a copy until it is whole.
pub(in crate::store) const UNFINISHED: &str = "unfinished-copy";
/// Files that an unfinished store leaves, and one that a file system puts into its root.
const HARMLESS: [&str; 3] = [lock::NAME, superblock::NEW_NAME, "lost+found"];

/// Refuses a place where no store is to be made: a file, a folder with other files than those of a
/// store (hidden ones apart), and a path of which more than the last folder and its parent is
/// missing. One that holds a store, what is left of one or what a copy has begun is fine.
///
/// *Errors*: `Misuse`, `Io`.
pub fn check_place(path: &Path) -> Result<()> {
    let path = &absolute(path)?;
    if !is_there(path)? {
        return check_parents(path);
    }
    if !is_directory(path)? {
        bail!(Misuse, "{} is a file, expected a directory", path.display());
    }
    let named = |error| Error::os(path.display(), error);
    let mut strange = Vec::new();
    for entry in std::fs::read_dir(path).map_err(named)? {
        let name = entry.map_err(named)?.file_name().to_string_lossy().into_owned();
        if name == superblock::NAME || name == UNFINISHED || is_of_a_store(&name) {
            return Ok(());
        }
        if !HARMLESS.contains(&&*name) && !name.starts_with('.') {
            strange.push(name);
        }
    }
    strange.sort_unstable();
    let Some(first) = strange.first() else { return Ok(()) };
    let more = match strange.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    bail!(
        Misuse,
        "{} holds no store, but other files: {first:?}{more}; a store takes a folder of its own: \
         name one that is empty or not there yet",
        path.display()
    );
}

/// One missing folder above a store is made with it; more of them are a path that nobody meant.
fn check_parents(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    let above = parent.parent().unwrap_or(parent);
    if !is_there(parent)? && !is_there(above)? {
        bail!(
            Misuse,
            "store {} cannot be made: there is no folder {}; make it first, if that is the path \
             that was meant",
            path.display(),
            above.display()
        );
    }
    Ok(())
}

/// Whether something lies at a path.
///
/// *Errors*: `Io` where that cannot be told: what cannot be looked at is not missing.
pub(in crate::store) fn is_there(path: &Path) -> Result<bool> {
    Ok(look_at(path)?.is_some())
}

/// As `is_there`, for a directory.
pub(in crate::store) fn is_directory(path: &Path) -> Result<bool> {
    Ok(look_at(path)?.is_some_and(|found| found.is_dir()))
}

fn look_at(path: &Path) -> Result<Option<Metadata>> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if [NotFound, NotADirectory].contains(&error.kind()) => Ok(None),
        Err(error) => Err(Error::os(path.display(), error)),
    }
}

/// A path that stays right when the working directory changes.
pub(in crate::store) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::os(format!("path {}", path.display()), e))
}
