//! The file of a row class: its name and its header. What follows belongs to `storage/log`.
//!
//! Format: `docs/formats/rows-file.md`. The header is durable before the first page is written, and
//! says of which store the file is.

use crate::error::{Result, bail};
use crate::io::{File, Medium, OpenMode};
use crate::store::has_file;
use crate::store::journal::ClassRecord;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

const PREFIX: &str = "rows-";
const MAGIC: [u8; 8] = *b"ERROWS\x01\0";
const HEADER_BYTES: usize = 512;
/// Where in the header the seed lies, and behind it the checksum of what comes before.
const SEED_AT: usize = 40;
const CHECKSUM_AT: usize = 48;

/// The file of a class's pages.
pub(in crate::store) fn class_file_name(class: u16) -> String {
    format!("{PREFIX}{class}")
}

/// The class of a file; `None` for names that `class_file_name` does not give.
pub(in crate::store) fn class_of(name: &str) -> Option<u16> {
    let class = name.strip_prefix(PREFIX)?.parse().ok()?;
    (class_file_name(class) == name).then_some(class)
}

/// Creates the file of a new class, durable with its name.
pub(in crate::store) fn create_class_file(
    medium: &dyn Medium,
    record: &ClassRecord,
    seed: u64,
) -> Result<Arc<dyn File>> {
    let name = class_file_name(record.id);
    if has_file(medium, &name)? {
        // Left by an epoch that never committed, or by commits that were given up.
        refuse_other_store(medium, &name, seed)?;
        medium.remove(&name)?;
    }
    let file = medium.open(&name, OpenMode::CreateNew)?;
    file.allocate(0, HEADER_BYTES as u64)?;
    file.write_at(&class_header(record, seed), 0)?;
    file.sync()?;
    medium.sync_dir()?;
    Ok(file)
}

fn class_header(record: &ClassRecord, seed: u64) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.extend_from_slice(&u64::from(record.id).to_le_bytes());
    header.extend_from_slice(&(record.page_bytes as u64).to_le_bytes());
    header.extend_from_slice(&(record.row_bytes as u64).to_le_bytes());
    header.extend_from_slice(&record.segment_bytes.to_le_bytes());
    header.extend_from_slice(&seed.to_le_bytes());
    header.extend_from_slice(&xxh3_64(&header).to_le_bytes());
    header.resize(HEADER_BYTES, 0);
    header
}

/// Refuses a file that is not that of this class.
pub(in crate::store) fn check_class_header(
    file: &dyn File,
    record: &ClassRecord,
    seed: u64,
) -> Result<()> {
    let header = read_header(file)?;
    if header != class_header(record, seed) {
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

/// Refuses a file of pages whose header is sound and of another store. A header that is not sound
/// may have been under way in a crash.
pub(in crate::store) fn refuse_other_store(
    medium: &dyn Medium,
    name: &str,
    seed: u64,
) -> Result<()> {
    let file = medium.open(name, OpenMode::ReadOnly)?;
    if file.len()? < HEADER_BYTES as u64 {
        return Ok(());
    }
    let header = read_header(&*file)?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&header[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let sound = header[..8] == MAGIC && word(CHECKSUM_AT) == xxh3_64(&header[..CHECKSUM_AT]);
    if sound && word(SEED_AT) != seed {
        bail!(
            Corrupt,
            "superblock and {name} are of different stores: their checksum seeds are {seed:#x} \
             and {:#x}; put back what belongs together, from a copy",
            word(SEED_AT)
        );
    }
    Ok(())
}
