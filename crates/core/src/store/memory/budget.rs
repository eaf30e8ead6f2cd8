//! Divides the memory budget: index, buffers, staging; the rest is cache.
//!
//! Everything the engine keeps is counted. Buffers shrink with the budget down to a floor; below
//! that, the smallest budget that works is named.

use crate::cache::{CACHE_FIXED_BYTES, CacheShape, PolicyKind, WAYS_MIN};
use crate::config::{Memory, MemoryUnit, StorageKind};
use crate::error::{Result, bail};
use crate::io::{Buffers, pow2_below};
use crate::storage::{Demand, Share};
use crate::store::journal::ClassRecord;

/// Facts about a row class that a plan needs.
#[derive(Clone, Debug, Default)]
pub(in crate::store) struct ClassDemand {
    pub(in crate::store) kind: StorageKind,
    pub(in crate::store) row_bytes: usize,
    pub(in crate::store) page_bytes: usize,
    /// Requests in flight that the device needs to give its rate.
    pub(in crate::store) read_depth: usize,
    /// Rows of all its tables, as declared or expected.
    pub(in crate::store) rows: u64,
    /// Ids of its tables that are stored by id, with or without a row.
    pub(in crate::store) ids: u64,
    /// True when a table of the class grows: its rows spread unevenly over the sets.
    pub(in crate::store) sparse: bool,
    /// Bytes of its indexes as they are.
    pub(in crate::store) index_bytes: u64,
    /// Bytes that the indexes of its growing tables still take until they hold what is expected.
    pub(in crate::store) index_growth: u64,
    /// Page sizes that the class may be given when it is made again; empty when it was found in the
    /// store. Until a commit has it, the next open measures the device anew and chooses anew.
    pub(in crate::store) choices: Vec<usize>,
}

impl ClassDemand {
    /// The demand of a class without rows.
    pub(in crate::store) fn of(record: &ClassRecord, choices: &[usize]) -> Self {
        let curve = record.curve.as_ref();
        let depth = curve.map_or(READ_DEPTH_USUAL, |curve| curve.depth.clamp(1, READ_DEPTH_MAX));
        Self {
            kind: record.storage,
            row_bytes: record.cached_row_bytes(),
            page_bytes: record.page_bytes,
            read_depth: depth,
            choices: choices.to_vec(),
            ..Self::default()
        }
    }

    fn storage(&self) -> Demand {
        Demand { kind: self.kind, row_bytes: self.row_bytes, page_bytes: self.page_bytes }
    }

    /// Itself with every page and depth that it may have at the next open.
    fn possible(&self) -> Vec<Self> {
        if self.choices.is_empty() {
            return vec![self.clone()];
        }
        let of_page = |page_bytes: &usize| {
            let page_bytes = *page_bytes;
            READ_DEPTHS.map(|read_depth| Self { page_bytes, read_depth, ..self.clone() })
        };
        self.choices.iter().chain([&self.page_bytes]).flat_map(of_page).collect()
    }
}

/// Division of a row class's part of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct ClassPlan {
    pub(in crate::store) sets: usize,
    /// Whether rows of the cache have headers.
    pub(in crate::store) headers: bool,
    /// The share of its storage.
    pub(in crate::store) storage: Share,
    /// Requests that a reader keeps in flight, what it reads into, and how many readers there are.
    pub(in crate::store) read_depth: usize,
    pub(in crate::store) read_buffers: Buffers,
    pub(in crate::store) readers: usize,
}

/// Sets of a cache have this many ways at first; a growing index takes them one by one.
pub(in crate::store) const WAYS: usize = 32;
/// Requests in flight that are considered when the device is measured.
pub(in crate::store) const READ_DEPTHS: [usize; 4] = [16, 32, 64, 128];
/// Requests in flight where the device was not measured, one of these, and what a class takes a
/// larger part of its share for than for the depth beyond.
const READ_DEPTH_USUAL: usize = 64;
/// More in flight than this is not given to any device.
const READ_DEPTH_MAX: usize = 256;
const READ_BUFFERS_USUAL: usize = buffers_for(READ_DEPTH_USUAL);
const READ_BUFFERS_MIN: usize = 16;
const READ_REQUEST_BYTES_MAX: usize = 16 << 10;
/// A class has the buffers of a share of the budget of at least its index divided by this.
const INDEX_PER_SHARE: u64 = 64;
/// Journal and catalog.
const FIXED_BYTES: u64 = 64 << 10;

/// The rows that a table will have, as far as is known.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct RowsToCome<'a> {
    pub(in crate::store) table: &'a str,
    pub(in crate::store) rows: Option<u64>,
    pub(in crate::store) row_bytes: usize,
}

/// The budget in bytes. A percentage needs `num_embeddings` or `expected_rows` of every table.
pub(in crate::store) fn bytes_of(memory: Memory, tables: &[RowsToCome<'_>]) -> Result<u64> {
    match memory {
        Memory::Bytes(bytes) => Ok(bytes),
        Memory::Percent(per_cent) => Ok((rows_bytes(per_cent, tables)? * per_cent / 100.0) as u64),
    }
}

/// Bytes of all rows that tables will have, of which a budget is `per_cent`.
pub(in crate::store) fn rows_bytes(per_cent: f64, tables: &[RowsToCome<'_>]) -> Result<f64> {
    let mut all = 0.0;
    for RowsToCome { table, rows, row_bytes } in tables {
        match rows {
            Some(rows) => all += *rows as f64 * *row_bytes as f64,
            None => bail!(
                Budget,
                "memory is {per_cent}%, but growing table '{table}' does not say how many rows it \
                 will have; give expected_rows=, or memory in bytes"
            ),
        }
    }
    Ok(all)
}

/// Bytes of one set of a class's cache.
fn set_bytes(demand: &ClassDemand, headers: bool) -> u64 {
    one_set(demand.row_bytes, headers).bytes()
}

fn one_set(row_bytes: usize, headers: bool) -> CacheShape {
    CacheShape { row_bytes, sets: 1, ways: WAYS, policy: PolicyKind::Lru, headers }
}

/// Pages of a reader at least: those in flight, and half as many that somebody looks at while the
/// device already works on the next requests.
const fn buffers_for(read_depth: usize) -> usize {
    read_depth * 3 / 2
}

impl ClassPlan {
    /// Buffers for a class whose part of the budget is `share` bytes. Beside a large index they are
    /// not the smallest, which would save next to nothing and read at a small depth.
    fn buffers(demand: &ClassDemand, share: u64) -> Self {
        let beside = (demand.index_bytes + demand.index_growth) / INDEX_PER_SHARE;
        Self::sized(demand, share.max(beside))
    }

    /// The smallest buffers, which no depth makes larger.
    fn least(demand: &ClassDemand) -> Self {
        Self::sized(demand, 0)
    }

    fn sized(demand: &ClassDemand, share: u64) -> Self {
        // Nothing is read with them, or waits in them.
        let share = if demand.kind.is_direct() { 0 } else { share };
        let page = demand.page_bytes;
        let most = buffers_for(demand.read_depth);
        let (mut reads, beyond) = ((share / 16) as usize, (share / 64) as usize);
        let mut buffers = (reads / page).min(READ_BUFFERS_USUAL.min(most)).max(READ_BUFFERS_MIN);
        let deep = (beyond / page).min(most);
        if deep > buffers {
            (buffers, reads) = (deep, beyond);
        }
        let request = READ_REQUEST_BYTES_MAX.max(page);
        let longest = pow2_below(reads / buffers).clamp(page, request);
        Self {
            sets: 0,
            headers: true,
            storage: demand.storage().share_of(share),
            read_depth: buffers - buffers / 3,
            read_buffers: Buffers::sharing(buffers * longest, page, longest),
            readers: if share > 256 << 20 { 2 } else { 1 },
        }
    }

    /// Gives rows headers, at the cost of sets.
    fn add_headers(&mut self, demand: &ClassDemand) {
        let bytes = self.sets as u64 * set_bytes(demand, false);
        self.headers = true;
        self.sets = ((bytes / set_bytes(demand, true)) as usize).max(1);
    }

    fn buffer_bytes(&self) -> u64 {
        self.storage.bytes() + self.readers_bytes()
    }

    /// Bytes of all readers: what they read into, and what they note of their requests.
    pub(in crate::store) fn readers_bytes(&self) -> u64 {
        (self.readers * self.read_buffers.queue_bytes(self.read_depth)) as u64
    }
}

/// Divides `budget` bytes among the classes by the bytes of their rows.
pub(in crate::store) fn divide(budget: u64, demands: &[ClassDemand]) -> Result<Vec<ClassPlan>> {
    let row_bytes = |d: &ClassDemand| (d.rows.max(1) * d.row_bytes as u64) as f64;
    let all: f64 = demands.iter().map(row_bytes).sum();
    let index: u64 = demands.iter().map(|d| d.index_bytes).sum();
    check(budget, demands, MemoryUnit::Bytes)?;
    let left = budget - index - fixed(demands);
    // Buffers stay while indexes grow and take from the cache: they fit what is left in the end.
    let growth: u64 = demands.iter().map(|d| d.index_growth).sum();
    let mut plans: Vec<ClassPlan> = demands
        .iter()
        .map(|d| ClassPlan::buffers(d, ((left - growth) as f64 * row_bytes(d) / all) as u64))
        .collect();
    let left_beside = |plans: &[ClassPlan]| {
        let buffers: u64 = plans.iter().map(|p| p.buffer_bytes()).sum();
        left.saturating_sub(buffers)
    };
    let floors: u64 = demands.iter().map(|d| set_bytes(d, true)).sum();
    let mut cache = left_beside(&plans);
    // If proportional buffers do not fit, those that an index asks for, or else the smallest: a
    // budget that worked at one depth works at any.
    for smaller in [|d: &ClassDemand| ClassPlan::buffers(d, 0), ClassPlan::least] {
        if cache < floors + growth {
            plans = demands.iter().map(smaller).collect();
            cache = left_beside(&plans);
        }
    }
    // A grown index leaves the cache at its fewest ways, so sets are no more than fit then. The
    // bytes of a set beside its slots do not shrink.
    let left_in_the_end = u128::from(cache - growth);
    let most = demands
        .iter()
        .flat_map(|d| [(d, true), (d, d.sparse)])
        .map(|(d, headers)| {
            let fewest = CacheShape { ways: WAYS_MIN, ..one_set(d.row_bytes, headers) }.bytes();
            left_in_the_end * u128::from(set_bytes(d, headers)) / u128::from(fewest)
        })
        .min()
        .map_or(cache, |most| u64::try_from(most).unwrap_or(u64::MAX));
    let cache = cache.min(most.max(floors));
    for (plan, demand) in plans.iter_mut().zip(demands) {
        // A class may have no table yet: its creation failed behind that of the class.
        plan.headers = demand.sparse || demand.rows == 0;
    }
    give_sets(cache, &mut plans, demands);
    // Fewer sets than that, and place and tag do not tell the rows apart.
    for (plan, demand) in plans.iter_mut().zip(demands) {
        plan.headers |= !CacheShape::tells_dense_rows(plan.sets as u64, demand.ids);
    }
    give_sets(cache, &mut plans, demands);
    for (plan, demand) in plans.iter_mut().zip(demands) {
        if !plan.headers && !CacheShape::tells_dense_rows(plan.sets as u64, demand.ids) {
            plan.add_headers(demand);
        }
    }
    Ok(plans)
}

/// Refuses a budget that cannot work, now or once the growing tables hold what is expected. Names
/// one that does in the caller's unit.
pub(in crate::store) fn check(
    budget: u64,
    demands: &[ClassDemand],
    unit: MemoryUnit,
) -> Result<()> {
    if !works(budget, demands) {
        let enough = unit.spell(enough(demands));
        let index: u64 = demands.iter().map(|d| d.index_bytes).sum();
        let growth: u64 = demands.iter().map(|d| d.index_growth).sum();
        let more = match growth {
            0 => String::new(),
            bytes => format!(" and {bytes} more when growing tables reach expected_rows"),
        };
        bail!(
            Budget,
            "memory={} is too little here: index {index} bytes{more}, the rest buffers and the \
             floor of the cache; give at least memory={enough}",
            unit.spell(budget)
        );
    }
    Ok(())
}

/// Bytes that are the same for every budget.
fn fixed(demands: &[ClassDemand]) -> u64 {
    FIXED_BYTES + demands.len() as u64 * CACHE_FIXED_BYTES
}

/// The smallest budget with which every class has buffers and one set of cache, also when its
/// growing tables hold what is expected.
pub(in crate::store) fn least(demands: &[ClassDemand]) -> u64 {
    let classes: u64 = demands.iter().map(|d| bytes_with(d, &ClassPlan::least(d))).sum();
    classes + fixed(demands)
}

/// A budget that works whatever pages and depths new classes are given at the next open, and with
/// which readers beside a large index have their depth.
pub(in crate::store) fn enough(demands: &[ClassDemand]) -> u64 {
    let of_class = |demand: &ClassDemand| {
        let possible = demand.possible();
        possible.iter().map(|d| bytes_with(d, &ClassPlan::buffers(d, 0))).max().unwrap_or(0)
    };
    demands.iter().map(of_class).sum::<u64>() + fixed(demands)
}

/// Bytes of a class with these buffers and one set of cache.
fn bytes_with(demand: &ClassDemand, plan: &ClassPlan) -> u64 {
    let index = demand.index_bytes + demand.index_growth;
    index + plan.buffer_bytes() + set_bytes(demand, true)
}

/// Whether a budget can work.
pub(in crate::store) fn works(budget: u64, demands: &[ClassDemand]) -> bool {
    budget >= least(demands)
}

/// Gives the cache bytes out by row bytes; what a class cannot use goes to the others.
fn give_sets(cache: u64, plans: &mut [ClassPlan], demands: &[ClassDemand]) {
    let mut left = cache;
    let mut open: Vec<usize> = (0..plans.len()).collect();
    for plan in plans.iter_mut() {
        plan.sets = 1;
    }
    left =
        left.saturating_sub(plans.iter().zip(demands).map(|(p, d)| set_bytes(d, p.headers)).sum());
    while !open.is_empty() {
        let all: f64 = open
            .iter()
            .map(|i| demands[*i].rows.max(1) as f64 * demands[*i].row_bytes as f64)
            .sum();
        let round = left;
        let mut capped = Vec::new();
        for i in &open {
            let demand = &demands[*i];
            let weight = demand.rows.max(1) as f64 * demand.row_bytes as f64 / all;
            let one = set_bytes(demand, plans[*i].headers);
            let sets = (round as f64 * weight) as u64 / one;
            // Rows of growing tables, and of some ids, fall into sets at random: leave room for
            // the fullest.
            let slack = if demand.sparse || demand.ids > demand.rows { 1.5 } else { 1.0 };
            let most = ((demand.rows as f64 * slack) as u64).div_ceil(WAYS as u64).max(1) - 1;
            if sets >= most && demand.rows > 0 {
                plans[*i].sets = 1 + most as usize;
                left -= (most * one).min(left);
                capped.push(*i);
            } else {
                plans[*i].sets = 1 + sets as usize;
            }
        }
        if capped.is_empty() {
            break;
        }
        open.retain(|i| !capped.contains(i));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(rows: u64, row_bytes: usize) -> ClassDemand {
        ClassDemand {
            kind: StorageKind::Log,
            row_bytes,
            page_bytes: 4096,
            read_depth: 128,
            rows,
            ids: rows,
            sparse: false,
            index_bytes: rows * 4,
            index_growth: 0,
            choices: Vec::new(),
        }
    }

    fn spent(plans: &[ClassPlan], demands: &[ClassDemand]) -> u64 {
        let caches: u64 = plans
            .iter()
            .zip(demands)
            .map(|(p, d)| p.sets as u64 * set_bytes(d, p.headers) + p.buffer_bytes())
            .sum();
        caches + fixed(demands) + demands.iter().map(|d| d.index_bytes).sum::<u64>()
    }

    #[test]
    fn no_plan_spends_more_than_the_budget() {
        for budget in [1u64 << 20, 3 << 20, 10 << 20, 100 << 20, 1 << 30] {
            for demands in [
                vec![demand(20_000, 512)],
                vec![demand(100_000, 132), demand(3, 264), demand(5_000, 20)],
            ] {
                let Ok(plans) = divide(budget, &demands) else { continue };
                assert!(spent(&plans, &demands) <= budget, "{budget}: {plans:?}");
                assert!(plans.iter().all(|p| p.sets > 0));
            }
        }
    }

    #[test]
    fn a_cache_at_its_fewest_ways_leaves_what_a_growing_index_will_need() {
        for row_bytes in [4, 64, 72, 512] {
            let growth = 80 << 20;
            let growing = ClassDemand {
                sparse: true,
                index_growth: growth,
                index_bytes: 0,
                ..demand(10_000_000, row_bytes)
            };
            let demands = [growing, demand(1_000_000, 16)];
            for budget in [110u64 << 20, 150 << 20, 600 << 20] {
                let plans = divide(budget, &demands).unwrap();
                let saved: u64 = plans
                    .iter()
                    .zip(&demands)
                    .map(|(p, d)| {
                        let whole = one_set(d.row_bytes, p.headers);
                        let fewest = CacheShape { ways: WAYS_MIN, ..whole };
                        p.sets as u64 * (whole.bytes() - fewest.bytes())
                    })
                    .sum();
                let most = spent(&plans, &demands) - saved + growth;
                assert!(most <= budget, "rows of {row_bytes}, {budget}: {most}");
            }
        }
    }

    #[test]
    fn a_large_budget_keeps_every_dense_row_and_not_more() {
        let demands = [demand(100_000, 132), demand(10, 64)];
        let plans = divide(1 << 30, &demands).unwrap();
        assert_eq!(plans[0].sets, 100_000usize.div_ceil(WAYS));
        assert_eq!(plans[1].sets, 1);
    }

    #[test]
    fn beside_a_large_index_a_reader_has_its_depth_whatever_the_budget() {
        for (rows, depth) in [(1_000_000_000, 128), (100_000_000, 64), (1_000_000, 11)] {
            let demands = [demand(rows, 32)];
            let named = enough(&demands);
            let plans = divide(named, &demands).unwrap();
            assert_eq!(plans[0].read_depth, depth);
            assert!(spent(&plans, &demands) <= named);
            assert!(named < rows * 4 + rows * 4 / 100 + (256 << 10), "{named}");
        }
    }

    #[test]
    fn a_reader_has_room_for_its_depth_whatever_the_page() {
        for page_bytes in [512, 4096, 65_536] {
            for budget in [16u64 << 20, 64 << 20, 1 << 30, 16 << 30] {
                let demands = [ClassDemand { page_bytes, ..demand(2_000_000, 100) }];
                let Ok(plans) = divide(budget, &demands) else { continue };
                let (depth, buffers) = (plans[0].read_depth, plans[0].read_buffers);
                assert!(2 * buffers.pieces + 2 >= 3 * depth, "{page_bytes}, {budget}: {buffers:?}");
                assert!(buffers.longest_bytes() >= page_bytes);
                assert!(buffers.longest_bytes() <= page_bytes.max(READ_REQUEST_BYTES_MAX));
            }
        }
    }

    #[test]
    fn a_budget_too_small_names_the_one_that_works() {
        let demands = [demand(1_000_000, 132)];
        let error = divide(1 << 20, &demands).unwrap_err();
        let named: u64 = error
            .message()
            .rsplit("memory=")
            .next()
            .and_then(|n| n.parse().ok())
            .expect("the message ends with the bytes");
        divide(named, &demands).unwrap();
        assert!(divide(named - 1, &demands).is_err());
    }
}
