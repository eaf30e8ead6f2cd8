//! A simulated device on which a test does something in the middle of a call.

use super::*;
use crate::error::Result;
use crate::io::{Buffers, File, FileState, IoKind, Locking, Medium, OpenMode, Queue, SimMedium};
use parking_lot::Mutex;

/// What is about to be done, and with which name.
pub(super) type Doing<'a> = (&'static str, &'a str);
type Meddler = Box<dyn FnMut(Doing<'_>) -> Result<()> + Send>;

/// Calls its meddler before whatever is done by name; an error of that is the operation's.
pub(super) struct Meddled {
    medium: SimMedium,
    meddler: Mutex<Option<Meddler>>,
    /// Of direct requests; that of the device if there is none.
    alignment: Mutex<Option<usize>>,
}

impl std::fmt::Debug for Meddled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.medium.fmt(f)
    }
}

impl Meddled {
    pub(super) fn new(medium: &SimMedium) -> Arc<Self> {
        Arc::new(Self {
            medium: medium.clone(),
            meddler: Mutex::new(None),
            alignment: Mutex::new(None),
        })
    }

    /// From now on direct requests need this alignment.
    pub(super) fn align(&self, bytes: usize) {
        *self.alignment.lock() = Some(bytes);
    }

    /// From now on, until `leave`. The meddler has the device itself, or it would wait for itself.
    pub(super) fn meddle(&self, meddler: impl FnMut(Doing<'_>) -> Result<()> + Send + 'static) {
        *self.meddler.lock() = Some(Box::new(meddler));
    }

    pub(super) fn leave(&self) {
        self.meddler.lock().take();
    }

    fn about_to(&self, verb: &'static str, name: &str) -> Result<()> {
        self.meddler.lock().as_mut().map_or(Ok(()), |meddler| meddler((verb, name)))
    }
}

impl Medium for Meddled {
    fn kind(&self) -> IoKind {
        self.medium.kind()
    }

    fn direct(&self) -> bool {
        self.medium.direct()
    }

    fn alignment(&self) -> usize {
        self.alignment.lock().unwrap_or_else(|| self.medium.alignment())
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>> {
        self.about_to("open", name)?;
        self.medium.open(name, mode)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.about_to("list", prefix)?;
        self.medium.list(prefix)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.about_to("remove", name)?;
        self.medium.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.about_to("rename", from)?;
        self.medium.rename(from, to)
    }

    fn lock(&self, name: &str) -> Result<Locking> {
        self.about_to("lock", name)?;
        self.medium.lock(name)
    }

    fn lock_to_look(&self, name: &str) -> Result<Locking> {
        self.about_to("look at", name)?;
        self.medium.lock_to_look(name)
    }

    fn state_of(&self, name: &str) -> Result<FileState> {
        self.medium.state_of(name)
    }

    fn sync_dir(&self) -> Result<()> {
        self.medium.sync_dir()
    }

    fn free_bytes(&self) -> Result<u64> {
        self.medium.free_bytes()
    }

    fn queue(&self, depth: usize, buffers: Buffers) -> Result<Box<dyn Queue>> {
        self.medium.queue(depth, buffers)
    }

    fn known_curve(&self) -> Option<crate::io::DeviceCurve> {
        self.medium.known_curve()
    }
}
