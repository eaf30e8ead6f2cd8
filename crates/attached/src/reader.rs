//! A queue of requests, and the rows that they bring. One reader serves one caller at a time.

use crate::files::Files;
use crate::rows::{Request, Rows, next_request};
use embedrock_core::error::Result;
use embedrock_core::io::{Buffers, Completion, Medium, Queue};

/// Answers that are looked at together.
const TOGETHER: usize = 8;

pub(crate) struct Reader {
    queue: Box<dyn Queue>,
    alignment: u64,
    /// Rows that are to be read, and where the caller wants each: ascending.
    pub(crate) missing: Vec<(u64, u32)>,
    /// Requests in flight, by token.
    requests: Vec<Request>,
    free: Vec<u32>,
    done: Vec<Completion>,
    /// A row that lies partly in a tail.
    row: Vec<u8>,
}

/// Takes a row: its number, all places that want it, and its bytes.
pub(crate) type Take<'a> = dyn FnMut(u64, &[(u64, u32)], &[u8]) + 'a;

impl Reader {
    /// The buffers of a reader.
    pub(crate) fn buffers(row_bytes: usize, alignment: usize) -> Buffers {
        let shortest = (row_bytes + alignment).next_multiple_of(alignment).next_power_of_two();
        Buffers::sharing(super::BUFFER_BYTES, shortest, super::LONGEST_BYTES.max(shortest))
    }

    /// Bytes that a reader with these buffers takes, at most.
    pub(crate) fn memory_bytes(buffers: Buffers) -> usize {
        let notes = super::DEPTH * (size_of::<Request>() + size_of::<Completion>() + 4);
        buffers.queue_bytes(super::DEPTH) + notes
    }

    pub(crate) fn new(files: &Files, buffers: Buffers) -> Result<Self> {
        let queue = files.medium().queue(super::DEPTH, buffers)?;
        let depth = queue.depth();
        let nothing = Request { part: 0, offset: 0, bytes: 0, rows: (0, 0) };
        Ok(Self {
            alignment: files.alignment() as u64,
            missing: Vec::new(),
            requests: vec![nothing; depth],
            free: (0..depth as u32).rev().collect(),
            done: Vec::with_capacity(depth),
            row: Vec::new(),
            queue,
        })
    }

    /// Reads the missing rows and gives each to `take`. Returns the requests and their bytes.
    pub(crate) fn read(
        &mut self,
        rows: &Rows,
        files: &Files,
        take: &mut Take<'_>,
    ) -> Result<(u64, u64)> {
        self.drain()?;
        let (mut next, mut failed, mut count) = (0, None, (0, 0));
        while next < self.missing.len() || self.queue.in_flight() > 0 {
            if failed.is_none() {
                failed = self.ask(rows, files, &mut next, &mut count, take).err();
            }
            if self.queue.in_flight() == 0 {
                if failed.is_some() {
                    break;
                }
                continue;
            }
            let waited = self.queue.wait(TOGETHER, &mut self.done);
            while let Some(completion) = self.done.pop() {
                let request = self.requests[completion.token as usize];
                self.free.push(completion.token as u32);
                match completion.result {
                    Ok(()) if failed.is_none() => {
                        self.deliver(rows, files, request, completion.buffer, take);
                    }
                    Ok(()) => {}
                    Err(error) => failed = failed.or(Some(error)),
                }
                self.queue.release(completion.buffer);
            }
            waited?;
        }
        failed.map_or(Ok(count), Err)
    }

    /// Waits for what a read that failed or panicked has left in flight.
    fn drain(&mut self) -> Result<()> {
        loop {
            for completion in self.done.drain(..) {
                self.free.push(completion.token as u32);
                self.queue.release(completion.buffer);
            }
            if self.queue.in_flight() == 0 {
                return Ok(());
            }
            self.queue.wait(self.queue.in_flight(), &mut self.done)?;
        }
    }

    /// Queues requests for the rows from `next` on while there is room. Those in a tail alone need
    /// none.
    fn ask(
        &mut self,
        rows: &Rows,
        files: &Files,
        next: &mut usize,
        count: &mut (u64, u64),
        take: &mut Take<'_>,
    ) -> Result<()> {
        while *next < self.missing.len() && self.queue.in_flight() < self.queue.depth() {
            let longest = self.queue.buffer_bytes() as u64;
            let mut request = next_request(rows, &self.missing, *next, self.alignment, longest);
            let (tail, _) = files.tail_of_part(request.part);
            request.bytes = request.bytes.min(tail.saturating_sub(request.offset) as usize);
            if request.bytes == 0 {
                give(rows, files, &self.missing, &mut self.row, request, &[], take);
                *next = request.rows.1 as usize;
                continue;
            }
            let Some(buffer) = self.queue.acquire_for(request.bytes) else { break };
            let token = self.free.pop().expect("less than the depth is in flight");
            let (offset, bytes) = (request.offset, request.bytes);
            let file = files.of_part(request.part);
            if let Err(error) = self.queue.read(file, offset, bytes, buffer, u64::from(token)) {
                self.free.push(token);
                self.queue.release(buffer);
                return Err(error);
            }
            self.requests[token as usize] = request;
            *next = request.rows.1 as usize;
            *count = (count.0 + 1, count.1 + bytes as u64);
        }
        Ok(())
    }
}

impl Reader {
    /// Gives the rows of a request that has arrived to those who want them.
    fn deliver(
        &mut self,
        rows: &Rows,
        files: &Files,
        request: Request,
        buffer: usize,
        take: &mut Take<'_>,
    ) {
        let bytes = &self.queue.buffer(buffer)[..request.bytes];
        give(rows, files, &self.missing, &mut self.row, request, bytes, take);
    }
}

/// Gives the rows of a request to those who want them: from its bytes, which end where the tail of
/// their file begins, and from that tail.
fn give(
    rows: &Rows,
    files: &Files,
    missing: &[(u64, u32)],
    row: &mut Vec<u8>,
    request: Request,
    bytes: &[u8],
    take: &mut Take<'_>,
) {
    let wanted = &missing[request.rows.0 as usize..request.rows.1 as usize];
    let row_bytes = rows.row_bytes();
    let (tail_begin, tail) = files.tail_of_part(request.part);
    for same in wanted.chunk_by(|a, b| a.0 == b.0) {
        let key = same[0].0;
        let offset = rows.place(key).offset;
        let at = (offset - request.offset) as usize;
        if let Some(found) = bytes.get(at..at + row_bytes) {
            take(key, same, found);
            continue;
        }
        row.clear();
        row.extend_from_slice(bytes.get(at..).unwrap_or_default());
        let from = (offset + row.len() as u64 - tail_begin) as usize;
        row.extend_from_slice(&tail[from..from + row_bytes - row.len()]);
        take(key, same, row);
    }
}
