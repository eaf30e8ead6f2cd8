//! Room on disk for one merge: a file without meaning, which a merge makes shorter by what it
//! writes. Format: `docs/formats/README.md`.
//!
//! A merge writes partitions anew before the old ones can go, and these go with the last commit
//! that has them. A full storage that may not merge would stay full: so changes leave room for a
//! merge, and this file has taken it, under a disk bound and on a full device alike. At any time it
//! is as much shorter as the files of a merge under way are long, so that both together take what
//! it took before.

use super::bottom::Room;
use crate::error::{ErrorKind, Result, bail};
use crate::io::{BLOCK_BYTES, File, Medium, OpenMode};
use parking_lot::Mutex;
use std::sync::Arc;

/// It grows in steps of so many bytes, so that not every change makes it longer.
const STEP_BYTES: u64 = 64 << 10;

/// The file's name. It lies where partitions do, and has no number.
pub(super) fn room_name(class: u16) -> String {
    format!("part-{class}-room")
}

/// The file of a class.
#[derive(Debug)]
pub(super) struct MergeRoom {
    shared: Arc<Shared>,
    /// The bytes it took when the merge under way began.
    lent: Option<u64>,
    /// A length was found, and nobody knows whether it has the room.
    is_unsure: bool,
}

/// The room on which a merge draws without the lock of the class.
#[derive(Debug)]
struct Shared {
    name: String,
    /// The last lock to be taken: held while the file is made longer or shorter.
    room: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    file: Option<Arc<dyn File>>,
    bytes: u64,
}

/// The length of a file, if it is there.
fn bytes_of(medium: &dyn Medium, name: &str) -> Result<Option<u64>> {
    match medium.state_of(name) {
        Ok(state) => Ok(Some(state.bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Room for Shared {
    fn draw(&self, bytes: u64) -> Result<()> {
        let mut room = self.room.lock();
        let Some(left) = room.bytes.checked_sub(bytes.next_multiple_of(BLOCK_BYTES)) else {
            let (name, has) = (&self.name, room.bytes);
            bail!(Full, "a merge needs {bytes} bytes more of {name}, which has {has}");
        };
        if let Some(file) = &room.file
            && left < room.bytes
        {
            file.set_len(left)?;
            room.bytes = left;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let file = self.room.lock().file.clone();
        file.map_or(Ok(()), |file| file.sync())
    }
}

impl MergeRoom {
    /// The room of a class of which nothing is written.
    pub(super) fn new(class: u16) -> Self {
        let shared = Shared { name: room_name(class), room: Mutex::default() };
        Self { shared: Arc::new(shared), lent: None, is_unsure: false }
    }

    /// The room that is left from before the store was opened, for a writer. Nothing is changed
    /// before [`make_sure`](Self::make_sure).
    pub(super) fn find(medium: &dyn Medium, class: u16) -> Result<Self> {
        let room = Self::new(class);
        let name = &room.shared.name;
        // A room file in the store's folder is no room for partitions that lie apart.
        let home = medium.apart().map_or(medium, |apart| &**apart);
        let bytes = bytes_of(home, name)?;
        room.shared.room.lock().bytes = bytes.unwrap_or(0).next_multiple_of(BLOCK_BYTES);
        let is_unsure = bytes.is_some() || bytes_of(medium, name)?.is_some();
        Ok(Self { is_unsure, ..room })
    }

    /// Checks the room that was found. A file without room is given up, and so is one on another
    /// device than the partitions.
    pub(super) fn make_sure(&mut self, medium: &dyn Medium) -> Result<()> {
        if !self.is_unsure {
            return Ok(());
        }
        let name = &self.shared.name;
        let room = &mut *self.shared.room.lock();
        if let Some(apart) = medium.apart()
            && bytes_of(&**apart, name)?.is_none()
        {
            medium.remove(name)?;
        } else {
            let file = medium.open(name, OpenMode::ReadWrite)?;
            if room.bytes > 0
                && let Err(error) = file.allocate(0, room.bytes)
            {
                if error.kind() != ErrorKind::Full {
                    return Err(error);
                }
                file.set_len(0)?;
                room.bytes = 0;
            }
            room.file = Some(file);
        }
        self.is_unsure = false;
        Ok(())
    }

    /// Bytes that it takes, with the files of a merge under way.
    pub(super) fn bytes(&self) -> u64 {
        self.lent.unwrap_or_else(|| self.shared.room.lock().bytes)
    }

    /// Bytes by which it has to grow to have `bytes`.
    pub(super) fn growth_for(&self, bytes: u64) -> u64 {
        let has = self.bytes();
        if bytes <= has { 0 } else { (bytes - has).next_multiple_of(STEP_BYTES) }
    }

    /// Makes it longer; `Full` otherwise, and nothing changed.
    pub(super) fn grow(&mut self, medium: &dyn Medium, growth: u64) -> Result<()> {
        if growth == 0 {
            return Ok(());
        }
        let room = &mut *self.shared.room.lock();
        let file = match &room.file {
            Some(file) => file,
            None => room.file.insert(medium.open(&self.shared.name, OpenMode::CreateNew)?),
        };
        file.allocate(room.bytes, growth)?;
        room.bytes += growth;
        if let Some(lent) = &mut self.lent {
            *lent += growth;
        }
        Ok(())
    }

    /// Gives `bytes` of it back, or somewhat less; none while a merge has it.
    pub(super) fn shrink(&mut self, bytes: u64) -> Result<()> {
        let bytes = bytes / BLOCK_BYTES * BLOCK_BYTES;
        if self.lent.is_some() || bytes == 0 {
            return Ok(());
        }
        self.shared.draw(bytes.min(self.bytes()))
    }

    /// Lends it to a merge, until [`take_back`](Self::take_back).
    pub(super) fn lend(&mut self) -> Arc<dyn Room> {
        self.lent = Some(self.bytes());
        Arc::clone(&self.shared) as Arc<dyn Room>
    }

    /// The merge is over. Returns what it took when that began.
    pub(super) fn take_back(&mut self) -> Option<u64> {
        self.lent.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::SimMedium;

    const STEP: u64 = STEP_BYTES;

    fn found(medium: &SimMedium) -> MergeRoom {
        let mut room = MergeRoom::find(medium, 3).unwrap();
        room.make_sure(medium).unwrap();
        room
    }

    #[test]
    fn room_is_taken_of_the_device_and_given_back() {
        let medium = SimMedium::new(1);
        let mut room = found(&medium);
        assert_eq!((room.bytes(), room.growth_for(0), room.growth_for(1)), (0, 0, STEP));
        room.grow(&medium, 2 * STEP).unwrap();
        assert_eq!((room.bytes(), medium.taken_bytes()), (2 * STEP, 2 * STEP));
        assert_eq!((room.growth_for(2 * STEP), room.growth_for(2 * STEP + 1)), (0, STEP));
        room.shrink(STEP + 5).unwrap();
        assert_eq!((room.bytes(), medium.taken_bytes()), (STEP, STEP));
        medium.set_capacity(Some(STEP));
        let error = room.grow(&medium, STEP).unwrap_err();
        assert_eq!((error.kind(), room.bytes()), (ErrorKind::Full, STEP));
    }

    #[test]
    fn what_a_merge_draws_counts_until_it_is_over() {
        let medium = SimMedium::new(2);
        let mut room = found(&medium);
        room.grow(&medium, 2 * STEP).unwrap();
        let lent = room.lend();
        lent.draw(5000).unwrap();
        assert_eq!((room.bytes(), medium.taken_bytes()), (2 * STEP, 2 * STEP - 8192));
        room.shrink(STEP).unwrap();
        room.grow(&medium, STEP).unwrap();
        assert_eq!((room.bytes(), medium.taken_bytes()), (3 * STEP, 3 * STEP - 8192));
        let error = lent.draw(3 * STEP).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert_eq!(room.take_back(), Some(3 * STEP));
        assert_eq!(room.bytes(), 3 * STEP - 8192);
    }

    #[test]
    fn what_is_found_counts_before_it_is_sure_and_goes_where_there_is_no_room() {
        for (has_room, left) in [(true, 2 * STEP), (false, 0)] {
            let medium = SimMedium::new(3);
            let file = medium.open(&room_name(3), OpenMode::CreateNew).unwrap();
            // A length without room, as a crash may leave it.
            file.set_len(2 * STEP).unwrap();
            medium.set_capacity((!has_room).then_some(STEP));
            let mut room = MergeRoom::find(&medium, 3).unwrap();
            assert_eq!((room.bytes(), medium.taken_bytes()), (2 * STEP, 0));
            room.make_sure(&medium).unwrap();
            assert_eq!((room.bytes(), medium.taken_bytes()), (left, left));
        }
    }

    #[test]
    fn room_beside_the_store_goes_once_partitions_lie_apart() {
        let medium = SimMedium::new(4);
        found(&medium).grow(&medium, STEP).unwrap();
        let apart: Arc<dyn Medium> = Arc::new(medium.folder("apart"));
        let own = Arc::new(medium.clone());
        let routed = crate::io::RoutedMedium::new(own, Arc::clone(&apart), "part-", true);
        let mut room = MergeRoom::find(&routed, 3).unwrap();
        assert_eq!((room.bytes(), medium.taken_bytes()), (0, STEP));
        room.make_sure(&routed).unwrap();
        assert_eq!((room.bytes(), medium.taken_bytes()), (0, 0));
        room.grow(&routed, STEP).unwrap();
        assert_eq!(apart.list("").unwrap(), [room_name(3)]);
    }
}
