//! Who was refused room as `Full`, and how much each lacks: what the next commits clean for.
//!
//! A refusal is remembered until who was refused is given what it asks for. That others are served
//! meanwhile says nothing of it: what they need may be there, and what it needs may not.

use std::collections::BTreeMap;

/// Commits after which a refusal is forgotten when who was refused has not asked again.
const COMMITS_MAX: u32 = 16;

/// Who asks for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) enum Asker {
    /// A class, in its file.
    Rows(u16),
    /// A class, in the journal.
    Changes(u16),
    /// A table that is being made, in the journal.
    Table,
}

#[derive(Clone, Copy, Debug)]
struct Lack {
    bytes: u64,
    /// Commits since it was refused last.
    commits: u32,
}

/// What was refused.
#[derive(Debug, Default)]
pub(in crate::store) struct Refused {
    /// Rows of the largest batch that was refused since the last commit.
    rows: u64,
    lacks: BTreeMap<Asker, Lack>,
}

impl Refused {
    /// Somebody lacks `bytes`.
    pub(in crate::store) fn refuse(&mut self, asker: Asker, bytes: u64) {
        let lack = self.lacks.entry(asker).or_insert(Lack { bytes, commits: 0 });
        *lack = Lack { bytes: bytes.max(lack.bytes), commits: 0 };
    }

    /// A batch of so many rows was refused.
    pub(in crate::store) fn refuse_rows(&mut self, rows: u64) {
        self.rows = self.rows.max(rows);
    }

    /// Somebody was given what it asked for.
    pub(in crate::store) fn accept(&mut self, asker: Asker) {
        self.lacks.remove(&asker);
    }

    /// A commit was made.
    pub(in crate::store) fn commit_made(&mut self) {
        self.rows = 0;
        self.lacks.values_mut().for_each(|lack| lack.commits += 1);
        self.lacks.retain(|_, lack| lack.commits < COMMITS_MAX);
    }

    /// Rows of the largest batch that was refused since the last commit.
    pub(in crate::store) fn rows(&self) -> u64 {
        self.rows
    }

    /// The most that anybody lacks: other classes than that clean, and give room back.
    pub(in crate::store) fn bytes(&self) -> u64 {
        self.lacks.values().map(|lack| lack.bytes).max().unwrap_or(0)
    }

    /// Whether a class lacks room in its own file.
    pub(in crate::store) fn lacks_rows(&self, class: u16) -> bool {
        self.lacks.contains_key(&Asker::Rows(class))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_stays_until_the_same_is_given_or_nobody_asks_any_more() {
        let mut refused = Refused::default();
        refused.refuse(Asker::Rows(1), 50);
        refused.refuse(Asker::Changes(2), 70);
        refused.refuse(Asker::Rows(1), 40);
        for other in [Asker::Rows(2), Asker::Changes(1), Asker::Table] {
            refused.accept(other);
            assert_eq!(refused.bytes(), 70, "{other:?}");
        }
        refused.accept(Asker::Changes(2));
        assert_eq!(
            (refused.bytes(), refused.lacks_rows(1), refused.lacks_rows(2)),
            (50, true, false)
        );
        for _ in 0..3 * COMMITS_MAX {
            refused.commit_made();
            refused.refuse(Asker::Rows(1), 10);
        }
        assert_eq!(refused.bytes(), 50);
        (1..COMMITS_MAX).for_each(|_| refused.commit_made());
        assert_eq!(refused.bytes(), 50);
        refused.commit_made();
        assert_eq!((refused.bytes(), refused.lacks_rows(1)), (0, false));
    }

    #[test]
    fn rows_of_a_batch_are_paid_for_by_the_next_commit() {
        let mut refused = Refused::default();
        [5, 9, 3].into_iter().for_each(|rows| refused.refuse_rows(rows));
        assert_eq!(refused.rows(), 9);
        refused.commit_made();
        assert_eq!(refused.rows(), 0);
    }
}
