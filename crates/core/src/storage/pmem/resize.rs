//! A region of another capacity in the place of one that nobody has open.

use super::place::Place;
use super::{no_folder, told};
use crate::error::{Error, Result, bail};
use crate::io::{Medium, RegionFolders};
use embedrock_pmem::{Geometry, resize_with};

/// The region to resize, and its new size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resize<'a> {
    /// The store's seed of checksums.
    pub seed: u64,
    /// The table.
    pub table: u16,
    /// Its name.
    pub name: &'a str,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Rows for which there shall be room.
    pub capacity: u64,
    /// Whether the region is gone and an empty one shall take its place.
    pub make_empty: bool,
}

/// Copies the rows into a new region, which then takes the old one's name: after a crash there is
/// one of the two. Returns the rows, and the bytes of the region. `progress` is told of buckets.
///
/// *Errors*: `Full` where there are more rows, or the disk has no room for both; `Corrupt`;
/// `Locked`; `Misuse` where an empty one is wanted and the region is there; `Io`; what `progress`
/// returns.
pub(crate) fn resize(
    medium: &dyn Medium,
    asked: &Resize<'_>,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<(u64, u64)> {
    let folders = &medium.regions().ok_or_else(no_folder)?;
    let Resize { seed, table, name, row_bytes, capacity, make_empty } = *asked;
    let place = Place { folders, seed, table, name };
    let geometry = Geometry::new(capacity, row_bytes).map_err(told)?;
    let bytes = geometry.bytes() as u64;
    if make_empty {
        if let Some(path) = place.found()? {
            bail!(
                Misuse,
                "table '{name}': its region is at {}, so nothing was lost; resize it without \
                 --make-empty",
                path.display()
            );
        }
        // It is made where it was, unless the caller names another folder.
        let lost = place.lost_apart().filter(|_| folders.apart.is_none());
        let there = lost.as_deref().and_then(std::path::Path::parent);
        let folders = RegionFolders {
            own: folders.own.clone(),
            apart: there.map(std::path::Path::to_path_buf).or_else(|| folders.apart.clone()),
        };
        let made = Place { folders: &folders, ..place }.create(geometry)?;
        // It takes the place of one that the last commit has noted.
        made.set_mark_to_newest()?;
        return Ok((0, bytes));
    }
    // This also checks which store owns it.
    drop(place.open(row_bytes, true)?);
    let Some(path) = place.found()? else { return Err(place.missing()) };
    let new = Place::beside(&path);
    let rows = resize_with(&path, &new, capacity, progress)
        .map_err(|error: Error| error.context(format!("table '{name}'")))?;
    // Long ago by now.
    if let Some(what) = medium.displaced()? {
        bail!(NotFound, "table '{name}': {what}; nothing is changed there; resize it where it is");
    }
    std::fs::rename(&new, &path).map_err(|error| Error::os(path.display(), error))?;
    Place::sync_folder_of(&path)?;
    Ok((rows, bytes))
}
