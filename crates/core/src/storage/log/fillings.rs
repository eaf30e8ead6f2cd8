//! The beginnings of the fillings of segments, from the journal.
//!
//! The deltas of the index name every slot in the order in which rows were appended, and a page is
//! sealed as soon as its last slot is taken, or before another one is begun in its stream. So a
//! replay counts the pages that were sealed before the first slot of a segment was taken, and with
//! the sequence at which the epoch began it knows what the pages of that filling have at least.
//! Only what a journal file does not go back to has to be written down: the begin of each filling
//! when the file was begun.
//!
//! Format: `docs/formats/journal.md`, "fillings".

use super::Stream;
use super::segments::SegmentId;
use crate::error::{Result, bail};
use std::collections::BTreeMap;
use std::ops::Range;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// Bits of a digit that are of the number; the next one says that more digits follow.
const BITS: u32 = 5;
const MORE: u64 = 1 << BITS;
/// The longest text. Digits beyond it are left out, and nothing is known of the segments behind.
const BYTES_MAX: usize = 32 << 20;
/// Pages that are open when a stream begins one: of all that were begun before, these alone may not
/// be sealed yet.
const OTHER_STREAMS: u64 = Stream::COUNT as u64 - 1;

/// Writes the least sequence that the first page of each segment can have, 0 if it is unknown, as
/// differences from the segment before, least significant digits first.
pub(super) fn encode(firsts: impl Iterator<Item = u64>) -> String {
    let mut text = String::new();
    for mut rest in steps(firsts) {
        loop {
            let more = if rest >> BITS > 0 { MORE } else { 0 };
            text.push(char::from(DIGITS[((rest % MORE) | more) as usize]));
            rest >>= BITS;
            if more == 0 {
                break;
            }
        }
        if text.len() >= BYTES_MAX {
            break;
        }
    }
    text
}

/// Bytes that [`encode`] would write.
pub(super) fn encoded_bytes(firsts: impl Iterator<Item = u64>) -> u64 {
    let mut bytes = 0;
    for step in steps(firsts) {
        bytes += u64::from((u64::BITS - step.leading_zeros()).div_ceil(BITS).max(1));
        if bytes >= BYTES_MAX as u64 {
            break;
        }
    }
    bytes
}

/// The difference of each number from the one before.
fn steps(firsts: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    let mut before = 0u64;
    firsts.map(move |first| {
        let by = first.wrapping_sub(before) as i64;
        before = first;
        // The sign is the lowest bit, so that small steps back are short, too.
        ((by << 1) ^ (by >> 63)) as u64
    })
}

/// Reads what [`encode`] wrote; `Corrupt` for anything else.
fn decode(text: &str, each: &mut dyn FnMut(u64)) -> Result<()> {
    let (mut before, mut value, mut shift) = (0u64, 0u64, 0);
    for byte in text.bytes() {
        let Some(digit) = DIGITS.iter().position(|digit| *digit == byte) else {
            bail!(Corrupt, "the fillings of a class have a digit {:?}", char::from(byte));
        };
        let digit = digit as u64;
        let bits = digit % MORE;
        if shift > 60 || (shift == 60 && bits > 15) {
            bail!(Corrupt, "the fillings of a class have a number of more than 64 bits");
        }
        value |= bits << shift;
        shift += BITS;
        if digit & MORE == 0 {
            before = before.wrapping_add((value >> 1) ^ (value & 1).wrapping_neg());
            each(before);
            (value, shift) = (0, 0);
        }
    }
    if shift > 0 {
        bail!(Corrupt, "the fillings of a class end within a number");
    }
    Ok(())
}

/// Follows the fillings of one class through the journal.
#[derive(Debug, Default)]
pub(super) struct Fillings {
    rows_per_page: u64,
    rows_per_segment: u64,
    /// By segment, the least sequence that the first page of its filling can have.
    firsts: BTreeMap<SegmentId, u64>,
    /// Pages filled to their last slot in this epoch, and pages of which a first slot was taken.
    full_pages: u64,
    begun_pages: u64,
    /// Segments whose filling began in this epoch, and how many pages at least were sealed before.
    begun: Vec<(SegmentId, u64)>,
}

impl Fillings {
    /// Begins with what a class record says.
    pub(super) fn new(rows_per_page: usize, pages_per_segment: u64, text: &str) -> Result<Self> {
        let mut firsts = Vec::new();
        decode(text, &mut |first| firsts.push(first))?;
        Ok(Self::going_on(rows_per_page, pages_per_segment, firsts.into_iter()))
    }

    /// Begins with the least sequence that each segment's first page can have, 0 where nobody
    /// knows.
    pub(super) fn going_on(
        rows_per_page: usize,
        pages_per_segment: u64,
        firsts: impl Iterator<Item = u64>,
    ) -> Self {
        let rows_per_page = rows_per_page as u64;
        Self {
            rows_per_page,
            rows_per_segment: pages_per_segment * rows_per_page,
            firsts: (0..).zip(firsts).filter(|(_, first)| *first > 0).collect(),
            ..Self::default()
        }
    }

    /// Rows were appended at these slots.
    #[inline]
    pub(super) fn appended(&mut self, slots: Range<u64>) {
        let Range { start, end } = slots;
        let page = start / self.rows_per_page;
        let full = end / self.rows_per_page - page;
        // Most runs lie within a page.
        if full > 0 || start == page * self.rows_per_page {
            self.note_fillings(start, end);
            self.full_pages += full;
            let begun = end.div_ceil(self.rows_per_page) - start.div_ceil(self.rows_per_page);
            self.begun_pages += begun;
        }
    }

    fn note_fillings(&mut self, start: u64, end: u64) {
        let mut note = |segment: u64, slot: u64| {
            if (start..end).contains(&slot) {
                let page = slot / self.rows_per_page;
                let full = self.full_pages + page - start / self.rows_per_page;
                let begun = self.begun_pages + page - start.div_ceil(self.rows_per_page);
                let sealed = full.max(begun.saturating_sub(OTHER_STREAMS));
                self.begun.push((segment as SegmentId, sealed));
            }
        };
        // The first page of the file is its header.
        note(0, self.rows_per_page);
        let segments = start.div_ceil(self.rows_per_segment)..end.div_ceil(self.rows_per_segment);
        segments.filter(|id| *id > 0).for_each(|id| note(id, id * self.rows_per_segment));
    }

    /// The epoch is over. `began` is the sequence of the class's newest page when it began; of a
    /// commit that does not say so nothing is known.
    pub(super) fn commit(&mut self, began: Option<u64>) {
        for (segment, before) in self.begun.drain(..) {
            if let Some(began) = began {
                self.firsts.insert(segment, began + before + 1);
            }
        }
        (self.full_pages, self.begun_pages) = (0, 0);
    }

    /// By segment, the least sequence that the first page of its filling can have.
    pub(super) fn firsts(&self) -> &BTreeMap<SegmentId, u64> {
        &self.firsts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Result<Vec<u64>> {
        let mut firsts = Vec::new();
        decode(text, &mut |first| firsts.push(first))?;
        Ok(firsts)
    }

    #[test]
    fn sequences_come_back_as_they_were_written() {
        let mut firsts = vec![0, 1, 0, u64::MAX, 0, 1 << 63, 5, 17, 16, 15, (1 << 63) - 1, 1 << 56];
        firsts.extend((0..3000).map(|i| crate::hash::mix(i, 1) >> (i % 64)));
        let text = encode(firsts.iter().copied());
        for end in 0..firsts.len() {
            let part = || firsts[..end].iter().copied();
            assert_eq!(encoded_bytes(part()), encode(part()).len() as u64);
        }
        assert_eq!(decoded(&text).unwrap(), firsts);
        assert_eq!(encode([7, 7, 8, 7].into_iter()), "OACB");
        let neighbours = encode((0..1000).map(|i| (3 << 32) + i * 64));
        assert!(neighbours.len() < 3010, "{} bytes for 1000 segments", neighbours.len());
        for end in 1..200 {
            if let Ok(part) = decoded(&text[..end]) {
                assert_eq!(part, firsts[..part.len()]);
            }
        }
    }

    #[test]
    fn what_nobody_wrote_is_corrupt() {
        for text in ["g", "A=", "ggggggggggggQ", "ggggggggggggggA", "é"] {
            let error = decoded(text).expect_err(text);
            assert_eq!(error.kind(), crate::error::ErrorKind::Corrupt);
        }
    }

    #[test]
    fn a_filling_begins_behind_the_pages_that_were_full_before() {
        // Pages of 4 rows, segments of 8 pages; row by row, and all at once.
        for by in [1, 3, 4, 100] {
            let mut fillings = Fillings::new(4, 8, "").unwrap();
            let mut append = |from: u64, to: u64| {
                let slots = (from..to).step_by(by);
                slots.for_each(|at| fillings.appended(at..(at + by as u64).min(to)));
            };
            // The first segment without its header, two pages of the third, the second.
            append(4, 32);
            append(64, 72);
            append(32, 64);
            fillings.commit(Some(100));
            let firsts: Vec<(u32, u64)> = fillings.firsts().clone().into_iter().collect();
            assert_eq!(firsts, [(0, 101), (1, 110), (2, 108)], "{by}");
            // The third goes on; the first is filled again, twice.
            let mut append = |from: u64, to: u64| fillings.appended(from..to);
            append(72, 96);
            append(4, 32);
            append(4, 9);
            fillings.commit(Some(1000));
            let firsts: Vec<(u32, u64)> = fillings.firsts().clone().into_iter().collect();
            assert_eq!(firsts, [(0, 1014), (1, 110), (2, 108)]);
            // Pages that a new plan has sealed with a row in each.
            let mut append = |page: u64| fillings.appended(4 * page..4 * page + 1);
            (48..56).for_each(&mut append);
            append(24);
            fillings.commit(Some(2000));
            assert_eq!(fillings.firsts()[&3], 2000 + 8 - 2 + 1);
            fillings.appended(32..40);
            fillings.commit(None);
            assert_eq!(fillings.firsts()[&1], 110);
        }
    }
}
