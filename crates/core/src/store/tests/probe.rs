//! A storage around another, which does as that does but for what a test asks of it: it forgets
//! which rows of dense tables it has, names the pages of rows one after the other, and begins units
//! of upkeep.

use super::*;
use crate::io::Medium;
use crate::storage::*;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender};

/// Orders to a probe, and counts of its units.
#[derive(Default)]
pub(super) struct Wishes {
    /// No table is exact, and a row's page is only named after one that has another.
    pub(super) hides: AtomicBool,
    /// Steps of a unit; no unit begins where there are none.
    pub(super) steps: AtomicUsize,
    /// Steps that are paid for.
    pub(super) paid: AtomicUsize,
    /// Whether upkeep cannot wait.
    pub(super) presses: AtomicBool,
    /// The next step says that it has begun, and waits until somebody says, or cannot any more.
    pub(super) step_waits: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    /// The kind of error that the next step, or the next install, ends with.
    pub(super) step_fails: Mutex<Option<ErrorKind>>,
    pub(super) install_fails: Mutex<Option<ErrorKind>>,
    /// Parts that an install leaves to do.
    pub(super) parts: AtomicUsize,
    pub(super) begun: AtomicUsize,
    pub(super) stepped: AtomicUsize,
    pub(super) installed: AtomicUsize,
    pub(super) parts_done: AtomicUsize,
    pub(super) abandoned: AtomicUsize,
    pub(super) advanced: AtomicUsize,
    /// Bytes that a unit takes of the disk, and those that one takes now.
    pub(super) unit_bytes: AtomicU64,
    pub(super) taken: AtomicU64,
    /// Whether somebody has the lock of the class.
    pub(super) is_locked: Mutex<Option<Box<dyn Fn() -> bool + Send>>>,
}

fn add(count: &AtomicUsize) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn fail(wish: &Mutex<Option<ErrorKind>>) -> Result<()> {
    match wish.lock().take() {
        Some(kind) => Err(Error::new(kind, "as the test asked for".to_owned())),
        None => Ok(()),
    }
}

struct ProbeUnit {
    wishes: Arc<Wishes>,
    left: usize,
}

impl Unit for ProbeUnit {
    fn step(&mut self) -> Result<bool> {
        let is_locked = self.wishes.is_locked.lock().as_ref().is_some_and(|is_locked| is_locked());
        assert!(!is_locked, "a step runs without the lock of the class");
        assert!(self.left > 0, "a unit that is done takes no step");
        let waits = self.wishes.step_waits.lock().take();
        if let Some((has_begun, goes_on)) = waits {
            let _ = has_begun.send(());
            let _ = goes_on.recv();
        }
        fail(&self.wishes.step_fails)?;
        add(&self.wishes.stepped);
        self.left -= 1;
        Ok(self.left > 0)
    }

    fn abandon(self: Box<Self>) -> Result<()> {
        add(&self.wishes.abandoned);
        self.wishes.taken.store(0, Ordering::Relaxed);
        Ok(())
    }
}

pub(super) struct Probe {
    inner: Box<dyn Storage>,
    wishes: Arc<Wishes>,
    parts_left: usize,
}

/// Marks a want that names a page in which another key is.
const DECOY: u32 = u32::MAX;

impl Probe {
    /// Puts a probe around the storage of a class.
    pub(super) fn around(store: &Store, class: usize) -> Arc<Wishes> {
        let wishes = Arc::new(Wishes::default());
        let mut engine = store.inner.engine.write();
        let before = engine.classes.remove(class);
        let (inner, parts_left) = (before.log.into_inner(), 0);
        let log =
            Mutex::new(Box::new(Self { inner, wishes: wishes.clone(), parts_left }) as Box<_>);
        engine.classes.insert(class, engine::Class { log, has_units: true, ..before });
        wishes
    }

    fn hides(&self) -> bool {
        self.wishes.hides.load(Ordering::Relaxed)
    }
}

/// Methods that do what those of the storage within do.
macro_rules! pass {
    ($(fn $name:ident(& $($arg:ident: $of:ty),*) $(-> $result:ty)?;)*
     $(mut fn $name_mut:ident(& $($arg_mut:ident: $of_mut:ty),*) $(-> $result_mut:ty)?;)*) => {
        $(fn $name(&self, $($arg: $of),*) $(-> $result)? {
            self.inner.$name($($arg),*)
        })*
        $(fn $name_mut(&mut self, $($arg_mut: $of_mut),*) $(-> $result_mut)? {
            self.inner.$name_mut($($arg_mut),*)
        })*
    };
}

impl crate::storage::StorageFreeze for Probe {}

impl crate::storage::StorageChanges for Probe {}

impl crate::storage::StorageStretches for Probe {}

impl Storage for Probe {}

impl StorageRead for Probe {
    fn find(
        &mut self,
        table: u16,
        key: u64,
        miss: u32,
        seen: &[Want],
        wants: &mut Vec<Want>,
    ) -> Found<'_> {
        let was_named = seen.iter().any(|want| want.miss == miss && want.hint == DECOY);
        let decoys = self.hides() && !was_named;
        let before = wants.len();
        assert!(seen.is_sorted());
        match self.inner.find(table, key, miss, seen, wants) {
            Found::Stored { .. } if decoys => {
                wants.truncate(before + 1);
                wants[before].hint = DECOY;
                Found::Stored { origin: None }
            }
            found => found,
        }
    }

    fn contains(&self, table: u16, key: u64) -> Option<bool> {
        let contains = self.inner.contains(table, key);
        contains.filter(|contains| !contains || !self.hides() || self.is_parked(table, key))
    }

    fn is_exact(&self, table: u16) -> bool {
        !self.hides() && self.inner.is_exact(table)
    }

    fn resolve<'p>(
        &self,
        table: u16,
        key: u64,
        want: &Want,
        page: &'p [u8],
    ) -> Result<Resolved<'p>> {
        match want.hint {
            DECOY => Ok(Resolved::Other),
            _ => self.inner.resolve(table, key, want, page),
        }
    }

    pass! {
        fn pages(&) -> Arc<dyn PageSource>;
        fn prefetch(& table: u16, key: u64);
        fn read_order(& table: u16, key: u64) -> Option<u32>;
        fn verify_newest(& at: PageAddress, page: &[u8]) -> Result<()>;
        mut fn begin_read(&) -> u64;
        mut fn end_read(& ticket: u64);
    }
}

impl StorageSweeps for Probe {
    fn advance(&mut self, sweep: &mut dyn Sweep) {
        add(&self.wishes.advanced);
        self.inner.advance(sweep);
    }

    fn check(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
        said: &mut dyn FnMut(Finding),
    ) -> Result<Checked> {
        self.inner.check(progress, said)
    }

    pass! {
        fn is_newest(& table: u16, key: u64, place: u32) -> bool;
        fn areas(&) -> Areas;
        mut fn sweep(& table: Option<u16>) -> Box<dyn Sweep>;
    }
}

impl StorageWrite for Probe {
    pass! {
        fn parked(&) -> usize;
        fn room(&) -> usize;
        fn is_parked(& table: u16, key: u64) -> bool;
        fn write_place(& table: u16, key: u64) -> u64;
        fn sorts_writes(&) -> bool;
        mut fn park(& row: DirtyRow<'_>);
        mut fn unpark(& table: u16, key: u64) -> bool;
        mut fn flush(& now: u32) -> Result<u64>;
        mut fn append(& row: DirtyRow<'_>) -> Result<u32>;
        mut fn delete(& table: u16, key: u64, origin: Option<u32>);
        mut fn shrink_index(& table: u16, most: usize);
    }
}

impl StorageJournal for Probe {
    pass! {
        fn change_bytes(&) -> usize;
        fn journal_bytes_for(& rows: u64) -> u64;
        fn changes_are_many(&) -> bool;
        fn pieces(& table: u16) -> u32;
        fn write_piece(& table: u16, piece: u32, out: &mut Vec<u8>);
        mut fn cut(& wants_record: bool) -> Result<Cut>;
        mut fn drain_changes(& into: &mut Vec<u8>);
        mut fn write_out(&) -> Result<()>;
    }
}

impl StorageSpace for Probe {
    fn disk_bytes(&self) -> u64 {
        self.inner.disk_bytes() + self.wishes.taken.load(Ordering::Relaxed)
    }

    pass! {
        fn rows_of_cut(&) -> u64;
        fn lacking_bytes(& rows: u64, spare: u64) -> u64;
        fn growth_for(& rows: u64, spare: u64) -> u64;
        fn held_bytes(& first: u64, oldest_kept: u64) -> u64;
        mut fn reserve(& rows: u64, spare: u64, grow_bytes: u64) -> Result<()>;
        mut fn give_back(
            & unwritten: u64, refused: u64, spare: u64, wanted: Option<u64>
        ) -> Result<()>;
    }
}

impl StorageUpkeep for Probe {
    fn has_units(&self) -> bool {
        true
    }

    fn begin_unit(&mut self, grow_bytes: u64) -> Result<Option<Box<dyn Unit>>> {
        let left = self.wishes.steps.load(Ordering::Relaxed);
        let bytes = self.wishes.unit_bytes.load(Ordering::Relaxed);
        if left == 0 || bytes > grow_bytes {
            return Ok(None);
        }
        assert_eq!(self.parts_left, 0, "the outcome before is taken over");
        add(&self.wishes.begun);
        self.wishes.taken.store(bytes, Ordering::Relaxed);
        Ok(Some(Box::new(ProbeUnit { wishes: self.wishes.clone(), left })))
    }

    fn may_begin_unit(&self) -> bool {
        self.wishes.steps.load(Ordering::Relaxed) > 0
    }

    fn owes_steps(&self) -> bool {
        self.wishes.paid.load(Ordering::Relaxed) > 0
    }

    fn pay_step(&mut self) {
        self.wishes.paid.fetch_sub(1, Ordering::Relaxed);
    }

    fn is_unit_pressed(&self, _: u64) -> bool {
        self.wishes.presses.load(Ordering::Relaxed)
    }

    fn install(&mut self, unit: Box<dyn Unit>, _: &dyn Residents) -> Result<UnitReport> {
        let unit: Box<dyn Any> = unit;
        let unit: Box<ProbeUnit> = unit.downcast().expect("a unit of a probe");
        assert_eq!(unit.left, 0, "all steps are done");
        self.wishes.taken.store(0, Ordering::Relaxed);
        fail(&self.wishes.install_fails)?;
        add(&self.wishes.installed);
        self.parts_left = self.wishes.parts.load(Ordering::Relaxed);
        Ok(UnitReport { pages: 3, rows_moved: 7 })
    }

    fn install_more(&mut self, _: &dyn Residents) -> Result<bool> {
        let Some(left) = self.parts_left.checked_sub(1) else { return Ok(false) };
        add(&self.wishes.parts_done);
        self.parts_left = left;
        Ok(left > 0)
    }

    fn clean_unit(
        &mut self,
        bound: SpaceBound,
        rows: u64,
        grow_bytes: u64,
        residents: &dyn Residents,
    ) -> Result<Option<UnitReport>> {
        self.inner.clean_unit(bound, rows, grow_bytes, residents)
    }

    pass! {
        fn damage(&) -> Vec<String>;
        fn rows_per_unit(&) -> u64;
        fn room_for_upkeep(& most_bytes: Option<u64>) -> u64;
        fn lacks(& bytes: u64, unwritten: u64, spare: u64) -> bool;
        mut fn drop_commits_before(& released: u64, oldest_kept: u64);
        mut fn owe(& rows: u64);
        mut fn settle(& most_bytes: u64) -> bool;
        mut fn expect_bound(& most_bytes: Option<u64>);
    }
}

impl StorageBudget for Probe {
    pass! {
        fn index_growth(& table: u16, expected: u64) -> u64;
        fn bytes_to_widen(& rows: u64) -> u64;
        fn bytes_of_widest(&) -> u64;
        fn bytes_for_deletes(& table: u16, keys: &[u64]) -> u64;
        fn memory(&) -> StorageMemory;
        mut fn drop_deleted_soon(&);
        mut fn widen_indexes(& rows: u64) -> Result<()>;
        mut fn equip(& share: Share, medium: &dyn Medium) -> Result<()>;
    }
}

impl StorageCounts for Probe {
    pass! {
        fn stats(&) -> StorageStats;
        fn rows_stored(& table: u16) -> u64;
        fn outdated_bytes(&) -> u64;
    }
}

impl StoragePins for Probe {
    pass! {
        fn begun(&) -> Begun;
        fn parts(&) -> Parts;
        fn blocks(& block_bytes: u64) -> Vec<(u64, u64)>;
        fn bytes_of_pin(& parts: &Parts, others: &[&Parts]) -> u64;
        mut fn pin(& pin: u64, parts: &Parts) -> Result<()>;
        mut fn unpin(& pin: u64);
    }
}

impl StorageTables for Probe {
    pass! {
        mut fn create_table(& facts: &TableFacts<'_>) -> Result<Option<u32>>;
        mut fn remove_table(& table: u16);
        mut fn drop_table(& table: u16);
        mut fn grow_table(& table: u16, num_embeddings: u64) -> Result<()>;
    }
}

impl StorageRefresh for Probe {
    fn go_on(
        &self,
        tables: &[TableFacts<'_>],
        epoch: u64,
        oldest: u64,
    ) -> Result<Box<dyn StorageRecovery>> {
        self.inner.go_on(tables, epoch, oldest)
    }

    fn copy_more(&self, into: &mut dyn StorageRecovery) -> bool {
        self.inner.copy_more(into)
    }
}
