//! A simulated device on which a test does something in the middle of a call.

use super::*;
use crate::error::Result;
use crate::io::{Buffers, File, FileState, IoKind, Locking, Medium, OpenMode, Queue, SimMedium};
use parking_lot::Mutex;
use std::ops::Range;

/// The operation that is about to run, and the name that it is called with.
pub(super) type Doing<'a> = (&'static str, &'a str);
/// A file, and bytes of it that cannot be read.
type Unreadable = (String, Range<u64>);
type Meddler = Box<dyn FnMut(Doing<'_>) -> Result<()> + Send>;

/// Calls its meddler before whatever is done by name; an error of that is the operation's.
pub(super) struct Meddled {
    medium: SimMedium,
    meddler: Mutex<Option<Meddler>>,
    /// Of direct requests; that of the device if there is none.
    alignment: Mutex<Option<usize>>,
    unreadable: Arc<Mutex<Option<Unreadable>>>,
}

/// A file of which some bytes may not be readable, by calls that block.
#[derive(Debug)]
struct MeddledFile {
    file: Arc<dyn File>,
    unreadable: Arc<Mutex<Option<Unreadable>>>,
}

impl File for MeddledFile {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let end = offset + buffer.len() as u64;
        if let Some((name, range)) = &*self.unreadable.lock()
            && name == self.name()
            && offset < range.end
            && range.start < end
        {
            let what = format!("read {name} at {}", range.start);
            return Err(Error::os(what, std::io::Error::from_raw_os_error(libc::EIO)));
        }
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.file.allocate(offset, bytes)
    }

    fn give_back(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.file.give_back(offset, bytes)
    }

    fn set_len(&self, bytes: u64) -> Result<()> {
        self.file.set_len(bytes)
    }

    fn direct_file(&self) -> Option<&std::fs::File> {
        self.file.direct_file()
    }

    fn simulated_id(&self) -> Option<u64> {
        self.file.simulated_id()
    }
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
            unreadable: Arc::default(),
        })
    }

    /// From now on these bytes of a file cannot be read by calls that block.
    pub(super) fn make_unreadable(&self, name: &str, bytes: Range<u64>) {
        *self.unreadable.lock() = Some((name.to_owned(), bytes));
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
        let file = self.medium.open(name, mode)?;
        Ok(Arc::new(MeddledFile { file, unreadable: Arc::clone(&self.unreadable) }))
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
