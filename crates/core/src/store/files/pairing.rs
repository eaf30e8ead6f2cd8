//! A store and its cold directory: a small file in each says which the other one is.
//!
//! Format: `docs/formats/cold-directory.md`. Both are replaced as a whole and durable before the
//! first partition is written.

use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::{Medium, OpenMode};
use crate::store::has_file;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// The file of a store: where its cold directory is.
pub(in crate::store) const NAME: &str = "cold";
/// The file of a cold directory: which store it is of.
pub(in crate::store) const MARKER: &str = "embedrock-cold";
/// Suffix of a file's name until it is whole.
const NEW: &str = ".new";
const MAGIC: [u8; 8] = *b"ERCOLDIR";
const VERSION: u32 = 1;
/// In front of the body.
const HEAD_BYTES: usize = 16;
const SUM_BYTES: usize = 8;
/// Far above what a path takes.
const BYTES_MAX: u64 = 64 << 10;

/// The tie between a store and a cold directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct Pairing {
    /// The store, by its superblock.
    pub(in crate::store) store: u128,
    /// Tells this cold directory from others that the store has had.
    pub(in crate::store) id: u128,
    /// The last known path of the other one of the two.
    pub(in crate::store) path: String,
}

impl Pairing {
    /// The pairing in the file of this name; `None` where there is no such file.
    pub(in crate::store) fn read(medium: &dyn Medium, name: &str) -> Result<Option<Self>> {
        let file = match medium.open(name, OpenMode::ReadOnly) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let bytes = file.len()?;
        if bytes > BYTES_MAX {
            bail!(Corrupt, "{name} has {bytes} bytes, expected {BYTES_MAX} at most");
        }
        let mut text = vec![0; bytes as usize];
        file.read_at(&mut text, 0)?;
        Self::decode(&text).map(Some).map_err(|error| error.context(name))
    }

    /// Puts the pairing into the file of this name, durably; until then it has what it had.
    pub(in crate::store) fn write(&self, medium: &dyn Medium, name: &str) -> Result<()> {
        let new = format!("{name}{NEW}");
        if has_file(medium, &new)? {
            medium.remove(&new)?;
        }
        let file = medium.open(&new, OpenMode::CreateNew)?;
        file.write_at(&self.encode(), 0)?;
        file.sync()?;
        medium.rename(&new, name)?;
        medium.sync_dir()
    }

    fn encode(&self) -> Vec<u8> {
        let body = serde_json::to_vec(self).expect("a pairing is plain data");
        let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len() + SUM_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&body);
        let sum = xxh3_64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = |what: &str| {
            let way_out = "restore it from a copy, or remove it and open with cold_directory=";
            Error::new(ErrorKind::Corrupt, format!("{what}; {way_out}"))
        };
        let parts = bytes.split_last_chunk::<SUM_BYTES>();
        let Some((checked, sum)) = parts.filter(|(checked, _)| checked.len() >= HEAD_BYTES) else {
            return Err(damaged(&format!("{} bytes are too few", bytes.len())));
        };
        if checked[..8] != MAGIC || u64::from_le_bytes(*sum) != xxh3_64(checked) {
            return Err(damaged("magic or checksum do not match"));
        }
        let word =
            |at: usize| checked[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        let (version, length, body) = (word(8), word(12), &checked[HEAD_BYTES..]);
        if version != VERSION {
            bail!(
                Unsupported,
                "version {version}, this build reads {VERSION}; use a newer embedrock"
            );
        }
        if length as usize != body.len() {
            return Err(damaged(&format!("{length} bytes of JSON, there are {}", body.len())));
        }
        serde_json::from_slice(body).map_err(|error| damaged(&format!("its JSON: {error}")))
    }
}

/// Whether a cold directory that was never finished may have a file of this name.
pub(in crate::store) fn is_begun_marker(name: &str) -> bool {
    name.strip_suffix(NEW) == Some(MARKER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::SimMedium;

    fn pairing() -> Pairing {
        Pairing { store: u128::MAX - 5, id: 7, path: "/mnt/hdd/ïtems \"cold\"".to_owned() }
    }

    /// A file with this body and a sound checksum.
    fn sound(version: u32, length: u32, body: &[u8]) -> Vec<u8> {
        let head = [&MAGIC[..], &version.to_le_bytes(), &length.to_le_bytes(), body].concat();
        [&head[..], &xxh3_64(&head).to_le_bytes()].concat()
    }

    #[test]
    fn a_pairing_is_read_as_it_was_written_and_replaced_as_a_whole() {
        for seed in 0..60 {
            let medium = SimMedium::new(seed);
            assert_eq!(Pairing::read(&medium, NAME).unwrap(), None);
            pairing().write(&medium, NAME).unwrap();
            let moved = Pairing { path: "/elsewhere".to_owned(), ..pairing() };
            medium.power_cut_after(medium.counters().operations + seed % 6);
            let done = moved.write(&medium, NAME).is_ok();
            let survivor = medium.reboot(seed);
            let found = Pairing::read(&survivor, NAME).unwrap().unwrap();
            assert!(found == moved || !done && found == pairing(), "seed {seed}: {found:?}");
            // A file that was cut off does not hinder the next write.
            moved.write(&survivor, NAME).unwrap();
            assert_eq!(Pairing::read(&survivor, NAME).unwrap(), Some(moved));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_damage() {
        let whole = pairing().encode();
        assert_eq!(Pairing::decode(&whole).unwrap(), pairing());
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = Pairing::decode(&flipped).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "bit {bit}: {error}");
        }
        for cut in 0..whole.len() {
            assert_eq!(Pairing::decode(&whole[..cut]).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn nonsense_with_a_sound_checksum_is_refused() {
        let body = serde_json::to_vec(&pairing()).unwrap();
        let length = body.len() as u32;
        assert_eq!(Pairing::decode(&sound(VERSION, length, &body)).unwrap(), pairing());
        let newer = Pairing::decode(&sound(VERSION + 1, length, b"what comes")).unwrap_err();
        assert_eq!(newer.kind(), ErrorKind::Unsupported, "{newer}");
        let cases: [(u32, &[u8]); 5] = [
            (u32::MAX, &body),
            (length - 1, &body),
            (2, b"{}"),
            (0, b""),
            (4, &[0xff, 0, 0xfe, b'{']),
        ];
        for (length, body) in cases {
            let error = Pairing::decode(&sound(VERSION, length, body)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
    }
}
