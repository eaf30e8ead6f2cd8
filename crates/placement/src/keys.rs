//! Rows of keys: one numbering of what the tables of a trace are asked for.
//!
//! Traces have 64-bit keys of several tables; everything else here has rows, `0..num_rows`. Rows
//! are numbered by table, then by key, so that [`identity`](crate::baselines::identity) is the
//! order of keys.

use crate::error::{Error, Result};
use crate::random::mix;

/// The keys that queries ask of one table: query `q` is `values[offsets[q]..offsets[q + 1]]`.
#[derive(Clone, Copy, Debug)]
pub struct TableKeys<'a> {
    /// The keys of all queries, one query after another. *Shape*: (pins,).
    pub values: &'a [u64],
    /// The begin of each query, and the end. *Shape*: (queries + 1,).
    pub offsets: &'a [usize],
}

/// Tables whose rows are numbered together, and the queries of all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbered {
    /// The table of each row, rising. *Shape*: (num_rows,).
    pub tables: Vec<u16>,
    /// The key of each row, rising within a table. *Shape*: (num_rows,).
    pub keys: Vec<u64>,
    /// The rows of all queries; those of a query by table, then as they were asked for.
    /// *Shape*: (pins,).
    pub values: Vec<u32>,
    /// The begin of each query, and the end. *Shape*: (queries + 1,).
    pub offsets: Vec<usize>,
}

/// Numbers the distinct keys of tables.
///
/// Beside the result it takes 8 bytes per pin of a table, then 8 to 16 per distinct key of it.
///
/// *Errors*: [`Misuse`](crate::ErrorKind::Misuse) for offsets that do not rise from 0 to the number
/// of values, tables with unequal numbers of queries, or more rows or tables than 32 and 16 bits
/// have numbers for.
pub fn number(tables: &[TableKeys<'_>]) -> Result<Numbered> {
    if tables.len() > 1 << 16 {
        return Err(Error::misuse(format!("{} tables, expected at most 65536", tables.len())));
    }
    let offsets = joint_offsets(tables)?;
    let mut next = offsets.clone();
    let pins = offsets.last().copied().unwrap_or(0);
    let mut numbered = Numbered { values: vec![0; pins], offsets, ..Numbered::default() };
    for (table, TableKeys { values, offsets }) in tables.iter().enumerate() {
        let mut keys = values.to_vec();
        keys.sort_unstable();
        keys.dedup();
        keys.shrink_to_fit();
        let first = numbered.keys.len();
        if first + keys.len() > u32::MAX as usize {
            return Err(Error::misuse(format!(
                "the queries ask for {} different rows, expected at most {}; take fewer queries",
                first + keys.len(),
                u32::MAX
            )));
        }
        let places = Places::new(&keys);
        for (pair, next) in offsets.windows(2).zip(&mut next) {
            for &key in &values[pair[0]..pair[1]] {
                let place = places.of(key).ok_or_else(|| {
                    Error::misuse(format!("the key {key} of table {table} was written meanwhile"))
                })?;
                numbered.values[*next] = first as u32 + place;
                *next += 1;
            }
        }
        numbered.tables.resize(first + keys.len(), table as u16);
        numbered.keys.extend_from_slice(&keys);
    }
    Ok(numbered)
}

/// The begin of each query over all tables together, and the end.
fn joint_offsets(tables: &[TableKeys<'_>]) -> Result<Vec<usize>> {
    let queries = tables.first().map_or(0, |table| table.offsets.len().saturating_sub(1));
    let mut joint = vec![0; queries + 1];
    for (table, TableKeys { values, offsets }) in tables.iter().enumerate() {
        let rises = offsets.first() == Some(&0)
            && offsets.last() == Some(&values.len())
            && offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        if !rises || offsets.len() != queries + 1 {
            return Err(Error::misuse(format!(
                "the offsets of table {table} are {} numbers, expected {} that rise from 0 to {}, \
                 the number of its values",
                offsets.len(),
                queries + 1,
                values.len()
            )));
        }
        joint.iter_mut().zip(*offsets).for_each(|(joint, offset)| *joint += offset);
    }
    Ok(joint)
}

/// No key is here.
const FREE: u32 = u32::MAX;

/// The places of distinct keys: a table with open addressing, at most half full.
struct Places<'a> {
    keys: &'a [u64],
    slots: Vec<u32>,
}

impl<'a> Places<'a> {
    fn new(keys: &'a [u64]) -> Self {
        let mut slots = vec![FREE; (2 * keys.len()).next_power_of_two()];
        let mask = slots.len() - 1;
        for (place, &key) in keys.iter().enumerate() {
            let mut at = mix(key) as usize & mask;
            while slots[at] != FREE {
                at = (at + 1) & mask;
            }
            slots[at] = place as u32;
        }
        Self { keys, slots }
    }

    fn of(&self, key: u64) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut at = mix(key) as usize & mask;
        loop {
            match self.slots[at] {
                FREE => return None,
                place if self.keys[place as usize] == key => return Some(place),
                _ => at = (at + 1) & mask,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn rows_are_numbered_by_table_and_key() {
        let one = TableKeys { values: &[7, u64::MAX, 7, 0], offsets: &[0, 2, 2, 4] };
        let two = TableKeys { values: &[9, 7], offsets: &[0, 1, 2, 2] };
        let numbered = number(&[one, two]).unwrap();
        assert_eq!(numbered.tables, [0, 0, 0, 1, 1]);
        assert_eq!(numbered.keys, [0, 7, u64::MAX, 7, 9]);
        assert_eq!(numbered.values, [1, 2, 4, 3, 1, 0]);
        assert_eq!(numbered.offsets, [0, 3, 4, 6]);
    }

    #[test]
    fn every_pin_has_the_row_of_its_key() {
        let mut random = Random::new(3);
        let values = (0..5_000).map(|_| random.below(900).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let values = values.collect::<Vec<_>>();
        let offsets = (0..=500).map(|query| query * 10).collect::<Vec<_>>();
        let numbered = number(&[TableKeys { values: &values, offsets: &offsets }]).unwrap();
        assert!(numbered.keys.is_sorted_by(|a, b| a < b));
        assert_eq!(numbered.offsets, offsets);
        for (&key, &row) in values.iter().zip(&numbered.values) {
            assert_eq!(numbered.keys[row as usize], key);
        }
    }

    #[test]
    fn nothing_is_numbered_as_nothing() {
        assert_eq!(number(&[]).unwrap(), Numbered { offsets: vec![0], ..Numbered::default() });
        let none = TableKeys { values: &[], offsets: &[0, 0] };
        assert_eq!(number(&[none]).unwrap().offsets, [0, 0]);
    }

    #[test]
    fn offsets_that_do_not_fit_are_refused_by_table() {
        let good = TableKeys { values: &[1, 2], offsets: &[0, 1, 2] };
        for offsets in [&[0, 2][..], &[0, 1, 1], &[1, 1, 2], &[0, 3, 2], &[]] {
            let bad = TableKeys { values: &[1, 2], offsets };
            let message = number(&[good, bad]).unwrap_err().to_string();
            assert!(message.contains("the offsets of table 1 are"), "{message}");
        }
    }
}
