//! A fixed number of things that callers borrow in turn.

use parking_lot::{Condvar, Mutex};

/// Things to borrow; a borrower waits while all are out.
pub(in crate::store) struct Pool<T> {
    free: Mutex<Vec<T>>,
    returned: Condvar,
}

impl<T> Pool<T> {
    /// A pool of these.
    pub(in crate::store) fn new(things: Vec<T>) -> Self {
        Self { free: Mutex::new(things), returned: Condvar::new() }
    }

    /// Lends one to `f`, waiting until one is free. One that a panic of `f` interrupted comes back,
    /// too, as the panic left it.
    pub(in crate::store) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut lent = self.lend();
        f(lent.thing.as_mut().expect("what is lent comes back when the loan ends"))
    }

    fn lend(&self) -> Lent<'_, T> {
        let mut free = self.free.lock();
        loop {
            match free.pop() {
                Some(thing) => return Lent { pool: self, thing: Some(thing) },
                None => self.returned.wait(&mut free),
            }
        }
    }
}

/// One that is out; it comes back when this is dropped.
struct Lent<'a, T> {
    pool: &'a Pool<T>,
    thing: Option<T>,
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        self.pool.free.lock().extend(self.thing.take());
        self.pool.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    // One that a panic interrupted was lost: with a pool of one, every later borrower waited for
    // ever.
    #[test]
    fn what_a_panic_interrupted_comes_back_as_it_was_left() {
        let pool = Pool::new(vec![1]);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            pool.with(|thing| {
                *thing += 1;
                panic!("of the borrower");
            });
        }));
        assert!(panicked.is_err());
        assert_eq!(*pool.free.lock(), [2]);
        assert_eq!(pool.with(|thing| *thing), 2);
    }

    #[test]
    fn a_borrower_waits_until_one_comes_back() {
        let pool = Pool::new(vec![0]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| pool.with(|thing| *thing += 1)));
            }
        });
        assert_eq!(*pool.free.lock(), [4000]);
    }
}
