//! Where a store may be made: in a folder of its own, below one that is there.
//!
//! A mistyped path would otherwise become folders, and a store among the files of something else.

use crate::error::{Error, Result, bail};
use crate::store::files::leftovers::is_of_a_store;
use crate::store::files::{lock, superblock};
use crate::store::open::{absolute, is_directory, is_there};
use crate::store::sweeps::copy::UNFINISHED;
use std::path::Path;

/// What a store that was never finished leaves, and what a file system puts into its root.
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
