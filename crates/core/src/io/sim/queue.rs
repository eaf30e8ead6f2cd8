//! Queues of the simulated device: requests complete late and in any order.

use super::SECTOR_BYTES;
use super::device::Device;
use super::rng::Rng;
use crate::error::Result;
use crate::io::aligned::BufferPool;
use crate::io::request::{Request, check_request};
use crate::io::{BufferId, Buffers, Completion, File, Queue};
use parking_lot::Mutex;
use std::sync::Arc;

/// A request that is late comes back after so many waits at most.
const WAITS_MAX: usize = 64;

/// A request and, for a write that the device has, its number there.
#[derive(Debug)]
struct Flight {
    request: Request,
    file: u64,
    serial: u64,
    /// Number of waits it is held back, unless a caller waits for nothing else.
    late: usize,
}

#[derive(Debug)]
pub(super) struct SimQueue {
    device: Arc<Mutex<Device>>,
    rng: Rng,
    depth: usize,
    pool: BufferPool,
    queued: Vec<(u64, Request)>,
    /// Requests that may complete now.
    flights: Vec<Flight>,
    late: Vec<Flight>,
}

impl SimQueue {
    pub(super) fn new(
        device: &Arc<Mutex<Device>>,
        seed: u64,
        depth: usize,
        buffers: Buffers,
    ) -> Result<Self> {
        Ok(Self {
            device: Arc::clone(device),
            rng: Rng::new(seed),
            depth: depth.min(buffers.pieces),
            pool: BufferPool::new(buffers)?,
            queued: Vec::new(),
            flights: Vec::new(),
            late: Vec::new(),
        })
    }

    fn check(&self, file: &Arc<dyn File>, offset: u64, bytes: usize) -> u64 {
        check_request(offset, bytes, SECTOR_BYTES, self.in_flight() < self.depth);
        file.simulated_id().expect("the file is of another medium")
    }

    /// Lets those come back whose time has come.
    fn pass_time(&mut self) {
        for flight in &mut self.late {
            flight.late -= 1;
        }
        self.flights.extend(self.late.extract_if(.., |flight| flight.late == 0));
    }

    /// Completes one request, whichever the seed picks; a late one only where there is no other.
    fn complete_one(&mut self) -> Completion {
        let list = if self.flights.is_empty() { &mut self.late } else { &mut self.flights };
        let picked = self.rng.below(list.len());
        let Flight { mut request, file, serial, .. } = list.swap_remove(picked);
        let (name, offset) = (request.file.name(), request.offset);
        let mut device = self.device.lock();
        let result = if request.loan.is_write() {
            device.land(file, name, offset, serial)
        } else {
            device.read(file, name, offset, request.loan.bytes_mut())
        };
        drop(device);
        let token = request.token;
        let buffer = self.pool.take_back(request.loan);
        Completion { token, buffer, result }
    }
}

impl Queue for SimQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.queued.len() + self.flights.len() + self.late.len()
    }

    fn buffer_bytes(&self) -> usize {
        self.pool.buffer_bytes()
    }

    fn memory_bytes(&self) -> usize {
        self.pool.memory_bytes()
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
        let id = self.check(file, offset, bytes);
        let loan = self.pool.lend_to_read(buffer, bytes);
        self.queued.push((id, Request::new(loan, file, offset, token)));
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
        let id = self.check(file, offset, bytes);
        let loan = self.pool.lend_to_write(buffer, bytes);
        self.queued.push((id, Request::new(loan, file, offset, token)));
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        let mut device = self.device.lock();
        for (file, request) in self.queued.drain(..) {
            let serial = if request.loan.is_write() {
                device.launch(file, request.offset, request.loan.bytes())
            } else {
                0
            };
            let late = device.delay(WAITS_MAX);
            let list = if late > 0 { &mut self.late } else { &mut self.flights };
            list.push(Flight { request, file, serial, late });
        }
        Ok(())
    }

    fn wait(&mut self, at_least: usize, done: &mut Vec<Completion>) -> Result<()> {
        self.submit()?;
        self.pass_time();
        for _ in 0..at_least.min(self.in_flight()) {
            let completion = self.complete_one();
            done.push(completion);
        }
        while !self.flights.is_empty() && self.rng.chance(1, 3) {
            let completion = self.complete_one();
            done.push(completion);
        }
        Ok(())
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        let mut done = Vec::new();
        // Failures have nobody left to hear of them, as with a real device.
        let _ = self.wait(self.in_flight(), &mut done);
    }
}
