//! Queues over io_uring.
//!
//! One ring and one set of registered buffers belong to one queue, and a queue to one user at a
//! time: no locks, no allocation per request. A request in flight has a slot, whose number is the
//! ring's user data. Completions are delivered without
//! interrupting the submitting thread (COOP_TASKRUN) where the kernel knows that; a queue may
//! nevertheless move between threads.
//!
//! A ring counts against the limit of locked memory (before Linux 5.12, and again with 6.18, where
//! this was measured), registered buffers do with every kernel, unless the process has
//! CAP_IPC_LOCK. If the limit refuses them, a ring of fewer entries serves as well, and so do
//! buffers that are not registered.

#![expect(unsafe_code, reason = "the kernel reads and writes buffers through raw addresses")]

use super::aligned::BufferPool;
use super::kill::{Operation, Point};
use super::pread::THREADS_MAX;
use super::request::{Request, check_request};
use super::{BufferId, Completion, File, Queue};
use crate::error::{Error, Result};
use io_uring::{IoUring, Probe, opcode, squeue, types};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

/// Number of times that an enter is repeated while the kernel is short of memory, and the pause
/// before each: 2 s in all.
const BUSY_RETRIES_MAX: u32 = 20_000;
const BUSY_PAUSE: Duration = Duration::from_micros(100);

/// The kept answer of [`uring_works`]: none yet, it works, it lacks operations; else minus an
/// errno.
static ANSWER: AtomicI32 = AtomicI32::new(UNKNOWN);
const UNKNOWN: i32 = 0;
const WORKS: i32 = 1;
const LACKS: i32 = 2;

/// Whether this process may use io_uring, or why not. Kept once it was tried; two threads may try
/// at once. (Waiting for another thread's answer would never end in a child forked meanwhile.)
///
/// Containers answer EPERM or ENOSYS to the first call; old kernels lack the operations.
pub(crate) fn uring_works() -> std::result::Result<(), String> {
    let mut answer = ANSWER.load(Ordering::Relaxed);
    if answer == UNKNOWN {
        answer = match probe() {
            Ok(true) => WORKS,
            Ok(false) => LACKS,
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        ANSWER.store(answer, Ordering::Relaxed);
    }
    match answer {
        WORKS => Ok(()),
        LACKS => Err("the kernel's io_uring lacks read and write".to_owned()),
        code => {
            let error = io::Error::from_raw_os_error(-code);
            Err(format!("the kernel refuses it: {}", why_refused(&error)))
        }
    }
}

/// Why the kernel refused a ring or its buffers, with the way out where there is one.
pub(crate) fn why_refused(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => format!("{error}; raise the limit of locked memory (ulimit -l)"),
        _ => error.to_string(),
    }
}

/// Makes a small ring and sends a request through it.
fn probe() -> io::Result<bool> {
    let mut ring = build(4)?;
    let mut operations = Probe::new();
    ring.submitter().register_probe(&mut operations)?;
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::ReadFixed::CODE,
        opcode::WriteFixed::CODE,
    ];
    // SAFETY: a no-op refers to no memory.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(io::Error::other)?;
    while let Err(error) = ring.submit_and_wait(1) {
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let nop = ring.completion().next().is_some_and(|entry| entry.result() == 0);
    Ok(nop && needed.into_iter().all(|code| operations.is_supported(code)))
}

/// Makes a ring of so many entries: [`build`], or what a test has in its place.
pub(crate) type MakeRing = fn(u32) -> io::Result<IoUring>;

/// A ring with the newest settings the kernel takes.
pub(crate) fn build(entries: u32) -> io::Result<IoUring> {
    let mut modern = IoUring::builder();
    modern.setup_coop_taskrun().setup_taskrun_flag();
    match modern.build(entries) {
        // Before Linux 5.19.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().build(entries)
        }
        result => result,
    }
}

/// A ring, how many requests it takes, and why those are fewer than were asked for.
pub(crate) struct Ring {
    ring: IoUring,
    pub(crate) depth: usize,
    pub(crate) refused: Option<io::Error>,
}

impl Ring {
    /// A ring of `depth` entries, or of half as many, and so on, where the kernel refuses that. The
    /// error is its last one, when not even as many can be had as the threads of pread serve.
    pub(crate) fn new(depth: usize, make: MakeRing) -> io::Result<Self> {
        let (mut entries, mut refused) = (depth, None);
        loop {
            match make(entries as u32) {
                Ok(ring) => return Ok(Self { ring, depth: entries, refused }),
                Err(error) if entries <= THREADS_MAX => return Err(error),
                Err(error) => refused = Some(error),
            }
            entries = (entries / 2).max(THREADS_MAX);
        }
    }
}

/// A queue whose requests the kernel runs.
pub(crate) struct UringQueue {
    // Before the pool, because the ring refers to the pool's memory until it is closed.
    ring: IoUring,
    pool: BufferPool,
    /// True when the pool's mapping is registered as fixed buffer 0.
    registered: bool,
    /// Requests in flight, and the slots among them that are free.
    requests: Vec<Option<Request>>,
    free: Vec<usize>,
    depth: usize,
    alignment: usize,
    process: u32,
}

impl UringQueue {
    /// A queue over `pool`. With `register` the kernel is asked to pin the buffers once instead of
    /// for each request; the error says why it did not.
    pub(crate) fn new(
        ring: Ring,
        pool: BufferPool,
        alignment: usize,
        register: bool,
    ) -> (Self, Option<io::Error>) {
        let Ring { ring, depth, .. } = ring;
        let (base, bytes) = pool.mapping();
        let vector = [libc::iovec { iov_base: base.cast(), iov_len: bytes }];
        let submitter = ring.submitter();
        let refused = match register {
            // SAFETY: the mapping outlives the ring: `ring` is dropped before `pool`, and the
            // kernel pins the pages of registered buffers until the ring is gone.
            true => unsafe { submitter.register_buffers(&vector) }.err(),
            false => None,
        };
        let registered = register && refused.is_none();
        let requests = std::iter::repeat_with(|| None).take(depth).collect();
        let free = (0..depth).rev().collect();
        let process = std::process::id();
        let queue = Self { ring, pool, registered, requests, free, depth, alignment, process };
        (queue, refused)
    }

    /// Keeps a request in a slot and queues its first transfer.
    #[inline]
    fn push(&mut self, request: Request) {
        let slot = self.free.pop().expect("less than the depth is in flight");
        let entry = entry(&request, self.registered).user_data(slot as u64);
        self.requests[slot] = Some(request);
        // SAFETY: the slot now holds the request, and with it the file and the loan of the buffer,
        // until the kernel has answered (`reap`); a queue that cannot wait for the answer leaks
        // them (`drop`).
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the ring has an entry for each request in flight");
    }

    /// Takes what the kernel has finished; requests that are not complete go on. Returns how many
    /// ended.
    fn reap(&mut self, done: &mut Vec<Completion>) -> usize {
        let before = done.len();
        let (_, mut submission, completion) = self.ring.split();
        for answer in completion {
            let _point = Point::begin(Operation::Complete);
            let number = answer.user_data() as usize;
            let outcome = match answer.result() {
                moved @ 0.. => Ok(moved as usize),
                error => Err(io::Error::from_raw_os_error(-error)),
            };
            let slot = &mut self.requests[number];
            let request = slot.as_mut().expect("an answer belongs to a request in flight");
            let Some(result) = request.advance(outcome, self.alignment) else {
                let entry = entry(request, self.registered).user_data(answer.user_data());
                // SAFETY: as in `push`: the slot keeps holding the request.
                let pushed = unsafe { submission.push(&entry) };
                pushed.expect("the ring has an entry for each request in flight");
                continue;
            };
            let request = slot.take().expect("looked at above");
            self.free.push(number);
            let token = request.token;
            let buffer = self.pool.take_back(request.loan);
            done.push(Completion { token, buffer, result });
        }
        done.len() - before
    }

    /// Enters the kernel once: hands over what is queued, waits for `wanted` answers; a signal may
    /// end that early. `Ok(false)` when the kernel is short of memory.
    fn enter(&mut self, wanted: usize) -> io::Result<bool> {
        let point = Point::begin(Operation::Submit);
        point.middle(|| drop(self.ring.submit()));
        match self.ring.submit_and_wait(wanted) {
            Ok(_) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => Ok(true),
                Some(libc::EAGAIN) | Some(libc::EBUSY) | Some(libc::ENOMEM) => {
                    thread::sleep(BUSY_PAUSE);
                    Ok(false)
                }
                _ => Err(error),
            },
        }
    }

    fn failed(source: io::Error) -> Error {
        Error::os("enter io_uring", source)
    }
}

/// The ring entry for what is left of a request.
#[inline]
fn entry(request: &Request, registered: bool) -> squeue::Entry {
    let file = request.file.direct_file().expect("checked when the request was queued");
    let file = types::Fd(file.as_raw_fd());
    let left = request.rest().len() as u32;
    let offset = request.offset + request.done as u64;
    let address = request.loan.address().wrapping_add(request.done);
    match (request.loan.is_write(), registered) {
        (false, true) => opcode::ReadFixed::new(file, address, left, 0).offset(offset).build(),
        (false, false) => opcode::Read::new(file, address, left).offset(offset).build(),
        (true, true) => opcode::WriteFixed::new(file, address, left, 0).offset(offset).build(),
        (true, false) => opcode::Write::new(file, address, left).offset(offset).build(),
    }
}

impl Queue for UringQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.depth - self.free.len()
    }

    fn buffer_bytes(&self) -> usize {
        self.pool.buffer_bytes()
    }

    fn memory_bytes(&self) -> usize {
        let parameters = self.ring.params();
        // The kernel's entry sizes: 64 bytes and an index to submit, 16 bytes to complete.
        let ring = parameters.sq_entries() as usize * 68 + parameters.cq_entries() as usize * 16;
        let slots = self.depth * (size_of::<Option<Request>>() + size_of::<usize>());
        self.pool.memory_bytes() + ring + slots
    }

    fn acquire_for(&mut self, bytes: usize) -> Option<BufferId> {
        self.pool.acquire(bytes)
    }

    fn release(&mut self, buffer: BufferId) {
        self.pool.release(buffer);
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        self.pool.bytes(buffer)
    }

    fn buffer_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        self.pool.bytes_mut(buffer)
    }

    fn read(
        &mut self,
        file: &Arc<dyn File>,
        offset: u64,
        bytes: usize,
        buffer: BufferId,
        token: u64,
    ) -> Result<()> {
        check_request(offset, bytes, self.alignment, self.in_flight() < self.depth);
        assert!(file.direct_file().is_some(), "the file is of another medium");
        let loan = self.pool.lend_to_read(buffer, bytes);
        self.push(Request::new(loan, file, offset, token));
        Ok(())
    }

    fn write(
        &mut self,
        file: &Arc<dyn File>,
        offset: u64,
        bytes: usize,
        buffer: BufferId,
        token: u64,
    ) -> Result<()> {
        check_request(offset, bytes, self.alignment, self.in_flight() < self.depth);
        assert!(file.direct_file().is_some(), "the file is of another medium");
        let loan = self.pool.lend_to_write(buffer, bytes);
        self.push(Request::new(loan, file, offset, token));
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        for _ in 0..BUSY_RETRIES_MAX {
            if self.ring.submission().is_empty() {
                return Ok(());
            }
            self.enter(0).map_err(Self::failed)?;
        }
        Err(Self::failed(io::Error::from_raw_os_error(libc::EAGAIN)))
    }

    fn wait(&mut self, at_least: usize, done: &mut Vec<Completion>) -> Result<()> {
        let wanted = at_least.min(self.in_flight());
        let mut ended = 0;
        let mut tries = 0;
        loop {
            let missing = wanted - ended.min(wanted);
            let (_, submission, completion) = self.ring.split();
            let enter =
                !submission.is_empty() || submission.taskrun() || completion.len() < missing;
            drop((submission, completion));
            if enter && !self.enter(missing).map_err(Self::failed)? {
                tries += 1;
                if tries > BUSY_RETRIES_MAX {
                    return Err(Self::failed(io::Error::from_raw_os_error(libc::EAGAIN)));
                }
            }
            ended += self.reap(done);
            if ended >= wanted && self.ring.submission().is_empty() {
                return Ok(());
            }
        }
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            // The parent owns what is in flight; closing our copy of the ring disturbs nobody.
            return;
        }
        let mut done = Vec::new();
        while self.in_flight() > 0 {
            if self.wait(self.in_flight(), &mut done).is_err() {
                // The kernel may still use the buffers and files, so they must outlive us.
                self.requests.drain(..).for_each(std::mem::forget);
                return;
            }
            done.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Buffers, DirectoryMedium, IoChoice, Medium, OpenMode};

    #[test]
    #[expect(clippy::print_stderr, reason = "a skipped test says why")]
    fn buffers_the_kernel_did_not_register_serve_as_well() {
        let directory = tempfile::tempdir().unwrap();
        if let Err(reason) = uring_works() {
            eprintln!("skipped: io_uring cannot be used: {reason}");
            return;
        }
        let medium = DirectoryMedium::open(directory.path(), IoChoice::Uring).unwrap();
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        for register in [true, false] {
            let pool = BufferPool::new(Buffers::equal(8, 8192)).unwrap();
            let alignment = medium.alignment();
            let ring = Ring::new(8, build).unwrap();
            let (mut queue, _) = UringQueue::new(ring, pool, alignment, register);
            assert!(register || !queue.registered);
            let mut done = Vec::new();
            for page in 0..8 {
                let buffer = queue.acquire().unwrap();
                queue.buffer_mut(buffer).fill(page as u8 + u8::from(register) * 100);
                queue.write(&file, page * 8192, 8192, buffer, page).unwrap();
            }
            queue.wait(8, &mut done).unwrap();
            for completion in done.drain(..) {
                completion.result.unwrap();
                let (page, buffer) = (completion.token, completion.buffer);
                queue.buffer_mut(buffer).fill(0xee);
                queue.read(&file, page * 8192, 8192, buffer, page).unwrap();
            }
            queue.wait(8, &mut done).unwrap();
            for completion in &done {
                completion.result.as_ref().unwrap();
                let wanted = completion.token as u8 + u8::from(register) * 100;
                assert!(queue.buffer(completion.buffer).iter().all(|&byte| byte == wanted));
            }
        }
    }

    // With 128 entries a ring takes four times the locked memory of one with 32, and opening a
    // store failed where the limit was in between.
    #[test]
    #[expect(clippy::print_stderr, reason = "a skipped test says why")]
    fn a_ring_is_as_deep_as_the_kernel_allows_and_no_less_than_threads_are() {
        if let Err(reason) = uring_works() {
            eprintln!("skipped: io_uring cannot be used: {reason}");
            return;
        }
        fn up_to<const MOST: u32>(entries: u32) -> io::Result<IoUring> {
            if entries > MOST {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            build(entries)
        }
        let depth = |ring: io::Result<Ring>| ring.map(|r| (r.depth, r.refused.is_some())).ok();
        assert_eq!(depth(Ring::new(128, up_to::<128>)), Some((128, false)));
        assert_eq!(depth(Ring::new(128, up_to::<127>)), Some((64, true)));
        assert_eq!(depth(Ring::new(128, up_to::<40>)), Some((32, true)));
        assert_eq!(depth(Ring::new(90, up_to::<40>)), Some((32, true)));
        assert_eq!(depth(Ring::new(128, up_to::<31>)), None);
        assert_eq!(depth(Ring::new(8, up_to::<8>)), Some((8, false)));
        assert_eq!(depth(Ring::new(8, up_to::<7>)), None);
    }
}
