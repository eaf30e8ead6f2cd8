//! Buckets: the parts of every table that machines divide among them.
//!
//! A key is in the same one of 1,024 buckets for ever, on every machine, and rows move between
//! machines a bucket at a time. `docs/formats/wire.md` tells other programs how to compute it.

use crate::error::{Error, Result, bail};
use crate::hash::mix;
use std::fmt;
use std::str::FromStr;

/// Number of buckets.
pub const BUCKETS: usize = 1024;
const LAST: u16 = BUCKETS as u16 - 1;

/// The bucket of a key. Ids of a dense table take turns, so that a bucket has its share of those
/// that there are. Keys of one that grows are mixed, however they were made.
#[inline]
pub fn bucket_of(key: u64, is_dense: bool) -> u16 {
    if is_dense { (key % BUCKETS as u64) as u16 } else { (mix(key, 0) >> 54) as u16 }
}

/// A set of buckets. As a text it is ranges and numbers with commas between, `0-340,800`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets([u64; BUCKETS / 64]);

impl Buckets {
    /// Whether a bucket, below [`BUCKETS`], is one of them.
    pub fn contains(&self, bucket: u16) -> bool {
        self.0[usize::from(bucket / 64)] >> (bucket % 64) & 1 == 1
    }

    /// Number of buckets in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of the ids `0..ids` of a dense table that lie in the set.
    pub fn ids_below(&self, ids: u64) -> u64 {
        let (rounds, rest) = (ids / BUCKETS as u64, ids % BUCKETS as u64);
        let of_rest = self.iter().filter(|bucket| u64::from(*bucket) < rest).count();
        rounds * self.len() as u64 + of_rest as u64
    }

    /// The union with another set.
    pub fn with(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..=LAST).filter(|bucket| self.contains(*bucket))
    }
}

impl fmt::Display for Buckets {
    /// Ranges and numbers, as they are read; `none` where there are none.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return to.write_str("none");
        }
        let mut comma = "";
        for first in self.iter().filter(|bucket| *bucket == 0 || !self.contains(bucket - 1)) {
            let last = (first..=LAST).take_while(|bucket| self.contains(*bucket)).last();
            match last.filter(|last| *last > first) {
                Some(last) => write!(to, "{comma}{first}-{last}")?,
                None => write!(to, "{comma}{first}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

impl FromStr for Buckets {
    type Err = Error;

    /// *Errors*: `Misuse` for what is neither, and for a bucket that comes twice.
    fn from_str(text: &str) -> Result<Self> {
        let number = |digits: &str| {
            let digits = digits.trim();
            let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let parsed = digits.parse().ok().filter(|bucket| is_plain && *bucket <= LAST);
            parsed.ok_or_else(|| {
                Error::new(
                    crate::ErrorKind::Misuse,
                    format!(
                        "buckets are {text:?}, which has {digits:?} where a number from 0 to \
                         {LAST} is expected: \"0-340,800\" for example"
                    ),
                )
            })
        };
        let mut found = Self::default();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                bail!(Misuse, "buckets are {text:?}, where a range ends before it begins");
            }
            for bucket in first..=last {
                if found.contains(bucket) {
                    bail!(Misuse, "buckets are {text:?}, which has {bucket} twice");
                }
                found.0[usize::from(bucket / 64)] |= 1 << (bucket % 64);
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_keys_are_the_same_for_ever() {
        assert_eq!([0, 17, 1024, 4_000_000_007].map(|id| bucket_of(id, true)), [0, 17, 0, 7]);
        let keys = [0, 1, 17, 42, u64::MAX];
        assert_eq!(keys.map(|key| bucket_of(key, false)), [0, 240, 390, 178, 482]);
    }

    #[test]
    fn a_set_is_written_as_it_is_read() {
        for text in ["0-1023", "17", "0,2-3,5,1023", "0-16,18-511"] {
            assert_eq!(text.parse::<Buckets>().unwrap().to_string(), text);
        }
        assert_eq!(Buckets::default().to_string(), "none");
    }

    #[test]
    fn strided_keys_of_a_growing_table_fill_all_buckets_alike() {
        for shift in [0, 10, 32, 44] {
            let mut counts = [0; BUCKETS];
            (0..1 << 18).for_each(|i| counts[usize::from(bucket_of(i << shift, false))] += 1);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(*least > 150 && *most < 370, "shift {shift}: {least} to {most}, mean 256");
        }
    }

    #[test]
    fn sets_are_read_from_ranges_and_what_is_none_is_named() {
        let some: Buckets = "0-3, 800,1023".parse().unwrap();
        assert_eq!(some.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 800, 1023]);
        assert_eq!((some.len(), some.is_empty(), some.contains(4)), (6, false, false));
        assert_eq!("0-1023".parse::<Buckets>().unwrap().len(), BUCKETS);
        assert_eq!(some.with(&"2-7".parse().unwrap()), "0-7,800,1023".parse().unwrap());
        for ids in [0, 1, 3, 800, 801, 1024, 1025, 5000] {
            let counted = (0..ids).filter(|id| some.contains(bucket_of(*id, true))).count();
            assert_eq!(some.ids_below(ids), counted as u64, "{ids}");
        }
        for (text, said) in [
            ("", "\"\""),
            ("0-1024", "\"1024\""),
            ("+1", "\"+1\""),
            ("1-2-3", "\"2-3\""),
            ("9-3", "ends before"),
            ("0-5,3", "3 twice"),
        ] {
            let error = text.parse::<Buckets>().unwrap_err();
            assert!(error.message().contains(said), "{text}: {error}");
        }
    }
}
