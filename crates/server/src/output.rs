//! Replies of a connection on their way out, in the order of its requests.
//!
//! Rows stay where the engine has put them, or where they lie in its memory: text and rows are
//! chunks, which go out with vectored writes. A reply that is still to be gathered has its place
//! kept. The kernel may share a chunk that is sent without a copy, which then outlasts its place.

use crate::gather::{Chunk, Piece, Views};
use crate::resp::{Protocol, Writer};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Most chunks of one write over TLS.
const SLICES: usize = 64;
/// A send of fewer bytes is copied: a page that is lent costs more.
const ZERO_COPY_LEAST: usize = 16 << 10;
/// Text goes to a new chunk once the last one has so many bytes.
const TEXT_BYTES: usize = 64 << 10;

/// The place of a reply that is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u64);

/// Replies that the client has not taken.
#[derive(Debug, Default)]
pub(crate) struct Output {
    chunks: VecDeque<Arc<Chunk>>,
    /// Number of chunks sent before the first.
    gone: u64,
    /// Bytes of the first chunk that are gone.
    sent: usize,
    /// Bytes in all chunks, without those that are gone.
    queued: usize,
    /// Memory of all chunks.
    held: usize,
    /// Memory of chunks that are gone but for what the kernel still has of them.
    lent: usize,
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
        self.held + self.lent
    }

    /// True when everything was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// Appends a reply.
    pub(crate) fn write(&mut self, protocol: Protocol, write: impl FnOnce(&mut Writer<'_>)) {
        // A client that is always a little behind must not keep what it has taken.
        let is_partly_sent = self.chunks.len() == 1 && self.sent > 0;
        let is_open = match self.chunks.back_mut().and_then(Arc::get_mut) {
            Some(Chunk::Text(bytes)) => !self.sealed && !is_partly_sent && bytes.len() < TEXT_BYTES,
            _ => false,
        };
        if !is_open {
            self.push(Chunk::Text(Vec::new()));
            self.sealed = false;
        }
        let last = self.chunks.back_mut().and_then(Arc::get_mut);
        let Some(Chunk::Text(bytes)) = last else { return };
        let (before, capacity) = (bytes.len(), bytes.capacity());
        write(&mut Writer::new(bytes, protocol));
        self.queued += bytes.len() - before;
        self.held += bytes.capacity() - capacity;
    }

    fn push(&mut self, chunk: Chunk) {
        self.held += chunk.memory_bytes();
        self.chunks.push_back(Arc::new(chunk));
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
        self.push(Chunk::Rows(Vec::new(), 0, false));
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
        if let Some(Chunk::Text(bytes)) = self.chunks.get_mut(index).and_then(Arc::get_mut) {
            let capacity = bytes.capacity();
            write(bytes, protocol);
            self.queued += bytes.len();
            self.held += bytes.capacity() - capacity;
        }
    }

    /// Gives the rows of a place, and whether they are to be sent without a copy.
    pub(crate) fn fill_rows(&mut self, place: Place, values: Vec<f32>, len: usize, lend: bool) {
        self.fill(place, Chunk::Rows(values, len, lend));
    }

    /// Gives the rows of a place where they lie.
    pub(crate) fn fill_views(&mut self, place: Place, views: Views) {
        self.fill(place, Chunk::Views(views));
    }

    fn fill(&mut self, place: Place, rows: Chunk) {
        let index = (place.0 - self.gone) as usize + 1;
        if let Some(chunk) = self.chunks.get_mut(index) {
            self.held = self.held - chunk.memory_bytes() + rows.memory_bytes();
            self.queued += rows.len();
            *chunk = Arc::new(rows);
        }
    }

    /// The pieces of the bytes that wait. All places are filled.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let skip = |index| if index == 0 { self.sent } else { 0 };
        self.chunks.iter().enumerate().flat_map(move |(index, chunk)| chunk.pieces(skip(index)))
    }

    /// The chunks that the first bytes which wait are in.
    pub(crate) fn first_chunks(&self, bytes: usize) -> Vec<Arc<Chunk>> {
        let (end, mut begin) = (self.sent + bytes, 0);
        let is_in = |chunk: &&Arc<Chunk>| {
            let is_in = begin < end;
            begin += chunk.len();
            is_in
        };
        self.chunks.iter().take_while(is_in).cloned().collect()
    }

    /// Whether the first bytes that wait are to be sent without a copy.
    pub(crate) fn is_zero_copy(&self, bytes: usize) -> bool {
        let (end, mut begin) = (self.sent + bytes, 0);
        bytes >= ZERO_COPY_LEAST
            && self.chunks.iter().any(|chunk| {
                let is_in = begin < end;
                begin += chunk.len();
                is_in && chunk.is_zero_copy()
            })
    }

    /// Copies rows that wait where they lie, and gives them back.
    pub(crate) fn copy_views(&mut self) {
        for (index, chunk) in self.chunks.iter_mut().enumerate() {
            let skip = if index == 0 { self.sent } else { 0 };
            if let Some(bytes) = chunk.copied(skip) {
                self.sent -= skip;
                let copy = Chunk::Text(bytes);
                self.held = self.held - chunk.memory_bytes() + copy.memory_bytes();
                if Arc::strong_count(chunk) > 1 {
                    self.lent += chunk.memory_bytes();
                }
                *chunk = Arc::new(copy);
            }
        }
    }

    /// The kernel is done with the last part of a chunk. Its memory is returned to `free`, if it
    /// had rows.
    pub(crate) fn end_lent(&mut self, chunk: Chunk, free: impl FnOnce(Vec<f32>)) {
        self.lent -= chunk.memory_bytes();
        if let Chunk::Rows(values, ..) = chunk {
            free(values);
        }
    }

    /// Writes once what comes first, of rows that were copied into replies. The memory of sent
    /// chunks goes to `free`, if they had rows. All places are filled.
    pub(crate) fn send(
        &mut self,
        send: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>,
        free: impl FnMut(Vec<f32>),
    ) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut used = 0;
        for (index, chunk) in self.chunks.iter().enumerate() {
            let Some(bytes) = chunk.as_bytes() else { break };
            let bytes = &bytes[if index == 0 { self.sent } else { 0 }..];
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
        self.take(count, free);
        Ok(())
    }

    /// The first bytes are gone. Rows of what is gone are returned to `free`.
    pub(crate) fn take(&mut self, count: usize, mut free: impl FnMut(Vec<f32>)) {
        self.queued -= count;
        self.sent += count;
        while let Some(first) = self.chunks.front() {
            let bytes = first.len();
            if self.sent < bytes {
                break;
            }
            self.sent -= bytes;
            self.gone += 1;
            let memory = first.memory_bytes();
            self.held -= memory;
            match self.chunks.pop_front().map(Arc::try_unwrap) {
                Some(Ok(Chunk::Rows(values, ..))) => free(values),
                Some(Err(_)) => self.lent += memory,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::RowViews;
    use std::sync::atomic::AtomicU64;

    /// The output when every write takes at most so many bytes.
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
                output.fill_rows(rows, vec![1.0, 2.0, 9.0], 2, false);
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

    /// Words that are lent: of every row but the one in the middle.
    struct Lent(Vec<AtomicU64>);

    impl RowViews for Lent {
        fn row(&self, position: usize) -> Option<&[AtomicU64]> {
            (position != 1).then(|| &self.0[position..position + 2])
        }
    }

    #[test]
    fn lent_rows_are_sent_copied_out_and_given_back_wherever_a_client_stops() {
        // Three rows of 12 bytes behind 4 of a header.
        let words = || (0..4).map(|at| AtomicU64::new(0x0101_0101_0101_0101 * (at + 1)));
        let expected = [&[1; 8][..], &[2; 4], &[0; 12], &[3; 8], &[4; 4], b"\r\n"].concat();
        for taken in 0..4 + 38 {
            let mut output = Output::default();
            let place = output.keep_rows();
            output.fill_text(place, Protocol::Resp2, |bytes, _| bytes.extend(b"head"));
            let rows = Box::new(Lent(words().collect()));
            output.fill_views(place, Views::new(rows, (3, 12), (vec![1], vec![0.0; 3]), true));
            assert_eq!(output.queued(), 4 + 38);
            let bytes_of = |output: &Output| {
                let mut bytes = Vec::new();
                output.pieces().for_each(|piece| piece.copy_to(&mut bytes));
                bytes
            };
            let all = [&b"head"[..], &expected].concat();
            assert_eq!(bytes_of(&output), all);
            // A send of which some was taken, and which is under way.
            let held = output.first_chunks(taken);
            output.take(taken, |_| panic!("no buffer of rows"));
            assert_eq!(bytes_of(&output), all[taken..]);
            let memory = output.memory_bytes();
            output.copy_views();
            assert_eq!(bytes_of(&output), all[taken..]);
            assert!(output.chunks.iter().all(|chunk| chunk.as_bytes().is_some()));
            assert!(output.memory_bytes() >= memory || held.len() < 2);
            for chunk in held {
                if let Some(chunk) = Arc::into_inner(chunk) {
                    output.end_lent(chunk, |_| panic!("no buffer of rows"));
                }
            }
            assert_eq!(output.lent, 0);
            assert_eq!(drain(&mut output, 5).0, all[taken..]);
            assert_eq!((output.memory_bytes(), output.queued()), (0, 0));
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
                let memory: usize = output.chunks.iter().map(|chunk| chunk.memory_bytes()).sum();
                assert_eq!(output.memory_bytes(), memory);
                // The bytes that wait, doubled by growth, and the chunks at both ends.
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
