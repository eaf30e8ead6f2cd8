//! The forward index of a table in a frozen partition: which pages have a row.
//!
//! A word of 32 bits stands for a row. It is the page that the row has its home on, or, from
//! [`LISTED`] on, where in a list the pages begin: home first, then replicas. The words of a dense
//! table are addressed by the id. Those of a growing one are in the order of positions, which are
//! spread evenly. Their upper bits choose a bucket of 16 rows in the mean, the bits behind are a
//! tag: a look-up scans the tags of one bucket. Rows that share both share a word, too: its pages
//! are those of all of them. With a replica for every tenth row a row takes 5.2 bytes in a dense
//! table without gaps, and 7.5 in a growing one.

use crate::error::{Result, bail};
use crate::storage::lsm::bottom::candidates::Candidates;

/// Words from here on point into the list.
pub(super) const LISTED: u32 = 1 << 31;
/// Set in the count of a list: rows of several keys share it.
pub(super) const SHARED: u32 = 1 << 31;
/// Rows of a bucket in the mean.
const BUCKET_ROWS: u64 = 16;

/// The addressing of the words of rows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Addressing {
    /// By the position, which is the id.
    ById,
    /// By a bucket and a tag in it.
    ByTag {
        /// The first word of each bucket, and the end.
        starts: Box<[u32]>,
        /// A tag for each word, increasing within a bucket.
        tags: Box<[u16]>,
    },
}

/// Index of the pages that have the rows of a table.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct FrozenIndex {
    pub(super) addressing: Addressing,
    /// 0 for an id without a row.
    pub(super) words: Box<[u32]>,
    /// Counts, and behind each so many pages.
    pub(super) list: Box<[u32]>,
}

/// Number of buckets of a growing table with so many rows.
pub(super) fn bucket_count(rows: u64) -> u64 {
    rows.div_ceil(BUCKET_ROWS)
}

/// The bucket and the tag of a position. Both together increase as positions do.
#[inline]
pub(super) fn bucket_and_tag(position: u64, buckets: u64) -> (usize, u16) {
    let product = u128::from(position) * u128::from(buckets);
    ((product >> 64) as usize, (product as u64 >> 48) as u16)
}

impl FrozenIndex {
    /// The pages that may have the row at `position`. In a dense table they have it.
    #[inline]
    pub(super) fn candidates(&self, position: u64) -> Candidates<'_> {
        let word = match &self.addressing {
            Addressing::ById => {
                let at = usize::try_from(position).unwrap_or(usize::MAX);
                self.words.get(at).copied().unwrap_or(0)
            }
            Addressing::ByTag { starts, tags } => {
                let (bucket, tag) = bucket_and_tag(position, starts.len() as u64 - 1);
                let (begin, end) = (starts[bucket] as usize, starts[bucket + 1] as usize);
                match tags[begin..end].iter().position(|other| *other == tag) {
                    Some(at) => self.words[begin + at],
                    None => 0,
                }
            }
        };
        match word {
            0 => Candidates::NONE,
            page if page < LISTED => Candidates::of_page(page),
            word => self.listed(word - LISTED),
        }
    }

    #[inline]
    fn listed(&self, at: u32) -> Candidates<'_> {
        let at = at as usize;
        let head = self.list[at];
        let count = (head & !SHARED) as usize;
        Candidates::of_list(&self.list[at + 1..at + 1 + count])
    }

    /// Memory beside the value itself.
    pub(super) fn heap_bytes(&self) -> usize {
        let addressing = match &self.addressing {
            Addressing::ById => 0,
            Addressing::ByTag { starts, tags } => size_of_val(&**starts) + size_of_val(&**tags),
        };
        size_of_val(&*self.words) + size_of_val(&*self.list) + addressing
    }

    /// Refuses as `Corrupt` what no builder makes of `rows` rows in a file with so many pages, the
    /// first `home_pages` of them with rows at home.
    pub(super) fn check(
        &self,
        rows: u64,
        home_pages: u32,
        pages: u32,
        candidates_max: usize,
    ) -> Result<()> {
        let Some(counted) = self.count(home_pages, pages, candidates_max) else {
            bail!(Corrupt, "its words are not pages, in order, of a file with {pages}");
        };
        let fits = match &self.addressing {
            Addressing::ById => {
                counted.shared == 0 && counted.own == rows && self.words.last() != Some(&0)
            }
            Addressing::ByTag { starts, tags } => {
                // Words that several rows share have two rows at least.
                let least = counted.own + 2 * counted.shared;
                let is_full = least == rows || counted.shared > 0 && least < rows;
                let all = counted.own + counted.shared;
                is_full && all == self.words.len() as u64 && are_in_buckets(starts, tags)
            }
        };
        if !fits {
            bail!(Corrupt, "its words are not those of {rows} rows");
        }
        Ok(())
    }

    /// Counts words; `None` where one is nonsense, or where the list is not exactly theirs.
    fn count(&self, home_pages: u32, pages: u32, candidates_max: usize) -> Option<Counted> {
        let mut counted = Counted::default();
        let mut left = &*self.list;
        for word in self.words.iter().copied().filter(|word| *word != 0) {
            if word < LISTED {
                counted.own += 1;
                if word > home_pages {
                    return None;
                }
                continue;
            }
            let at = self.list.len() - left.len();
            if (word - LISTED) as usize != at {
                return None;
            }
            let (head, rest) = left.split_first()?;
            let (listed, rest) = rest.split_at_checked((head & !SHARED) as usize)?;
            left = rest;
            let (first, last) = (*listed.first()?, *listed.last()?);
            let are_sound = first > 0
                && first <= home_pages
                && last <= pages
                && listed.is_sorted_by(|a, b| a < b)
                // Homes are named all, replicas as far as there is room.
                && (listed.len() <= candidates_max || last <= home_pages);
            if !are_sound {
                return None;
            }
            if head & SHARED != 0 {
                counted.shared += 1;
                continue;
            }
            counted.own += 1;
            if listed.len() < 2 || listed[1] <= home_pages {
                return None;
            }
        }
        left.is_empty().then_some(counted)
    }
}

/// Words that were counted.
#[derive(Default)]
struct Counted {
    /// Words of one row.
    own: u64,
    /// Words of several rows.
    shared: u64,
}

/// Whether buckets follow each other from the first tag to the last, and tags increase in each.
fn are_in_buckets(starts: &[u32], tags: &[u16]) -> bool {
    let ends = (starts.first(), starts.last());
    ends == (Some(&0), Some(&(tags.len() as u32)))
        && starts.is_sorted()
        && starts
            .windows(2)
            .all(|bucket| tags[bucket[0] as usize..bucket[1] as usize].is_sorted_by(|a, b| a < b))
}
