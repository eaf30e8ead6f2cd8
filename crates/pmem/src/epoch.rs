//! The epochs of reads: a list with one entry for each reading that is under way.
//!
//! A reading takes the epoch in which it begins and keeps it until it ends; one thread may have
//! many (a reply that the kernel still sends is one). A row that was replaced is free once every
//! reading of its epoch or before has ended.
//!
//! Source: PetPS, section 3.3, "protecting embeddings being gathered by DMA".

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// Readings that may be under way at once. The next one waits.
const READINGS_MAX: usize = 1024;
/// Largest number of readings that outlast a call: they leave places for the others.
const LENT_MAX: usize = READINGS_MAX / 2;

/// One place to a cache line: readers do not meet.
#[repr(align(128))]
#[derive(Default)]
struct Place(AtomicU64);

/// The readings of one set of rows.
pub(crate) struct Readings {
    /// Begins at 1: 0 is a place without a reading.
    epoch: AtomicU64,
    places: Box<[Place]>,
    /// One more than the highest place that was ever taken.
    used: AtomicUsize,
    /// Number of readings that outlast a call.
    lent: AtomicUsize,
}

/// A reading that outlasts a call: the number of its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent(usize);

/// A reading under way. The rows it has looked up stay until it is dropped.
pub(crate) struct Reading<'a> {
    place: &'a Place,
}

thread_local! {
    /// The place that this thread found last.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

impl Readings {
    pub(crate) fn new() -> Self {
        let places = (0..READINGS_MAX).map(|_| Place::default()).collect();
        let (used, lent) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { epoch: AtomicU64::new(1), places, used, lent }
    }

    pub(crate) fn begin(&self) -> Reading<'_> {
        Reading { place: &self.places[self.take()] }
    }

    /// Begins a reading that outlasts the call; `None` where too many do. It lasts until
    /// [`end`](Self::end).
    pub(crate) fn lend(&self) -> Option<Lent> {
        let more = |lent| (lent < LENT_MAX).then_some(lent + 1);
        self.lent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Lent(self.take()))
    }

    /// Ends a reading that was lent, once.
    pub(crate) fn end(&self, lent: Lent) {
        drop(Reading { place: &self.places[lent.0] });
        self.lent.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes a place, and returns its number.
    fn take(&self) -> usize {
        let first = LAST.get();
        loop {
            for place in (first..READINGS_MAX).chain(0..first) {
                let epoch = self.epoch.load(Ordering::SeqCst);
                let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
                let at = &self.places[place];
                if at.0.load(Ordering::Relaxed) == 0
                    && at.0.compare_exchange(0, epoch, success, failure).is_ok()
                {
                    if self.used.load(Ordering::Relaxed) <= place {
                        self.used.fetch_max(place + 1, Ordering::SeqCst);
                    }
                    LAST.set(place);
                    // Pairs with the fence in `oldest`: either that finds this reading, or this
                    // reading finds what was published before.
                    fence(Ordering::SeqCst);
                    return place;
                }
            }
            std::thread::yield_now();
        }
    }

    /// The epoch of what is no longer found from now on. Rows of it are free once
    /// [`oldest`](Self::oldest) is later.
    pub(crate) fn advance(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::SeqCst)
    }

    /// The epoch of the oldest reading, `u64::MAX` without one.
    pub(crate) fn oldest(&self) -> u64 {
        fence(Ordering::SeqCst);
        let used = self.used.load(Ordering::SeqCst);
        let epochs = self.places[..used].iter().map(|place| place.0.load(Ordering::SeqCst));
        epochs.filter(|epoch| *epoch != 0).min().unwrap_or(u64::MAX)
    }

    /// Number of readings under way.
    pub(crate) fn count(&self) -> usize {
        self.places.iter().filter(|place| place.0.load(Ordering::Relaxed) != 0).count()
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.place.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_holds_its_epoch_until_it_ends() {
        let readings = Readings::new();
        assert_eq!((readings.oldest(), readings.count()), (u64::MAX, 0));
        let first = readings.begin();
        let replaced = readings.advance();
        let second = readings.begin();
        assert!(readings.oldest() <= replaced);
        assert_eq!(readings.count(), 2);
        drop(first);
        assert!(readings.oldest() > replaced);
        drop(second);
        assert_eq!(readings.oldest(), u64::MAX);
    }

    #[test]
    fn all_places_can_be_taken_and_the_next_reading_waits_for_one() {
        let readings = Readings::new();
        let mut held: Vec<_> = (0..READINGS_MAX).map(|_| readings.begin()).collect();
        assert_eq!(readings.count(), READINGS_MAX);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(readings.begin()));
            held.pop();
            waiting.join().expect("the reading found the place that became free");
        });
        drop(held);
        assert_eq!(readings.count(), 0);
    }

    #[test]
    fn readings_that_outlast_calls_leave_places_for_others() {
        let readings = Readings::new();
        let lent: Vec<_> = std::iter::from_fn(|| readings.lend()).collect();
        assert_eq!((lent.len(), readings.count()), (LENT_MAX, LENT_MAX));
        let replaced = readings.advance();
        drop(readings.begin());
        assert!(readings.oldest() <= replaced);
        lent.into_iter().for_each(|lent| readings.end(lent));
        assert_eq!((readings.oldest(), readings.count()), (u64::MAX, 0));
        readings.end(readings.lend().expect("places are free again"));
    }
}
