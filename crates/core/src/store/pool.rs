//! A fixed number of things that callers borrow in turn.

use parking_lot::{Condvar, Mutex};

/// Things to borrow; a borrower waits while all are out.
pub(super) struct Pool<T> {
    free: Mutex<Vec<T>>,
    returned: Condvar,
}

impl<T> Pool<T> {
    /// A pool of these.
    pub(super) fn new(things: Vec<T>) -> Self {
        Self { free: Mutex::new(things), returned: Condvar::new() }
    }

    /// Lends one to `f`, waiting until one is free. One that a panic of `f` interrupted is lost.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut thing = {
            let mut free = self.free.lock();
            loop {
                match free.pop() {
                    Some(thing) => break thing,
                    None => self.returned.wait(&mut free),
                }
            }
        };
        let result = f(&mut thing);
        self.free.lock().push(thing);
        self.returned.notify_one();
        result
    }
}
