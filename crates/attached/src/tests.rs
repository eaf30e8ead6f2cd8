//! Tables over real files: every alignment, duplicates, several parts, the last bytes, changes.

use super::*;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

const MEMORY: u64 = 4 << 20;

/// Byte `at` of a file with this seed.
fn byte(seed: u64, at: u64) -> u8 {
    let mixed = (at ^ seed << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as u8
}

fn write_file(path: &Path, seed: u64, bytes: u64) {
    let content: Vec<u8> = (0..bytes).map(|at| byte(seed, at)).collect();
    fs::write(path, content).unwrap();
}

fn part(path: PathBuf, offset: u64, stride: u64, rows: u64) -> Part {
    Part { path, offset, stride, rows }
}

fn options(io: IoChoice) -> Options {
    Options { memory: MEMORY, io }
}

/// The row as the files have it.
fn expected(parts: &[(u64, Part)], row_bytes: u64, mut row: u64) -> Vec<u8> {
    for (seed, part) in parts {
        if row < part.rows {
            let at = part.offset + row * part.stride;
            return (at..at + row_bytes).map(|at| byte(*seed, at)).collect();
        }
        row -= part.rows;
    }
    panic!("there is no such row");
}

#[test]
fn rows_are_those_of_the_files_at_any_alignment_with_duplicates_and_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    for io in [IoChoice::Auto, IoChoice::Pread] {
        for (row_bytes, offset, gap, rows) in [
            (160, 0, 0, 4000),
            (160, 24, 0, 4001),
            (264, 1111, 0, 3000),
            (1, 5, 3, 9000),
            (512, 512, 0, 700),
            (4096, 7, 1, 300),
            (9000, 4095, 500, 60),
        ] {
            let stride = row_bytes + gap;
            let counts = [rows, 1, rows / 3];
            let parts: Vec<(u64, Part)> = counts
                .into_iter()
                .enumerate()
                .map(|(seed, rows)| {
                    let path = folder.path().join(format!("part-{seed}"));
                    let part = part(path, offset * (seed as u64 % 2), stride, rows);
                    // The last row is the last of the file.
                    write_file(&part.path, seed as u64, part.end(row_bytes as usize).unwrap());
                    (seed as u64, part)
                })
                .collect();
            let given = parts.iter().map(|(_, part)| part.clone()).collect();
            let table = Attached::open(row_bytes as usize, given, options(io)).unwrap();
            assert_eq!(table.len(), rows + 1 + rows / 3);
            let last = table.len() - 1;
            let random = (0..3000u64).map(|i| i.wrapping_mul(0x2545_F491_4F6C_DD1D) % table.len());
            let ends = [0, 0, last, rows - 1, rows, rows + 1, last, 0, last - 1];
            let keys: Vec<u64> = ends.into_iter().chain(random).collect();
            let stride = row_bytes as usize + 3;
            let mut out = vec![0xAA; keys.len() * stride];
            for turn in 0..2 {
                out.fill(0xAA);
                table.get(&keys, &mut out, stride).unwrap();
                for (key, row) in keys.iter().zip(out.chunks(stride)) {
                    let (row, beside) = row.split_at(row_bytes as usize);
                    let expected = expected(&parts, row_bytes, *key);
                    assert_eq!(row, expected, "row {key} of {row_bytes} bytes, turn {turn}");
                    assert_eq!(beside, [0xAA; 3], "bytes between rows are the caller's");
                }
            }
            let stats = table.stats();
            assert_eq!(stats.rows, 2 * keys.len() as u64);
            assert!(stats.memory_bytes <= MEMORY, "{stats:?}");
            assert!(stats.hits > 0 && stats.requests > 0, "{stats:?}");
            table.get(&[], &mut [], 9999).unwrap();
            table.get(&[last], &mut vec![0; row_bytes as usize], row_bytes as usize).unwrap();
        }
    }
}

#[test]
fn neighbours_and_duplicates_are_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    write_file(&path, 3, 64_000);
    let table = Attached::open(64, vec![part(path, 0, 64, 1000)], options(IoChoice::Auto)).unwrap();
    let keys: Vec<u64> = (0..1000).rev().chain(0..1000).collect();
    table.get(&keys, &mut vec![0; 128_000], 64).unwrap();
    let stats = table.stats();
    assert!(stats.requests <= 2 && stats.bytes_read <= 64_000, "{stats:?}");
}

#[test]
fn nothing_is_written_beside_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    write_file(&path, 3, 6400);
    let before = fs::metadata(folder.path()).unwrap().modified().unwrap();
    let table = Attached::open(64, vec![part(path, 0, 64, 100)], options(IoChoice::Auto)).unwrap();
    table.get(&[99], &mut [0; 64], 64).unwrap();
    assert_eq!(fs::metadata(folder.path()).unwrap().modified().unwrap(), before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_link_leads_to_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (blobs, links) = (folder.path().join("blobs"), folder.path().join("links"));
    fs::create_dir(&blobs).unwrap();
    fs::create_dir(&links).unwrap();
    write_file(&blobs.join("abc"), 3, 640);
    std::os::unix::fs::symlink("../blobs/abc", links.join("rows")).unwrap();
    let parts = vec![part(links.join("rows"), 0, 64, 10)];
    let table = Attached::open(64, parts, options(IoChoice::Auto)).unwrap();
    let mut row = [0; 64];
    table.get(&[9], &mut row, 64).unwrap();
    assert!(row.iter().zip(576..).all(|(found, at)| *found == byte(3, at)));
}

#[test]
fn what_cannot_be_attached_or_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    write_file(&path, 3, 640);
    let open = |part, memory| {
        Attached::open(64, vec![part], Options { memory, ..options(IoChoice::Auto) })
    };
    let error = |part, memory| open(part, memory).map(drop).unwrap_err();
    let cut = error(part(path.clone(), 1, 64, 10), MEMORY);
    assert_eq!(cut.kind(), ErrorKind::Misuse);
    assert!(cut.message().contains("has 640 bytes, 10 rows of 64 bytes from 1 on"), "{cut}");
    let none = error(part(folder.path().join("none"), 0, 64, 10), MEMORY);
    assert_eq!(none.kind(), ErrorKind::NotFound);
    let small = error(part(path.clone(), 0, 64, 10), 1000);
    assert_eq!(small.kind(), ErrorKind::Budget);
    let named: u64 = small.message().rsplit(' ').next().unwrap().parse().unwrap();
    let table = open(part(path, 0, 64, 10), named).unwrap();
    assert!(table.stats().memory_bytes <= named);
    let kind = |keys: &[u64], bytes, stride| {
        table.get(keys, &mut vec![0; bytes], stride).unwrap_err().kind()
    };
    assert_eq!(kind(&[0, 10], 128, 64), ErrorKind::KeyRange);
    assert_eq!(kind(&[0, 1], 127, 64), ErrorKind::Misuse);
    assert_eq!(kind(&[0, 1], 128, 63), ErrorKind::Misuse);
}

#[test]
fn a_file_that_changes_underneath_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    write_file(&path, 3, 640_000);
    let table =
        Attached::open(64, vec![part(path.clone(), 0, 64, 10_000)], options(IoChoice::Auto))
            .unwrap();
    table.get(&[0], &mut [0; 64], 64).unwrap();
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(&[1]).unwrap();
    // Files are looked at now and then.
    let error = (0..u32::MAX).find_map(|_| table.get(&[1], &mut [0; 64], 64).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    assert!(error.message().contains("has changed since it was attached"), "{error}");
    for _ in 0..100 {
        let again = table.get(&[0], &mut [0; 64], 64).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Mismatch, "{again}");
    }
}

#[test]
fn threads_read_at_once_within_one_budget() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    write_file(&path, 3, 6_400_000);
    let parts = vec![part(path, 0, 64, 100_000)];
    let table = Attached::open(64, parts, options(IoChoice::Auto)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let table = &table;
            scope.spawn(move || {
                for turn in 0..50u64 {
                    let keys: Vec<u64> = (0..64)
                        .map(|i| (i * 7919 + turn * 104_729 + thread * 31) % 100_000)
                        .collect();
                    let mut out = vec![0; keys.len() * 64];
                    table.get(&keys, &mut out, 64).unwrap();
                    for (key, row) in keys.iter().zip(out.chunks(64)) {
                        assert!(
                            row.iter().zip(key * 64..).all(|(found, at)| *found == byte(3, at))
                        );
                    }
                }
            });
        }
    });
}
