//! Requests for room that were refused as `Full`: the next commits clean for what each lacks.
//!
//! A refusal is remembered until the same asker is given what it asks for. Requests of others that
//! succeed meanwhile prove nothing: the room that they need may be there when its own is not.

use std::collections::BTreeMap;

/// Commits after which a refusal is forgotten if its asker has not asked again.
const COMMITS_MAX: u32 = 16;

/// An asker for room.
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
    /// Rows that a class asked room for in its file.
    rows: u64,
    /// Commits since it was refused last.
    commits: u32,
}

/// The requests that were refused.
#[derive(Debug, Default)]
pub(in crate::store) struct Refused {
    /// Rows of the largest batch that was refused since the last commit.
    batch_rows: u64,
    lacks: BTreeMap<Asker, Lack>,
}

impl Refused {
    /// Somebody lacks `bytes`, a class for `rows` that it asked room for in its file.
    pub(in crate::store) fn refuse(&mut self, asker: Asker, bytes: u64, rows: u64) {
        let lack = self.lacks.entry(asker).or_insert(Lack { bytes, rows, commits: 0 });
        *lack = Lack { bytes: bytes.max(lack.bytes), rows: rows.max(lack.rows), commits: 0 };
    }

    /// A batch of so many rows was refused.
    pub(in crate::store) fn refuse_batch(&mut self, rows: u64) {
        self.batch_rows = self.batch_rows.max(rows);
    }

    /// Somebody was given what it asked for.
    pub(in crate::store) fn accept(&mut self, asker: Asker) {
        self.lacks.remove(&asker);
    }

    /// A commit was made.
    pub(in crate::store) fn commit_made(&mut self) {
        self.batch_rows = 0;
        self.lacks.values_mut().for_each(|lack| lack.commits += 1);
        self.lacks.retain(|_, lack| lack.commits < COMMITS_MAX);
    }

    /// Rows of the largest batch that was refused since the last commit.
    pub(in crate::store) fn batch_rows(&self) -> u64 {
        self.batch_rows
    }

    /// The most that anybody lacks: for that classes clean.
    pub(in crate::store) fn bytes(&self) -> u64 {
        self.lacks.values().map(|lack| lack.bytes).max().unwrap_or(0)
    }

    /// The most that anybody lacks beside a class's own file: for that it gives room back.
    pub(in crate::store) fn bytes_beside(&self, class: u16) -> u64 {
        let others = self.lacks.iter().filter(|(asker, _)| **asker != Asker::Rows(class));
        others.map(|(_, lack)| lack.bytes).max().unwrap_or(0)
    }

    /// Rows that a class was refused room for in its own file, which may have it by now.
    pub(in crate::store) fn rows_of(&self, class: u16) -> u64 {
        self.lacks.get(&Asker::Rows(class)).map_or(0, |lack| lack.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_stays_until_the_same_is_given_or_nobody_asks_any_more() {
        let mut refused = Refused::default();
        refused.refuse(Asker::Rows(1), 50, 5);
        refused.refuse(Asker::Changes(2), 70, 0);
        refused.refuse(Asker::Rows(1), 40, 6);
        for other in [Asker::Rows(2), Asker::Changes(1), Asker::Table] {
            refused.accept(other);
            assert_eq!(refused.bytes(), 70, "{other:?}");
        }
        assert_eq!((refused.bytes_beside(1), refused.bytes_beside(2)), (70, 70));
        refused.accept(Asker::Changes(2));
        assert_eq!((refused.bytes_beside(1), refused.bytes_beside(2)), (0, 50));
        assert_eq!((refused.bytes(), refused.rows_of(1), refused.rows_of(2)), (50, 6, 0));
        for _ in 0..3 * COMMITS_MAX {
            refused.commit_made();
            refused.refuse(Asker::Rows(1), 10, 1);
        }
        assert_eq!(refused.bytes(), 50);
        (1..COMMITS_MAX).for_each(|_| refused.commit_made());
        assert_eq!(refused.bytes(), 50);
        refused.commit_made();
        assert_eq!((refused.bytes(), refused.rows_of(1)), (0, 0));
    }

    #[test]
    fn rows_of_a_batch_are_paid_for_by_the_next_commit() {
        let mut refused = Refused::default();
        [5, 9, 3].into_iter().for_each(|rows| refused.refuse_batch(rows));
        assert_eq!(refused.batch_rows(), 9);
        refused.commit_made();
        assert_eq!(refused.batch_rows(), 0);
    }
}
