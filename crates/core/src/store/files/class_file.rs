//! The file of a row class: its name, and whether it is of this store. What is in it belongs to
//! the layout.

use crate::error::{Result, bail};
use crate::io::{File, Medium, OpenMode};
use crate::storage;
use crate::store::has_file;
use std::sync::Arc;

const PREFIX: &str = "rows-";

/// The file of a class's pages.
pub(in crate::store) fn class_file_name(class: u16) -> String {
    format!("{PREFIX}{class}")
}

/// The class of a file; `None` for names that `class_file_name` does not give.
pub(in crate::store) fn class_of(name: &str) -> Option<u16> {
    let class = name.strip_prefix(PREFIX)?.parse().ok()?;
    (class_file_name(class) == name).then_some(class)
}

/// Creates the file of a new class, empty, in the place of one that was left.
pub(in crate::store) fn create_class_file(
    medium: &dyn Medium,
    class: u16,
    seed: u64,
) -> Result<Arc<dyn File>> {
    let name = class_file_name(class);
    if has_file(medium, &name)? {
        // Left by an epoch that never committed, or by commits that were given up.
        refuse_other_store(medium, &name, seed)?;
        medium.remove(&name)?;
    }
    medium.open(&name, OpenMode::CreateNew)
}

/// Refuses a file of pages whose header is sound and of another store. A header that is not sound
/// may have been under way in a crash.
pub(in crate::store) fn refuse_other_store(
    medium: &dyn Medium,
    name: &str,
    seed: u64,
) -> Result<()> {
    let file = medium.open(name, OpenMode::ReadOnly)?;
    if let Some(other) = storage::seed_of_file(&*file)?
        && other != seed
    {
        bail!(
            Corrupt,
            "superblock and {name} are of different stores: their checksum seeds are {seed:#x} \
             and {other:#x}; put back what belongs together, from a copy"
        );
    }
    Ok(())
}
