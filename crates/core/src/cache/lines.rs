//! The cache lines of a row that the processor is asked for before they are needed, and the level
//! of its caches that they are brought to.

use super::sets::BLOCK;
use crate::prefetch::{LINE_BYTES, amd_family, prefetch_line};

/// The longest part of a row that is worth asking for; the hardware follows from there.
const BYTES_MAX: usize = 8 * LINE_BYTES;

/// Gathers of rows of up to 5 lines are 3 to 11 % faster in whole blocks than in halves, of rows of
/// 8 lines a third slower (decision 2, "Stages").
const LINES_OF_NARROW_ROWS: usize = 5;

/// The level of the processor's caches that lines are brought to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    First,
    Second,
}

impl Level {
    /// The level that suits this processor. Into the second level, gathers of 2,048 rows are 17 %
    /// slower on an EPYC of family 26 (Zen 5); into the first, which can wait for only a dozen
    /// lines, gathers of rows of 148 bytes took 94 to 105 ns for each on a Xeon (Sapphire Rapids),
    /// not 76 to 99, and on an EPYC of family 25 (Zen 4) gathers and updates take twice as long.
    pub(super) fn of_this_processor() -> Self {
        if amd_family() >= 26 { Self::First } else { Self::Second }
    }
}

/// The lines in which a part of a row lies, wherever the row begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    /// Upper bound of the number of lines.
    count: usize,
    /// The place in the row of the last prefetched line.
    last: usize,
}

impl Lines {
    /// The first `bytes` of a row. Rows of `row_bytes` lie one after another from where a line
    /// begins.
    pub(super) fn of(bytes: usize, row_bytes: usize) -> Self {
        debug_assert!((1..=row_bytes).contains(&bytes), "{bytes} bytes of rows of {row_bytes}");
        let bytes = bytes.min(BYTES_MAX);
        let aligned = 1 << row_bytes.trailing_zeros().min(LINE_BYTES.trailing_zeros());
        let count = (LINE_BYTES - aligned + bytes).div_ceil(LINE_BYTES);
        Self { count, last: bytes - 1 }
    }

    /// Number of such rows that are prefetched together: half a block of wide ones, because three
    /// blocks of them do not stay in the first-level cache.
    #[inline(always)]
    pub(super) fn rows_at_once(self) -> usize {
        if self.count <= LINES_OF_NARROW_ROWS { BLOCK } else { BLOCK / 2 }
    }

    /// Asks for the lines of the rows that begin at `rows`. Any addresses will do.
    ///
    /// A loop for the first lines, which does nothing else, one for the second ones, and so on:
    /// several translations of addresses are under way at once ([`super::stages`]).
    #[inline(always)]
    pub(super) fn prefetch<const FIRST: bool>(self, rows: &[*const f32]) {
        for row in rows {
            prefetch_line::<FIRST, _>(*row);
        }
        for line in 1..self.count {
            let offset = (line * LINE_BYTES).min(self.last);
            for row in rows {
                prefetch_line::<FIRST, _>(row.cast::<u8>().wrapping_add(offset));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that asking for them touches, from where the row's first one begins.
    fn asked(lines: Lines, start: usize) -> Vec<usize> {
        let mut asked: Vec<_> = (0..lines.count)
            .map(|line| (start + (line * LINE_BYTES).min(lines.last)) / LINE_BYTES)
            .collect();
        asked.dedup();
        asked
    }

    #[test]
    fn every_line_of_a_row_is_asked_for_and_none_that_no_row_has() {
        for row_bytes in (4..=600).step_by(4) {
            for bytes in (4..=row_bytes).step_by(4) {
                let lines = Lines::of(bytes, row_bytes);
                let mut most = 0;
                for row in 0..16 {
                    let start = row * row_bytes % LINE_BYTES;
                    let last = start + bytes.min(BYTES_MAX) - 1;
                    let needed: Vec<_> = (start / LINE_BYTES..=last / LINE_BYTES).collect();
                    assert_eq!(asked(lines, start), needed, "{bytes} of {row_bytes}, row {row}");
                    most = most.max(needed.len());
                }
                assert_eq!(lines.count, most, "{bytes} of {row_bytes} bytes");
            }
        }
    }

    #[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
    #[test]
    fn the_level_is_that_of_the_family() {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let amd = ["AuthenticAMD", "HygonGenuine"].iter().any(|vendor| text.contains(vendor));
        let family = text.lines().find(|line| line.starts_with("cpu family")).unwrap();
        let family: u32 = family.split_whitespace().last().unwrap().parse().unwrap();
        assert_eq!(amd_family(), if amd { family } else { 0 });
        let level = if amd && family >= 26 { Level::First } else { Level::Second };
        assert_eq!(Level::of_this_processor(), level);
    }
}
