//! The contents of a simulated file: what is seen, what is stored, and what lies between.
//!
//! A sector is written whole, with all that the machine sees in it, as a page cache does. So each
//! state of a sector that a change records holds all earlier ones.

use super::SECTOR_BYTES;
use super::rng::Rng;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The unit in which room is taken, and which drives lose as one.
pub(super) const BLOCK_BYTES: usize = crate::io::BLOCK_BYTES as usize;

/// A change of a file that a sync would make durable.
#[derive(Debug)]
enum Change {
    Length {
        bytes: usize,
        /// True for the end of a write, which the file system notes when the data are stored, and
        /// not in its journal.
        by_write: bool,
    },
    /// Whole sectors, but for the end of the file.
    Write { offset: usize, bytes: Vec<u8> },
}

/// One file, with or without a name.
#[derive(Debug, Default)]
pub(super) struct Inode {
    /// The bytes that the running machine reads.
    live: Vec<u8>,
    /// Each byte before its last write, of blocks that were written. Elsewhere it is as `live`.
    before: BTreeMap<usize, Box<[u8; BLOCK_BYTES]>>,
    /// The bytes after a power cut, before any of `changes`.
    durable: Vec<u8>,
    /// The length after all of `changes`; another than that of `live` after a failed sync only.
    length: usize,
    changes: Vec<Change>,
    /// Writes that a queue handed over and that have not completed, by serial number.
    flying: BTreeMap<u64, (usize, Vec<u8>)>,
    /// Whether each block has room of its own; the others are holes.
    blocks: Vec<bool>,
    /// Blocks given back since the last sync: a power cut may bring them back.
    given_back: BTreeSet<usize>,
    taken: usize,
    pub(super) handles: usize,
    pub(super) named: bool,
    /// Changes since it was created.
    pub(super) changed: u64,
    /// Its lock: one exclusive holder, or several shared ones.
    pub(super) alone: bool,
    pub(super) looking: usize,
}

/// A change that a power cut may keep.
enum Step<'a> {
    Length(usize),
    Write(usize, &'a [u8]),
}

/// The remains of a file after a power cut.
pub(super) struct Survivor {
    pub(super) bytes: Vec<u8>,
    /// Writes of which some sectors are there and others are not.
    pub(super) torn: u64,
}

impl Survivor {
    /// Writes the sectors whose state `states` reaches.
    fn write(&mut self, offset: usize, bytes: &[u8], states: &mut States) {
        let (mut there, mut not) = (false, false);
        for (sector, start, end) in sectors(offset, bytes.len()) {
            if states.take(sector) {
                put(&mut self.bytes, offset + start, &bytes[start..end]);
                there = true;
            } else {
                not = true;
            }
        }
        self.torn += u64::from(there && not);
    }
}

/// Cuts `bytes` or fills it up with zeros.
// `Vec::resize` writes byte by byte where a test is compiled with few optimizations: half the time
// of the tests whose files are made at their full length.
fn resize(bytes: &mut Vec<u8>, length: usize) {
    const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
    bytes.truncate(length);
    bytes.reserve(length - bytes.len());
    while bytes.len() < length {
        let some = (length - bytes.len()).min(ZEROS.len());
        bytes.extend_from_slice(&ZEROS[..some]);
    }
}

/// Splits `offset..offset + bytes` at sector borders: (sector, start, end) relative to `offset`.
pub(super) fn sectors(offset: usize, bytes: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let first = offset / SECTOR_BYTES;
    let last = (offset + bytes).div_ceil(SECTOR_BYTES);
    (first..last).map(move |sector| {
        let start = (sector * SECTOR_BYTES).max(offset) - offset;
        let end = ((sector + 1) * SECTOR_BYTES).min(offset + bytes) - offset;
        (sector, start, end)
    })
}

/// Number of changes that survive, of `count` changes in order.
pub(super) fn prefix(rng: &mut Rng, count: usize, eagerness: u64) -> usize {
    match eagerness {
        0 => 0,
        8 => count,
        _ if rng.chance(eagerness, 8) => count,
        _ if count > 0 => rng.below(count),
        _ => 0,
    }
}

/// All, nothing, and what lies between: each kind of luck gets its share.
pub(super) fn eagerness(rng: &mut Rng) -> u64 {
    [0, 1, 2, 4, 4, 6, 7, 8][rng.below(8)]
}

/// Number of states that each sector went through, by its number.
#[derive(Default)]
struct States(Vec<u32>);

impl States {
    fn count(&mut self, offset: usize, bytes: usize) {
        let range = offset / SECTOR_BYTES..(offset + bytes).div_ceil(SECTOR_BYTES);
        if self.0.len() < range.end {
            self.0.resize(range.end, 0);
        }
        self.0[range].iter_mut().for_each(|count| *count += 1);
    }

    /// From the number of states of each sector to how many of them are reached.
    fn draw(&mut self, rng: &mut Rng, eagerness: u64) {
        for count in self.0.iter_mut().filter(|count| **count > 0) {
            *count = prefix(rng, *count as usize, eagerness) as u32;
        }
    }

    /// Takes the next state of a sector; false when it is not reached.
    fn take(&mut self, sector: usize) -> bool {
        let left = &mut self.0[sector];
        let reached = *left > 0;
        *left -= u32::from(reached);
        reached
    }
}

/// Writes what lies within the file.
fn put(found: &mut [u8], offset: usize, bytes: &[u8]) {
    let end = found.len().min(offset + bytes.len());
    if offset < end {
        found[offset..end].copy_from_slice(&bytes[..end - offset]);
    }
}

impl Inode {
    /// A new file that has a name.
    pub(super) fn empty() -> Self {
        Self { named: true, ..Self::default() }
    }

    /// A file with a name that holds `bytes`, all of them durable.
    pub(super) fn settled(bytes: Vec<u8>, mut blocks: Vec<bool>) -> Self {
        blocks.resize(bytes.len().div_ceil(BLOCK_BYTES), true);
        let taken = blocks.iter().filter(|&&taken| taken).count();
        let (live, length) = (bytes.clone(), bytes.len());
        Self { live, durable: bytes, length, blocks, taken, ..Self::empty() }
    }

    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    /// The blocks that the file may have after a power cut.
    pub(super) fn blocks_after_a_cut(&self, rng: &mut Rng) -> Vec<bool> {
        let mut blocks = self.blocks.clone();
        for block in self.given_back.iter().filter(|_| rng.chance(1, 2)) {
            if let Some(taken) = blocks.get_mut(*block) {
                *taken = true;
            }
        }
        blocks
    }

    /// The bytes that the machine sees in a range of the file.
    pub(super) fn seen(&self, range: Range<usize>) -> &[u8] {
        &self.live[range]
    }

    /// The bytes that it saw there before the last writes.
    pub(super) fn seen_before(&self, range: Range<usize>) -> Vec<u8> {
        let mut seen = self.live[range.clone()].to_vec();
        for (block, bytes) in self.before.range(block_range(range.start, range.len())) {
            overlay(&mut seen, range.start, &bytes[..], block * BLOCK_BYTES);
        }
        seen
    }

    /// Notes what lies in a range that is about to be written.
    fn keep_before(&mut self, range: Range<usize>) {
        for block in block_range(range.start, range.len()) {
            let begin = block * BLOCK_BYTES;
            let end = (begin + BLOCK_BYTES).min(self.live.len());
            let (from, to) = (range.start.max(begin), range.end.min(end));
            match self.before.entry(block) {
                Entry::Occupied(mut kept) => {
                    let kept = &mut kept.get_mut()[from - begin..to - begin];
                    kept.copy_from_slice(&self.live[from..to]);
                }
                Entry::Vacant(entry) => {
                    entry.insert(block_of(&self.live, block));
                }
            }
        }
    }

    /// Fills `buffer` from `offset`, which the file has.
    pub(super) fn read(&self, offset: usize, buffer: &mut [u8], rng: &mut Rng) {
        buffer.copy_from_slice(self.seen(offset..offset + buffer.len()));
        // A write in flight may have reached some of the sectors.
        for (at, bytes) in self.flying.values() {
            if *at >= offset + buffer.len() || at + bytes.len() <= offset {
                continue;
            }
            for (_, start, end) in sectors(*at, bytes.len()) {
                let from = (at + start).max(offset);
                let to = (at + end).min(offset + buffer.len());
                if from < to && rng.chance(1, 2) {
                    buffer[from - offset..to - offset].copy_from_slice(&bytes[from - at..to - at]);
                }
            }
        }
    }

    /// Writes, as seen, and notes it for the next sync.
    pub(super) fn write(&mut self, offset: usize, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        self.changed += 1;
        self.reach(end);
        self.keep_before(offset..end);
        self.live[offset..end].copy_from_slice(&bytes);
        let first = offset - offset % SECTOR_BYTES;
        let last = end.next_multiple_of(SECTOR_BYTES).min(self.live.len());
        let whole = (first, last) == (offset, end);
        let bytes = if whole { bytes } else { self.live[first..last].to_vec() };
        self.changes.push(Change::Write { offset: first, bytes });
    }

    /// Extends the file to the end of a write.
    pub(super) fn reach(&mut self, end: usize) {
        if end > self.live.len() {
            resize(&mut self.live, end);
        }
        if end > self.length {
            self.length = end;
            self.changes.push(Change::Length { bytes: end, by_write: true });
        }
    }

    pub(super) fn set_len(&mut self, bytes: usize) {
        resize(&mut self.live, bytes);
        drop(self.before.split_off(&bytes.div_ceil(BLOCK_BYTES)));
        if let Some(last) = self.before.get_mut(&(bytes / BLOCK_BYTES)) {
            last[bytes % BLOCK_BYTES..].fill(0);
        }
        self.length = bytes;
        self.changed += 1;
        self.changes.push(Change::Length { bytes, by_write: false });
        self.give_back(bytes.div_ceil(BLOCK_BYTES)..self.blocks.len());
    }

    /// Bytes of the blocks that the file has.
    pub(super) fn taken(&self) -> u64 {
        (self.taken * BLOCK_BYTES) as u64
    }

    /// Bytes of the blocks that a range of the file still needs.
    pub(super) fn missing(&self, offset: usize, bytes: usize) -> u64 {
        let range = block_range(offset, bytes);
        let there = self.blocks.get(range.start..range.end.min(self.blocks.len()));
        let there = there.map_or(0, |blocks| blocks.iter().filter(|&&taken| taken).count());
        ((range.len() - there) * BLOCK_BYTES) as u64
    }

    /// Takes the blocks of a range.
    pub(super) fn take(&mut self, offset: usize, bytes: usize) {
        let range = block_range(offset, bytes);
        self.taken += self.missing(offset, bytes) as usize / BLOCK_BYTES;
        if self.blocks.len() < range.end {
            self.blocks.resize(range.end, false);
        }
        self.blocks[range].fill(true);
    }

    /// Makes a hole: it reads as zero, and the blocks that lie in it whole have no room.
    pub(super) fn punch(&mut self, offset: usize, bytes: usize) {
        let end = (offset + bytes).min(self.live.len());
        if offset < end {
            self.write(offset, vec![0; end - offset]);
        }
        let blocks = offset.div_ceil(BLOCK_BYTES)..(offset + bytes) / BLOCK_BYTES;
        let there = blocks.clone().filter(|block| self.blocks.get(*block) == Some(&true));
        self.given_back.extend(there);
        self.give_back(blocks);
    }

    /// Makes holes of these blocks, as far as the file has them.
    fn give_back(&mut self, blocks: Range<usize>) {
        let end = blocks.end.min(self.blocks.len());
        let range = blocks.start.min(end)..end;
        self.taken -= self.blocks[range.clone()].iter().filter(|&&taken| taken).count();
        self.blocks[range].fill(false);
    }

    /// Notes a write on its way to the device.
    pub(super) fn launch(&mut self, serial: u64, offset: usize, bytes: Vec<u8>) {
        self.flying.insert(serial, (offset, bytes));
    }

    /// The bytes of a write that has arrived.
    pub(super) fn land(&mut self, serial: u64) -> Vec<u8> {
        self.flying.remove(&serial).expect("launched, not landed").1
    }

    /// Makes all changes durable.
    pub(super) fn settle(&mut self) {
        self.given_back.clear();
        for change in self.changes.drain(..) {
            match change {
                Change::Length { bytes, .. } => resize(&mut self.durable, bytes),
                Change::Write { offset, bytes } => put(&mut self.durable, offset, &bytes),
            }
        }
    }

    /// The effect of a failed sync: each sector is stored in some state it went through, and counts
    /// as clean from here on. A length that a write gave may be lost likewise. True if readers see
    /// something now that no later sync alone would store.
    pub(super) fn lose_some(&mut self, rng: &mut Rng) -> bool {
        let eagerness = eagerness(rng);
        let mut states = States::default();
        let mut lengths = 0;
        for change in &self.changes {
            match change {
                Change::Write { offset, bytes } => states.count(*offset, bytes.len()),
                Change::Length { by_write, .. } => lengths += usize::from(*by_write),
            }
        }
        states.draw(rng, eagerness);
        let mut lengths = prefix(rng, lengths, eagerness);
        let mut lost = false;
        self.length = self.durable.len();
        for change in std::mem::take(&mut self.changes) {
            match change {
                Change::Length { by_write: true, .. } if lengths == 0 => lost = true,
                Change::Length { bytes, by_write } => {
                    lengths -= usize::from(by_write);
                    self.length = bytes;
                    self.changes.push(change);
                }
                Change::Write { offset, bytes } => {
                    for (sector, start, end) in sectors(offset, bytes.len()) {
                        if !states.take(sector) {
                            lost = true;
                            continue;
                        }
                        let bytes = bytes[start..end].to_vec();
                        self.changes.push(Change::Write { offset: offset + start, bytes });
                    }
                }
            }
        }
        lost
    }

    /// The contents after a power cut. `eagerness` of 8 cases keep a change.
    pub(super) fn survivor(&self, rng: &mut Rng, eagerness: u64) -> Survivor {
        let mut states = States::default();
        let mut lengths = 0;
        let mut steps: Vec<Step<'_>> = Vec::with_capacity(self.changes.len());
        steps.extend(self.changes.iter().map(|change| match change {
            Change::Length { bytes, .. } => Step::Length(*bytes),
            Change::Write { offset, bytes } => Step::Write(*offset, bytes),
        }));
        let mut length = self.length;
        for (offset, bytes) in self.flying.values() {
            if offset + bytes.len() > length {
                length = offset + bytes.len();
                steps.push(Step::Length(length));
            }
            steps.push(Step::Write(*offset, bytes));
        }
        for step in &steps {
            match step {
                Step::Length(_) => lengths += 1,
                Step::Write(offset, bytes) => states.count(*offset, bytes.len()),
            }
        }
        let mut lengths = prefix(rng, lengths, eagerness);
        states.draw(rng, eagerness);
        let mut found = Survivor { bytes: self.durable.clone(), torn: 0 };
        for step in steps {
            match step {
                Step::Length(length) if lengths > 0 => {
                    lengths -= 1;
                    resize(&mut found.bytes, length);
                }
                Step::Length(_) => {}
                Step::Write(offset, bytes) => found.write(offset, bytes, &mut states),
            }
        }
        found
    }

    /// Flips a bit as seen and as stored, now and after the next sync.
    pub(super) fn flip(&mut self, offset: usize, bit: u8) {
        let byte = self.live[offset] ^ bit;
        self.replace(offset, &[byte]);
    }

    /// Replaces bytes as seen and as stored, now and after the next sync.
    pub(super) fn replace(&mut self, offset: usize, bytes: &[u8]) {
        for block in block_range(offset, bytes.len()) {
            self.before.entry(block).or_insert_with(|| block_of(&self.live, block));
        }
        self.live[offset..offset + bytes.len()].copy_from_slice(bytes);
        overlay(&mut self.durable, 0, bytes, offset);
        for change in &mut self.changes {
            if let Change::Write { offset: at, bytes: written } = change {
                overlay(written, *at, bytes, offset);
            }
        }
    }
}

/// Puts what `bytes` at `at` have in common with `into`, which begins at `begin`, in its place.
fn overlay(into: &mut [u8], begin: usize, bytes: &[u8], at: usize) {
    let (from, to) = (at.max(begin), (at + bytes.len()).min(begin + into.len()));
    if from < to {
        into[from - begin..to - begin].copy_from_slice(&bytes[from - at..to - at]);
    }
}

/// A copy of a block, with zeros behind the end of the file.
fn block_of(bytes: &[u8], block: usize) -> Box<[u8; BLOCK_BYTES]> {
    let begin = block * BLOCK_BYTES;
    let end = (begin + BLOCK_BYTES).min(bytes.len());
    let mut copy = Box::new([0; BLOCK_BYTES]);
    copy[..end - begin].copy_from_slice(&bytes[begin..end]);
    copy
}

fn block_range(offset: usize, bytes: usize) -> Range<usize> {
    offset / BLOCK_BYTES..(offset + bytes).div_ceil(BLOCK_BYTES)
}
