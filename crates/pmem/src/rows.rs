//! Rows of one size by key, durable when a call returns as far as the medium allows.
//!
//! A row is never changed in place. It is written to a free slot with its key and a checksum,
//! flushed and fenced. Then the index publishes it, by one word where the key is known, and a fence
//! ends the call. A batch shares its fences. The old row is free once nobody reads it (`epoch.rs`).
//!
//! A read may return a row whose `put` has not returned yet, and which a power cut undoes.

use crate::check::Checked;
use crate::epoch::Readings;
use crate::error::{Error, Result};
use crate::hash::{ABSENT, PetHash};
use crate::map::Mapped;
use crate::medium::{Durability, Medium};
use crate::region::{Geometry, MARK_MAX, ROW_HEAD_WORDS, Region};
use crate::rehome::Rehomed;
use crate::slab::{Slab, SlabUse};
use crate::slot_word::{self, slot_of};
use crate::{batch::Prefetch, error::ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Keys of one reading: slots that are replaced during it are not used again, so a longer one would
/// hold up writers.
const AT_ONCE: usize = 1024;
/// Number of rows ahead whose memory is prefetched.
pub(crate) const ROWS_AHEAD: usize = 6;
const LINE_WORDS: usize = 8;
/// Number of buckets ahead that a pass asks a disk for.
const BUCKETS_AHEAD: u64 = 2048;
const CHECKSUM_SEED: u64 = u64::from_le_bytes(*b"ERPMROWS");

/// Rows in a region.
///
/// ```
/// use embedrock_pmem::{Geometry, Mapped, Rows};
///
/// # fn main() -> embedrock_pmem::Result<()> {
/// let geometry = Geometry::new(1000, 8)?;
/// let rows = Rows::format(Mapped::anonymous(geometry.bytes())?, geometry)?;
/// rows.put(&[17, 42], b"row of 17"[..8].repeat(2).as_slice())?;
/// let (mut bytes, mut found) = ([0; 16], [false; 2]);
/// assert_eq!(rows.get(&[42, 43], &mut bytes, &mut found)?, 1);
/// assert_eq!((&bytes[..8], found), (&b"row of 1"[..], [true, false]));
/// # Ok(())
/// # }
/// ```
pub struct Rows<M: Medium> {
    region: Arc<Region<M>>,
    pub(crate) index: PetHash<M>,
    pub(crate) slab: Slab,
    pub(crate) readings: Readings,
    /// The bucket where re-homing goes on.
    rehome_next: AtomicU64,
}

impl Rows<Mapped> {
    /// Makes a region in a new file.
    ///
    /// # Errors
    /// `Misuse` where the file exists; `Io`, also where the device has no room for it.
    pub fn create(path: &Path, geometry: Geometry) -> Result<Self> {
        let rows = Self::format(Mapped::create(path, geometry.bytes())?, geometry)?;
        sync_folder(path)?;
        Ok(rows)
    }

    /// Opens the region in a file. Takes the same time whatever its size, unless it is of version
    /// 1: its index gets checks then, once.
    ///
    /// # Errors
    /// `Locked` where another process has it; `Corrupt`; `Unsupported`; `Io`.
    pub fn open(path: &Path) -> Result<Self> {
        Self::recover(Mapped::open(path)?)
    }

    /// As [`open`](Self::open), to read rows: a region of version 1 stays one, and takes no
    /// changes.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_to_read(path: &Path) -> Result<Self> {
        Self::over(Region::open(Mapped::open(path)?)?)
    }
}

impl<M: Medium> Rows<M> {
    /// Makes a region in zeroed memory of [`Geometry::bytes`].
    ///
    /// # Errors
    /// `Misuse` where the memory is too small or the geometry has no rows; `Io`.
    pub fn format(medium: M, geometry: Geometry) -> Result<Self> {
        Self::over(Region::format(medium, geometry)?)
    }

    /// Opens the region that a medium has.
    ///
    /// # Errors
    /// As [`Rows::open`].
    pub fn recover(medium: M) -> Result<Self> {
        let rows = Self::over(Region::open(medium)?)?;
        rows.index.make_checks()?;
        Ok(rows)
    }

    pub(crate) fn over(region: Region<M>) -> Result<Self> {
        if region.geometry.row_bytes == 0 {
            let name = region.medium.name();
            return Err(Error::misuse(format!("{name} is an index without rows")));
        }
        let slab = Slab::new(&region.geometry, region.rows_at_most, region.hint());
        let region = Arc::new(region);
        let index = PetHash::new(Arc::clone(&region));
        let (readings, rehome_next) = (Readings::new(), AtomicU64::new(0));
        Ok(Self { region, index, slab, readings, rehome_next })
    }

    /// The region's sizes.
    pub fn geometry(&self) -> Geometry {
        self.region.geometry
    }

    /// The events that an acknowledged change survives.
    pub fn durability(&self) -> Durability {
        self.region.medium.durability()
    }

    /// Bytes of memory beside the region, fixed when it is opened.
    pub fn memory_bytes(geometry: &Geometry) -> usize {
        Slab::memory_bytes(geometry)
    }

    /// Says durably whose region it is, in words of the owner's choice, not all of them 0.
    ///
    /// # Errors
    /// `Io`, after which the region takes no changes.
    pub fn bind(&self, owner: [u64; 2]) -> Result<()> {
        self.region.bind(owner)
    }

    /// The owner of the region; `None` if none was set.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn owner(&self) -> Result<Option<[u64; 2]>> {
        self.region.owner()
    }

    /// Notes durably up to where the owner has counted: its commits, for one. An owner that has
    /// counted further than a region's mark knows that the region is an older one.
    ///
    /// # Errors
    /// `Io`, after which the region takes no changes.
    pub fn set_mark(&self, mark: u64) -> Result<()> {
        self.region.set_mark(mark)
    }

    /// As [`set_mark`](Self::set_mark), with the largest mark there is: of a region that is older
    /// than nothing.
    ///
    /// # Errors
    /// `Io`.
    pub fn set_mark_to_newest(&self) -> Result<()> {
        self.region.set_mark(MARK_MAX)
    }

    /// The last mark; 0 in a region that has none.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn mark(&self) -> Result<u64> {
        self.region.mark()
    }

    /// Number of rows. Takes no time after an opening that ended with [`end`](Self::end); else it
    /// looks at a cache line for every 14 rows. No thread may have changed the region since it was
    /// opened.
    pub fn count(&self) -> u64 {
        let counted = || {
            let of_bucket = |bucket: u64| {
                if self.region.medium.durability() == Durability::Sync {
                    // Some pages ahead of it.
                    let ahead = (bucket + BUCKETS_AHEAD).min(self.index.buckets() - 1);
                    let word = self.index.word(ahead);
                    self.region.medium.expect(word..word + 1);
                }
                self.index.prints(bucket).occupied().count() as u64
            };
            (0..self.index.buckets()).map(of_bucket).sum()
        };
        self.region.closed_rows.unwrap_or_else(counted)
    }

    /// Notes how many rows there are for [`count`](Self::count) of the next opening. Nothing may be
    /// changed from here on.
    ///
    /// # Errors
    /// `Io`.
    pub fn end(&self, rows: u64) -> Result<()> {
        self.region.note_rows(rows)
    }

    /// Number of calls that ever had to wait for row slots, longer than a moment.
    pub fn pauses(&self) -> u64 {
        self.slab.pauses().1
    }

    /// The use of row slots, as far as it is known.
    pub fn slab_use(&self) -> SlabUse {
        self.slab.used()
    }

    /// Copies the rows of keys: `keys (N,) → rows (N × row bytes)`, and which keys have one.
    /// Returns how many have. Bytes of the others stay as they are. Keys may repeat. Blocks only
    /// on a file that is not in memory.
    ///
    /// # Errors
    /// `Misuse` where lengths do not fit; `Corrupt` where a row is not what was put, naming the
    /// key: other rows of the batch are then copied or not.
    pub fn get(&self, keys: &[u64], rows: &mut [u8], found: &mut [bool]) -> Result<usize> {
        let row_bytes = self.region.geometry.row_bytes;
        self.check_length(keys, rows.len())?;
        if found.len() != keys.len() {
            let (keys, found) = (keys.len(), found.len());
            return Err(Error::misuse(format!("{keys} keys, and room to say of {found} keys")));
        }
        let mut count = 0;
        let portions = keys.chunks(AT_ONCE).zip(rows.chunks_mut(AT_ONCE * row_bytes));
        for ((keys, rows), found) in portions.zip(found.chunks_mut(AT_ONCE)) {
            let _reading = self.readings.begin();
            let slots = self.look_up(keys)?;
            for (at, (row, found)) in rows.chunks_exact_mut(row_bytes).zip(found).enumerate() {
                self.prefetch_row(&slots, at + ROWS_AHEAD);
                *found = slots[at] != ABSENT;
                if *found {
                    self.read(keys[at], slots[at], row)?;
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    /// Hands the row of each key to `each`: its position, the row, and whether there is one; if
    /// not, its bytes mean nothing. `row` is the room for it. Keys may repeat. Blocks as
    /// [`get`](Self::get) does.
    ///
    /// # Errors
    /// As `get`.
    pub fn visit(
        &self,
        keys: &[u64],
        row: &mut [u8],
        mut each: impl FnMut(usize, &mut [u8], bool),
    ) -> Result<()> {
        self.check_length(&[0], row.len())?;
        for (portion, keys) in keys.chunks(AT_ONCE).enumerate() {
            let _reading = self.readings.begin();
            let slots = self.look_up(keys)?;
            for (at, key) in keys.iter().enumerate() {
                self.prefetch_row(&slots, at + ROWS_AHEAD);
                let found = slots[at] != ABSENT;
                if found {
                    self.read(*key, slots[at], row)?;
                }
                each(portion * AT_ONCE + at, row, found);
            }
        }
        Ok(())
    }

    /// Tells for each key whether it has a row: `keys (N,) → found (N,)`. No row is read.
    ///
    /// # Errors
    /// `Misuse` where lengths do not fit; `Corrupt` where a damaged bucket may hide a key.
    pub fn contains(&self, keys: &[u64], found: &mut [bool]) -> Result<()> {
        if found.len() != keys.len() {
            let (keys, found) = (keys.len(), found.len());
            return Err(Error::misuse(format!("{keys} keys, and room to say of {found} keys")));
        }
        let mut slots = vec![ABSENT; keys.len()];
        self.index.get_batch(keys, Prefetch::Staged, &mut slots)?;
        found.iter_mut().zip(slots).for_each(|(found, slot)| *found = slot != ABSENT);
        Ok(())
    }

    /// The slots of keys, all of which are asked for on a medium that is not in memory.
    pub(crate) fn look_up(&self, keys: &[u64]) -> Result<Vec<u64>> {
        let mut slots = vec![ABSENT; keys.len()];
        self.index.get_batch(keys, Prefetch::Staged, &mut slots)?;
        if self.durability() == Durability::Sync {
            for word in slots.iter().filter_map(|slot| self.row_at(*slot)) {
                self.region.medium.expect(word..word + self.region.geometry.row_words());
            }
        }
        Ok(slots)
    }

    /// Asks for the lines of a row that will be read soon.
    #[inline(always)]
    pub(crate) fn prefetch_row(&self, slots: &[u64], at: usize) {
        if let Some(first) = slots.get(at).and_then(|slot| self.row_at(*slot)) {
            let last = first + self.region.geometry.row_words();
            (first..last).step_by(LINE_WORDS).for_each(|w| self.region.medium.prefetch(w));
        }
    }

    /// The first word of the slot that a value of the index names; `None` for [`ABSENT`], and for a
    /// number that is damaged.
    #[inline(always)]
    fn row_at(&self, value: u64) -> Option<usize> {
        let (geometry, slot) = (&self.region.geometry, slot_of(value));
        (slot < geometry.row_slots).then(|| geometry.row_word(slot))
    }

    /// Copies the row of a key, of which the index has this value, and verifies both.
    pub(crate) fn read(&self, key: u64, value: u64, row: &mut [u8]) -> Result<()> {
        let (medium, slot) = (&self.region.medium, slot_of(value));
        let damaged =
            |what: String| Error::corrupt(format!("{}: row of key {key}: {what}", medium.name()));
        let Some(word) = self.row_at(value) else {
            let slots = self.region.geometry.row_slots;
            return Err(damaged(format!("the index names slot {slot}, there are {slots}")));
        };
        let (found, checksum) = (medium.load(word), medium.load(word + 1));
        if found != key {
            return Err(damaged(format!("slot {slot} has a row of key {found}")));
        }
        medium.read(word + ROW_HEAD_WORDS, row);
        if checksum != checksum_of(key, row) {
            return Err(damaged(format!("checksum of slot {slot} does not match")));
        }
        if !self.is_sound(key, value, checksum) {
            return Err(damaged(format!("the index names slot {slot}, whose row is not the last")));
        }
        Ok(())
    }

    /// Stores rows: `keys (N,)`, `rows (N × row bytes)`. Of equal keys the last one stays. Durable
    /// when it returns, as far as [`durability`](Self::durability) says; after a crash during the
    /// call each key has its row of before or the new one.
    ///
    /// # Errors
    /// `Misuse` where lengths do not fit; `Full` before anything is written where new keys do not
    /// fit, for which equal new keys count each; `Io`, after which the region takes no changes.
    pub fn put(&self, keys: &[u64], rows: &[u8]) -> Result<()> {
        self.check_length(keys, rows.len())?;
        self.region.writable()?;
        let mut before = vec![ABSENT; keys.len()];
        self.index.get_batch(keys, Prefetch::Staged, &mut before)?;
        let new_of = |slots: &[u64]| slots.iter().filter(|slot| **slot == ABSENT).count() as u64;
        let mut promised = new_of(&before);
        self.slab.admit(promised, &self.index)?;
        let mut slots = Vec::new();
        let row_bytes = self.region.geometry.row_bytes;
        let together = Geometry::put_rows(row_bytes);
        let parts = keys.chunks(together).zip(before.chunks(together));
        for ((keys, before), rows) in parts.zip(rows.chunks(together * row_bytes)) {
            let new = new_of(before);
            let taken = self.slab.take(&mut slots, keys.len(), new, &self.index, &self.readings);
            let done = taken.and_then(|()| {
                promised -= new;
                self.expect_heads(before);
                let Placed { placed, inserted, replaced, done } = self.put_part(keys, rows, &slots);
                // A failed call gives back what it did not use; after a failed sync nothing is
                // given back, because nobody knows what is durable.
                if !matches!(&done, Err(error) if error.kind() == ErrorKind::Io) {
                    let owed = keys.len() as u64 - new;
                    let grown = inserted as i64 - new as i64;
                    self.slab.give_back(owed, &slots[placed..], replaced, grown, &self.readings);
                }
                done
            });
            if done.is_err() {
                self.slab.dismiss(promised);
                return done;
            }
        }
        Ok(())
    }

    /// Writes and publishes rows.
    pub(crate) fn put_part(&self, keys: &[u64], rows: &[u8], slots: &[u64]) -> Placed {
        let medium = &self.region.medium;
        let (row_bytes, salt) = (self.region.geometry.row_bytes, self.region.geometry.salt);
        let mut values = Vec::with_capacity(keys.len());
        for ((key, slot), row) in keys.iter().zip(slots).zip(rows.chunks_exact(row_bytes)) {
            let (word, checksum) = (self.region.geometry.row_word(*slot), checksum_of(*key, row));
            values.push(slot_word::with_row(*key, *slot, checksum, salt));
            medium.store(word, *key);
            medium.store(word + 1, checksum);
            medium.write(word + ROW_HEAD_WORDS, row);
            medium.flush(word..word + self.region.geometry.row_words());
        }
        let (mut inserted, mut replaced) = (0, Vec::new());
        if let Err(error) = self.region.fence() {
            return Placed { placed: 0, inserted, replaced, done: Err(error) };
        }
        let seen = |key, old| {
            inserted += u64::from(old == ABSENT);
            self.lose(key, old, &mut replaced);
        };
        let (placed, done) = self.index.put_batch(keys, &values, seen);
        Placed { placed, inserted, replaced, done: self.region.fence().and(done) }
    }

    /// Asks for the keys of rows that are about to be replaced, which [`lose`](Self::lose) reads.
    fn expect_heads(&self, slots: &[u64]) {
        for word in slots.iter().filter_map(|slot| self.row_at(*slot)) {
            self.region.medium.expect(word..word + 1);
            self.region.medium.prefetch(word);
        }
    }

    /// Whether the index has this value for a key and a row with this checksum.
    #[inline(always)]
    fn is_sound(&self, key: u64, value: u64, checksum: u64) -> bool {
        let region = &self.region;
        slot_word::is_sound(value, key, checksum, region.geometry.salt)
            || !region.has_checks() && slot_word::has_no_check(value)
    }

    /// Notes the slot that a key had. A number that is none, or whose row is of another key, is
    /// damage: that slot is left alone.
    fn lose(&self, key: u64, value: u64, replaced: &mut Vec<u64>) {
        let (medium, slot) = (&self.region.medium, slot_of(value));
        let Some(word) = self.row_at(value) else { return };
        let is_its = medium.load(word) == key && self.is_sound(key, value, medium.load(word + 1));
        if is_its && self.slab.replace(slot) {
            replaced.push(slot);
        }
    }

    /// Removes rows and returns how many there were. Durable when it returns.
    ///
    /// # Errors
    /// `Io`, after which the region takes no changes.
    pub fn remove(&self, keys: &[u64]) -> Result<usize> {
        self.region.writable()?;
        let mut replaced = Vec::new();
        let mut removed = 0i64;
        let done = self.index.remove_batch(keys, |key, old| {
            self.lose(key, old, &mut replaced);
            removed += 1;
        });
        if let Err(error) = done {
            // After a failed sync nobody knows what is durable.
            if error.kind() != ErrorKind::Io {
                self.slab.give_back(0, &[], replaced, -removed, &self.readings);
            }
            return Err(error);
        }
        self.slab.give_back(0, &[], replaced, -removed, &self.readings);
        Ok(removed as usize)
    }

    /// Moves displaced keys of the next buckets home. A thread calls this now and then; a pass over
    /// all of them takes as many calls as there are buckets, divided by `buckets`.
    ///
    /// # Errors
    /// `Io`, after which the region takes no changes.
    pub fn rehome(&self, buckets: u64) -> Result<Rehomed> {
        let buckets = buckets.min(self.index.buckets());
        let first = self.rehome_next.fetch_add(buckets, Ordering::Relaxed);
        self.index.rehome(first % self.index.buckets(), buckets)
    }

    /// Moves hot keys home, others out of their way. Returns how many are at home.
    ///
    /// # Errors
    /// `Io`, after which the region takes no changes.
    pub fn promote(&self, hot: &[u64]) -> Result<usize> {
        let set: std::collections::HashSet<u64> = hot.iter().copied().collect();
        let at_home = |count, key: &u64| {
            Ok(count + usize::from(self.index.promote(*key, |other| set.contains(&other))?))
        };
        hot.iter().try_fold(0, at_home)
    }

    /// Number of buckets of the index.
    pub fn buckets(&self) -> u64 {
        self.index.buckets()
    }

    /// Appends the keys of a bucket, in a region that others may change meanwhile. A key that came
    /// or went in between is among them or not; one that stays is, unless re-homing moves it.
    ///
    /// # Errors
    /// `Corrupt` where the bucket is damaged, and may hide a key.
    pub fn keys_beside_writers(&self, bucket: u64, keys: &mut Vec<u64>) -> Result<()> {
        let prints = self.index.prints(bucket);
        let medium = &self.region.medium;
        keys.extend(prints.occupied().map(|slot| medium.load(self.index.key_word(bucket, slot))));
        self.region.verify(bucket)
    }

    /// Refuses keys that lie in a bucket where look-ups do not find them. Nobody may change the
    /// region meanwhile.
    ///
    /// # Errors
    /// `Corrupt`, naming one.
    pub fn check_keys(&self, keys: &[u64]) -> Result<()> {
        let missing: std::collections::HashSet<u64> = keys.iter().copied().collect();
        for bucket in (0..self.buckets()).filter(|_| !missing.is_empty()) {
            for slot in self.index.prints(bucket).occupied() {
                let key = self.region.medium.load(self.index.key_word(bucket, slot));
                if missing.contains(&key) {
                    self.index.key_at(bucket, slot)?;
                }
            }
        }
        Ok(())
    }

    /// Reads the index and compares it with itself, and every row with its checksum: at most
    /// `most` findings. `progress` is told of buckets, done and all, and may end it. Nobody may
    /// change the region meanwhile.
    ///
    /// # Errors
    /// The errors of `progress`.
    pub fn check_all<E>(
        &self,
        most: usize,
        mut progress: impl FnMut(u64, u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(u64, Vec<Error>), E> {
        const BUCKETS_PER_REPORT: u64 = 4096;
        let buckets = (0..self.buckets()).filter_map(|bucket| self.region.verify(bucket).err());
        let mut damage: Vec<Error> = buckets.take(most).collect();
        if damage.is_empty() {
            damage.extend(self.index.check().err());
        }
        let (mut row, mut rows) = (vec![0; self.region.geometry.row_bytes], 0);
        for bucket in 0..self.buckets() {
            if bucket % BUCKETS_PER_REPORT == 0 {
                progress(bucket, self.buckets())?;
            }
            for key in self.keys_of_bucket(bucket) {
                let read = key.and_then(|key| self.read(key, self.index.get(key)?, &mut row));
                match read {
                    Ok(()) => rows += 1,
                    Err(error) if damage.len() < most => damage.push(error),
                    Err(_) => {}
                }
            }
        }
        progress(self.buckets(), self.buckets())?;
        Ok((rows, damage))
    }

    /// The keys of a bucket, each where look-ups find it, in a region that nobody changes
    /// meanwhile.
    pub(crate) fn keys_of_bucket(&self, bucket: u64) -> impl Iterator<Item = Result<u64>> {
        let sound = self.region.verify(bucket).err().map(Err);
        let keys =
            self.index.prints(bucket).occupied().map(move |slot| self.index.key_at(bucket, slot));
        sound.into_iter().chain(keys)
    }

    pub(crate) fn medium(&self) -> &M {
        &self.region.medium
    }

    /// Reads the whole region and compares index, rows and checksums. Nobody may change it
    /// meanwhile.
    ///
    /// # Errors
    /// `Corrupt`, naming what is damaged.
    pub fn check(&self) -> Result<Checked> {
        let checked = self.index.check()?;
        let mut row = vec![0; self.region.geometry.row_bytes];
        for key in (0..self.index.buckets()).flat_map(|bucket| self.keys_of_bucket(bucket)) {
            let key = key?;
            self.read(key, self.index.get(key)?, &mut row)?;
        }
        Ok(checked)
    }

    fn check_length(&self, keys: &[u64], bytes: usize) -> Result<()> {
        let row_bytes = self.region.geometry.row_bytes;
        if keys.len().checked_mul(row_bytes) == Some(bytes) {
            return Ok(());
        }
        Err(Error::misuse(format!(
            "{bytes} bytes for {} keys; {} stores rows of {row_bytes}",
            keys.len(),
            self.region.medium.name()
        )))
    }
}

impl<M: Medium> Drop for Rows<M> {
    fn drop(&mut self) {
        if let Some(rows) = self.slab.unclaimed().filter(|_| self.region.writable().is_ok()) {
            // If that fails, the earlier bound still holds.
            let _ = self.region.claim_rows(rows);
        }
    }
}

/// The outcome for rows that were written.
pub(crate) struct Placed {
    /// Rows that are published, from the first on.
    pub(crate) placed: usize,
    /// Number of these rows whose keys had none.
    pub(crate) inserted: u64,
    /// Slots of the rows that the others had.
    pub(crate) replaced: Vec<u64>,
    pub(crate) done: Result<()>,
}

fn checksum_of(key: u64, row: &[u8]) -> u64 {
    xxh3_64_with_seed(row, key ^ CHECKSUM_SEED).max(1)
}

/// Makes the name of a new file durable.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| Error::io(format!("cannot sync {}", folder.display()), error))
}
