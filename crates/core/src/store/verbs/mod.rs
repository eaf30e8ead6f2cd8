//! The verbs: get and put, update, views of rows, and the visit of a batch's rows in DRAM and on
//! storage.
//!
//! # How a get runs
//!
//! 1. `Table.get` in Python (`python/embedrock/table.py`) makes the keys a flat array and allocates
//!    the output. The bindings (`crates/python/src/store.rs`) copy the keys, so that other threads
//!    cannot change them after they were checked, borrow the output, register its addresses
//!    (`lent.rs`) and release the GIL.
//! 2. `Store::get` (`get_put.rs`) takes the engine shared (`planned_engine`), checks lengths and
//!    key ranges of all batches, and calls `visit_rows` with a `GetOp`.
//! 3. `Inner::visit_rows` (`rows.rs`) handles one row class after another. For a verb that only
//!    copies values, `visit_hits` calls `Cache::gather`, which processes keys in blocks of 32, or
//!    16 for wide rows, and prefetches set lines two blocks ahead and row lines one block ahead. It
//!    copies each row without its set's lock; the copy counts if the set's version has not moved. A
//!    key that is not in the cache becomes a `Miss`. Values of 2 bytes are gathered as they are,
//!    some KiB at a time, and widened from there. With state, and for every other verb, the stages
//!    are those of `Cache::staged`, and `Cache::access` hands the row to the verb under the set's
//!    lock.
//! 4. `visit_misses` (`misses.rs`) announces the number of rows to the cache
//!    (`Cache::announce_misses`), so that new rows of one batch do not evict each other. It takes
//!    the class lock, draws a read ticket (`begin_read`: pages read under it are not overwritten
//!    until it ends), and lets `visit_in_memory` resolve everything that needs no read.
//!    `StorageRead::find` looks into the flush buffer (a victim found there is *rescued*) and then
//!    into the index. A page that has not reached the device is read from memory. A key without an
//!    entry gets its initial row (`fill_initial`). For all others `find` names the pages that may
//!    hold them, as `Want`s.
//! 5. `visit_in_pages` sorts the wants, borrows a `PageReader` and reads every page once, without
//!    the class lock. Neighbouring pages are merged into one request if the device's curve says
//!    that this is cheaper, and many requests are in flight (`Queue::read`, `Queue::wait`). A
//!    `PageSource` has the files, and verifies each page.
//! 6. For each page that arrives, `visit_in_page` takes the class lock. `verify_newest` checks that
//!    the page is the last one written to its place. `resolve` compares table and key with the
//!    page's directory and asks the index whether this copy is still the newest. `hand_over` admits
//!    the row (`Cache::admit`) and hands it to the verb at the same time, so a batch may be larger
//!    than the cache. A dirty victim goes to the flush buffer (`park`); when that is full,
//!    `make_room` packs it.
//! 7. If all pages of a row held other keys, `absent` looks again: pages named then are read under
//!    the same ticket. Rows that changed in the meantime (`Progress::Moved`) go round again. Then
//!    the ticket ends.
//!
//! Rows on persistent memory are not in the cache. `visit_rows` hands batches of their class to
//! `visit_direct` (`direct.rs`), which copies values from the region to the output. A verb that
//! changes such rows takes the region's writer first (`write_direct`), and writes changed rows back
//! durably, a portion at a time.

pub(in crate::store) mod direct;
pub(in crate::store) mod get_put;
mod hot;
pub(in crate::store) mod misses;
pub(in crate::store) mod rows;
mod update;
pub(in crate::store) mod views;
