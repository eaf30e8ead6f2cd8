//! Replies of a connection on their way out, in the order of its requests.
//!
//! Rows stay where the engine has put them: text and rows are chunks, which go out with vectored
//! writes. A reply that is still to be gathered has its place kept.

use crate::resp::{Protocol, Writer};
use std::collections::VecDeque;
use std::io::{self, IoSlice};

/// Most chunks of one write.
const SLICES: usize = 64;
/// Text goes to a new chunk once the last one has so many bytes.
const TEXT_BYTES: usize = 64 << 10;
/// What a chunk takes beside its bytes.
const CHUNK_BYTES: usize = 64;

/// Bytes that go out together.
#[derive(Debug)]
enum Chunk {
    Text(Vec<u8>),
    /// The first values of a buffer.
    Rows(Vec<f32>, usize),
}

impl Chunk {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(bytes) => bytes,
            Self::Rows(values, len) => bytemuck::cast_slice(&values[..*len]),
        }
    }

    fn memory_bytes(&self) -> usize {
        CHUNK_BYTES
            + match self {
                Self::Text(bytes) => bytes.capacity(),
                Self::Rows(values, _) => values.capacity() * size_of::<f32>(),
            }
    }
}

/// The place of a reply that is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u64);

/// Replies that the client has not taken.
#[derive(Debug, Default)]
pub(crate) struct Output {
    chunks: VecDeque<Chunk>,
    /// How many chunks were there before the first.
    gone: u64,
    /// Bytes of the first chunk that are gone.
    sent: usize,
    /// Bytes in all chunks, without those that are gone.
    queued: usize,
    /// Memory of all chunks.
    held: usize,
    /// Whether text goes to a chunk of its own, because the last one is a place.
    sealed: bool,
}

impl Output {
    /// Bytes that wait; places that are kept count nothing yet.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Memory of what waits, places included. A chunk counts whole until all of it is gone.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.held
    }

    /// True when everything was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// Appends a reply.
    pub(crate) fn write(&mut self, protocol: Protocol, write: impl FnOnce(&mut Writer<'_>)) {
        // A client that is always a little behind must not keep what it has taken.
        let is_partly_sent = self.chunks.len() == 1 && self.sent > 0;
        let is_open = match self.chunks.back() {
            Some(Chunk::Text(bytes)) => !self.sealed && !is_partly_sent && bytes.len() < TEXT_BYTES,
            _ => false,
        };
        if !is_open {
            self.push(Chunk::Text(Vec::new()));
            self.sealed = false;
        }
        let Some(Chunk::Text(bytes)) = self.chunks.back_mut() else { return };
        let (before, capacity) = (bytes.len(), bytes.capacity());
        write(&mut Writer::new(bytes, protocol));
        self.queued += bytes.len() - before;
        self.held += bytes.capacity() - capacity;
    }

    fn push(&mut self, chunk: Chunk) {
        self.held += chunk.memory_bytes();
        self.chunks.push_back(chunk);
    }

    /// Keeps a place for a reply of text.
    pub(crate) fn keep_text(&mut self) -> Place {
        let place = Place(self.gone + self.chunks.len() as u64);
        self.push(Chunk::Text(Vec::new()));
        self.sealed = true;
        place
    }

    /// Keeps a place for a reply of text, rows, and the end of a line.
    pub(crate) fn keep_rows(&mut self) -> Place {
        let place = self.keep_text();
        self.push(Chunk::Rows(Vec::new(), 0));
        self.push(Chunk::Text(b"\r\n".to_vec()));
        self.queued += 2;
        self.sealed = false;
        place
    }

    /// Writes the text of a place.
    pub(crate) fn fill_text(
        &mut self,
        place: Place,
        protocol: Protocol,
        write: impl FnOnce(&mut Vec<u8>, Protocol),
    ) {
        let index = (place.0 - self.gone) as usize;
        if let Some(Chunk::Text(bytes)) = self.chunks.get_mut(index) {
            let capacity = bytes.capacity();
            write(bytes, protocol);
            self.queued += bytes.len();
            self.held += bytes.capacity() - capacity;
        }
    }

    /// Gives the rows of a place.
    pub(crate) fn fill_rows(&mut self, place: Place, values: Vec<f32>, len: usize) {
        let index = (place.0 - self.gone) as usize + 1;
        if let Some(chunk @ Chunk::Rows(..)) = self.chunks.get_mut(index) {
            self.held -= chunk.memory_bytes();
            *chunk = Chunk::Rows(values, len);
            self.held += chunk.memory_bytes();
            self.queued += len * size_of::<f32>();
        }
    }

    /// Writes once what comes first. What is gone is returned to `free`, if it had rows. All places
    /// are filled.
    pub(crate) fn send(
        &mut self,
        send: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>,
        mut free: impl FnMut(Vec<f32>),
    ) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut used = 0;
        for (index, chunk) in self.chunks.iter().enumerate() {
            let bytes = &chunk.as_bytes()[if index == 0 { self.sent } else { 0 }..];
            if !bytes.is_empty() {
                slices[used] = IoSlice::new(bytes);
                used += 1;
            }
            if used == SLICES {
                break;
            }
        }
        let count = send(&slices[..used])?;
        if count == 0 && used > 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.queued -= count;
        self.sent += count;
        while let Some(first) = self.chunks.front() {
            let bytes = first.as_bytes().len();
            if self.sent < bytes {
                break;
            }
            self.sent -= bytes;
            self.gone += 1;
            self.held -= first.memory_bytes();
            if let Some(Chunk::Rows(values, _)) = self.chunks.pop_front() {
                free(values);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out when every write takes at most so many bytes.
    fn drain(output: &mut Output, most: usize) -> (Vec<u8>, usize) {
        let (mut all, mut freed) = (Vec::new(), 0);
        while !output.is_empty() {
            let send = |slices: &[IoSlice<'_>]| {
                let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
                let count = bytes.len().min(most);
                all.extend(&bytes[..count]);
                Ok(count)
            };
            output.send(send, |_| freed += 1).unwrap();
        }
        (all, freed)
    }

    #[test]
    fn replies_go_out_in_order_whatever_a_write_takes() {
        for most in [1, 2, 3, 7, 1000] {
            let mut output = Output::default();
            for _ in 0..2 {
                output.write(Protocol::Resp2, |writer| writer.integer(1));
                let rows = output.keep_rows();
                output.write(Protocol::Resp2, |writer| writer.integer(2));
                let text = output.keep_text();
                output.write(Protocol::Resp2, |writer| writer.integer(3));
                let queued = output.queued();
                output.fill_text(text, Protocol::Resp2, |bytes, _| bytes.extend(b"text"));
                output.fill_text(rows, Protocol::Resp2, |bytes, _| bytes.extend(b"$8\r\n"));
                output.fill_rows(rows, vec![1.0, 2.0, 9.0], 2);
                assert_eq!(output.queued(), queued + 4 + 4 + 8);
                let (all, freed) = drain(&mut output, most);
                let mut expected = b":1\r\n$8\r\n".to_vec();
                expected.extend([1.0f32, 2.0].map(f32::to_le_bytes).concat());
                expected.extend(b"\r\n:2\r\ntext:3\r\n");
                assert_eq!((all, freed), (expected, 1));
            }
            assert!(output.chunks.is_empty());
            assert_eq!(output.memory_bytes(), 0);
        }
    }

    #[test]
    fn a_client_that_is_always_behind_does_not_keep_what_it_has_taken() {
        for (reply, taken) in [(100, 99), (100, 100), (20_000, 20_000), (300_000, 300_000)] {
            let (mut output, text) = (Output::default(), "x".repeat(reply));
            for round in 0..if reply < 1000 { 20_000 } else { 300 } {
                output.write(Protocol::Resp2, |writer| writer.bulk(text.as_bytes()));
                if round > 0 {
                    output.send(|_| Ok(taken), |_| ()).unwrap();
                }
                let memory: usize = output.chunks.iter().map(Chunk::memory_bytes).sum();
                assert_eq!(output.memory_bytes(), memory);
                // What waits, doubled by growth, and the chunks at both ends.
                let most = 2 * output.queued() + 4 * (TEXT_BYTES + 2 * reply);
                assert!(memory <= most, "{memory} bytes for {} that wait", output.queued());
            }
        }
    }

    #[test]
    fn more_chunks_than_a_write_takes_go_out_with_the_next() {
        let mut output = Output::default();
        let places: Vec<_> = (0..200).map(|_| output.keep_text()).collect();
        for place in places {
            output.fill_text(place, Protocol::Resp3, |bytes, _| bytes.push(b'x'));
        }
        assert_eq!(drain(&mut output, usize::MAX).0, vec![b'x'; 200]);
    }
}
