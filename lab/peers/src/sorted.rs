//! The keys of a batch in order, which stores that keep keys in order want: neighbours share
//! blocks and pages. Sorting is part of the timed work, as it is part of using such a store well.

/// A batch in order of keys, with the place of each key in the batch.
#[derive(Default)]
pub(crate) struct Sorted {
    batch: Vec<u64>,
    keys: Vec<u64>,
    places: Vec<u32>,
    pairs: Vec<(u64, u32)>,
}

impl Sorted {
    /// Sorts `keys`, unless they are those of the call before.
    pub(crate) fn set(&mut self, keys: &[u64]) {
        if self.batch == keys {
            return;
        }
        self.batch.clear();
        self.batch.extend_from_slice(keys);
        self.pairs.clear();
        self.pairs.extend(keys.iter().copied().zip(0..));
        self.pairs.sort_unstable();
        self.keys.clear();
        self.keys.extend(self.pairs.iter().map(|pair| pair.0));
        self.places.clear();
        self.places.extend(self.pairs.iter().map(|pair| pair.1));
    }

    /// Takes keys in the order in which they are to be read, with the place of each.
    pub(crate) fn set_placed(&mut self, keys: &[u64], places: &[u32]) {
        self.batch.clear();
        self.keys.clear();
        self.keys.extend_from_slice(keys);
        self.places.clear();
        self.places.extend_from_slice(places);
    }

    /// The keys in order.
    pub(crate) fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Keys in order, each with its row among the rows of the batch.
    pub(crate) fn rows<'a>(
        &'a self,
        words: usize,
        rows: &'a [f32],
    ) -> impl Iterator<Item = (u64, &'a [f32])> {
        let place = move |place: &u32| &rows[*place as usize * words..][..words];
        self.keys.iter().copied().zip(self.places.iter().map(place))
    }

    /// Calls `read` with each key in order and the place of its row among `rows`.
    pub(crate) fn gather(
        &self,
        words: usize,
        rows: &mut [f32],
        mut read: impl FnMut(u64, &mut [f32]),
    ) {
        for (&key, &place) in self.keys.iter().zip(&self.places) {
            read(key, &mut rows[place as usize * words..][..words]);
        }
    }

    /// Puts `sorted`, the rows of the keys in order from the `first` on, where they belong.
    pub(crate) fn scatter(&self, words: usize, first: usize, sorted: &[f32], rows: &mut [f32]) {
        for (row, place) in sorted.chunks_exact(words).zip(&self.places[first..]) {
            rows[*place as usize * words..][..words].copy_from_slice(row);
        }
    }
}
