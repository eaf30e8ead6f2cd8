//! The interface that a layout offers to the store, by concern. A layout implements each trait next
//! to the code behind it; [`Storage`] is all of them.

use super::{
    Areas, Begun, Checked, Cut, DirtyRow, Finding, Found, Freeze, FreezePlan, OpenAt, PageAddress,
    PageSource, Parts, Region, Residents, Resolved, RowChange, Share, SlotSet, SpaceBound,
    StorageMemory, StorageStats, StretchPoints, Sweep, TableFacts, UnitReport, Want,
};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::{File, Medium};
use std::any::Any;
use std::sync::Arc;

/// Finding rows: in memory, or in which pages; reads happen without the class lock.
pub(crate) trait StorageRead {
    /// The rows of a table that are read and changed without this storage and its lock; `None`
    /// where they go through the cache.
    fn direct(&self, table: u16) -> Option<Arc<Region>> {
        let _ = table;
        None
    }

    /// The pages, to be read without the lock of the class.
    fn pages(&self) -> Arc<dyn PageSource>;

    /// Protects everything stored now: no page that is read until [`end_read`](Self::end_read) is
    /// written again before.
    fn begin_read(&mut self) -> u64;

    /// Ends what `begin_read` gave the number of.
    fn end_read(&mut self, ticket: u64);

    /// Hints that a key will be looked up soon.
    fn prefetch(&self, table: u16, key: u64);

    /// Locates the key of a miss, without reading; pages that may hold it are added to `wants`. A
    /// page that is in memory may not have reached the device yet, so it is never asked for. `seen`
    /// are sorted wants whose pages held other keys: they are not asked for again.
    fn find(
        &mut self,
        table: u16,
        key: u64,
        miss: u32,
        seen: &[Want],
        wants: &mut Vec<Want>,
    ) -> Found<'_>;

    /// Rank of the read of a row among those of others: rows of one page have the same number, and
    /// numbers follow the order of the pages. 0 stands for a row that needs no read, such as one
    /// that waits to be written; `None` for one that was never written.
    fn read_order(&self, table: u16, key: u64) -> Option<u32>;

    /// Whether a key is stored or waits to be; `None` where only a read can tell.
    fn contains(&self, table: u16, key: u64) -> Option<bool>;

    /// Whether [`contains`](Self::contains) always tells of this table.
    fn is_exact(&self, table: u16) -> bool;

    /// Checks that a verified page is the one that was last written in its place; else `Corrupt`.
    fn verify_newest(&self, at: PageAddress, page: &[u8]) -> Result<()>;

    /// Looks in a page that has arrived for the key that it was wanted for. The class was not
    /// locked meanwhile: so the row may wait, changed, or another copy may be the newest, and the
    /// page's row would bring an old value back.
    fn resolve<'p>(
        &self,
        table: u16,
        key: u64,
        want: &Want,
        page: &'p [u8],
    ) -> Result<Resolved<'p>>;
}

/// Passes over what is stored.
pub(crate) trait StorageSweeps {
    /// Begins a sweep of a table, or of all. A page of a single table's that has another row where
    /// the index says one of it, or none, is `Corrupt`. A sweep of all tables reads the same pages
    /// with less memory and hands over outdated rows of theirs, too: `is_newest` tells.
    fn sweep(&mut self, table: Option<u16>) -> Box<dyn Sweep>;

    /// Lets a sweep look up which pages it reads next. Before each of its reads.
    fn advance(&mut self, sweep: &mut dyn Sweep);

    /// Whether nothing newer is known of a row than its stored copy at `place`, its origin then.
    /// False for a key or a table that is not there.
    fn is_newest(&self, table: u16, key: u64, place: u32) -> bool;

    /// Parts of a file that a measurement may read: those that were written to their end.
    fn areas(&self) -> Areas;

    /// Reads every page that the index names, looks for every row where it says, and tells `said`
    /// what is wrong. `progress(done, all)` counts pages and may end it by an error, the only one
    /// that is returned. Nothing may be written meanwhile.
    fn check(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
        said: &mut dyn FnMut(Finding),
    ) -> Result<Checked>;
}

/// The changes since an earlier commit. Only rows that have versions tell.
pub(crate) trait StorageChanges {
    /// Hands over what changes of the class, as the journal has them, did to rows, in their order.
    /// Upkeep that moves a row says that it was written.
    fn read_changes(&self, bytes: &[u8], each: &mut dyn FnMut(RowChange)) -> Result<()> {
        let _ = (bytes, each);
        bail!(Unsupported, "rows of this storage have no versions")
    }

    /// Slots of the newest copies of a table's rows; `None` where rows may lie elsewhere.
    fn stored_slots(&self, table: u16) -> Option<SlotSet> {
        let _ = table;
        None
    }

    /// Begins a sweep of the newest copies of a table that lie in these slots of the log.
    fn sweep_slots(&mut self, table: u16, slots: &SlotSet) -> Result<Box<dyn Sweep>> {
        let _ = (table, slots);
        bail!(Unsupported, "rows of this storage have no versions")
    }

    /// Whether a key of which the log has no copy any more may have its row elsewhere.
    fn has_rows_below(&self) -> bool {
        false
    }
}

/// Dirty rows on their way to storage, and deletes.
pub(crate) trait StorageWrite {
    /// Rows that wait.
    fn parked(&self) -> usize;

    /// Rows that can still be parked before a flush.
    fn room(&self) -> usize;

    /// Lets a row wait that does not yet. Panics when there is no room: the owner flushes before.
    fn park(&mut self, row: DirtyRow<'_>);

    /// Whether a row waits.
    fn is_parked(&self, table: u16, key: u64) -> bool;

    /// Takes a waiting row out, because it went back to the cache or its key was deleted; false
    /// where none waits.
    fn unpark(&mut self, table: u16, key: u64) -> bool;

    /// Writes the rows that wait, those dirty for longest first, and says how many they were. `now`
    /// is the newest stamp. May wait for the device.
    fn flush(&mut self, now: u32) -> Result<u64>;

    /// Rank of a row among others that are written together, the smallest first; all are 0 if rows
    /// are best written in the order in which they became dirty.
    fn write_place(&self, table: u16, key: u64) -> u64;

    /// Whether rows are best written in the order of [`write_place`](Self::write_place).
    fn sorts_writes(&self) -> bool;

    /// Writes one row, for which room was reserved, and outdates the copy before, which is its
    /// origin (0 for none); of a dense table the index tells. Returns the origin that the row has
    /// from now on. May wait for the device.
    fn append(&mut self, row: DirtyRow<'_>) -> Result<u32>;

    /// Deletes the stored copy of a key, if there is one: `origin`, 0 for none; of a dense table
    /// the index tells.
    fn delete(&mut self, table: u16, key: u64, origin: Option<u32>);

    /// Makes the index of a growing table smaller after many deletes, in `most` steps at most, for
    /// each takes the journal room of a row. Not while a cycle of pieces is under way.
    fn shrink_index(&mut self, table: u16, most: usize);
}

/// Rows that are written where they are used next; a layout with another order does nothing.
pub(crate) trait StorageStretches {
    /// The append points for `stretches` of a schedule, of which the furthest next use is so far
    /// ahead, in at most so many bytes of memory and of the disk; `None` where there is too little
    /// of them, or the layout has no such points.
    fn stretch_points(&self, furthest: u32, memory: u64, disk: u64) -> Option<StretchPoints> {
        let _ = (furthest, memory, disk);
        None
    }

    /// Gives stretches append points; nothing where they have those already. May wait for the
    /// device.
    fn open_stretches(&mut self, points: StretchPoints) -> Result<()> {
        let _ = points;
        Ok(())
    }

    /// Makes room ready in which `rows` more rows find the segments of their own stretches, beside
    /// `spare` bytes; without it some go to those of others, where there is room for them already.
    fn reserve_apart(&mut self, rows: u64, spare: u64) -> Result<()> {
        let _ = (rows, spare);
        Ok(())
    }

    /// Takes them back. May wait for the device.
    fn close_stretches(&mut self) -> Result<()> {
        Ok(())
    }

    /// Bytes by which the counts of segments may grow, which nobody asks for: windows and returning
    /// ways of caches leave them free.
    fn segment_growth(&self) -> u64 {
        0
    }

    /// Bytes that they take.
    fn stretch_bytes(&self) -> u64 {
        0
    }
}

/// The part of a layout that commits and the journal need.
pub(crate) trait StorageJournal {
    /// Gives everything to the device; the next epoch begins. Changes that wait belong to the epoch
    /// before: they are drained before anything else is written. With `wants_record` it is said,
    /// too, what a journal file that begins with the commit has to know.
    fn cut(&mut self, wants_record: bool) -> Result<Cut>;

    /// Bytes of changes that wait for the journal.
    fn change_bytes(&self) -> usize;

    /// Takes these changes, in the order in which they were made.
    fn drain_changes(&mut self, into: &mut Vec<u8>);

    /// Gives all pages to the device and waits for it, so that `equip` has none to write.
    fn write_out(&mut self) -> Result<()>;

    /// Bytes that the journal needs for `rows` changed or deleted rows.
    fn journal_bytes_for(&self, rows: u64) -> u64;

    /// Whether so many changes wait for the journal that they should be handed over.
    fn changes_are_many(&self) -> bool;

    /// Pieces of what the journal keeps of a table beside its changes.
    fn pieces(&self, table: u16) -> u32;

    /// Appends one of them to `out`, as it is now. No change waits: the journal has them all, and
    /// those that come later are applied to the piece.
    fn write_piece(&self, table: u16, piece: u32, out: &mut Vec<u8>);
}

/// Room on disk, made before it is used and given back.
pub(crate) trait StorageSpace {
    /// Bytes that the files of rows take.
    fn disk_bytes(&self) -> u64;

    /// Room that a cut takes, in rows: it seals pages that are not full.
    fn rows_of_cut(&self) -> u64;

    /// Bytes that are to be made ready so that `rows` more rows can be written and `spare` bytes
    /// are left.
    fn lacking_bytes(&self, rows: u64, spare: u64) -> u64;

    /// Bytes of these that have to be taken from the disk.
    fn growth_for(&self, rows: u64, spare: u64) -> u64;

    /// Makes sure that `rows` more rows can be written and `spare` bytes are left, by taking up to
    /// `grow_bytes` more of the disk. `Full` names what is missing. Room made ready before the lack
    /// was noticed stays ready for the next request; nothing else has changed.
    fn reserve(&mut self, rows: u64, spare: u64, grow_bytes: u64) -> Result<()>;

    /// Gives free room back to the file system: the bytes `wanted` by another class or the journal,
    /// or, if that is `None`, the room that the next epochs are not likely to need. Room for the
    /// `unwritten` rows and `spare` bytes stays; so does room for the `refused` rows when they are
    /// asked for again, unless upkeep itself lacks it. Waits for writes that are in flight.
    fn give_back(
        &mut self,
        unwritten: u64,
        refused: u64,
        spare: u64,
        wanted: Option<u64>,
    ) -> Result<()>;

    /// Bytes that only commits from `first` up to `oldest_kept` need.
    fn held_bytes(&self, first: u64, oldest_kept: u64) -> u64;
}

/// Upkeep: what moves rows so that room becomes free, in units.
pub(crate) trait StorageUpkeep {
    /// Releases what only commits before `released` have; what commits before `oldest_kept` have
    /// beside it stays for readers. Rows deleted since the last call pay for upkeep like written
    /// ones, but only now: earlier, upkeep would have released nothing.
    fn drop_commits_before(&mut self, released: u64, oldest_kept: u64);

    /// Notes that `rows` flushed rows pay for as much upkeep as keeps the files at their target
    /// size, which `clean_unit` then does.
    fn owe(&mut self, rows: u64);

    /// Rows that one unit moves at most.
    fn rows_per_unit(&self) -> u64;

    /// Bytes that changes leave free for upkeep, of `most_bytes` that a disk bound allows if there
    /// is one.
    fn room_for_upkeep(&self, most_bytes: Option<u64>) -> u64;

    /// Whether what is free, or will be by commits alone, is less than `bytes` beside what stays
    /// for `unwritten` rows and the `spare` bytes.
    fn lacks(&self, bytes: u64, unwritten: u64, spare: u64) -> bool;

    /// Whether a unit was paid for and not done; where files are small enough that is forgotten.
    /// `most_bytes` is what the disk bound allows.
    fn settle(&mut self, most_bytes: u64) -> bool;

    /// Does a unit; `None` when nothing is worth it, or there is no room to move rows to. `rows` is
    /// how many must find room, those of a unit and others that will come; `grow_bytes` is how much
    /// more of the disk it may take. Waits for the device.
    fn clean_unit(
        &mut self,
        bound: SpaceBound,
        rows: u64,
        grow_bytes: u64,
        residents: &dyn Residents,
    ) -> Result<Option<UnitReport>>;

    /// Whether it ever begins a unit of work that is done without the lock of the class. One that
    /// does not needs no other method of units.
    fn has_units(&self) -> bool {
        false
    }

    /// Whether [`begin_unit`](Self::begin_unit) may begin one, whatever room there is. Cheap: it is
    /// asked for at every change.
    fn may_begin_unit(&self) -> bool {
        false
    }

    /// The unit of work that is done without the lock of the class, where one is due and none is
    /// under way. It may take `grow_bytes` more of the disk; where it needs more, none begins. All
    /// that it may take counts as taken until it is installed or abandoned.
    fn begin_unit(&mut self, grow_bytes: u64) -> Result<Option<Box<dyn Unit>>> {
        let _ = grow_bytes;
        Ok(None)
    }

    /// Whether a part of the unit under way should be done: rows have paid for it, or upkeep is
    /// pressed.
    fn owes_steps(&self) -> bool {
        false
    }

    /// The newest rows take memory that nobody else can give: units are due for fewer of them than
    /// usual, until the next commit.
    fn press_units(&mut self) {}

    /// A step is about to be done: takes what rows have paid for it.
    fn pay_step(&mut self) {}

    /// Whether cleaning cannot wait: what is outdated takes too much room. `most_bytes` is what the
    /// disk bound allows.
    fn is_pressed(&self, most_bytes: u64) -> bool {
        let _ = most_bytes;
        false
    }

    /// Whether the unit that is due or under way cannot wait: the newest rows take too much memory,
    /// the disk is nearly full, or the unit keeps what several commits have released.
    fn is_unit_pressed(&self, most_bytes: u64) -> bool {
        let _ = most_bytes;
        false
    }

    /// Takes the outcome of a unit over, once it is done; after an error nothing is left of it.
    /// Its changes take no more of the journal than those of a unit's rows.
    fn install(&mut self, unit: Box<dyn Unit>, residents: &dyn Residents) -> Result<UnitReport> {
        let _ = (unit, residents);
        unreachable!("a unit is given to a storage that begins none")
    }

    /// Removes what a unit has written that will not be taken over, because of an error if there
    /// was one. The error is returned, unless the storage can do without the unit: for lack of
    /// room, until there is some; for damage that the unit met, until it is opened again.
    fn abandon_unit(&mut self, unit: Box<dyn Unit>, because: Option<Error>) -> Result<()> {
        let abandoned = unit.abandon();
        match because {
            Some(error) if error.kind() != ErrorKind::Full => Err(error),
            _ => abandoned,
        }
    }

    /// Goes on with what `install` has left to do, some hundred rows at a time; false when nothing
    /// is left. Each part's changes take no more of the journal than those of a unit's rows. None
    /// begins before that.
    fn install_more(&mut self, residents: &dyn Residents) -> Result<bool> {
        let _ = residents;
        Ok(false)
    }

    /// Says how many bytes a disk bound allows, if there is one: it will make upkeep necessary.
    /// Rows are told apart by how long their last copy lived then.
    fn expect_bound(&mut self, most_bytes: Option<u64>);

    /// The damage that upkeep met since open, for people: what has it is left as it is.
    fn damage(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Pinned commits: what they need stays, whatever commits are dropped.
pub(crate) trait StoragePins {
    /// The facts that a journal file needs that begins with the opened commit. Nothing has changed
    /// since.
    fn begun(&self) -> Begun {
        Begun::default()
    }

    /// The files' parts that the opened commit needs. Nothing has changed since.
    fn parts(&self) -> Parts {
        Parts::default()
    }

    /// The blocks of the file of pages that have rows of the opened commit: rising ranges of
    /// offsets and lengths, in whole blocks of `block_bytes`, a multiple of a page. Nothing has
    /// changed since.
    fn blocks(&self, block_bytes: u64) -> Vec<(u64, u64)> {
        let _ = block_bytes;
        Vec::new()
    }

    /// Keeps these parts for the pinned commit of this number, which is kept at this moment or was
    /// pinned when the storage was opened. `Corrupt` where the files do not have them.
    fn pin(&mut self, pin: u64, parts: &Parts) -> Result<()> {
        let _ = (pin, parts);
        Ok(())
    }

    /// Releases what only this pinned commit has.
    fn unpin(&mut self, pin: u64) {
        let _ = pin;
    }

    /// Bytes that only a pinned commit with these parts keeps, not the `others` and no commit that
    /// is kept otherwise.
    fn bytes_of_pin(&self, parts: &Parts, others: &[&Parts]) -> u64 {
        let _ = (parts, others);
        0
    }
}

/// Freezing: all rows are written anew in the order of a placement.
pub(crate) trait StorageFreeze {
    /// Begins a freeze, a unit of upkeep like others once it was given all rows. `Misuse` for a
    /// placement that does not fit, and where the storage does not freeze.
    fn begin_freeze(&mut self, plan: FreezePlan) -> Result<Box<dyn Freeze>> {
        let _ = plan;
        bail!(Misuse, "rows of this storage are not frozen; freeze into a store of its own")
    }
}

/// A piece of upkeep that needs no lock: it reads what nobody changes, and writes files that nobody
/// knows yet.
pub(crate) trait Unit: Any + Send {
    /// Does a part of it; false when all is done. After an error it can only be abandoned.
    fn step(&mut self) -> Result<bool>;

    /// Removes what it has written.
    fn abandon(self: Box<Self>) -> Result<()>;
}

/// Memory: what a plan of the budget gives, and what is taken.
pub(crate) trait StorageBudget {
    /// Takes the buffers of a plan in place of those before. Nothing may wait in these.
    fn equip(&mut self, share: Share, medium: &dyn Medium) -> Result<()>;

    /// Bytes by which the index of a table still grows until it has `expected` rows: none where a
    /// dense table's has all its memory from the begin, as in a log unless it is packed.
    fn index_growth(&self, table: u16, expected: u64) -> u64;

    /// The growth of the indexes of several tables together, each with the rows that it is to have:
    /// parts that tables share are looked at once.
    fn index_growths(&self, tables: &mut dyn Iterator<Item = (u16, u64)>) -> u64 {
        tables.map(|(table, expected)| self.index_growth(table, expected)).sum()
    }

    /// Bytes by which indexes grow before `rows` more rows can be written, with some to spare:
    /// where a longer file needs wider slot numbers.
    fn bytes_to_widen(&self, rows: u64) -> u64 {
        let _ = rows;
        0
    }

    /// Takes these bytes. The caller has made room for them.
    ///
    /// *Errors*: `Budget` when the machine does not have the memory.
    fn widen_indexes(&mut self, rows: u64) -> Result<()> {
        let _ = rows;
        Ok(())
    }

    /// Bytes by which indexes grow if slot numbers become as wide as they can.
    fn bytes_of_widest(&self) -> u64 {
        0
    }

    /// Bytes that deletes of these keys leave in memory until upkeep has dropped their rows.
    fn bytes_for_deletes(&self, table: u16, keys: &[u64]) -> u64 {
        let _ = (table, keys);
        0
    }

    /// Deletes were refused for lack of memory: upkeep drops what those before have left, as soon
    /// as it can.
    fn drop_deleted_soon(&mut self) {}

    /// Whether a row that is written now takes no memory: its key has its place in the index of
    /// the newest rows.
    fn is_above(&self, table: u16, key: u64) -> bool {
        let _ = (table, key);
        true
    }

    /// Memory use.
    fn memory(&self) -> StorageMemory;
}

/// Counters.
pub(crate) trait StorageCounts {
    /// Counters, and what is stored.
    fn stats(&self) -> StorageStats;

    /// Keys of a table that have a stored copy, at least so many. The number is exact if the
    /// storage has each key in one place alone.
    fn rows_stored(&self, table: u16) -> u64;

    /// Bytes in use that newest copies do not fill.
    fn outdated_bytes(&self) -> u64;
}

/// Tables that come and go.
pub(crate) trait StorageTables {
    /// Takes a new table in. Returns into how many parts it is divided, of a growing one for whose
    /// recovery that must be known.
    fn create_table(&mut self, facts: &TableFacts<'_>) -> Result<Option<u32>>;

    /// Takes a table out again that came to nothing: no row of it was written.
    fn remove_table(&mut self, table: u16);

    /// Takes a table out with all its rows, which kept commits keep. None of them waits, no change
    /// of it waits for the journal, and no unit of upkeep is under way.
    fn drop_table(&mut self, table: u16);

    /// Makes room for more ids of a dense table, of which none has a row.
    ///
    /// *Errors*: `Misuse`, `Budget` or `Full` where it cannot have so many, which say what would
    /// work; nothing changed then.
    fn grow_table(&mut self, table: u16, num_embeddings: u64) -> Result<()>;
}

/// A reader that moves to another commit. It is read meanwhile: the index of the next one is made
/// beside its own.
pub(crate) trait StorageRefresh {
    /// The recovery of this storage at a later commit: it begins with this commit's `tables`, in
    /// the order of their ids, and is changed by the journal from `epoch` on. First it has to be
    /// given a copy of the index, by [`copy_more`](Self::copy_more). Copies that only commits
    /// before `oldest` have are not counted.
    ///
    /// *Errors*: `Budget` when the machine does not have the memory for a second index.
    fn go_on(
        &self,
        tables: &[TableFacts<'_>],
        epoch: u64,
        oldest: u64,
    ) -> Result<Box<dyn StorageRecovery>>;

    /// Copies the next part of the index, some megabytes, into what [`go_on`](Self::go_on) gave;
    /// false when nothing is left. The class may be unlocked between two parts.
    fn copy_more(&self, into: &mut dyn StorageRecovery) -> bool;
}

/// The storage of the rows of a row class. The holder of the class lock has it alone; only page
/// reads, sweeps under way and writes in flight go on without the lock.
pub(crate) trait Storage:
    StorageRead
    + StorageSweeps
    + StorageChanges
    + StorageWrite
    + StorageStretches
    + StorageJournal
    + StorageSpace
    + StorageUpkeep
    + StoragePins
    + StorageFreeze
    + StorageBudget
    + StorageCounts
    + StorageTables
    + StorageRefresh
    + Any
    + Send
{
}

/// A callback for every row that a change names, by table and key.
pub(crate) type Hearer<'a> = Option<&'a mut dyn FnMut(u16, u64)>;

/// The future storage of a row class while the journal is replayed, in its order.
pub(crate) trait StorageRecovery: Any + Send {
    /// Takes a table in, whose id is larger than those before.
    fn table(&mut self, facts: &TableFacts<'_>) -> Result<()>;

    /// Takes a table out with all its rows. Of one that was dropped before the journal begins
    /// nothing is there, and these facts are all that is known.
    fn drop_table(&mut self, facts: &TableFacts<'_>) -> Result<()>;

    /// Makes room for more ids of a dense table.
    fn grow_table(&mut self, table: u16, num_embeddings: u64) -> Result<()>;

    /// Loads a piece of a table, in place of what is there of it.
    fn piece(&mut self, table: u16, piece: u32, bytes: &[u8]) -> Result<()>;

    /// Applies changes as the storage handed them out; `changed` hears of every row that they name.
    fn changes(&mut self, bytes: &[u8], changed: Hearer<'_>) -> Result<()>;

    /// An epoch is over: all its changes were in the journal. `began` is what the commit notes of
    /// the class's position when the epoch began.
    fn commit(&mut self, number: u64, began: Option<u64>);

    /// Refuses tables of which pieces are missing.
    fn check_complete(&self) -> Result<()>;

    /// The storage of the class at a commit, in its file, with the smallest buffers.
    fn finish(
        self: Box<Self>,
        at: &OpenAt,
        file: Arc<dyn File>,
        medium: &Arc<dyn Medium>,
    ) -> Result<Box<dyn Storage>>;
}
