//! The header of a row class's file. Pages follow behind the first one, which it takes.
//!
//! Format: `docs/formats/rows-file.md`. The header is durable before the first page is written, and
//! says of which store the file is.

use crate::error::{Result, bail};
use crate::io::File;
use crate::storage::ClassFacts;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"ERROWS\x01\0";
const HEADER_BYTES: usize = 512;
/// The place of the seed in the header, followed by the checksum of the bytes before.
const SEED_AT: usize = 40;
const CHECKSUM_AT: usize = 48;

/// Gives a new file its header, and syncs it.
pub(crate) fn write_header(file: &dyn File, facts: &ClassFacts) -> Result<()> {
    file.allocate(0, HEADER_BYTES as u64)?;
    file.write_at(&header(facts), 0)?;
    file.sync()
}

fn header(facts: &ClassFacts) -> Vec<u8> {
    let ClassFacts { class, row_bytes, page_bytes, segment_bytes, seed, .. } = *facts;
    let mut header = MAGIC.to_vec();
    for word in [u64::from(class), page_bytes as u64, row_bytes as u64, segment_bytes, seed] {
        header.extend_from_slice(&word.to_le_bytes());
    }
    header.extend_from_slice(&xxh3_64(&header).to_le_bytes());
    header.resize(HEADER_BYTES, 0);
    header
}

/// Refuses a file that is not that of this class.
pub(crate) fn check_header(file: &dyn File, facts: &ClassFacts) -> Result<()> {
    if read_header(file)? != header(facts) {
        bail!(
            Corrupt,
            "{}, bytes 0 to {HEADER_BYTES}: not the header of this class; restore from a \
             copy",
            file.name()
        );
    }
    Ok(())
}

fn read_header(file: &dyn File) -> Result<Vec<u8>> {
    let mut header = vec![0; HEADER_BYTES];
    file.read_at(&mut header, 0)?;
    Ok(header)
}

/// The checksum seed of the store that a file of rows belongs to; `None` where its header is not
/// sound, as after a crash in which it was under way.
pub(crate) fn seed_of_file(file: &dyn File) -> Result<Option<u64>> {
    if file.len()? < HEADER_BYTES as u64 {
        return Ok(None);
    }
    let header = read_header(file)?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&header[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let sound = header[..8] == MAGIC && word(CHECKSUM_AT) == xxh3_64(&header[..CHECKSUM_AT]);
    Ok(sound.then(|| word(SEED_AT)))
}
