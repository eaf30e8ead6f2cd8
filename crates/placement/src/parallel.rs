//! Work on several threads that live as long as one call.
//!
//! A task owns the pieces of memory it writes, so no result depends on which thread took it.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Does all `tasks` on up to `threads` threads, the caller's among them. Each thread makes its own
/// scratch memory. A panic of a task is the caller's.
pub(crate) fn run<T: Send, S>(
    threads: usize,
    tasks: Vec<T>,
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, T) + Sync,
) {
    let threads = threads.min(tasks.len());
    let queue = Mutex::new(tasks.into_iter());
    let take_all = || {
        let mut scratch = scratch();
        loop {
            let task = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(task) = task else { return };
            work(&mut scratch, task);
        }
    };
    if threads <= 1 {
        return take_all();
    }
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(take_all);
        }
        take_all();
    });
}

/// Cuts pieces off a slice from front to back.
pub(crate) struct Carver<'a, T> {
    rest: &'a mut [T],
    at: usize,
}

impl<'a, T> Carver<'a, T> {
    pub(crate) fn new(whole: &'a mut [T]) -> Self {
        Self { rest: whole, at: 0 }
    }

    /// The piece `range`, which begins at or behind the end of the last one.
    pub(crate) fn take(&mut self, range: &Range<usize>) -> &'a mut [T] {
        let rest = std::mem::take(&mut self.rest);
        let (_, rest) = rest.split_at_mut(range.start - self.at);
        let (taken, rest) = rest.split_at_mut(range.len());
        self.rest = rest;
        self.at = range.end;
        taken
    }
}

/// Ranges of `step` that together are `range`, in order.
pub(crate) fn chunks(range: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(step).map(move |start| start..(start + step).min(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_done_once_whatever_the_threads() {
        for threads in [0, 1, 2, 3, 8] {
            let mut values = vec![0u32; 1000];
            let mut carver = Carver::new(&mut values);
            let tasks = chunks(0..1000, 7).map(|range| (range.start, carver.take(&range)));
            let tasks = tasks.collect::<Vec<_>>();
            run(
                threads,
                tasks,
                || (),
                |(), (start, piece)| {
                    for (i, value) in piece.iter_mut().enumerate() {
                        *value += (start + i) as u32;
                    }
                },
            );
            assert_eq!(values, (0..1000).collect::<Vec<_>>(), "{threads} threads");
        }
    }
}
