//! The layout of a region, its header, and opening one.
//!
//! Opening reads the header, counts the opening up, and finishes the few changes of several words
//! that were under way (`redo.rs`). It looks at no bucket and no row, whatever the region's size,
//! unless the region is of version 1 and has no checks yet (`upgrade.rs`).
//! The bytes are drawn in `docs/formats/pmem-region.md`.

use crate::bucket::{self, BUCKET_WORDS, SLOTS};
use crate::error::{Error, ErrorKind, Result};
use crate::medium::{Medium, WORD_BYTES};
use crate::redo;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Words before a row: its key and its checksum.
pub(crate) const ROW_HEAD_WORDS: usize = 2;
/// Share of the slots that a full region uses: the paper's load factor.
pub(crate) const LOAD: f64 = 0.8;
/// The largest row, optimizer state included.
const ROW_BYTES_MAX: usize = 1 << 20;
/// Rows that share fences, and their bytes.
const PUT_ROWS: usize = 512;
const PUT_BYTES: usize = 16 << 20;
/// Slot numbers of rows have so many bits.
const ROWS_MAX: u64 = 1 << 40;

const MAGIC: u64 = u64::from_le_bytes(*b"ERPMREGN");
/// Buckets have checks.
pub(crate) const VERSION: u64 = 2;
const VERSION_WITHOUT_CHECKS: u64 = 1;
const HEADER_WORDS: usize = 512;
/// Words that the checksum behind them covers.
const CHECKED_WORDS: usize = 7;
const CHECKSUM_WORD: usize = CHECKED_WORDS;
/// In another cache line than the rest, which never changes.
const OPENING_WORD: usize = 8;
/// The number of rows when the region was closed, and a check of that and of the opening.
pub(crate) const ROWS_WORD: usize = 9;
/// Upper bound of the number of rows.
pub(crate) const ROWS_MOST_WORD: usize = 11;
pub(crate) const HINT_WORD: usize = 12;
/// Says that every bucket has its check: the header's checksum with another seed; 0 until then.
const CHECKS_WORD: usize = 13;
/// The mark up to which its owner has counted, with a check.
const MARK_WORD: usize = 14;
const MARK_SEED: u64 = u64::from_le_bytes(*b"ERPMMARK");
/// Larger than every mark of an owner that counts: older than nothing.
pub(crate) const MARK_MAX: u64 = (1 << ROWS_BITS) - 1;
const CHECKS_SEED: u64 = u64::from_le_bytes(*b"ERPMCHKS");
/// Bits for that number of rows, below its check.
const ROWS_BITS: u32 = 44;
/// The owner of the region: two words, and a check of them.
const OWNER_WORD: usize = 16;
const OWNER_SEED: u64 = u64::from_le_bytes(*b"ERPMOWNR");
const ROWS_SEED: u64 = u64::from_le_bytes(*b"ERPMCLSD");
const CHECKSUM_SEED: u64 = MAGIC;

/// The sizes of a region, fixed for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Rows that may be stored.
    pub capacity: u64,
    /// Bytes of a row; 0 for an index alone.
    pub row_bytes: usize,
    /// Buckets of 14 keys each; a prime, so that every probing step visits all of them.
    pub(crate) buckets: u64,
    /// Places for rows: more than `capacity`, because a changed row is written beside the old one.
    pub(crate) row_slots: u64,
    /// Hides the places of keys from clients that choose their keys.
    pub(crate) salt: u64,
}

impl Geometry {
    /// For `capacity` rows of `row_bytes` bytes, 4 at least.
    ///
    /// # Errors
    /// `Misuse` where one of them is 0 or too large.
    pub fn new(capacity: u64, row_bytes: usize) -> Result<Self> {
        if row_bytes == 0 || row_bytes > ROW_BYTES_MAX {
            return Err(Error::misuse(format!(
                "rows of {row_bytes} bytes; a region has rows of 1 to {ROW_BYTES_MAX}"
            )));
        }
        let index = Self::of_index(capacity)?;
        let row_slots = capacity + Self::reserve(capacity, row_bytes);
        if row_slots >= ROWS_MAX {
            return Err(Error::misuse(format!(
                "a capacity of {capacity} rows takes {row_slots} row slots; a region has up to {}",
                ROWS_MAX - 1
            )));
        }
        Ok(Self { row_bytes, row_slots, ..index })
    }

    /// For an index alone, of `capacity` keys.
    ///
    /// # Errors
    /// `Misuse` where it is 0 or too large.
    pub fn of_index(capacity: u64) -> Result<Self> {
        if capacity == 0 || capacity >= ROWS_MAX {
            return Err(Error::misuse(format!(
                "a capacity of {capacity} rows; a region has 1 to {}",
                ROWS_MAX - 1
            )));
        }
        let buckets = (capacity as f64 / (SLOTS as f64 * LOAD)).ceil() as u64;
        let salt = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), capacity);
        Ok(Self { capacity, row_bytes: 0, buckets: next_prime(buckets.max(3)), row_slots: 0, salt })
    }

    /// Row slots beyond the capacity: those of updates that are under way, and of rows that readers
    /// still hold. A thirty-second, and enough for a few batches.
    pub(crate) fn reserve(capacity: u64, row_bytes: usize) -> u64 {
        (capacity / 32).max(4 * Self::put_rows(row_bytes) as u64)
    }

    /// Rows that share two fences: as many as a request has, and few against the reserve of slots;
    /// of wide rows fewer, so that the reserve stays below 64 MiB.
    pub(crate) fn put_rows(row_bytes: usize) -> usize {
        (PUT_BYTES / row_bytes.max(1)).clamp(1, PUT_ROWS)
    }

    pub(crate) fn row_words(&self) -> usize {
        ROW_HEAD_WORDS + self.row_bytes.div_ceil(WORD_BYTES)
    }

    /// The first word of a bucket.
    #[inline(always)]
    pub(crate) fn bucket_word(&self, bucket: u64) -> usize {
        HEADER_WORDS + redo::AREA_WORDS + bucket as usize * BUCKET_WORDS
    }

    /// The bucket that a word of the index lies in.
    pub(crate) fn bucket_of_word(&self, word: usize) -> u64 {
        ((word - self.bucket_word(0)) / BUCKET_WORDS) as u64
    }

    pub(crate) fn index_words(&self) -> Range<usize> {
        self.bucket_word(0)..self.bucket_word(self.buckets)
    }

    /// The first word of a row slot, where the row's key is.
    #[inline(always)]
    pub(crate) fn row_word(&self, slot: u64) -> usize {
        self.rows_start() + slot as usize * self.row_words()
    }

    fn rows_start(&self) -> usize {
        self.bucket_word(self.buckets).next_multiple_of(HEADER_WORDS)
    }

    /// Bytes of a region with these sizes.
    pub fn bytes(&self) -> usize {
        self.row_word(self.row_slots) * WORD_BYTES
    }

    fn header(&self, version: u64) -> [u64; CHECKED_WORDS] {
        let Self { capacity, row_bytes, buckets, row_slots, salt } = *self;
        [MAGIC, version, capacity, row_bytes as u64, buckets, row_slots, salt]
    }

    /// The value of the word that marks that every bucket has its check.
    fn checks_word(&self) -> u64 {
        check_of(&self.header(VERSION), CHECKS_SEED).max(1)
    }

    /// The sizes, and whether every bucket has its check.
    fn read(medium: &impl Medium) -> Result<(Self, bool)> {
        let name = medium.name();
        if medium.words() < HEADER_WORDS {
            return Err(Error::corrupt(format!("{name} is shorter than the header of a region")));
        }
        let header: [u64; CHECKED_WORDS] = std::array::from_fn(|word| medium.load(word));
        let [magic, version, capacity, row_bytes, buckets, row_slots, salt] = header;
        // It is stored last, when all else is durable.
        if magic == 0 {
            return Err(Error::corrupt(format!(
                "{name} has no header: its creation was cut off; delete it"
            )));
        }
        if magic != MAGIC {
            return Err(Error::corrupt(format!("{name} is no region: its magic is {magic:#018x}")));
        }
        if version > VERSION {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{name} has version {version}, this build reads up to {VERSION}"),
            ));
        }
        let row_bytes = row_bytes as usize;
        let geometry = Self { capacity, row_bytes, buckets, row_slots, salt };
        let (found, expected) = (medium.load(CHECKSUM_WORD), checksum(&header));
        let checks = medium.load(CHECKS_WORD);
        // A power cut may leave version and checksum of two versions, before there are checks.
        let versions = [VERSION_WITHOUT_CHECKS, VERSION];
        let between = checks == 0
            && versions.contains(&version)
            && versions.iter().any(|version| found == checksum(&geometry.header(*version)));
        if found != expected && !between {
            return Err(Error::corrupt(format!(
                "header of {name}: checksum is {found:#018x}, of its bytes {expected:#018x}"
            )));
        }
        let has_checks = checks != 0;
        if has_checks && (version != VERSION || checks != geometry.checks_word()) {
            return Err(Error::corrupt(format!(
                "header of {name}: the word that says that buckets have checks is {checks:#018x}"
            )));
        }
        if geometry.bytes() > medium.words() * WORD_BYTES {
            return Err(Error::corrupt(format!(
                "{name} has {} bytes, its header tells of {}",
                medium.words() * WORD_BYTES,
                geometry.bytes()
            )));
        }
        Ok((geometry, has_checks))
    }
}

/// A medium with the layout of a region, opened.
pub(crate) struct Region<M> {
    pub(crate) medium: M,
    pub(crate) geometry: Geometry,
    /// Tells locks of this opening from those that a dead process left.
    pub(crate) opening: u32,
    /// There were at most so many rows when it was opened, if that is known.
    pub(crate) rows_at_most: Option<u64>,
    pub(crate) lanes: redo::Lanes,
    pub(crate) stores: redo::Stores,
    /// Whether every bucket has its check. Without, the region is read and not changed.
    has_checks: AtomicBool,
    /// Rows that the opening before counted when it ended.
    pub(crate) closed_rows: Option<u64>,
    failed: AtomicBool,
}

impl<M: Medium> Region<M> {
    /// Makes a region in zeroed memory. The header is written last.
    pub(crate) fn format(medium: M, geometry: Geometry) -> Result<Self> {
        let (bytes, needed) = (medium.words() * WORD_BYTES, geometry.bytes());
        if bytes < needed {
            let name = medium.name();
            return Err(Error::misuse(format!(
                "{name} has {bytes} bytes, the region needs {needed}"
            )));
        }
        let header = geometry.header(VERSION);
        for (word, value) in header.iter().enumerate().skip(1) {
            medium.store(word, *value);
        }
        for bucket in 0..geometry.buckets {
            let check = bucket::check_of(&[0; bucket::CHECKED_WORDS], bucket, geometry.salt);
            medium.store(geometry.bucket_word(bucket) + bucket::CHECK, check);
        }
        medium.flush(geometry.index_words());
        medium.store(CHECKS_WORD, geometry.checks_word());
        medium.store(MARK_WORD, mark_word(0));
        medium.store(CHECKSUM_WORD, checksum(&header));
        medium.store(OPENING_WORD, opening_word(1));
        medium.store(ROWS_MOST_WORD, rows_word(0, 1));
        medium.flush(0..MARK_WORD + 1);
        medium.fence()?;
        medium.store(0, header[0]);
        medium.flush(0..1);
        medium.fence()?;
        let of_this = Self::of(medium, geometry, 1, true);
        Ok(Self { closed_rows: Some(0), rows_at_most: Some(0), ..of_this })
    }

    /// Opens a region, and finishes the changes that were under way.
    pub(crate) fn open(medium: M) -> Result<Self> {
        let (geometry, has_checks) = Geometry::read(&medium)?;
        let word = medium.load(OPENING_WORD);
        let last = word as u32;
        if word != opening_word(last) {
            return Err(Error::corrupt(format!(
                "{}: the number of its opening is damaged ({word:#018x})",
                medium.name()
            )));
        }
        redo::replay(&medium, geometry.index_words())?;
        let (rows, check) = (medium.load(ROWS_WORD), medium.load(ROWS_WORD + 1));
        let closed_rows = (check == check_of(&[rows, word], ROWS_SEED)).then_some(rows);
        let opening = last.wrapping_add(1).max(1);
        let most = medium.load(ROWS_MOST_WORD);
        let rows = most & ((1 << ROWS_BITS) - 1);
        let rows_at_most = (most == rows_word(rows, last)).then_some(rows);
        medium.store(ROWS_MOST_WORD, rows_at_most.map_or(0, |rows| rows_word(rows, opening)));
        medium.store(OPENING_WORD, opening_word(opening));
        medium.flush(OPENING_WORD..ROWS_MOST_WORD + 1);
        medium.fence()?;
        Ok(Self { closed_rows, rows_at_most, ..Self::of(medium, geometry, opening, has_checks) })
    }

    fn of(medium: M, geometry: Geometry, opening: u32, has_checks: bool) -> Self {
        Self {
            medium,
            geometry,
            opening,
            rows_at_most: None,
            lanes: redo::Lanes::default(),
            stores: redo::Stores::default(),
            has_checks: AtomicBool::new(has_checks),
            closed_rows: None,
            failed: AtomicBool::new(false),
        }
    }

    /// Whether every bucket has its check.
    #[inline(always)]
    pub(crate) fn has_checks(&self) -> bool {
        self.has_checks.load(Ordering::Relaxed)
    }

    /// Says that checks are about to be made, so that builds that know none refuse the region.
    pub(crate) fn begin_checks(&self) -> Result<()> {
        let header = self.geometry.header(VERSION);
        self.medium.store(1, VERSION);
        self.medium.store(CHECKSUM_WORD, checksum(&header));
        self.medium.store(MARK_WORD, mark_word(0));
        self.medium.flush(0..MARK_WORD + 1);
        self.fence()
    }

    /// Says that every bucket has its check, durably.
    pub(crate) fn end_checks(&self) -> Result<()> {
        self.fence()?;
        self.medium.store(CHECKS_WORD, self.geometry.checks_word());
        self.medium.flush(CHECKS_WORD..CHECKS_WORD + 1);
        self.fence()?;
        self.has_checks.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Notes up to where its owner has counted, durably.
    pub(crate) fn set_mark(&self, mark: u64) -> Result<()> {
        self.writable()?;
        self.medium.store(MARK_WORD, mark_word(mark.min(MARK_MAX)));
        self.medium.flush(MARK_WORD..MARK_WORD + 1);
        self.fence()
    }

    /// The mark of its owner; 0 in a region that is older than marks.
    pub(crate) fn mark(&self) -> Result<u64> {
        let word = self.medium.load(MARK_WORD);
        let mark = word & MARK_MAX;
        if word != mark_word(mark) && (word != 0 || self.has_checks()) {
            let name = self.medium.name();
            return Err(Error::corrupt(format!(
                "{name}: the number of its last commit is damaged ({word:#018x})"
            )));
        }
        Ok(mark)
    }

    /// Notes how many rows there are, for the next opening: nothing is changed from here on.
    pub(crate) fn note_rows(&self, rows: u64) -> Result<()> {
        self.writable()?;
        self.store_checked(ROWS_WORD, &[rows], &[rows, opening_word(self.opening)], ROWS_SEED)
    }

    /// Says whose region it is.
    pub(crate) fn bind(&self, owner: [u64; 2]) -> Result<()> {
        self.writable()?;
        self.store_checked(OWNER_WORD, &owner, &owner, OWNER_SEED)
    }

    /// The owner of the region; `None` if none was set.
    pub(crate) fn owner(&self) -> Result<Option<[u64; 2]>> {
        let [first, second, check] = [0, 1, 2].map(|at| self.medium.load(OWNER_WORD + at));
        if [first, second, check] == [0; 3] {
            return Ok(None);
        }
        if check != check_of(&[first, second], OWNER_SEED) {
            let name = self.medium.name();
            return Err(Error::corrupt(format!("{name}: what says whose region it is is damaged")));
        }
        Ok(Some([first, second]))
    }

    /// Stores words from `word` on, and behind them a check of `checked`, durably.
    fn store_checked(&self, word: usize, words: &[u64], checked: &[u64], seed: u64) -> Result<()> {
        for (at, value) in words.iter().enumerate() {
            self.medium.store(word + at, *value);
        }
        self.medium.store(word + words.len(), check_of(checked, seed));
        self.medium.flush(word..word + words.len() + 1);
        self.fence()
    }

    /// Makes durable that there are at most so many rows, which the next opening is told.
    pub(crate) fn claim_rows(&self, rows: u64) -> Result<()> {
        self.medium.store(ROWS_MOST_WORD, rows_word(rows, self.opening));
        self.medium.flush(ROWS_MOST_WORD..ROWS_MOST_WORD + 1);
        self.fence()
    }

    /// The place where free row slots were found last, in any opening; any number if damaged.
    pub(crate) fn hint(&self) -> u64 {
        self.medium.load(HINT_WORD)
    }

    /// Changes the hint. Durable with the next fence, and right or wrong without harm.
    pub(crate) fn set_hint(&self, hint: u64) {
        self.medium.store(HINT_WORD, hint);
        self.medium.flush(HINT_WORD..HINT_WORD + 1);
    }

    /// As [`Medium::fence`]; once it has failed, [`writable`](Self::writable) says no.
    pub(crate) fn fence(&self) -> Result<()> {
        self.medium.fence().inspect_err(|_| self.failed.store(true, Ordering::Release))
    }

    pub(crate) fn writable(&self) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            if self.has_checks() {
                return Ok(());
            }
            return Err(Error::misuse(format!(
                "{} was opened to be read, and its version has no checks; open it to write",
                self.medium.name()
            )));
        }
        Err(Error::new(
            ErrorKind::Io,
            format!("{} takes no changes since a sync failed; open it again", self.medium.name()),
        ))
    }
}

fn check_of(words: &[u64], seed: u64) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    xxh3_64_with_seed(&bytes, seed)
}

/// The number in the lower half, a check of it in the upper: a word is never half written.
fn opening_word(opening: u32) -> u64 {
    let check = xxh3_64_with_seed(&opening.to_le_bytes(), CHECKSUM_SEED) << 32;
    check | u64::from(opening)
}

/// The number in the lower bits, a check of it and of the opening above. A build that does not know
/// this word opens a region without renewing it: the number is then of another opening.
fn rows_word(rows: u64, opening: u32) -> u64 {
    let check = xxh3_64_with_seed(&rows.to_le_bytes(), CHECKSUM_SEED ^ u64::from(opening));
    (check >> ROWS_BITS).max(1) << ROWS_BITS | rows
}

/// A mark in the lower bits, a check of it above.
fn mark_word(mark: u64) -> u64 {
    (check_of(&[mark], MARK_SEED) >> ROWS_BITS).max(1) << ROWS_BITS | mark
}

fn checksum(header: &[u64; CHECKED_WORDS]) -> u64 {
    check_of(header, CHECKSUM_SEED)
}

/// Makes the header of an image that of version 1.
#[cfg(test)]
pub(crate) fn header_of_version_1(geometry: &Geometry, image: &mut [u64]) {
    let header = geometry.header(VERSION_WITHOUT_CHECKS);
    image[1] = VERSION_WITHOUT_CHECKS;
    image[CHECKSUM_WORD] = checksum(&header);
    image[CHECKS_WORD] = 0;
    image[MARK_WORD] = 0;
}

fn next_prime(from: u64) -> u64 {
    let prime = |n: &u64| {
        *n > 2
            && n % 2 == 1
            && (3..).step_by(2).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d))
    };
    (from..).find(prime).expect("there is a prime above every number")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Mapped;

    fn made(path: &std::path::Path) -> Region<Mapped> {
        let geometry = Geometry::new(1000, 20).expect("geometry");
        let medium = Mapped::create(path, geometry.bytes()).expect("create");
        Region::format(medium, geometry).expect("format")
    }

    #[test]
    fn sizes_are_within_bounds_and_parts_do_not_overlap() {
        let geometry = Geometry::new(1000, 20).expect("geometry");
        assert_eq!(geometry.buckets, 97);
        assert_eq!(geometry.row_words(), 5);
        assert_eq!(geometry.row_slots, 1000 + 2048);
        assert_eq!(geometry.index_words().end, geometry.bucket_word(0) + 97 * 32);
        assert!(geometry.row_word(0) >= geometry.index_words().end);
        assert_eq!(geometry.row_word(0) % 512, 0);
        for (capacity, row_bytes) in [(0, 4), (1 << 40, 4), (1, 0), (1, (1 << 20) + 1)] {
            let error = Geometry::new(capacity, row_bytes).expect_err("out of bounds");
            assert_eq!(error.kind(), ErrorKind::Misuse);
        }
        assert_eq!((next_prime(3), next_prime(4), next_prime(90)), (3, 5, 97));
    }

    #[test]
    fn each_opening_has_a_number_of_its_own_and_the_sizes_of_before() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("region");
        let geometry = made(&path).geometry;
        for opening in 2..5 {
            let region = Region::open(Mapped::open(&path).expect("map")).expect("open");
            assert_eq!((region.geometry, region.opening), (geometry, opening));
        }
    }

    #[test]
    fn bytes_are_where_the_page_on_formats_draws_them() {
        // Homes and fingerprints were computed from that page alone.
        let keys = [1, 6, 14, 19, 21, 29, 31, 32, 34, 35, 36, 37, 42, 45, 58];
        let geometry =
            Geometry { capacity: 30, row_bytes: 20, buckets: 3, row_slots: 38, salt: 77 };
        let medium = Mapped::anonymous(geometry.bytes()).expect("memory");
        let rows = crate::Rows::format(medium, geometry).expect("format");
        let medium = rows.medium();
        let word = |byte: usize| medium.load(byte / 8);
        let header = [0, 8, 16, 24, 32, 40, 48].map(word);
        assert_eq!(header, [u64::from_le_bytes(*b"ERPMREGN"), 2, 30, 20, 3, 38, 77]);
        assert_eq!(word(64) as u32, 1, "opening");
        rows.put(&keys[..1], &[7; 20]).expect("put");
        assert_eq!(
            word(8 * ROWS_MOST_WORD) % (1 << 44),
            2,
            "at most so many rows: one, and one ahead"
        );
        // The lane has been cleared, what it did is still there.
        let bucket = 135_168;
        assert_eq!([4096, 4104].map(word), [0, 4]);
        assert_eq!([4112, 4120].map(word), [(bucket + 32) / 8, keys[0]]);
        let bucket = bucket as usize;
        assert_eq!((redo::AREA_WORDS, redo::ENTRIES_MAX), (16 * 1024, 511));
        assert_eq!(word(bucket), 1 | 1 << 32, "opening and version");
        {
            let _held = rows.index.lock(0);
            assert_eq!(word(bucket), 1 | 1 << 32 | 1 << 63, "locked");
        }
        assert_eq!(word(bucket + 8), 0xf6, "fingerprint");
        assert_eq!(word(bucket + 32), keys[0]);
        assert_eq!(word(bucket + 40) % (1 << 41), 1 << 40, "row slot 0, with a check of the row");
        let check: Vec<u8> = [8, 16]
            .into_iter()
            .chain((32..256).step_by(16))
            .flat_map(|at| word(bucket + at).to_le_bytes())
            .collect();
        let seed = u64::from_le_bytes(*b"ERPMBCKT") ^ bucket::mix(77);
        assert_eq!(word(bucket + 24), xxh3_64_with_seed(&check, seed), "check of bucket 0");
        // Row slots begin at a multiple of 4,096 and have 5 words.
        assert_eq!(word(139_264), keys[0]);
        assert_ne!(word(139_272), 0, "checksum");
        let filled = [0x0707_0707_0707_0707, 0x0707_0707_0707_0707, 0x0707_0707];
        assert_eq!([139_280, 139_288, 139_296].map(word), filled);
        rows.put(&keys[1..], &[9; 14 * 20]).expect("put");
        assert_eq!(word(139_304), keys[1]);
        assert_eq!(word(bucket + 16) >> 48, 1, "the last key found its home full");
        assert_eq!(word(bucket + 256 + 32), keys[14]);
    }

    #[test]
    fn the_owner_and_the_rows_at_the_end_are_known_to_the_next_opening_alone() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("region");
        let region = made(&path);
        assert_eq!(region.owner().expect("owner"), None);
        region.bind([7, 3]).expect("bind");
        region.note_rows(41).expect("rows");
        drop(region);
        let open = || Region::open(Mapped::open(&path).expect("map")).expect("open");
        let region = open();
        assert_eq!(region.owner().expect("owner"), Some([7, 3]));
        assert_eq!(region.closed_rows, Some(41));
        drop(region);
        // It did not say how many it had.
        let region = open();
        assert_eq!(region.closed_rows, None);
        region.medium.store(OWNER_WORD, 8);
        let error = region.owner().expect_err("damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("whose region"), "{error}");
    }

    #[test]
    fn a_damaged_header_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("region");
        drop(made(&path));
        let refused = |word: usize, change: u64| {
            let medium = Mapped::open(&path).expect("map");
            let before = medium.load(word);
            medium.store(word, before ^ change);
            drop(medium);
            let error = Region::open(Mapped::open(&path).expect("map")).err().expect("damaged");
            Mapped::open(&path).expect("map").store(word, before);
            assert!(error.to_string().contains("region"), "{error}");
            error.kind()
        };
        for word in (0..=OPENING_WORD).chain([CHECKS_WORD]) {
            let expected = if word == 1 { ErrorKind::Unsupported } else { ErrorKind::Corrupt };
            assert_eq!(refused(word, 1 << 40), expected, "word {word}");
        }
        assert!(Region::open(Mapped::open(&path).expect("map")).is_ok());
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("file");
        file.set_len(8192).expect("cut");
        let error = Region::open(Mapped::open(&path).expect("map")).err().expect("cut");
        assert!(error.to_string().contains("has 8192 bytes, its header tells of"), "{error}");
    }

    #[test]
    fn a_region_without_header_says_that_its_creation_was_cut_off() {
        let error = Region::open(Mapped::anonymous(8192).expect("memory")).err().expect("empty");
        assert!(error.to_string().contains("cut off; delete it"), "{error}");
        // The magic is stored last: what comes before may be there already.
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("region");
        made(&path).medium.store(0, 0);
        let error = Region::open(Mapped::open(&path).expect("map")).err().expect("no magic");
        assert!(error.to_string().contains("cut off; delete it"), "{error}");
    }
}
