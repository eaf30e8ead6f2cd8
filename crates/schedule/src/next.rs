//! The next uses of one part: its uses, gone through backwards.

use crate::STRETCHES_MAX;
use crate::error::Result;
use crate::keys::{NextUses, mix};
use crate::streams::Streams;

/// The uses of one part: its keys, and how many of them each stretch has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartUses<'a> {
    pub(crate) keys: &'a Streams,
    /// The stretch in the upper 32 bits, its uses of this part in the lower.
    pub(crate) marks: &'a Streams,
    pub(crate) part: usize,
}

/// Uses begin anew behind the last of so many stretches; they end there where it is `None`.
pub(crate) type Repeats = Option<u64>;

impl PartUses<'_> {
    /// Finds the next use of each use: one more than the stretches until then, 0 where there is
    /// none.
    ///
    /// Errors: `Io`.
    pub(crate) fn next_uses(
        &self,
        repeats: Repeats,
        known: &mut NextUses,
        found: &mut Vec<u16>,
    ) -> Result<()> {
        found.clear();
        found.resize((self.keys.len(self.part) / 8) as usize, 0);
        // Each round has the keys with other bits: several where their table would be too large.
        let mut rounds_log = 0;
        'again: loop {
            for round in 0..1 << rounds_log {
                let of_round = |mixed: u64| mixed >> 32 & ((1 << rounds_log) - 1) == round;
                known.reset(found.len() >> rounds_log);
                if let Some(stretches) = repeats {
                    // What is used first is used next behind the last.
                    if !self.go(known, of_round, |_, _| ())? {
                        rounds_log += 1;
                        continue 'again;
                    }
                    known.shift(stretches);
                }
                let told = |at: usize, until| found[at] = until;
                if !self.go(known, of_round, told)? {
                    rounds_log += 1;
                    continue 'again;
                }
            }
            return Ok(());
        }
    }

    /// Goes through the uses backwards and tells the next one of each, of keys that are `of_round`.
    /// False where their table has no room.
    #[inline(always)]
    fn go(
        &self,
        known: &mut NextUses,
        of_round: impl Fn(u64) -> bool,
        mut tell: impl FnMut(usize, u16),
    ) -> Result<bool> {
        let mut keys = self.keys.backwards(self.part);
        let mut marks = self.marks.backwards(self.part);
        let mut at = (self.keys.len(self.part) / 8) as usize;
        while let Some(mark) = marks.next()? {
            let number = (mark >> 32) + 1;
            for _ in 0..mark as u32 {
                let key = keys.next()?.expect("marks count the keys");
                let mixed = mix(key);
                at -= 1;
                if !of_round(mixed) {
                    continue;
                }
                match known.replace(mixed, key, number) {
                    None => return Ok(false),
                    Some(0) => tell(at, 0),
                    Some(next) => tell(at, (next - number).min(STRETCHES_MAX) as u16 + 1),
                }
            }
        }
        Ok(true)
    }
}
