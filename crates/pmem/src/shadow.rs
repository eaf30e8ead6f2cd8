//! A medium for tests that notes every store, flush and fence, and what a power cut may leave.
//!
//! Words that were flushed and then fenced stay. Every other word may have any of the values that
//! it had since, each word by itself: the medium promises no order and no cache lines.

use crate::error::{Error, Result};
use crate::medium::{Durability, Medium};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An operation on the medium.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Store(usize, u64),
    Flush(Range<usize>),
    Fence,
}

pub(crate) struct Shadow {
    words: Vec<AtomicU64>,
    events: Mutex<Vec<Event>>,
    pub(crate) fails: AtomicBool,
}

impl Shadow {
    pub(crate) fn new(image: &[u64]) -> Arc<Self> {
        Arc::new(Self {
            words: image.iter().map(|word| AtomicU64::new(*word)).collect(),
            events: Mutex::default(),
            fails: AtomicBool::new(false),
        })
    }

    pub(crate) fn image(&self) -> Vec<u64> {
        self.words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// The operations since the last call.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock())
    }
}

impl Medium for Arc<Shadow> {
    fn words(&self) -> usize {
        self.words.len()
    }

    fn load(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Acquire)
    }

    fn store(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Release);
        self.events.lock().push(Event::Store(word, value));
    }

    fn exchange(&self, word: usize, current: u64, new: u64) -> bool {
        let order = Ordering::SeqCst;
        let done = self.words[word].compare_exchange(current, new, order, order).is_ok();
        if done {
            self.events.lock().push(Event::Store(word, new));
        }
        done
    }

    fn flush(&self, words: Range<usize>) {
        self.events.lock().push(Event::Flush(words));
    }

    fn fence(&self) -> Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::io("cannot sync shadow", std::io::Error::other("planted")));
        }
        self.events.lock().push(Event::Fence);
        Ok(())
    }

    fn share(&self, words: Range<usize>) -> Option<&[AtomicU64]> {
        Some(&self.words[words])
    }

    fn durability(&self) -> Durability {
        Durability::Lines
    }
}

/// A medium's contents, durable and not.
#[derive(Clone)]
pub(crate) struct Contents {
    durable: Vec<u64>,
    /// Values of a word since the durable one, and how many of them were flushed.
    pending: BTreeMap<usize, (Vec<u64>, usize)>,
}

impl Contents {
    pub(crate) fn durable(image: Vec<u64>) -> Self {
        Self { durable: image, pending: BTreeMap::new() }
    }

    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::Store(word, value) => {
                self.pending.entry(*word).or_default().0.push(*value);
            }
            Event::Flush(words) => {
                for (_, (values, flushed)) in self.pending.range_mut(words.clone()) {
                    *flushed = values.len();
                }
            }
            Event::Fence => {
                let durable = &mut self.durable;
                self.pending.retain(|word, (values, flushed)| {
                    if *flushed > 0 {
                        durable[*word] = values[*flushed - 1];
                        values.drain(..*flushed);
                        *flushed = 0;
                    }
                    !values.is_empty()
                });
            }
        }
    }

    /// The processor's view: the newest value of every word.
    pub(crate) fn newest(&self) -> Vec<u64> {
        self.image(|_, values| values)
    }

    /// The words that a power cut leaves, if of each word the first so many pending values were
    /// written as `choose` says.
    pub(crate) fn image(&self, mut choose: impl FnMut(usize, usize) -> usize) -> Vec<u64> {
        let mut image = self.durable.clone();
        for (word, (values, _)) in &self.pending {
            let written = choose(*word, values.len());
            if written > 0 {
                image[*word] = values[written - 1];
            }
        }
        image
    }

    /// Images that a power cut may leave: nothing pending, all, one word alone, all but one, and
    /// some at random.
    pub(crate) fn images(&self, random: &mut Random, count: usize) -> Vec<Vec<u64>> {
        let mut images = vec![self.image(|_, _| 0), self.newest()];
        let words: Vec<usize> = self.pending.keys().copied().collect();
        for _ in 0..count.min(2 * words.len()) {
            let word = &words[random.below(words.len() as u64) as usize];
            images.push(self.image(|other, values| if other == *word { values } else { 0 }));
            images.push(self.image(|other, values| if other == *word { 0 } else { values }));
        }
        for _ in 0..count {
            images.push(self.image(|_, values| random.below(values as u64 + 1) as usize));
        }
        images
    }
}

/// Random numbers (xorshift64*), by a seed that replays.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}
