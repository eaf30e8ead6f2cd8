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
    /// Writes the next use of each use to the part's stream of `answers`, those of the last uses
    /// first: one more than the stretches until then, 0 where there is none.
    ///
    /// Errors: `Io`.
    pub(crate) fn next_uses(
        &self,
        repeats: Repeats,
        known: &mut NextUses,
        answers: &mut Streams,
    ) -> Result<()> {
        let uses = (self.keys.len(self.part) / 8) as usize;
        let written = self.round(
            repeats,
            known,
            uses,
            |_| true,
            |_, until| answers.push(self.part, &until.to_le_bytes()),
        )?;
        if written {
            return Ok(());
        }
        answers.clear(self.part);
        for next in self.in_rounds(repeats, known, uses)?.iter().rev() {
            answers.push(self.part, &next.to_le_bytes())?;
        }
        Ok(())
    }

    /// The next use of each use, where the table of all keys would be too large: each round has
    /// the keys with other bits.
    fn in_rounds(&self, repeats: Repeats, known: &mut NextUses, uses: usize) -> Result<Vec<u16>> {
        let mut found = vec![0; uses];
        let mut rounds_log = 1;
        'again: loop {
            for round in 0..1 << rounds_log {
                let of_round = |mixed: u64| mixed >> 32 & ((1 << rounds_log) - 1) == round;
                let of_each = uses >> rounds_log;
                let told = self.round(repeats, known, of_each, of_round, |at, until| {
                    found[at] = until;
                    Ok(())
                })?;
                if !told {
                    rounds_log += 1;
                    continue 'again;
                }
            }
            return Ok(found);
        }
    }

    /// Tells the next use of each use of keys that are `of_round`, about `uses`. False where their
    /// table has no room.
    fn round(
        &self,
        repeats: Repeats,
        known: &mut NextUses,
        uses: usize,
        of_round: impl Fn(u64) -> bool,
        tell: impl FnMut(usize, u16) -> Result<()>,
    ) -> Result<bool> {
        known.reset(uses);
        if let Some(stretches) = repeats {
            // The first use of a key is the next one behind its last.
            if !self.go(known, &of_round, |_, _| Ok(()))? {
                return Ok(false);
            }
            known.shift(stretches);
        }
        self.go(known, &of_round, tell)
    }

    /// Goes through the uses backwards and tells the next one of each, of keys that are `of_round`.
    /// False if their table has no room.
    #[inline(always)]
    fn go(
        &self,
        known: &mut NextUses,
        of_round: impl Fn(u64) -> bool,
        mut tell: impl FnMut(usize, u16) -> Result<()>,
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
                    Some(0) => tell(at, 0)?,
                    Some(next) => tell(at, (next - number).min(STRETCHES_MAX) as u16 + 1)?,
                }
            }
        }
        Ok(true)
    }
}
