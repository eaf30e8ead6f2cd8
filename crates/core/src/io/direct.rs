//! Whether a directory has direct I/O, and with which alignment.
//!
//! Only what a system says of direct I/O itself decides that it cannot be used. A device that
//! fails, or a lack of descriptors, is an error: a store whose pages are shorter than the alignment
//! that a failed read seemed to ask for was refused as one for another disk.

use super::Buffers;
use super::aligned::BufferPool;
use super::folder::Folder;
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Alignment of every direct I/O that a current disk and file system cannot refuse.
const ALIGNMENT_MAX: usize = 4096;
/// The unit of sectors, and the smallest row page.
pub(super) const ALIGNMENT_MIN: usize = 512;

#[cfg(target_os = "linux")]
const DIRECT_FLAG: Option<OFlags> = Some(OFlags::DIRECT);
#[cfg(not(target_os = "linux"))]
const DIRECT_FLAG: Option<OFlags> = None;

/// Whether the system says of what was tried that it does not have it. Some file systems refuse the
/// flag, some the transfer.
fn lacks(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    matches!(code, Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS | libc::EISDIR))
}

/// Whether files that are there have to tell, because none can be made or written.
fn is_not_ours_to_write(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    let rights = matches!(code, Some(libc::EACCES | libc::EROFS | libc::EPERM));
    rights || matches!(code, Some(libc::ENOSPC | libc::EDQUOT))
}

/// Whether a file is no longer there, or no longer as long.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
}

/// A second, direct descriptor of the file just opened. `None`, which means buffered requests for
/// this file, where the file system has none or another file took the name in between.
pub(super) fn twin(
    folder: &Folder,
    name: &str,
    flags: OFlags,
    file: &File,
) -> io::Result<Option<File>> {
    let Some(direct) = DIRECT_FLAG else { return Ok(None) };
    let twin = match folder.open_file(name, flags | direct) {
        Ok(twin) => twin,
        Err(error) if lacks(&error) || error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (one, two) = (file.metadata()?, twin.metadata()?);
    Ok((one.dev() == two.dev() && one.ino() == two.ino()).then_some(twin))
}

/// The alignment that direct I/O needs in a directory, or why it cannot be used there.
///
/// *Errors*: what has nothing to do with direct I/O, such as a device that fails.
pub(super) fn probe(folder: &Folder) -> io::Result<Result<usize, String>> {
    let Some(flag) = DIRECT_FLAG else {
        return Ok(Err("this system has no O_DIRECT".to_owned()));
    };
    let probed = match probe_file(folder, OFlags::RDWR | flag) {
        Ok(file) => probe_alignment(&file, true),
        Err(error) => Err(error),
    };
    let probed = match probed {
        Err(error) if is_not_ours_to_write(&error) => probe_files(folder, flag),
        probed => probed.map(|alignment| alignment.ok_or_else(none)),
    };
    told(folder, probed)
}

/// As [`probe`], without writing anything.
pub(super) fn probe_existing(folder: &Folder) -> io::Result<Result<usize, String>> {
    match DIRECT_FLAG {
        Some(flag) => told(folder, probe_files(folder, flag)),
        None => Ok(Err("this system has no O_DIRECT".to_owned())),
    }
}

/// Names the folder in what was found, of which the system's word about direct I/O is no error.
fn told(
    folder: &Folder,
    probed: io::Result<Result<usize, String>>,
) -> io::Result<Result<usize, String>> {
    let named = |why: String| format!("{}: {why}", folder.path().display());
    match probed {
        Ok(alignment) => Ok(alignment.map_err(named)),
        Err(error) if lacks(&error) => Ok(Err(named(error.to_string()))),
        Err(error) => Err(error),
    }
}

fn none() -> String {
    "the file system has no direct I/O for its files".to_owned()
}

/// A file for probing that no crash can leave behind: unnamed, or else unlinked at once.
fn probe_file(folder: &Folder, flags: OFlags) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    if let Ok(file) = folder.open_file(".", flags | OFlags::TMPFILE) {
        return Ok(file);
    }
    let name = format!(".io-probe-{}", std::process::id());
    let _ = folder.remove(&name);
    let opened = folder.open_file(&name, flags | OFlags::CREATE | OFlags::EXCL);
    let _ = folder.remove(&name);
    opened
}

/// The result for the first file of the directory that is long enough.
fn probe_files(folder: &Folder, flag: OFlags) -> io::Result<Result<usize, String>> {
    for name in folder.names()? {
        let metadata = match folder.stat(&name) {
            Ok(metadata) => metadata,
            // Removed meanwhile, or a link to nothing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let is_file = rustix::fs::FileType::from_raw_mode(metadata.st_mode).is_file();
        if is_file && metadata.st_size >= 2 * ALIGNMENT_MAX as i64 {
            let opened = folder.open_file(&name, OFlags::RDONLY | flag);
            match opened.and_then(|file| probe_alignment(&file, false)) {
                // Removed or cut meanwhile.
                Err(error) if is_gone(&error) => {}
                probed => return Ok(probed?.ok_or_else(none)),
            }
        }
    }
    Ok(Err("not writable, and no file in it to try".to_owned()))
}

/// Finds the alignment by asking the kernel, else by trying; either way a transfer must succeed.
/// `None` where the kernel says that there is no direct I/O.
fn probe_alignment(file: &File, write: bool) -> io::Result<Option<usize>> {
    let mut pool = BufferPool::new(Buffers::equal(1, ALIGNMENT_MAX)).map_err(io::Error::other)?;
    let buffer = pool.acquire(ALIGNMENT_MAX).expect("a new pool has a free buffer");
    let bytes = pool.bytes_mut(buffer);
    let known = match told_alignment(file) {
        Told::Bytes(known) if known <= ALIGNMENT_MAX => Some(known),
        Told::Bytes(_) | Told::None => return Ok(None),
        Told::Nothing => None,
    };
    if write {
        file.write_all_at(bytes, 0)?;
    }
    try_alignments(known, &mut |offset, length| {
        file.read_exact_at(&mut bytes[..length], offset as u64)
    })
}

/// The first alignment with which a read succeeds, of the one that is known or of all.
///
/// *Errors*: the refusal, where all are refused; what has nothing to do with alignment at once.
fn try_alignments(
    known: Option<usize>,
    read: &mut dyn FnMut(usize, usize) -> io::Result<()>,
) -> io::Result<Option<usize>> {
    let tries = known.map_or(vec![ALIGNMENT_MIN, ALIGNMENT_MAX], |known| vec![known]);
    let mut outcome = Ok(None);
    for alignment in tries {
        // From the second unit where the block has one, so that the offset is tried, too.
        let offset = if alignment < ALIGNMENT_MAX { alignment } else { 0 };
        match read(offset, alignment) {
            Ok(()) => return Ok(Some(alignment)),
            Err(error) if lacks(&error) => outcome = Err(error),
            Err(error) => return Err(error),
        }
    }
    outcome
}

/// The kernel's answer about the alignment of direct I/O.
enum Told {
    Nothing,
    /// There is no direct I/O for the file.
    None,
    Bytes(usize),
}

/// The alignment of direct I/O according to statx (Linux 6.1), if it says.
#[cfg(target_os = "linux")]
fn told_alignment(file: &File) -> Told {
    use rustix::fs::{AtFlags, StatxFlags};
    let Ok(stat) = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Told::Nothing;
    };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Told::Nothing;
    }
    if stat.stx_dio_offset_align == 0 {
        return Told::None;
    }
    let needed = stat.stx_dio_offset_align.max(stat.stx_dio_mem_align) as usize;
    Told::Bytes(needed.max(ALIGNMENT_MIN).next_power_of_two())
}

#[cfg(not(target_os = "linux"))]
fn told_alignment(_file: &File) -> Told {
    Told::Nothing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(code: i32) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(code))
    }

    // One read that failed made a store with short pages one for another disk.
    #[test]
    fn only_a_refusal_leads_to_the_next_alignment() {
        let mut tried = Vec::new();
        let mut run = |known, first: i32| {
            tried.clear();
            let found = try_alignments(known, &mut |offset, length| {
                tried.push((offset, length));
                if tried.len() == 1 && first != 0 { os(first) } else { Ok(()) }
            });
            (found.map_err(|error| error.raw_os_error()), tried.clone())
        };
        assert_eq!(run(None, 0), (Ok(Some(512)), vec![(512, 512)]));
        assert_eq!(run(None, libc::EINVAL), (Ok(Some(4096)), vec![(512, 512), (0, 4096)]));
        assert_eq!(run(None, libc::EIO), (Err(Some(libc::EIO)), vec![(512, 512)]));
        assert_eq!(run(Some(4096), libc::EINVAL), (Err(Some(libc::EINVAL)), vec![(0, 4096)]));
        let refused = try_alignments(None, &mut |_, _| os(libc::EINVAL)).unwrap_err();
        assert!(lacks(&refused));
    }
}
