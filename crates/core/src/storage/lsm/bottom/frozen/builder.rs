//! Builds the index of a table while its pages are written.
//!
//! Meanwhile a dense table takes 4 bytes per id, with 8 for each replica, and a growing one 12 for
//! each copy of a row. Growing arrays have an eighth of spare room at most.

use super::index::{Addressing, FrozenIndex, LISTED, SHARED, bucket_and_tag, bucket_count};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::storage::lsm::bottom::order::TableOrder;

/// Elements by which a vector grows at least.
const GROWTH_MIN: usize = 1024;

/// Copies of rows by where they are, in the order of their pages.
#[derive(Debug)]
enum Copies {
    /// The home page of each id, and ids with replica pages.
    ById { homes: Vec<u32>, replicas: Vec<[u32; 2]> },
    /// The upper and the lower half of each position, and the page: as arrays they sort by these.
    ByTag(Vec<[u32; 3]>),
}

/// Takes in which pages have which rows.
#[derive(Debug)]
pub(super) struct IndexBuilder {
    table: u16,
    order: TableOrder,
    rows: u64,
    copies: Copies,
}

impl IndexBuilder {
    pub(super) fn new(table: u16, order: TableOrder) -> Self {
        let copies = match order {
            TableOrder::ByKey => Copies::ById { homes: Vec::new(), replicas: Vec::new() },
            TableOrder::Mixed { .. } => Copies::ByTag(Vec::new()),
        };
        Self { table, order, rows: 0, copies }
    }

    pub(super) fn table(&self) -> u16 {
        self.table
    }

    pub(super) fn order(&self) -> TableOrder {
        self.order
    }

    /// Rows at home.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Memory beside the value itself.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        match &self.copies {
            Copies::ById { homes, replicas } => homes.capacity() * 4 + replicas.capacity() * 8,
            Copies::ByTag(copies) => copies.capacity() * 12,
        }
    }

    /// Adds the page, from 1 on, on which a row has its home. That a key of a growing table comes
    /// twice is told by [`finish`](Self::finish).
    pub(super) fn push_home(&mut self, key: u64, page: u32) -> Result<()> {
        if self.rows == u64::from(u32::MAX) {
            bail!(Full, "table {}: more than {} rows in one frozen file", self.table, self.rows);
        }
        self.rows += 1;
        match &mut self.copies {
            Copies::ById { homes, .. } => {
                let Some(id) = u32::try_from(key).ok().filter(|id| *id < u32::MAX) else {
                    let most = u32::MAX;
                    bail!(Misuse, "table {}: id {key}, expected less than {most}", self.table);
                };
                let id = id as usize;
                if id >= homes.len() {
                    grow(homes, id + 1)?;
                    homes.resize(id + 1, 0);
                }
                match std::mem::replace(&mut homes[id], page) {
                    0 => Ok(()),
                    before => Err(two_homes(self.table, key, before, page)),
                }
            }
            Copies::ByTag(copies) => push(copies, copy(self.order.position(key), page)),
        }
    }

    /// Adds a page, behind all that have homes, with a replica of a row.
    pub(super) fn push_replica(&mut self, key: u64, page: u32) -> Result<()> {
        match &mut self.copies {
            Copies::ById { homes, replicas } => {
                let id = usize::try_from(key).ok().filter(|id| homes.get(*id) > Some(&0));
                let Some(id) = id else { return Err(no_home(self.table, key, page)) };
                push(replicas, [id as u32, page])
            }
            Copies::ByTag(copies) => push(copies, copy(self.order.position(key), page)),
        }
    }

    /// The index, which names at most `candidates_max` pages of a row. `Misuse` for a replica of a
    /// key without a home, a key with two, and one that a page has twice.
    pub(super) fn finish(self, home_pages: u32, candidates_max: usize) -> Result<FrozenIndex> {
        let Self { table, order, rows, copies } = self;
        let mut lists = Lists { table, candidates_max, list: Vec::new() };
        match copies {
            Copies::ById { mut homes, mut replicas } => {
                replicas.sort_unstable();
                for of_row in replicas.chunk_by(|a, b| a[0] == b[0]) {
                    let id = of_row[0][0];
                    let pages = || of_row.iter().map(|replica| replica[1]);
                    let word = &mut homes[id as usize];
                    *word = lists.word_of(u64::from(id), *word, pages())?;
                }
                homes.shrink_to_fit();
                Ok(FrozenIndex {
                    addressing: Addressing::ById,
                    words: homes.into(),
                    list: lists.list.into(),
                })
            }
            Copies::ByTag(mut copies) => {
                copies.sort_unstable();
                by_tag(order, rows, home_pages, &copies, lists)
            }
        }
    }
}

/// The index of a growing table from copies in order.
fn by_tag(
    order: TableOrder,
    rows: u64,
    home_pages: u32,
    copies: &[[u32; 3]],
    mut lists: Lists,
) -> Result<FrozenIndex> {
    let table = lists.table;
    let buckets = bucket_count(rows);
    let cell = |copy: &[u32; 3]| bucket_and_tag(position(*copy), buckets);
    let mut starts = Vec::with_capacity(buckets as usize + 1);
    let mut words = Vec::with_capacity(rows as usize);
    let mut tags = Vec::with_capacity(rows as usize);
    let mut shared = Vec::new();
    for of_cell in copies.chunk_by(|a, b| cell(a) == cell(b)) {
        let (bucket, tag) = cell(&of_cell[0]);
        while starts.len() <= bucket {
            starts.push(words.len() as u32);
        }
        let mut word = 0;
        shared.clear();
        for of_row in of_cell.chunk_by(|a, b| position(*a) == position(*b)) {
            let (key, home) = (order.key(position(of_row[0])), of_row[0][2]);
            let pages = || of_row[1..].iter().map(|copy| copy[2]);
            if home > home_pages {
                return Err(no_home(table, key, home));
            }
            if let Some(second) = pages().next().filter(|page| *page <= home_pages) {
                return Err(two_homes(table, key, home, second));
            }
            if of_row.len() == of_cell.len() {
                word = lists.word_of(key, home, pages())?;
            } else {
                check_distinct(table, key, pages())?;
                shared.extend(of_row.iter().map(|copy| copy[2]));
            }
        }
        if !shared.is_empty() {
            word = lists.shared_word(&mut shared, home_pages)?;
        }
        tags.push(tag);
        words.push(word);
    }
    starts.resize(buckets as usize + 1, words.len() as u32);
    Ok(FrozenIndex {
        addressing: Addressing::ByTag { starts: starts.into(), tags: tags.into() },
        words: words.into(),
        list: lists.list.into(),
    })
}

/// The list of an index that is being built.
struct Lists {
    table: u16,
    candidates_max: usize,
    list: Vec<u32>,
}

impl Lists {
    /// The word of a row with a home and replicas, whose pages increase.
    fn word_of(
        &mut self,
        key: u64,
        home: u32,
        replicas: impl ExactSizeIterator<Item = u32> + Clone,
    ) -> Result<u32> {
        check_distinct(self.table, key, replicas.clone())?;
        let named = replicas.len().min(self.candidates_max - 1);
        if named == 0 {
            return Ok(home);
        }
        let pages = std::iter::once(home).chain(replicas.take(named));
        self.put(1 + named as u32, pages)
    }

    /// The word that several rows share, whose pages these are.
    fn shared_word(&mut self, pages: &mut Vec<u32>, home_pages: u32) -> Result<u32> {
        pages.sort_unstable();
        pages.dedup();
        let homes = pages.partition_point(|page| *page <= home_pages);
        pages.truncate(homes.max(self.candidates_max));
        self.put(SHARED | pages.len() as u32, pages.iter().copied())
    }

    fn put(&mut self, head: u32, pages: impl Iterator<Item = u32>) -> Result<u32> {
        let at = self.list.len();
        let count = (head & !SHARED) as usize;
        if at + 1 + count > LISTED as usize {
            bail!(
                Full,
                "table {}: its replicas take more than {LISTED} words of the index; freeze with \
                 fewer replicas",
                self.table
            );
        }
        grow(&mut self.list, at + 1 + count)?;
        self.list.push(head);
        self.list.extend(pages);
        Ok(LISTED + at as u32)
    }
}

fn check_distinct(table: u16, key: u64, mut pages: impl Iterator<Item = u32>) -> Result<()> {
    let mut before = 0;
    match pages.find(|page| std::mem::replace(&mut before, *page) == *page) {
        Some(page) => bail!(Misuse, "table {table}: key {key} is on page {page} twice"),
        None => Ok(()),
    }
}

fn no_home(table: u16, key: u64, page: u32) -> Error {
    let what = format!("table {table}: page {page} has a replica of key {key}, which has no home");
    Error::new(ErrorKind::Misuse, what)
}

fn two_homes(table: u16, key: u64, one: u32, other: u32) -> Error {
    let what = format!("table {table}: key {key} has its home on page {one} and on page {other}");
    Error::new(ErrorKind::Misuse, what)
}

fn copy(position: u64, page: u32) -> [u32; 3] {
    [(position >> 32) as u32, position as u32, page]
}

fn position([upper, lower, _]: [u32; 3]) -> u64 {
    u64::from(upper) << 32 | u64::from(lower)
}

fn push<T>(of: &mut Vec<T>, one: T) -> Result<()> {
    grow(of, of.len() + 1)?;
    of.push(one);
    Ok(())
}

/// Makes room for `len` elements, and an eighth more where there is none.
fn grow<T>(of: &mut Vec<T>, len: usize) -> Result<()> {
    if len <= of.capacity() {
        return Ok(());
    }
    let wanted = len.max(of.capacity() + (of.capacity() / 8).max(GROWTH_MIN));
    of.try_reserve_exact(wanted - of.len()).map_err(|_| {
        let bytes = wanted * size_of::<T>();
        Error::new(ErrorKind::Budget, format!("no memory for {bytes} bytes of a frozen index"))
    })
}
