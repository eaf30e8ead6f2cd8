//! The places of regions: in the store's folder, or apart, with a link in that folder.
//!
//! Names: `pmem-<table>` in the store's folder. A folder apart may be shared by stores, so names
//! there have the store's seed, too.

use super::told;
use crate::error::{Error, Result, bail};
use crate::io::{Medium, RegionFolders};
use embedrock_pmem::{Geometry, Mapped, Rows};
use std::fs;
use std::io::ErrorKind::NotFound;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

const PREFIX: &str = "pmem-";
/// Suffix of the names of regions that are to replace others, and the suffix that `resize` of
/// `crates/pmem` adds to it until they are whole.
const RESIZED: &str = "resized";
const UNFINISHED: &str = "resized.unfinished";
/// Bytes of a region that are copied at once.
const COPIED_BYTES: usize = 1 << 20;

/// The name of a table's region in the store's folder.
pub(crate) fn region_name(table: u16) -> String {
    format!("{PREFIX}{table}")
}

/// The table of a region; `None` for names that `region_name` does not give.
pub(crate) fn table_of_region(name: &str) -> Option<u16> {
    let table = name.strip_prefix(PREFIX)?.parse().ok()?;
    (region_name(table) == name).then_some(table)
}

/// Whether the store's folder has regions, or links to them.
pub(crate) fn has_regions(medium: &dyn Medium) -> Result<bool> {
    let Some(folders) = medium.regions() else { return Ok(false) };
    Ok(!regions_in(&folders.own)?.is_empty())
}

/// The tables whose regions, or links to them, are in a folder.
fn regions_in(folder: &Path) -> Result<Vec<u16>> {
    let cannot = |error| Error::os(format!("list {}", folder.display()), error);
    let mut tables = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let name = entry.map_err(cannot)?.file_name();
        tables.extend(name.to_str().and_then(table_of_region));
    }
    Ok(tables)
}

/// Removes the regions of all tables but these: those that were left by tables which no commit has.
pub(crate) fn remove_other_regions(medium: &dyn Medium, tables: &[u16]) -> Result<()> {
    let Some(folders) = medium.regions() else { return Ok(()) };
    for table in regions_in(&folders.own)?.iter().filter(|table| !tables.contains(table)) {
        remove(&folders.own.join(region_name(*table)))?;
    }
    Ok(())
}

/// The region of one table.
pub(super) struct Place<'a> {
    pub(super) folders: &'a RegionFolders,
    /// The store's seed of checksums, by which its files know each other.
    pub(super) seed: u64,
    pub(super) table: u16,
    /// For messages.
    pub(super) name: &'a str,
}

impl Place<'_> {
    fn own(&self) -> PathBuf {
        self.folders.own.join(region_name(self.table))
    }

    fn apart(&self) -> Option<PathBuf> {
        let name = format!("embedrock-{:016x}-{}", self.seed, region_name(self.table));
        self.folders.apart.as_ref().map(|folder| folder.join(name))
    }

    fn owner(&self) -> [u64; 2] {
        [self.seed, 1 << 32 | u64::from(self.table)]
    }

    /// Makes a region, in the place of one that was left by a table which no commit has.
    pub(super) fn create(&self, geometry: Geometry) -> Result<Rows<Mapped>> {
        let own = self.own();
        remove(&own)?;
        let made = match self.apart() {
            None => Rows::create(&own, geometry).map_err(told)?,
            Some(apart) => {
                if let Some(folder) = apart.parent() {
                    fs::create_dir_all(folder).map_err(|e| Error::os(folder.display(), e))?;
                }
                if apart.exists() {
                    bail!(
                        Misuse,
                        "table '{}': {} is there already, the region of a store that this one is \
                         a copy of, or was copied to; open this one with another pmem_path",
                        self.name,
                        apart.display()
                    );
                }
                // The link first, so that what a crash leaves apart is found by it.
                relink(&own, &apart)?;
                let made = Rows::create(&apart, geometry).map_err(told).inspect_err(|_| {
                    let _ = remove_name(&own);
                })?;
                Self::sync_folder_of(&apart)?;
                apart.parent().map_or(Ok(()), Self::sync_folder_of)?;
                made
            }
        };
        made.bind(self.owner()).map_err(told)?;
        Self::sync_folder_of(&own)?;
        Ok(made)
    }

    /// Opens the region. If it was moved to the folder apart, `writes` sets the link anew.
    pub(super) fn open(&self, row_bytes: usize, writes: bool) -> Result<Rows<Mapped>> {
        let own = self.own();
        let Some(path) = self.found()? else { return Err(self.missing()) };
        if writes {
            if !own.exists() {
                relink(&own, &path)?;
                Self::sync_folder_of(&own)?;
            }
            // A resize was cut off.
            let new = Self::beside(&path);
            remove_name(&new)?;
            remove_name(&new.with_extension(UNFINISHED))?;
            self.separate(&path)?;
        }
        // A process that may write gives a region of an earlier version its checks.
        let opened = if writes { Rows::open(&path) } else { Rows::open_to_read(&path) };
        let rows = opened.map_err(|error| self.named(told(error)))?;
        let owner = rows.owner().map_err(|error| self.named(told(error)))?;
        if owner != Some(self.owner()) {
            bail!(
                Corrupt,
                "table '{}': {} is the region of another store or table; put back what belongs \
                 together",
                self.name,
                path.display()
            );
        }
        let found = rows.geometry().row_bytes;
        if found != row_bytes {
            bail!(
                Corrupt,
                "table '{}': {} has rows of {found} bytes, expected {row_bytes}",
                self.name,
                path.display()
            );
        }
        Ok(rows)
    }

    /// Refuses a region that is older than this commit, by number.
    pub(super) fn check_mark(&self, rows: &Rows<Mapped>, commit: u64) -> Result<()> {
        let mark = rows.mark().map_err(|error| self.named(told(error)))?;
        if mark < commit {
            bail!(
                Corrupt,
                "table '{}': {} is older than the store's last commit: it knows commit {mark}, the \
                 last one is {commit}; restore it and the other files of the store from one copy",
                self.name,
                self.found().ok().flatten().unwrap_or_else(|| self.own()).display()
            );
        }
        Ok(())
    }

    /// Takes the region away that `create` made.
    pub(super) fn remove(&self) -> Result<()> {
        remove(&self.own())
    }

    /// Gives a region that has further names, as in a backup of hard links, a copy of its own: what
    /// is mapped is written in place.
    fn separate(&self, path: &Path) -> Result<()> {
        let failed = |error| {
            let what = format!("table '{}': its region has further names", self.name);
            Error::os(path.display(), error).context(what).followed_by(
                "it is copied before it is written, so that a backup of hard links keeps its \
                 rows: make room for it, or remove the others",
            )
        };
        if fs::metadata(path).map_err(failed)?.nlink() < 2 {
            return Ok(());
        }
        let copy = Self::beside(path).with_extension(UNFINISHED);
        copy_file(path, &copy).map_err(failed)?;
        fs::rename(&copy, path).map_err(failed)?;
        Self::sync_folder_of(path)
    }

    fn named(&self, error: Error) -> Error {
        error.context(format!("table '{}'", self.name))
    }

    /// Whether a link leads to the region, which then takes no room in the store's folder.
    pub(super) fn is_apart(&self) -> bool {
        fs::symlink_metadata(self.own()).is_ok_and(|about| about.is_symlink())
    }

    /// The target of a link to a region that is missing.
    pub(super) fn lost_apart(&self) -> Option<PathBuf> {
        fs::read_link(self.own()).ok().filter(|target| !target.exists())
    }

    /// The place of the region, if it is in its place or in the folder apart.
    ///
    /// *Errors*: `Io` where that cannot be told: a region that cannot be looked at is not lost.
    pub(super) fn found(&self) -> Result<Option<PathBuf>> {
        let own = self.own();
        match fs::canonicalize(&own) {
            Ok(path) => return Ok(Some(path)),
            Err(error) if error.kind() == NotFound => {}
            Err(error) => return Err(Error::os(own.display(), error)),
        }
        let Some(apart) = self.apart() else { return Ok(None) };
        let is_there = apart.try_exists().map_err(|error| Error::os(apart.display(), error))?;
        Ok(is_there.then_some(apart))
    }

    /// The name of a region that will take the place of the one at `path`.
    pub(super) fn beside(path: &Path) -> PathBuf {
        path.with_extension(RESIZED)
    }

    /// Makes names in the folder of a file durable.
    pub(super) fn sync_folder_of(path: &Path) -> Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let synced = fs::File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|error| Error::os(format!("sync {}", folder.display()), error))
    }

    pub(super) fn missing(&self) -> Error {
        let own = self.own();
        let at = fs::read_link(&own).unwrap_or(own);
        Error::new(
            crate::error::ErrorKind::Mismatch,
            format!(
                "table '{}': its region is not at {}; give pmem_path= the folder that it was moved \
                 to, or restore it from a copy; if it is lost, as files in memory are with the \
                 power, embedrock resize STORE '{}' --capacity N --make-empty begins the table \
                 anew",
                self.name,
                at.display(),
                self.name
            ),
        )
    }
}

/// Copies a file with all of its room, so that no write to the copy finds none. (A copy that shares
/// blocks would take its room only then, and a write through a mapping cannot fail.)
fn copy_file(from: &Path, to: &Path) -> std::io::Result<()> {
    let from = fs::File::open(from)?;
    let bytes = from.metadata()?.len();
    let to = fs::File::options().read(true).write(true).create_new(true).open(to)?;
    let mut portion = vec![0; COPIED_BYTES.min(bytes as usize)];
    let mut at = 0;
    while at < bytes {
        let part = &mut portion[..COPIED_BYTES.min((bytes - at) as usize)];
        from.read_exact_at(part, at)?;
        to.write_all_at(part, at)?;
        at += part.len() as u64;
    }
    to.sync_all()
}

fn relink(own: &Path, apart: &Path) -> Result<()> {
    remove_name(own)?;
    symlink(apart, own).map_err(|e| Error::os(own.display(), e))
}

/// Removes a region, or a link and the region that it leads to. One that somebody has open is left
/// alone: the link was copied, and the region is not this store's.
fn remove(path: &Path) -> Result<()> {
    let Ok(target) = fs::read_link(path) else { return remove_name(path) };
    // It may be relative to the folder that it lies in.
    let target = path.parent().map_or_else(|| target.clone(), |folder| folder.join(&target));
    let is_open =
        Mapped::open(&target).is_err_and(|error| error.kind() == embedrock_pmem::ErrorKind::Locked);
    if !is_open {
        remove_name(&target)?;
    }
    remove_name(path)
}

fn remove_name(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != NotFound => {
            Err(Error::os(format!("remove {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_regions_are_taken_for_such() {
        assert_eq!(table_of_region("pmem-0"), Some(0));
        assert_eq!(table_of_region("pmem-65535"), Some(65_535));
        for name in ["pmem-", "pmem-00", "pmem-65536", "pmem-1-2", "pmem-+1", "pmem", "rows-0"] {
            assert_eq!(table_of_region(name), None, "{name}");
        }
    }
}
