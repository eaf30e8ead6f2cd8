//! Disk space and memory for a freeze, checked before anything is written.

use crate::error::{Result, bail};
use crate::storage::{PageLayout, Placement};
use crate::store::Inner;
use crate::store::engine::{Class, Engine};

/// Bytes of the index of frozen rows at most: of an id, of a key, and of a replica whose row has no
/// other.
pub(super) const INDEX_BYTES_PER_ID: u64 = 4;
const INDEX_BYTES_PER_KEY: u64 = 7;
pub(super) const INDEX_BYTES_PER_REPLICA: u64 = 12;
/// Bytes of a key while the index of a growing table is made.
pub(super) const BUILDER_BYTES_PER_KEY: u64 = 21;
/// Bytes of a row that is sorted beside its own.
const SORTED_BYTES_BESIDE: u64 = 20;
/// Disk space for frozen rows of a class.
pub(super) struct DiskNeed {
    rows: u64,
    stays: u64,
    meanwhile: u64,
}

/// Disk space for `rows` frozen rows of a class.
pub(super) fn disk_need(
    class: &Class,
    rows: u64,
    placement: &Placement,
    sort_bytes: usize,
) -> Result<DiskNeed> {
    let record = &class.record;
    let holds = PageLayout::new(record.page_bytes, record.row_bytes, 0, 0)?.rows_per_page;
    let replicas = placement.replica_starts.len().saturating_sub(1) as u64;
    let copies = rows + placement.replica_rows.len() as u64;
    let unplaced = rows.saturating_sub(placement.rows.len() as u64);
    let pages = placement.page_ends.len() as u64 + unplaced.div_ceil(holds as u64) + replicas;
    let index = copies * INDEX_BYTES_PER_KEY;
    let sorted = copies * (record.row_bytes as u64 + SORTED_BYTES_BESIDE);
    let is_sorted_on_disk = sorted > sort_bytes as u64 / 2;
    Ok(DiskNeed {
        rows,
        stays: pages * record.page_bytes as u64 + index,
        meanwhile: if is_sorted_on_disk { sorted } else { 0 },
    })
}

/// Refuses a freeze that the disk cannot hold, before anything is written: pages of all
/// classes, and the file in which the rows of one are sorted.
pub(super) fn check_disk(inner: &Inner, needs: &[DiskNeed]) -> Result<()> {
    let rows: u64 = needs.iter().map(|need| need.rows).sum();
    let meanwhile = needs.iter().map(|need| need.meanwhile).max().unwrap_or(0);
    let needed = needs.iter().map(|need| need.stays).sum::<u64>() + meanwhile;
    let free = inner.medium.apart().unwrap_or(&inner.medium).free_bytes()?;
    let bound = inner.options.max_disk_bytes;
    let room = bound.map_or(free, |most| most.saturating_sub(inner.disk_bytes()).min(free));
    if needed > room {
        bail!(
            Full,
            "freezing {rows} rows and their replicas takes {needed} more bytes on disk, \
             {meanwhile} of them only meanwhile, and there are {room} for it; make room, raise \
             max_disk_bytes, or replicate less"
        );
    }
    Ok(())
}

/// Makes room in the budget for the index of frozen rows.
pub(super) fn make_index_room(inner: &Inner, engine: &Engine, needed: u64) -> Result<()> {
    if !inner.shrink_to(engine, needed, Engine::index_bytes_to_come)? {
        bail!(
            Budget,
            "the index of frozen rows takes up to {needed} bytes more while it is made, and the \
             budget is {}; open with that much more memory, or replicate less",
            engine.budget_bytes
        );
    }
    Ok(())
}
