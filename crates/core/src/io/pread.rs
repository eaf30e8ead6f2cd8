//! Queues served by threads that call pread and pwrite: for kernels and containers that forbid
//! io_uring.
//!
//! One pool of threads serves all queues of a medium. It starts a thread only when requests wait
//! and none is idle, up to [`THREADS_MAX`]. A request moves to a thread and back as a value, with
//! its buffer's loan, so nothing is shared but two lists, each behind its own lock: the jobs of the
//! pool and the finished requests of a queue. Neither lock is held during I/O or with the other.

use super::aligned::BufferPool;
use super::kill::{Operation, Point};
use super::request::{Request, check_request};
use super::{BufferId, Completion, File, Queue};
use crate::error::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Most threads of one medium, which is also the deepest queue its device sees. Measured with 64
/// random 4-KiB reads in flight on two cores and a virtual disk: 8 threads reach 40,000 reads/s, 16
/// reach 59,000, 32 reach 70,000, and 64 no more than that.
pub(crate) const THREADS_MAX: usize = 32;
/// The deepest call is a system call; the default of 8 MiB would count as a map of the process.
const STACK_BYTES: usize = 128 << 10;

/// The threads of one medium.
#[derive(Debug)]
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    process: u32,
}

#[derive(Debug, Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    /// Signalled when jobs are added or `stop` is set.
    work: Condvar,
}

/// Guarded by the innermost lock of this module.
#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    idle: usize,
    stop: bool,
}

#[derive(Debug)]
struct Job {
    request: Request,
    alignment: usize,
    reply: Arc<Reply>,
}

/// The place where the threads put the replies for one queue.
#[derive(Debug, Default)]
struct Reply {
    done: Mutex<Done>,
    /// Signalled when `done` has reached what the owner waits for.
    enough: Condvar,
}

#[derive(Debug, Default)]
struct Done {
    finished: Vec<(Request, Result<()>)>,
    wanted: usize,
}

impl Workers {
    /// A pool without threads; they come with the first requests.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::default(),
            threads: Mutex::default(),
            process: std::process::id(),
        })
    }

    /// Hands jobs over; all of `batch` is taken.
    fn push(&self, batch: &mut Vec<Job>) {
        let added = batch.len();
        let (waiting, idle) = {
            let mut jobs = self.shared.jobs.lock();
            jobs.waiting.extend(batch.drain(..));
            (jobs.waiting.len(), jobs.idle)
        };
        for _ in 0..added.min(idle) {
            self.shared.work.notify_one();
        }
        if waiting > idle {
            // Refused threads are no failure: those that run serve as well, only slower.
            let _ = self.grow(waiting - idle);
        }
    }

    /// Starts up to `missing` threads more.
    fn grow(&self, missing: usize) -> Result<()> {
        let mut threads = self.threads.lock();
        let missing = missing.min(THREADS_MAX.saturating_sub(threads.len()));
        for _ in 0..missing {
            let shared = Arc::clone(&self.shared);
            let builder = thread::Builder::new().name("embedrock-io".into());
            let thread = builder.stack_size(STACK_BYTES).spawn(move || serve(&shared));
            threads.push(thread.map_err(|source| Error::os("start a thread for pread", source))?);
        }
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let threads = std::mem::take(self.threads.get_mut());
        if std::process::id() != self.process {
            // A forked child has none of these threads, and their lock may be held for ever.
            threads.into_iter().for_each(std::mem::forget);
            return;
        }
        self.shared.jobs.lock().stop = true;
        self.shared.work.notify_all();
        for thread in threads {
            // A panic of a worker was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// The life of one thread.
fn serve(shared: &Shared) {
    loop {
        let job = {
            let mut jobs = shared.jobs.lock();
            loop {
                if let Some(job) = jobs.waiting.pop_front() {
                    break job;
                }
                if jobs.stop {
                    return;
                }
                jobs.idle += 1;
                shared.work.wait(&mut jobs);
                jobs.idle -= 1;
            }
        };
        let Job { mut request, alignment, reply } = job;
        let result = run(&mut request, alignment);
        let enough = {
            let mut done = reply.done.lock();
            done.finished.push((request, result));
            done.finished.len() >= done.wanted
        };
        if enough {
            reply.enough.notify_one();
        }
    }
}

/// Does one request from start to end.
fn run(request: &mut Request, alignment: usize) -> Result<()> {
    let file = Arc::clone(&request.file);
    let file = file.direct_file().expect("queue requests name files of a directory");
    let point = request.loan.is_write().then(|| Point::begin(Operation::Write));
    if let Some(point) = &point {
        let half = request.loan.len() / 2 / alignment * alignment;
        point.middle(|| drop(file.write_at(&request.loan.bytes()[..half], request.offset)));
    }
    loop {
        let (rest, at) = (request.rest(), request.offset + request.done as u64);
        let outcome = if request.loan.is_write() {
            file.write_at(&request.loan.bytes()[rest], at)
        } else {
            file.read_at(&mut request.loan.bytes_mut()[rest], at)
        };
        if let Some(result) = request.advance(outcome, alignment) {
            return result;
        }
    }
}

/// A queue whose requests are run by a pool of threads.
#[derive(Debug)]
pub(crate) struct PreadQueue {
    depth: usize,
    alignment: usize,
    pool: BufferPool,
    in_flight: usize,
    pending: Vec<Job>,
    reply: Arc<Reply>,
    /// Swapped with the reply's list, so that neither allocates after a while.
    taken: Vec<(Request, Result<()>)>,
    workers: Arc<Workers>,
}

impl PreadQueue {
    pub(crate) fn new(
        depth: usize,
        pool: BufferPool,
        alignment: usize,
        workers: Arc<Workers>,
    ) -> Result<Self> {
        // One thread at least, so that every request ends.
        if workers.threads.lock().is_empty() {
            workers.grow(1)?;
        }
        let depth = depth.min(pool.len());
        let reply = Arc::<Reply>::default();
        reply.done.lock().finished.reserve(depth);
        Ok(Self {
            depth,
            alignment,
            pool,
            in_flight: 0,
            pending: Vec::with_capacity(depth),
            reply,
            taken: Vec::with_capacity(depth),
            workers,
        })
    }

    fn push(&mut self, request: Request) {
        assert!(request.file.direct_file().is_some(), "the file is of another medium");
        self.pending.push(Job {
            request,
            alignment: self.alignment,
            reply: Arc::clone(&self.reply),
        });
        self.in_flight += 1;
    }
}

impl Queue for PreadQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn buffer_bytes(&self) -> usize {
        self.pool.buffer_bytes()
    }

    fn memory_bytes(&self) -> usize {
        let lists = size_of::<Job>() + 2 * size_of::<(Request, Result<()>)>();
        self.pool.memory_bytes() + self.depth * lists
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
        check_request(offset, bytes, self.alignment, self.in_flight < self.depth);
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
        check_request(offset, bytes, self.alignment, self.in_flight < self.depth);
        let loan = self.pool.lend_to_write(buffer, bytes);
        self.push(Request::new(loan, file, offset, token));
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        if !self.pending.is_empty() {
            self.workers.push(&mut self.pending);
        }
        Ok(())
    }

    fn wait(&mut self, at_least: usize, done: &mut Vec<Completion>) -> Result<()> {
        self.submit()?;
        let wanted = at_least.min(self.in_flight);
        {
            let mut reply = self.reply.done.lock();
            reply.wanted = wanted;
            while reply.finished.len() < wanted {
                self.reply.enough.wait(&mut reply);
            }
            // Nobody waits from here on: no thread needs to signal.
            reply.wanted = usize::MAX;
            std::mem::swap(&mut reply.finished, &mut self.taken);
        }
        self.in_flight -= self.taken.len();
        for (request, result) in self.taken.drain(..) {
            let token = request.token;
            let buffer = self.pool.take_back(request.loan);
            done.push(Completion { token, buffer, result });
        }
        Ok(())
    }
}

impl Drop for PreadQueue {
    fn drop(&mut self) {
        if std::process::id() != self.workers.process {
            return;
        }
        let mut done = Vec::new();
        while self.in_flight > 0 && self.wait(self.in_flight, &mut done).is_ok() {
            done.clear();
        }
    }
}
