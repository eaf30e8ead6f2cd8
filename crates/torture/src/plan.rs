//! The settings of one life: drawn from its seed, printed with a failure.

use crate::faults::{COLD, Fault, FaultSet};
use crate::random::Random;
use embedrock_core::config::{JOURNAL_BYTES_MIN, PolicyKind, StorageKind};
use embedrock_core::init::Initializer;
use embedrock_core::io::{Medium, RoutedMedium, SimMedium};
use embedrock_core::optimizer::{BiasCorrection, OptimizerKind, OptimizerSpec};
use embedrock_core::row::{Dtype, RoundingMode, RowLayout};
use embedrock_core::{Memory, MergePicker, StoreOptions, TableSpec, UpkeepScheduler};
use std::rc::Rc;
use std::sync::Arc;

/// A page's header, which rows have to leave room for.
/// Kinds of storage that a power cut of the simulated device concerns.
const STORAGES: [StorageKind; 3] = [StorageKind::Log, StorageKind::Lsm, StorageKind::Pages];
const PAGE_HEADER: usize = 32;
/// A row's entry in the directory of its page.
const PAGE_ENTRY: usize = 10;
/// Segments of a class that are being filled, or stay free for cleaning, and one more.
const SEGMENTS_PER_CLASS: u64 = 6;
/// Commits that are kept at most.
const KEEP_MAX: u64 = 5;
/// Bytes of the smallest room for a merge, beside rows.
const ROOM_FOR_MERGE: u64 = 128 << 10;
/// Budgets of scheduled lives, in hundredths of the smallest: caches hold a part of the rows.
const MEMORY_OF_SCHEDULED: [u64; 3] = [130, 150, 180];
/// Pages of the smallest segment.
const PAGES_PER_SEGMENT: usize = 16;

/// The parts that may be left out of a life, to find the smallest that still fails.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Faults that may strike.
    pub faults: FaultSet,
    /// Operations at most.
    pub operations: u64,
    /// Tables at most.
    pub tables: usize,
    /// The habits that a life does without.
    pub without: Vec<Habit>,
    /// The operations that are done, by number; `None` is all of them.
    pub only: Option<std::collections::BTreeSet<u64>>,
    /// Every life writes rows for the stretches of a schedule.
    pub(crate) scheduled: bool,
}

/// Something that lives do, and that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Opening at an earlier commit and going on from there.
    Back,
    /// Readers beside the writer.
    Readers,
    /// The look-ahead window.
    Ahead,
    /// Verbs beside a commit.
    Beside,
    /// Tables that are added later.
    Late,
    /// Tables that are dropped, renamed and grown.
    Catalog,
    /// Bounds on the disk.
    Bounds,
    /// Budgets near the smallest that works.
    Tight,
    /// Pinned commits.
    Pins,
    /// Folders that are replaced, and lock files that are removed.
    Meddling,
}

impl Habit {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Back,
        Self::Readers,
        Self::Ahead,
        Self::Beside,
        Self::Late,
        Self::Catalog,
        Self::Bounds,
        Self::Tight,
        Self::Pins,
        Self::Meddling,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Back => "back",
            Self::Readers => "readers",
            Self::Ahead => "ahead",
            Self::Beside => "beside",
            Self::Late => "late",
            Self::Catalog => "catalog",
            Self::Bounds => "bounds",
            Self::Tight => "tight",
            Self::Pins => "pins",
            Self::Meddling => "meddling",
        }
    }
}

impl Limits {
    /// True when nothing is left out.
    pub fn allow_all(&self) -> bool {
        let Self { faults, operations, tables, without, only, scheduled } = self;
        let all = Self::default();
        *faults == all.faults
            && *operations >= all.operations
            && *tables >= all.tables
            && without.is_empty()
            && only.is_none()
            && !scheduled
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            faults: FaultSet::all(),
            operations: 300,
            tables: 6,
            without: Vec::new(),
            only: None,
            scheduled: false,
        }
    }
}

/// The kind of a life: which verbs come often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All of them.
    Mixed,
    /// One growing table of narrow rows in large batches: its index splits and merges.
    Growth,
    /// Commits and reopenings.
    Commits,
    /// Announced batches.
    Ahead,
    /// Announced batches of few rows, nearly all of which are used again soon.
    Crowded,
    /// Few rows in small segments, all rewritten between two commits.
    Churn,
    /// One dense table in an lsm with so many narrow rows that what finds them takes memory.
    Narrow,
    /// One log of many segments in a cache that holds a part of its rows, which are written for the
    /// stretches of a schedule.
    Scheduled,
}

impl Kind {
    /// True when most of its verbs have to do with announced batches.
    pub(crate) fn looks_ahead(self) -> bool {
        matches!(self, Self::Ahead | Self::Crowded | Self::Scheduled)
    }
}

/// One table of a life.
#[derive(Clone, Debug)]
pub(crate) struct TablePlan {
    pub(crate) spec: Rc<TableSpec>,
    pub(crate) layout: RowLayout,
    /// Number of keys that verbs draw from, and the style of their numbers.
    pub(crate) keys: u64,
    pub(crate) style: u64,
    /// One operation in so many adds the table; 0: it is there from the start.
    pub(crate) late: u64,
}

impl TablePlan {
    /// The `i`-th key.
    pub(crate) fn key(&self, i: u64) -> u64 {
        match (self.spec.num_embeddings, self.style) {
            (Some(_), _) | (None, 0) => i,
            (None, 1) => i << 40,
            (None, 2) => u64::MAX - i,
            _ => embedrock_core::hash::mix(i, self.style),
        }
    }

    /// Distinct or equal keys; low numbers come more often in half of the draws.
    pub(crate) fn draw(&self, random: &mut Random, most: u64) -> Vec<u64> {
        let n = 1 + random.below(most);
        let skewed = random.chance(1, 2);
        let one = |random: &mut Random| random.below(self.keys);
        (0..n)
            .map(|_| match skewed {
                true => one(random).min(one(random)),
                false => one(random),
            })
            .map(|i| self.key(i))
            .collect()
    }
}

/// The settings of one life.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) kind: Kind,
    pub(crate) operations: u64,
    pub(crate) faults: FaultSet,
    without: Vec<Habit>,
    pub(crate) only: Option<std::collections::BTreeSet<u64>>,
    /// One operation in so many arms a fault.
    pub(crate) fault_every: u64,
    pub(crate) page_bytes: usize,
    pub(crate) segment_bytes: u64,
    /// Hundredths of the smallest budget that works; `None` is room for everything.
    pub(crate) memory_percent: Option<u64>,
    pub(crate) max_disk_bytes: Option<u64>,
    pub(crate) capacity: Option<u64>,
    /// The bytes that readers may keep beyond the kept commits.
    pub(crate) max_held_bytes: Option<u64>,
    pub(crate) tables: Vec<TablePlan>,
    pub(crate) keep: usize,
    pub(crate) policy: PolicyKind,
    pub(crate) window: bool,
    pub(crate) window_bytes: Option<u64>,
    pub(crate) window_group: usize,
    pub(crate) staleness: Option<u64>,
    pub(crate) merge_reads: bool,
    pub(crate) merge_picker: MergePicker,
    pub(crate) upkeep_scheduler: UpkeepScheduler,
    pub(crate) top_share: f64,
    pub(crate) filters: bool,
    /// Bytes at most of a commit's meta, and of its state.
    pub(crate) meta_bytes: u64,
    pub(crate) state_bytes: u64,
    /// Keys of a batch at most.
    pub(crate) batch: u64,
    /// Commits are pinned.
    pub(crate) pins: bool,
    /// Batches are announced with a schedule, which is right about some rows.
    pub(crate) schedules: bool,
    /// After so many stretches a row of a scheduled life is used again.
    pub(crate) stretches: u64,
    /// Journals that begin anew after so many bytes, if their indexes are not longer.
    pub(crate) journal_bytes_min: u64,
}

impl Plan {
    pub(crate) fn new(seed: u64, limits: &Limits) -> Self {
        let random = &mut Random::new(seed, 1);
        // Of its own, so that other choices of a seed stay as they are.
        let of_merges = &mut Random::new(seed, 2);
        let kind = match random.below(20) {
            0..=4 => Kind::Growth,
            5..=7 => Kind::Commits,
            8..=9 => Kind::Ahead,
            10 => Kind::Crowded,
            11..=13 => Kind::Churn,
            _ => Kind::Mixed,
        };
        // Of its own, too.
        let of_memory = &mut Random::new(seed, 6);
        let kind = if of_memory.chance(1, 5) { Kind::Narrow } else { kind };
        // And so is this.
        let of_schedule = &mut Random::new(seed, 10);
        let scheduled = limits.scheduled || of_schedule.chance(1, 6) && kind != Kind::Narrow;
        let kind = if scheduled { Kind::Scheduled } else { kind };
        let churns = kind == Kind::Churn;
        // Small buffers beside which an index is no small part of a budget.
        let narrow = kind == Kind::Narrow;
        let page_bits = *random.pick(&[0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4]);
        let page_bits = match kind {
            Kind::Churn => page_bits / 2,
            Kind::Narrow | Kind::Scheduled => 0,
            _ => page_bits,
        };
        let page_bytes = 512 << page_bits;
        let tables = tables(seed, kind, page_bytes, 1 + random.below(6) as usize);
        let bytes: u64 = tables.iter().map(|t| t.keys * t.layout.row_bytes() as u64).sum();
        // The size of a store beside rows: journals of a quarter of a MiB, room for commits.
        let fixed = 3 << 20;
        let bound = |random: &mut Random| fixed + bytes * (2 + random.below(6)) / 2;
        let max_disk_bytes = random.chance(1, 4).then(|| bound(random));
        let capacity = random.chance(1, 8).then(|| bound(random) + (1 << 20));
        let meta_bytes = *random.pick(&[8, 100, 3000, 60_000]);
        let smallest = (page_bytes * PAGES_PER_SEGMENT) as u64;
        let segment_bytes = smallest << *random.pick(&[0, 0, 0, 1, 2]);
        let max_held_bytes =
            *random.pick(&[None, None, None, Some(0), Some(64 << 10), Some(1 << 20)]);
        let memory_percent =
            *random.pick(&[Some(100), Some(100), Some(105), Some(120), Some(150), Some(300), None]);
        let has = |habit| !limits.without.contains(&habit);
        let mut plan = Self {
            seed,
            kind,
            without: limits.without.clone(),
            only: limits.only.clone(),
            operations: limits.operations / 2 + random.below(limits.operations.max(1)),
            faults: limits.faults,
            fault_every: *random.pick(&[12, 25, 50, 100]),
            page_bytes,
            segment_bytes: if churns || narrow || scheduled { smallest } else { segment_bytes },
            memory_percent: match kind {
                _ if !has(Habit::Tight) => None,
                Kind::Crowded => Some(100),
                Kind::Narrow => Some(*of_memory.pick(&[200, 250, 300])),
                Kind::Scheduled => Some(*of_schedule.pick(&MEMORY_OF_SCHEDULED)),
                _ => memory_percent,
            },
            max_held_bytes: max_held_bytes.filter(|_| has(Habit::Bounds)),
            max_disk_bytes: max_disk_bytes.filter(|_| has(Habit::Bounds) && kind != Kind::Narrow),
            capacity: capacity.filter(|_| has(Habit::Bounds) && kind != Kind::Narrow),
            tables: tables.into_iter().take(limits.tables).collect(),
            keep: 1 + random.below(KEEP_MAX) as usize,
            policy: *random.pick(&[PolicyKind::Lru, PolicyKind::Lfu]),
            window: (kind.looks_ahead() || random.chance(1, 4)) && has(Habit::Ahead),
            window_bytes: random
                .pick(&[None, Some(16 << 10), Some(128 << 10), Some(1 << 20)])
                // Append points take an eighth of it at most.
                .filter(|bytes| !scheduled || *bytes > 16 << 10),
            window_group: if kind == Kind::Crowded { 256 } else { *random.pick(&[1, 2, 5, 256]) },
            staleness: random.chance(1, 3).then(|| random.below(3)),
            merge_reads: random.chance(3, 4),
            merge_picker: *of_merges.pick(&MergePicker::ALL),
            upkeep_scheduler: *of_merges.pick(&UpkeepScheduler::ALL),
            top_share: *of_merges.pick(&[0.05, 0.1, 0.1, 0.3]),
            filters: of_merges.chance(1, 2),
            meta_bytes: match kind {
                // Long ones fill journals, which begin anew then: here in most of the lives.
                Kind::Growth => *random.pick(&[8, 60_000, 60_000]),
                _ => meta_bytes,
            },
            state_bytes: *random.pick(&[0, 100, 9000]),
            batch: match kind {
                Kind::Growth => 500,
                Kind::Churn => 150,
                Kind::Crowded => 8,
                Kind::Narrow => 5000,
                _ => *random.pick(&[8, 40, 120]),
            },
            pins: Random::new(seed, 5).chance(1, 2) && has(Habit::Pins),
            schedules: Random::new(seed, 9).chance(1, 3) || scheduled,
            stretches: *of_schedule.pick(&[5, 7, 10]),
            journal_bytes_min: *Random::new(seed, 8).pick(&[
                2 << 10,
                16 << 10,
                JOURNAL_BYTES_MIN,
                JOURNAL_BYTES_MIN,
            ]),
        };
        if narrow {
            plan.operations /= 12;
        }
        if plan.max_disk_bytes.is_some() && random.chance(1, 2) {
            let enough = plan.roomy_bytes();
            plan.max_disk_bytes = Some(enough + random.below(enough / 8));
        }
        plan
    }

    /// Options for an opening, with this budget.
    pub(crate) fn options(&self, memory: u64) -> StoreOptions {
        StoreOptions {
            page_bytes: Some(self.page_bytes),
            segment_bytes: Some(self.segment_bytes),
            max_disk_bytes: self.max_disk_bytes,
            max_held_bytes: self.max_held_bytes,
            check_disk: false,
            policy: self.policy,
            keep: self.keep,
            window_bytes: self.window_bytes,
            window_group: self.window_group,
            merge_reads: self.merge_reads,
            merge_picker: self.merge_picker,
            upkeep_scheduler: self.upkeep_scheduler,
            top_share: Some(self.top_share),
            filters: self.filters,
            journal_bytes_min: self.journal_bytes_min,
            seed: self.seed % 3,
            ..StoreOptions::new(Memory::Bytes(memory))
        }
    }

    /// The directories of the store: for half of the seeds there are two.
    pub(crate) fn directories(&self, medium: &SimMedium) -> Arc<dyn Medium> {
        let own = Arc::new(medium.clone());
        if Random::new(self.seed, 4).chance(1, 2) {
            return own;
        }
        Arc::new(RoutedMedium::new(own, Arc::new(medium.folder(COLD)), "part-", true))
    }

    /// Commits that an opening may keep at most.
    pub(crate) fn keep_max(&self) -> u64 {
        KEEP_MAX.max(self.keep as u64)
    }

    /// True when the bounds leave room for a store that is never full for long.
    pub(crate) fn is_roomy(&self) -> bool {
        let bytes = self.roomy_bytes();
        [self.max_disk_bytes, self.capacity].into_iter().flatten().all(|bound| bound >= bytes)
    }

    /// Room for all rows twice, for the segments that each class has open or leaves to cleaning,
    /// for journals, and for the states of kept commits. Rows of an lsm lie in its top and below,
    /// beside partitions that kept commits have, and beside room for a merge.
    fn roomy_bytes(&self) -> u64 {
        let bytes_of = |table: &TablePlan| match table.spec.storage {
            StorageKind::Log => self.page_bytes_of(table),
            StorageKind::Lsm | StorageKind::Pages | StorageKind::Pmem => {
                2 * self.page_bytes_of(table) + ROOM_FOR_MERGE
            }
        };
        let rows: u64 = self.tables.iter().map(bytes_of).sum();
        let classes = self.tables.len() as u64 * SEGMENTS_PER_CLASS * self.segment_bytes;
        let commit = self.meta_bytes + 2 * self.state_bytes + (16 << 10);
        2 * rows + classes + 2 * (self.keep_max() + 1) * commit + (13 << 17)
    }

    /// Bytes of pages that hold all rows of a table.
    fn page_bytes_of(&self, table: &TablePlan) -> u64 {
        let per_page = rows_per_page(self.page_bytes, &table.layout) as u64;
        table.keys.div_ceil(per_page) * self.page_bytes as u64
    }

    /// The seed of initial rows.
    pub(crate) fn row_seed(&self) -> u64 {
        self.seed % 3
    }

    /// True for lives in which somebody meddles with the folder.
    pub(crate) fn meddles(&self) -> bool {
        self.has(Habit::Meddling) && Random::new(self.seed, 6).chance(1, 2)
    }

    /// True unless lives are to do without.
    pub(crate) fn has(&self, habit: Habit) -> bool {
        !self.without.contains(&habit)
    }

    /// True when this fault may strike.
    pub(crate) fn allows(&self, fault: Fault) -> bool {
        self.faults.has(fault)
    }
}

fn rows_per_page(page_bytes: usize, layout: &RowLayout) -> usize {
    (page_bytes - PAGE_HEADER) / (layout.row_bytes() + PAGE_ENTRY)
}

fn tables(seed: u64, kind: Kind, page_bytes: usize, count: usize) -> Vec<TablePlan> {
    let count = match kind {
        Kind::Growth | Kind::Churn => count.min(2),
        Kind::Crowded | Kind::Narrow | Kind::Scheduled => 1,
        _ => count,
    };
    (0..count).map(|i| table(seed, kind, page_bytes, i)).collect()
}

fn table(seed: u64, kind: Kind, page_bytes: usize, i: usize) -> TablePlan {
    let random = &mut Random::new(seed, 100 + i as u64);
    const KINDS: [OptimizerKind; 9] = [
        OptimizerKind::None,
        OptimizerKind::Sgd,
        OptimizerKind::Adagrad,
        OptimizerKind::RowWiseAdagrad,
        OptimizerKind::Adam,
        OptimizerKind::Momentum,
        OptimizerKind::AdamW,
        OptimizerKind::Ftrl,
        OptimizerKind::RowWiseAdam,
    ];
    let grows = kind == Kind::Growth && i == 0;
    let mut optimizer = OptimizerSpec::new(*random.pick(&KINDS));
    let narrow = kind == Kind::Narrow;
    let scheduled = kind == Kind::Scheduled;
    if grows || narrow || scheduled {
        optimizer = OptimizerSpec::new(OptimizerKind::Sgd);
    }
    if random.chance(1, 3) {
        optimizer.bias_correction = BiasCorrection::Row;
    }
    if random.chance(1, 4) {
        optimizer.initial_accumulator = 0.25;
    }
    let dtype = *random.pick(&[Dtype::Float32, Dtype::Float32, Dtype::Float16, Dtype::Bfloat16]);
    let dims = if grows { 3 } else { 24 };
    let mut dim = match kind {
        Kind::Narrow => 1,
        Kind::Scheduled => 24 + random.below(dims) as usize,
        _ => 1 + random.below(dims) as usize,
    };
    let layout = loop {
        let layout = RowLayout::new(dtype, dim, optimizer.state_words(dim));
        let layout = layout.expect("a row of a few values");
        if rows_per_page(page_bytes, &layout) > 0 {
            break layout;
        }
        dim -= 1;
    };
    let dense = narrow || scheduled || !grows && random.chance(1, 2);
    let keys = match kind {
        Kind::Growth if grows => 2300 + random.below(700),
        Kind::Narrow => 40_000 + random.below(20_000),
        // Often a segment's worth, so that a row comes back to the same place of another segment.
        Kind::Churn => {
            let segment = (rows_per_page(page_bytes, &layout) * PAGES_PER_SEGMENT) as u64;
            if segment <= 400 && random.chance(1, 2) { segment } else { 40 + random.below(160) }
        }
        // Four append points of stretches need sixteen segments.
        Kind::Scheduled => {
            let segment = (rows_per_page(page_bytes, &layout) * PAGES_PER_SEGMENT) as u64;
            segment * (17 + random.below(16))
        }
        // Few more than the smallest cache holds.
        Kind::Crowded => 38 + random.below(16),
        _ => 20 + random.below(600),
    };
    let initializer = match random.below(4) {
        0 => Initializer::Constant(0.5),
        1 => Initializer::Normal { mean: 0.0, std: 0.5 },
        2 => Initializer::TruncatedNormal { mean: 0.0, std: 1.0, a: -1.0, b: 1.5 },
        _ => Initializer::Uniform { low: -1.0, high: 1.0 },
    };
    let mut spec = TableSpec {
        name: format!("t{i}"),
        first_name: None,
        embedding_dim: dim,
        num_embeddings: dense.then_some(keys),
        expected_rows: (!dense).then(|| if !grows && random.chance(1, 2) { keys } else { 10 }),
        dtype,
        rounding: *random.pick(&[RoundingMode::Stochastic, RoundingMode::Nearest]),
        storage: *random.pick(&STORAGES),
        capacity: None,
        optimizer,
        initializer,
    };
    if narrow {
        spec.storage = StorageKind::Lsm;
    }
    if scheduled {
        spec.storage = StorageKind::Log;
    }
    // Few enough that an lsm does not store it by id.
    if dense && !narrow && spec.storage == StorageKind::Lsm && random.chance(1, 2) {
        spec.expected_rows = Some(keys / 4);
    }
    let late = if i > 0 && random.chance(1, 4) { 10 + random.below(60) } else { 0 };
    TablePlan { spec: Rc::new(spec), layout, keys, style: random.below(5), late }
}
