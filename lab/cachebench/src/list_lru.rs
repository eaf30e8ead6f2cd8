//! List LRU: one list in order of last use.

use super::list::{Entry, List, ListCache, NONE, Order};

/// Least recently used, exactly.
pub(crate) type ListLru = ListCache<List>;

impl Order for List {
    fn with_capacity(_: usize) -> Self {
        Self::EMPTY
    }

    fn victim(&self) -> u32 {
        self.oldest
    }

    #[inline]
    fn insert(&mut self, entries: &mut [Entry], at: u32) {
        self.push_newest(entries, at);
    }

    #[inline]
    fn used_again(&mut self, entries: &mut [Entry], at: u32) {
        if entries[at as usize].newer != NONE {
            self.unlink(entries, at);
            self.push_newest(entries, at);
        }
    }

    #[inline]
    fn remove(&mut self, entries: &mut [Entry], at: u32) {
        self.unlink(entries, at);
    }

    /// Last used first.
    fn for_each(&self, entries: &[Entry], f: &mut dyn FnMut(u32)) {
        let mut at = self.newest;
        while at != NONE {
            f(at);
            at = entries[at as usize].older;
        }
    }

    fn bytes(&self, _: usize) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::agrees_with;
    use super::*;

    /// LRU as a vector in order of last use.
    fn plain(keys: &[u32], capacity: usize) -> (u64, Vec<u32>) {
        let (mut order, mut hits) = (Vec::new(), 0);
        for key in keys {
            match order.iter().position(|one| one == key) {
                Some(at) => {
                    order.remove(at);
                    hits += 1;
                }
                None => order.truncate(capacity - 1),
            }
            order.insert(0, *key);
        }
        (hits, order)
    }

    #[test]
    fn it_hits_and_keeps_what_a_plain_model_does() {
        agrees_with::<List>(plain);
    }
}
