//! The order of rows in frozen pages: the placement of a class, by key.

use crate::error::{Result, bail};
use crate::hash::mix;
use crate::storage::Placement;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// Places of replicas begin here, behind those of all homes.
pub(super) const REPLICAS: u64 = 1 << 40;

/// A table with as many ids by a rank has its ranks in an array.
const IDS_PER_RANK: u64 = 8;
const NONE: u32 = u32::MAX;

/// Keys are hashed by the engine's own mix.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = mix(key, self.0);
    }
}

/// The ranks of the rows of a table.
#[derive(Debug)]
enum OfTable {
    ById(Vec<u32>),
    ByKey(HashMap<u64, u32, BuildHasherDefault<KeyHasher>>),
}

impl OfTable {
    fn rank(&self, key: u64) -> Option<u32> {
        let rank = match self {
            Self::ById(ranks) => ranks.get(usize::try_from(key).ok()?),
            Self::ByKey(ranks) => ranks.get(&key),
        };
        rank.copied().filter(|rank| *rank != NONE)
    }

    /// Sets a rank; false where there was one.
    fn set(&mut self, key: u64, rank: u32) -> bool {
        match self {
            Self::ById(ranks) => std::mem::replace(&mut ranks[key as usize], rank) == NONE,
            Self::ByKey(ranks) => ranks.insert(key, rank).is_none(),
        }
    }
}

/// A placement by key.
#[derive(Debug)]
pub(super) struct Ranks {
    tables: BTreeMap<u16, OfTable>,
    /// Of each rank: where in `replicas` the places of its replicas end.
    replica_ends: Vec<u32>,
    replicas: Vec<u32>,
    /// Rows that no place was given to, so far.
    unplaced: u64,
    placement: Placement,
}

impl Ranks {
    /// Checks a placement. `Misuse` where a row is in it twice, a page has too many, or a replica
    /// is of no row.
    pub(super) fn new(placement: Placement, rows_per_page: usize) -> Result<Self> {
        check(&placement, rows_per_page)?;
        let mut counts: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
        for (table, key) in &placement.rows {
            let (rows, largest) = counts.entry(*table).or_default();
            *rows += 1;
            *largest = (*largest).max(*key);
        }
        let mut tables = BTreeMap::new();
        for (table, (rows, largest)) in counts {
            let of_table = match largest < IDS_PER_RANK * rows {
                true => OfTable::ById(vec![NONE; largest as usize + 1]),
                false => OfTable::ByKey(HashMap::with_capacity_and_hasher(
                    rows as usize,
                    BuildHasherDefault::default(),
                )),
            };
            tables.insert(table, of_table);
        }
        for (rank, (table, key)) in (0..).zip(&placement.rows) {
            if let Some(of_table) = tables.get_mut(table)
                && !of_table.set(*key, rank)
            {
                bail!(Misuse, "a placement has key {key} of table {table} twice, expected it once");
            }
        }
        let mut replica_ends = vec![0u32; placement.rows.len()];
        placement.replica_rows.iter().for_each(|rank| replica_ends[*rank as usize] += 1);
        let mut sum = 0;
        for end in &mut replica_ends {
            sum += *end;
            *end = sum;
        }
        // From the back, so that each row's come in order, and ends become begins.
        let mut replicas = vec![0; placement.replica_rows.len()];
        for (at, rank) in placement.replica_rows.iter().enumerate().rev() {
            let end = &mut replica_ends[*rank as usize];
            *end -= 1;
            replicas[*end as usize] = at as u32;
        }
        Ok(Self { tables, replica_ends, replicas, unplaced: 0, placement })
    }

    /// The place of a row at home, and where its replicas belong. One that the placement does not
    /// have comes behind all that it has.
    pub(super) fn places(&mut self, table: u16, key: u64) -> (u64, &[u32]) {
        match self.tables.get(&table).and_then(|of_table| of_table.rank(key)) {
            Some(rank) => {
                let begin = self.replica_ends[rank as usize] as usize;
                let end = self.replica_ends.get(rank as usize + 1);
                let end = end.map_or(self.replicas.len(), |end| *end as usize);
                (u64::from(rank), &self.replicas[begin..end])
            }
            None => {
                self.unplaced += 1;
                (self.placement.rows.len() as u64 + self.unplaced - 1, &[])
            }
        }
    }

    /// Rows that no place was given to, so far.
    pub(super) fn unplaced(&self) -> u64 {
        self.unplaced
    }

    /// The page of a place, in numbers that differ for different pages alone; `None` for rows that
    /// no place was given to, which fill pages as they come.
    pub(super) fn page_of(&self, place: u64) -> Option<u64> {
        if let Some(at) = place.checked_sub(REPLICAS) {
            let starts = &self.placement.replica_starts;
            return Some(REPLICAS + starts.partition_point(|start| u64::from(*start) <= at) as u64);
        }
        let ends = &self.placement.page_ends;
        let page = ends.partition_point(|end| u64::from(*end) <= place);
        (page < ends.len()).then_some(page as u64)
    }
}

fn check(placement: &Placement, rows_per_page: usize) -> Result<()> {
    let Placement { rows, page_ends, replica_starts, replica_rows } = placement;
    if rows.len() >= NONE as usize || replica_rows.len() >= NONE as usize {
        bail!(Misuse, "a placement has {} rows, expected fewer than {NONE}", rows.len());
    }
    let mut begin = 0;
    for (page, end) in page_ends.iter().enumerate() {
        let has = end.checked_sub(begin).filter(|has| *has > 0 && *has as usize <= rows_per_page);
        if has.is_none() {
            bail!(
                Misuse,
                "page {page} of a placement has the rows {begin} to {end}; expected 1 to \
                 {rows_per_page}, as many as a page of this store holds: place again for it"
            );
        }
        begin = *end;
    }
    if begin as usize != rows.len() {
        bail!(Misuse, "the pages of a placement end at row {begin}, expected {}", rows.len());
    }
    let first = replica_starts.first().copied().unwrap_or(0);
    let last = replica_starts.last().copied().unwrap_or(0) as usize;
    if first != 0 || last != replica_rows.len() {
        bail!(
            Misuse,
            "the replica pages of a placement have the rows {first} to {last}, expected 0 to {}",
            replica_rows.len()
        );
    }
    for (page, ends) in replica_starts.windows(2).enumerate() {
        let of_page = match ends[0] < ends[1] && (ends[1] - ends[0]) as usize <= rows_per_page {
            true => &replica_rows[ends[0] as usize..ends[1] as usize],
            false => bail!(
                Misuse,
                "replica page {page} of a placement has the rows {} to {}; expected 1 to \
                 {rows_per_page}",
                ends[0],
                ends[1]
            ),
        };
        if let Some(rank) = of_page.iter().find(|rank| **rank as usize >= rows.len()) {
            bail!(
                Misuse,
                "replica page {page} has row {rank} of a placement of {} rows",
                rows.len()
            );
        }
        let mut sorted = of_page.to_vec();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            bail!(Misuse, "replica page {page} of a placement has row {} twice", pair[0]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement() -> Placement {
        Placement {
            rows: vec![(1, 7), (1, 2), (4, 1 << 60), (4, 5), (1, 0)],
            page_ends: vec![2, 4, 5],
            replica_starts: vec![0, 2, 4],
            replica_rows: vec![2, 0, 4, 2],
        }
    }

    #[test]
    fn rows_have_places_at_home_and_in_replica_pages() {
        let mut ranks = Ranks::new(placement(), 2).unwrap();
        let mut places = |table, key| {
            let (home, replicas) = ranks.places(table, key);
            (home, replicas.to_vec())
        };
        assert_eq!(places(1, 7), (0, vec![1]));
        assert_eq!(places(1, 2), (1, vec![]));
        assert_eq!(places(4, 1 << 60), (2, vec![0, 3]));
        assert_eq!(places(1, 0), (4, vec![2]));
        // Nobody has placed these.
        assert_eq!(places(1, 3), (5, vec![]));
        assert_eq!(places(9, 7), (6, vec![]));
        let pages: Vec<Option<u64>> = (0..7).map(|place| ranks.page_of(place)).collect();
        assert_eq!(pages, [Some(0), Some(0), Some(1), Some(1), Some(2), None, None]);
        let pages: Vec<Option<u64>> = (0..4).map(|at| ranks.page_of(REPLICAS + at)).collect();
        assert!(pages[0] == pages[1] && pages[1] != pages[2] && pages[2] == pages[3]);
    }

    #[test]
    fn what_is_no_placement_is_named() {
        let said = |change: fn(&mut Placement)| {
            let mut changed = placement();
            change(&mut changed);
            Ranks::new(changed, 2).unwrap_err().to_string()
        };
        assert!(said(|p| p.rows[3] = (4, 1 << 60)).contains("twice"));
        assert!(said(|p| p.page_ends[1] = 5).contains("page 1 of a placement has the rows 2 to 5"));
        assert!(said(|p| p.page_ends.truncate(2)).contains("end at row 4, expected 5"));
        assert!(said(|p| p.replica_rows[1] = 5).contains("has row 5"));
        assert!(said(|p| p.replica_rows[1] = 2).contains("row 2 twice"));
        assert!(said(|p| p.replica_starts[1] = 4).contains("rows 0 to 4"));
        assert!(said(|p| p.replica_starts.truncate(2)).contains("rows 0 to 2, expected 0 to 4"));
    }
}
