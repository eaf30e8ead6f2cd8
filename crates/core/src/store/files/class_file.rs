//! The files of a row class: their names, and whether they are of this store. Their content belongs
//! to the layout.

use crate::error::{Result, bail};
use crate::io::{File, Medium, OpenMode};
use crate::storage;
use crate::store::has_file;
use std::sync::Arc;

const PREFIX: &str = "rows-";
/// Prefix of the names of partitions: a class and a number follow.
pub(in crate::store) const PARTITION_PREFIX: &str = "part-";
/// Suffix of the name of a class's room for merges.
const ROOM_SUFFIX: &str = "-room";
/// Suffix of the name of the file in which a freeze puts rows in order.
const FREEZE_SUFFIX: &str = "-freeze";

/// The file of a class's pages.
pub(in crate::store) fn class_file_name(class: u16) -> String {
    format!("{PREFIX}{class}")
}

/// The class of a file; `None` for names that `class_file_name` does not give.
pub(in crate::store) fn class_of(name: &str) -> Option<u16> {
    let class = name.strip_prefix(PREFIX)?.parse().ok()?;
    (class_file_name(class) == name).then_some(class)
}

/// Whether a file of this name has rows: it is that of a class's pages, or one of its partitions.
pub(in crate::store) fn has_rows(name: &str) -> bool {
    class_of(name).is_some() || is_partition(name)
}

fn is_partition(name: &str) -> bool {
    let numbers = name.strip_prefix(PARTITION_PREFIX).and_then(|rest| rest.split_once('-'));
    let parsed = numbers.and_then(|(class, number)| {
        let (class, number): (u16, u32) = (class.parse().ok()?, number.parse().ok()?);
        Some(format!("{PARTITION_PREFIX}{class}-{number}"))
    });
    parsed.is_some_and(|canonical| canonical == name)
}

/// Whether a file of this name is a partition, or room for merges of a class.
pub(in crate::store) fn lies_apart(name: &str) -> bool {
    let is_beside = |suffix: &str| {
        let class = name.strip_prefix(PARTITION_PREFIX)?.strip_suffix(suffix)?;
        let class: u16 = class.parse().ok()?;
        Some(format!("{PARTITION_PREFIX}{class}{suffix}") == name)
    };
    is_partition(name)
        || [ROOM_SUFFIX, FREEZE_SUFFIX].into_iter().filter_map(is_beside).any(|is| is)
}

/// Creates the file of a new class, empty, in the place of one that was left, and removes the
/// partitions that lay below that, and room for their merges.
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
    for name in medium.list(&format!("{PARTITION_PREFIX}{class}-"))? {
        if lies_apart(&name) {
            medium.remove(&name)?;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_files_with_rows_are_taken_for_such() {
        for name in ["rows-0", "rows-65535", "part-0-1", "part-65535-4294967295"] {
            assert!(has_rows(name), "{name}");
        }
        let others = ["rows-", "rows-01", "rows-65536", "rows-0-1", "part-0", "part-0-", "part--1"];
        let odd =
            ["part-0-01", "part-00-1", "part-65536-1", "part-0-1-2", "part-0-+1", "parts-0-1"];
        for name in others.iter().chain(&odd) {
            assert!(!has_rows(name) && !lies_apart(name), "{name}");
        }
        for (name, apart) in [
            ("part-0-room", true),
            ("part-00-room", false),
            ("part-3-freeze", true),
            ("part-3-freezer", false),
            ("rows-0", false),
        ] {
            assert_eq!(lies_apart(name), apart, "{name}");
        }
        assert!(lies_apart("part-7-1") && !has_rows("part-7-room"));
    }
}
