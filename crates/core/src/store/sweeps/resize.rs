//! Resize: a table on persistent memory gets room for more rows, or fewer, while nobody has its
//! store open.

use super::copy::refuse_unfinished;
use crate::config::{IoChoice, Memory, StoreOptions};
use crate::error::{Result, bail};
use crate::io::{DirectoryMedium, Medium};
use crate::row::RowLayout;
use crate::storage::{self, Resize};
use crate::store::events::Sweep;
use crate::store::files::lock::WriterLock;
use crate::store::files::place::{absolute, is_there};
use crate::store::files::superblock::{self, Superblock};
use crate::store::recovery::{Target, recover};
use serde::Serialize;
use std::path::Path;

/// Options for resizing a table on persistent memory.
#[derive(Clone, Copy, Debug)]
pub struct ResizeTo<'a> {
    /// Rows for which there shall be room.
    pub capacity: u64,
    /// The folder of regions, where the table's was moved to one.
    pub pmem_directory: Option<&'a Path>,
    /// Whether the region is gone and an empty one shall take its place.
    pub make_empty: bool,
}

/// Results of a resize.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ResizeReport {
    /// Rows that the table has.
    pub rows: u64,
    /// Rows for which it has room.
    pub capacity: u64,
    /// Bytes of its region.
    pub bytes: u64,
}

/// Gives a table with storage `pmem` a region of another capacity. Its rows are copied into a new
/// one, which then takes the place of the old: a crash leaves one of the two whole. `progress(done,
/// all)` counts buckets and may end it by an error, which changes nothing.
///
/// *Errors*: `NotFound` for a store or a table that is not there; `Locked` while somebody has the
/// store open; `Misuse` for another storage, or a capacity that it cannot have; `Full` where there
/// are more rows, or no room for old and new beside each other; `Corrupt`; `Io`. *Durability*: on
/// return.
pub fn resize(
    path: impl AsRef<Path>,
    table: &str,
    to: &ResizeTo<'_>,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<ResizeReport> {
    let path = absolute(path.as_ref())?;
    let sweep = Sweep::begin(&format!("resize of table {table}"), &path, None);
    refuse_unfinished(&path)?;
    if !is_there(&path.join(superblock::NAME))? {
        bail!(NotFound, "there is no store at {}", path.display());
    }
    let apart = to.pmem_directory.map(absolute).transpose()?;
    let medium = DirectoryMedium::open(&path, IoChoice::default())?.with_regions_in(apart);
    let _lock = WriterLock::take(&medium, &path)?;
    let seed = Superblock::read(&medium)?.checksum_seed();
    let recovered = recover(&medium, seed, &StoreOptions::new(Memory::Bytes(0)), &Target::Last)?;
    let Some(record) = recovered.tables.iter().find(|found| found.spec.name == table) else {
        let names: Vec<&str> = recovered.tables.iter().map(|t| t.spec.name.as_str()).collect();
        bail!(NotFound, "the last commit has no table '{table}'; it has {names:?}");
    };
    let spec = &record.spec;
    if !spec.storage.is_direct() {
        bail!(
            Misuse,
            "table '{table}' has storage \"{}\", which grows as it needs to; only \"pmem\" has a \
             capacity; embedrock grow gives a dense table more ids",
            spec.storage.name()
        );
    }
    let capacity = to.capacity;
    if let Some(ids) = spec.num_embeddings.filter(|ids| capacity > *ids) {
        bail!(
            Misuse,
            "capacity is {capacity}, and table '{table}' has {ids} ids; give it more of them \
             first, with embedrock grow"
        );
    }
    let state = spec.optimizer.state_words(spec.embedding_dim);
    let layout = RowLayout::new(spec.dtype, spec.embedding_dim, state)?;
    let (id, row_bytes, make_empty) = (record.id, layout.row_bytes(), to.make_empty);
    let asked = Resize { seed, table: id, name: table, row_bytes, capacity, make_empty };
    let (rows, bytes) = storage::resize(&medium as &dyn Medium, &asked, progress)?;
    sweep.done(rows, bytes);
    Ok(ResizeReport { rows, capacity, bytes })
}
