//! Files of a store that no commit names: what a crash before the first commit leaves, and what is
//! damage.
//!
//! A store begins with its superblock, then file 1 of the journal gets its name, then come files of
//! rows and, with the first commit, a state. All else needs a commit. Without one, opening gives an
//! empty store, and writing to it removes these files: so only what such a crash explains may lie
//! there.

use crate::error::{Result, bail};
use crate::io::Medium;
use crate::storage::table_of_region;
use crate::store::files::class_file::{has_rows, refuse_other_store};
use crate::store::files::state;
use crate::store::journal::{name_of, number_of, pin_of_name};

/// A file that only a store has.
pub(in crate::store) fn file_of_a_store(medium: &dyn Medium) -> Result<Option<String>> {
    Ok(medium.list("")?.into_iter().find(|name| is_of_a_store(name)))
}

/// Whether a file of this name is a journal's, rows, a state or a pinned commit.
pub(in crate::store) fn is_of_a_store(name: &str) -> bool {
    number_of(name).is_some()
        || has_rows(name)
        || state::sequence_of(name).is_some()
        || table_of_region(name).is_some()
        || pin_of_name(name).is_some()
}

/// Of a store whose journal has no commit: `Corrupt` naming a file that only a lost one explains.
pub(in crate::store) fn refuse_unexplained(medium: &dyn Medium, seed: u64) -> Result<()> {
    let names = medium.list("")?;
    let first = name_of(1);
    let begun = names.contains(&first);
    for name in &names {
        let number = number_of(name).or_else(|| state::sequence_of(name));
        // A commit is pinned once it is there.
        let number = number.or_else(|| pin_of_name(name).map(|_| u64::MAX));
        let is_rows = has_rows(name);
        if !is_rows && number.is_none() {
            continue;
        }
        if number.is_some_and(|number| number > 1) {
            bail!(
                Corrupt,
                "{name} is there, which follows a commit, but no journal file has one: it was \
                 damaged or removed; restore it from a copy"
            );
        }
        if !begun {
            bail!(
                Corrupt,
                "{name} is there, but no journal file: it was removed; restore it from a copy, or \
                 remove this store if it never had a commit"
            );
        }
        if is_rows {
            refuse_other_store(medium, name, seed)?;
        }
    }
    Ok(())
}
