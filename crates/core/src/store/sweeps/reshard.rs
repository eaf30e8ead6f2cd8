//! Reshard: rows of some buckets, from stores that have the tables of one model among them, into a
//! new store.
//!
//! Sources are opened one after the other, so that memory is that of two stores, however many there
//! are.

use super::copy::{
    CopyReport, begin_copy, check_disk, copy_rows, expected_in, finish, open_commit,
};
use crate::buckets::Buckets;
use crate::config::{CommitInfo, Memory, StorageKind, StoreOptions, TableInfo, TableSpec};
use crate::error::{Result, bail};
use crate::store::Store;
use crate::store::events::Sweep;
use crate::store::tables::compare;
use std::path::{Path, PathBuf};

/// A store that has some of the buckets.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its directory.
    pub path: PathBuf,
    /// The buckets that are taken from it; other parts give others.
    pub buckets: Buckets,
    /// Number of its buckets in all.
    pub of: u64,
}

/// The commits whose rows go to a new store, and the commit that is made of them.
#[derive(Clone, Copy, Debug)]
pub struct ReshardOptions<'a> {
    /// The commit of this step of every part.
    pub step: u64,
    /// The budget of each of the two stores that are open at a time.
    pub memory: Memory,
    /// Meta of the commit.
    pub meta: &'a str,
    /// The byte strings of the commit.
    pub state: &'a [(&'a str, &'a [u8])],
}

/// Facts about a part, found before its rows are copied.
struct Seen {
    commit: CommitInfo,
    tables: Vec<TableInfo>,
    seed: u64,
}

/// Copies the rows of all buckets of `parts`, with their state and counters of updates, to a new
/// store, which is committed at their step. `progress(done, all)` counts rows of the parts that
/// were looked at, and may end it by an error. A call that failed or was cut off leaves no store:
/// its files are not opened, and the next call to that place removes them.
///
/// *Errors*: `Misuse` for no parts, a bucket of two, a table on persistent memory, a destination
/// that holds a store; `Mismatch` where parts differ in seed, tables or counts of update batches,
/// or are committed to meanwhile; `NotFound`, `Budget`, `Corrupt`, `Full`, `Io`.
/// *Durability*: the store is complete and durable on return.
pub fn reshard(
    parts: &[Part],
    destination: impl AsRef<Path>,
    to: &ReshardOptions<'_>,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<CopyReport> {
    let Some(first) = parts.first() else {
        bail!(Misuse, "there are no stores to take rows from, expected at least one");
    };
    let sweep = Sweep::begin("resharding", &first.path, Some(destination.as_ref()));
    let all_buckets = disjoint(parts)?;
    let seen = parts.iter().map(|part| see(part, to)).collect::<Result<Vec<_>>>()?;
    for (part, other) in parts.iter().zip(&seen).skip(1) {
        check_alike((&first.path, &seen[0]), (&part.path, other))?;
    }
    let specs: Vec<TableSpec> = seen[0]
        .tables
        .iter()
        .enumerate()
        .map(|(at, info)| merged(info, parts, &seen, at, &all_buckets))
        .collect();
    let source = open_part(first, to)?;
    let target = begin_copy(&source, destination.as_ref(), None, &|options| {
        // Rows that are there are copied, however many could be.
        StoreOptions { check_disk: false, ..options }
    })?;
    drop(source);
    check_disk(&*target.inner.medium, &to_copy(parts, &seen))?;
    let mut ids = Vec::with_capacity(specs.len());
    for spec in &specs {
        ids.push(target.table(spec)?);
    }
    let all: u64 = seen.iter().flat_map(|part| &part.tables).map(|info| info.rows).sum();
    let (mut done, mut copied) = (0, 0);
    for (part, seen) in parts.iter().zip(&seen) {
        let source = open_part(part, to)?;
        if source.last_commit().as_ref().map(|commit| commit.sequence) != Some(seen.commit.sequence)
        {
            bail!(
                Mismatch,
                "{} was committed to while its rows were to be copied; end who writes to it, and \
                 begin again",
                part.path.display()
            );
        }
        for (info, id) in seen.tables.iter().zip(&ids) {
            let buckets = Some(&part.buckets);
            copied += copy_rows((&source, info), (&target, *id), buckets, &mut |rows| {
                done += rows;
                progress(done, all)
            })?;
        }
    }
    for (info, id) in seen[0].tables.iter().zip(&ids) {
        target.inner.set_updates(*id, info.updates)?;
    }
    let (commit, disk_bytes) = finish(&target, to.step, to.meta, to.state)?;
    sweep.done(copied, disk_bytes);
    Ok(CopyReport { commit, rows: copied, disk_bytes })
}

/// The buckets of all parts, of which none may have one that another has.
fn disjoint(parts: &[Part]) -> Result<Buckets> {
    let mut all = Buckets::default();
    for part in parts {
        if let Some(twice) = part.buckets.iter().find(|bucket| all.contains(*bucket)) {
            bail!(
                Misuse,
                "bucket {twice} is taken from {} and from a store before it; a bucket has one \
                 owner",
                part.path.display()
            );
        }
        all = all.with(&part.buckets);
    }
    Ok(all)
}

fn open_part(part: &Part, to: &ReshardOptions<'_>) -> Result<Store> {
    open_commit(&part.path, Some(to.step), None, to.memory, None)
}

fn see(part: &Part, to: &ReshardOptions<'_>) -> Result<Seen> {
    let source = open_part(part, to)?;
    let tables = source.tables();
    if let Some(info) = tables.iter().find(|info| info.spec.storage == StorageKind::Pmem) {
        bail!(
            Misuse,
            "table '{}' of {} lies on persistent memory, whose rows no commit has; copy the store \
             with storage \"log\" first",
            info.spec.name,
            part.path.display()
        );
    }
    let Some(commit) = source.last_commit() else {
        bail!(NotFound, "{} has no commit of step {}", part.path.display(), to.step);
    };
    Ok(Seen { commit, tables, seed: source.inner.superblock.seed })
}

/// Refuses a part that is of another model than the first one.
fn check_alike((path, seen): (&Path, &Seen), (other_path, other): (&Path, &Seen)) -> Result<()> {
    let (path, other_path) = (path.display(), other_path.display());
    if seen.seed != other.seed {
        bail!(
            Mismatch,
            "{path} has seed {} of initial rows and {other_path} {}: they are of different models",
            seen.seed,
            other.seed
        );
    }
    let names = |seen: &Seen| {
        let names: Vec<&str> = seen.tables.iter().map(|info| info.spec.name.as_str()).collect();
        names.join(", ")
    };
    if names(seen) != names(other) {
        bail!(
            Mismatch,
            "{path} has the tables {} and {other_path} has {}: they are of different models",
            names(seen),
            names(other)
        );
    }
    for (info, other) in seen.tables.iter().zip(&other.tables) {
        compare(&info.spec, &other.spec).map_err(|error| {
            error.context(format!("{path} and {other_path} are of different models"))
        })?;
        if info.updates != other.updates {
            bail!(
                Mismatch,
                "table '{}' has had {} update batches in {path} and {} in {other_path}: they are \
                 of different steps",
                info.spec.name,
                info.updates,
                other.updates
            );
        }
    }
    Ok(())
}

/// The spec of one table with the rows of the tables at this place in all parts.
fn merged(
    info: &TableInfo,
    parts: &[Part],
    seen: &[Seen],
    at: usize,
    buckets: &Buckets,
) -> TableSpec {
    let spec = &info.spec;
    // Of each part as much as is taken of its buckets.
    let share = |(part, seen): (&Part, &Seen)| {
        let expected = seen.tables[at].spec.expected_rows?;
        let taken = expected as f64 * part.buckets.len() as f64 / part.of.max(1) as f64;
        Some(taken.ceil() as u64)
    };
    let spec = TableSpec { expected_rows: parts.iter().zip(seen).map(share).sum(), ..spec.clone() };
    TableSpec { expected_rows: expected_in(&spec, Some(buckets)), ..spec }
}

/// The tables with as many rows as are copied of them, as far as that can be told before.
fn to_copy(parts: &[Part], seen: &[Seen]) -> Vec<TableInfo> {
    let of_part = |(part, seen): (&Part, &Seen)| {
        let share = part.buckets.len() as f64 / part.of.max(1) as f64;
        let rows = move |info: &TableInfo| (info.rows as f64 * share) as u64;
        let infos = seen.tables.iter().cloned();
        infos.map(|info| TableInfo { rows: rows(&info), ..info }).collect::<Vec<_>>()
    };
    parts.iter().zip(seen).flat_map(of_part).collect()
}
