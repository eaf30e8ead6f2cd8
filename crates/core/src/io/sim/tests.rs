//! The simulated device's treatment of code that forgets to sync.

mod faults;

use super::*;
use crate::error::ErrorKind;
use crate::io::Completion;

const SECTOR: u64 = SECTOR_BYTES as u64;
/// Enough reboots that every kind of luck occurs.
const SEEDS: u64 = 300;

/// A file of `sectors` sectors of `byte`, synced, with its name.
fn synced_file(medium: &SimMedium, name: &str, sectors: usize, byte: u8) -> Arc<dyn File> {
    let file = medium.open(name, OpenMode::CreateNew).unwrap();
    file.write_at(&vec![byte; sectors * SECTOR_BYTES], 0).unwrap();
    file.sync().unwrap();
    medium.sync_dir().unwrap();
    file
}

fn contents(medium: &SimMedium, name: &str) -> Option<Vec<u8>> {
    let file = medium.open(name, OpenMode::ReadOnly).ok()?;
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    Some(bytes)
}

/// Contents of `name` after each of many reboots, without repetition.
fn outcomes(medium: &SimMedium, name: &str) -> Vec<Option<Vec<u8>>> {
    let mut all: Vec<_> = (0..SEEDS).map(|seed| contents(&medium.reboot(seed), name)).collect();
    all.sort();
    all.dedup();
    all
}

#[test]
fn what_was_synced_survives_every_power_cut() {
    let medium = SimMedium::new(1);
    let file = synced_file(&medium, "rows", 4, 1);
    file.write_at(&[2; 100], 700).unwrap();
    file.sync().unwrap();
    let mut wanted = vec![1; 2048];
    wanted[700..800].fill(2);
    assert_eq!(outcomes(&medium, "rows"), [Some(wanted)]);
}

#[test]
fn unsynced_sectors_are_found_old_or_new_each_for_itself() {
    let medium = SimMedium::new(2);
    let file = synced_file(&medium, "rows", 3, 1);
    file.write_at(&[2; 3 * SECTOR_BYTES], 0).unwrap();
    let found = outcomes(&medium, "rows");
    assert_eq!(found.len(), 8, "all 2^3 mixtures of three sectors");
    for bytes in found.into_iter().flatten() {
        for sector in bytes.chunks(SECTOR_BYTES) {
            assert!(sector.iter().all(|&b| b == sector[0]), "a sector is never torn");
        }
    }
}

#[test]
fn a_sector_is_found_in_a_state_it_went_through() {
    let medium = SimMedium::new(3);
    let file = synced_file(&medium, "journal", 1, 0);
    file.write_at(&[1; 10], 0).unwrap();
    file.write_at(&[2; 10], 10).unwrap();
    let found: Vec<_> =
        outcomes(&medium, "journal").into_iter().flatten().map(|b| (b[0], b[10])).collect();
    assert_eq!(found, [(0, 0), (1, 0), (1, 2)], "the second write never without the first");
}

#[test]
fn room_given_back_is_free_at_once_and_back_after_some_power_cuts() {
    let medium = SimMedium::new(5);
    let file = synced_file(&medium, "rows", 32, 1);
    assert_eq!(medium.taken_bytes(), 16384);
    assert!(file.give_back(4096, 8192).unwrap());
    assert_eq!((medium.taken_bytes(), file.len().unwrap()), (8192, 16384));
    let mut bytes = vec![7; 16384];
    file.read_at(&mut bytes, 0).unwrap();
    assert!(bytes.chunks(4096).zip([1, 0, 0, 1]).all(|(block, b)| block.iter().all(|x| *x == b)));
    let taken: std::collections::BTreeSet<u64> =
        (0..SEEDS).map(|seed| medium.reboot(seed).taken_bytes()).collect();
    assert_eq!(taken.into_iter().collect::<Vec<_>>(), [8192, 12288, 16384]);
    assert!(outcomes(&medium, "rows").len() > 2, "sectors are found old or zero");
    // The room is another's now.
    medium.set_capacity(Some(16384));
    let other = medium.open("other", OpenMode::CreateNew).unwrap();
    other.allocate(0, 8192).unwrap();
    let error = file.write_at(&[2; 10], 5000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    file.sync().unwrap();
    assert!((0..SEEDS).all(|seed| medium.reboot(seed).taken_bytes() <= 16384));
}

#[test]
fn unsynced_lengths_are_lost_or_kept_and_kept_room_reads_as_zero() {
    let medium = SimMedium::new(4);
    let file = synced_file(&medium, "rows", 1, 1);
    file.allocate(0, 2 * SECTOR).unwrap();
    file.write_at(&[2; SECTOR_BYTES], SECTOR).unwrap();
    file.set_len(3 * SECTOR).unwrap();
    let found = outcomes(&medium, "rows");
    let lengths: std::collections::BTreeSet<_> =
        found.iter().flatten().map(|bytes| bytes.len() as u64 / SECTOR).collect();
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
    assert!(found.iter().flatten().all(|b| b[..SECTOR_BYTES] == [1; SECTOR_BYTES]));
    assert!(found.iter().flatten().any(|b| b.len() > 512 && b[512] == 0));
    assert!(found.iter().flatten().any(|b| b.len() > 512 && b[512] == 2));
}

#[test]
fn names_without_sync_dir_may_be_missing_or_come_back() {
    let medium = SimMedium::new(5);
    drop(synced_file(&medium, "old", 1, 1));
    let new = medium.open("new", OpenMode::CreateNew).unwrap();
    new.write_at(&[2; SECTOR_BYTES], 0).unwrap();
    new.sync().unwrap();
    medium.remove("old").unwrap();
    let mut states: Vec<_> =
        (0..SEEDS).map(|seed| medium.reboot(seed).list("").unwrap().join(" ")).collect();
    states.sort();
    states.dedup();
    assert_eq!(states, ["", "new", "new old", "old"]);
    assert_eq!(outcomes(&medium, "old"), [None, Some(vec![1; SECTOR_BYTES])]);
    medium.sync_dir().unwrap();
    assert_eq!(medium.reboot(9).list("").unwrap(), ["new"]);
}

#[test]
fn a_rename_leaves_the_old_or_the_new_file_and_never_none() {
    let medium = SimMedium::new(6);
    drop(synced_file(&medium, "superblock", 1, 1));
    let new = medium.open("superblock.new", OpenMode::CreateNew).unwrap();
    new.write_at(&[2; SECTOR_BYTES], 0).unwrap();
    new.sync().unwrap();
    medium.rename("superblock.new", "superblock").unwrap();
    let found: Vec<_> =
        outcomes(&medium, "superblock").into_iter().map(|b| b.map(|b| b[0])).collect();
    assert_eq!(found, [Some(1), Some(2)]);
}

#[test]
fn a_renamed_file_that_was_not_synced_may_be_empty() {
    let medium = SimMedium::new(7);
    drop(synced_file(&medium, "superblock", 1, 1));
    let new = medium.open("superblock.new", OpenMode::CreateNew).unwrap();
    new.write_at(&[2; SECTOR_BYTES], 0).unwrap();
    medium.rename("superblock.new", "superblock").unwrap();
    medium.sync_dir().unwrap();
    assert!(outcomes(&medium, "superblock").contains(&Some(Vec::new())));
}

#[test]
fn after_the_cut_everything_fails_and_the_operation_that_hit_it_is_done_or_not() {
    let medium = SimMedium::new(8);
    let file = synced_file(&medium, "rows", 1, 1);
    let done = medium.counters().operations;
    medium.power_cut_after(done + 1);
    file.write_at(&[2; SECTOR_BYTES], 0).unwrap();
    assert!(!medium.power_is_off());
    let error = file.sync().unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Io, "power is off"));
    assert!(medium.power_is_off());
    let mut byte = [0];
    assert!(file.read_at(&mut byte, 0).is_err());
    assert!(file.len().is_err() && medium.list("").is_err() && medium.sync_dir().is_err());
    assert!(medium.remove("rows").is_err());
    assert!(medium.open("other", OpenMode::CreateNew).is_err());
    let found: Vec<_> = outcomes(&medium, "rows").into_iter().flatten().map(|b| b[0]).collect();
    assert_eq!(found, [1, 2]);
    let rebooted = medium.reboot(0);
    assert!(!rebooted.power_is_off() && rebooted.counters() == SimCounters::default());
    rebooted.open("other", OpenMode::CreateNew).unwrap();
}

#[test]
fn queue_writes_in_flight_at_the_cut_may_be_found_in_part() {
    let medium = SimMedium::new(9);
    let file = synced_file(&medium, "rows", 8, 1);
    medium.power_cut_after(medium.counters().operations + 1);
    let mut queue = medium.queue(4, Buffers::equal(4, 1024)).unwrap();
    for request in 0..4 {
        let buffer = queue.acquire().unwrap();
        queue.buffer_mut(buffer).fill(2);
        queue.write(&file, request * 1024, 1024, buffer, request).unwrap();
    }
    let mut done: Vec<Completion> = Vec::new();
    queue.wait(4, &mut done).unwrap();
    assert_eq!(done.iter().filter(|c| c.result.is_ok()).count(), 1, "the rest hit the cut");
    drop(queue);
    let mut seen = [[false; 2]; 8];
    for seed in 0..SEEDS {
        let bytes = contents(&medium.reboot(seed), "rows").unwrap();
        for (sector, bytes) in bytes.chunks(SECTOR_BYTES).enumerate() {
            seen[sector][usize::from(bytes[0] - 1)] = true;
        }
    }
    assert_eq!(seen, [[true; 2]; 8], "every sector was found old and new");
}

#[test]
fn a_sync_does_not_cover_writes_in_flight() {
    let medium = SimMedium::new(10);
    let file = synced_file(&medium, "rows", 1, 1);
    let mut queue = medium.queue(1, Buffers::equal(1, SECTOR_BYTES)).unwrap();
    let buffer = queue.acquire().unwrap();
    queue.buffer_mut(buffer).fill(2);
    queue.write(&file, 0, SECTOR_BYTES, buffer, 0).unwrap();
    queue.submit().unwrap();
    file.sync().unwrap();
    let found: Vec<_> = outcomes(&medium, "rows").into_iter().flatten().map(|b| b[0]).collect();
    assert_eq!(found, [1, 2]);
    queue.wait(1, &mut Vec::new()).unwrap();
    file.sync().unwrap();
    let found: Vec<_> = outcomes(&medium, "rows").into_iter().flatten().map(|b| b[0]).collect();
    assert_eq!(found, [2]);
}

#[test]
fn completions_come_late_and_out_of_order() {
    let medium = SimMedium::new(11);
    let file = synced_file(&medium, "rows", 16, 1);
    let mut queue = medium.queue(16, Buffers::equal(16, SECTOR_BYTES)).unwrap();
    for request in 0..16 {
        let buffer = queue.acquire().unwrap();
        queue.read(&file, request * SECTOR, SECTOR_BYTES, buffer, request).unwrap();
    }
    let mut done = Vec::new();
    queue.wait(1, &mut done).unwrap();
    assert!(done.len() < 16, "some are delayed");
    queue.wait(16, &mut done).unwrap();
    let order: Vec<_> = done.iter().map(|completion| completion.token).collect();
    assert!(!order.is_sorted(), "{order:?}");
}

#[test]
fn capacity_bounds_allocations_writes_and_holes_and_removal_gives_room_back() {
    let medium = SimMedium::new(12);
    medium.set_capacity(Some(8 * 4096));
    let file = medium.open("rows", OpenMode::CreateNew).unwrap();
    file.allocate(0, 6 * 4096).unwrap();
    assert_eq!(medium.free_bytes().unwrap(), 2 * 4096);
    assert_eq!(file.allocate(0, 9 * 4096).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(file.len().unwrap(), 6 * 4096);
    file.write_at(&[1; 4096], 5 * 4096).unwrap();
    let other = medium.open("journal", OpenMode::CreateNew).unwrap();
    other.set_len(1 << 20).unwrap();
    other.write_at(&[1; 8192], 512 * 1024).unwrap();
    assert_eq!(other.write_at(&[1], 0).unwrap_err().kind(), ErrorKind::Full);
    medium.remove("rows").unwrap();
    assert_eq!(medium.free_bytes().unwrap(), 0, "still open");
    drop(file);
    assert_eq!(medium.free_bytes().unwrap(), 6 * 4096);
    medium.set_capacity(None);
    other.write_at(&[1; 1 << 16], 0).unwrap();
}

#[test]
fn injected_errors_strike_once_at_their_operation() {
    let medium = SimMedium::new(13);
    let file = synced_file(&medium, "rows", 4, 1);
    medium.fail_read(1);
    let mut byte = [0];
    let reads: Vec<_> = (0..3).map(|_| file.read_at(&mut byte, 0).is_ok()).collect();
    assert_eq!(reads, [true, false, true]);
    medium.fail_write(0);
    let error = file.write_at(&[2; 4 * SECTOR_BYTES], 0).unwrap_err();
    assert!(error.kind() == ErrorKind::Io && error.message().contains("write rows"), "{error}");
    file.write_at(&[3; 4 * SECTOR_BYTES], 0).unwrap();
    medium.fail_sync(0);
    assert_eq!(file.sync().unwrap_err().kind(), ErrorKind::Io);
    file.sync().unwrap();
}

#[test]
fn a_failed_sync_loses_writes_for_good_while_they_are_still_read() {
    let (mut all, mut some, mut none) = (0, 0, 0);
    for seed in 0..40 {
        let medium = SimMedium::new(seed);
        let file = synced_file(&medium, "rows", 64, 1);
        file.write_at(&[2; 64 * SECTOR_BYTES], 0).unwrap();
        medium.fail_sync(0);
        file.sync().unwrap_err();
        file.sync().unwrap();
        assert_eq!(contents(&medium, "rows").unwrap(), vec![2; 64 * SECTOR_BYTES]);
        let found = contents(&medium.reboot(0), "rows").unwrap();
        let apart = found.contains(&1);
        assert_eq!(medium.faults_fired().syncs_apart, u64::from(apart));
        match (apart, found.contains(&2)) {
            (true, true) => some += 1,
            (true, false) => all += 1,
            _ => none += 1,
        }
    }
    assert!(all > 0 && some > 0 && none > 0, "{all} lost all, {some} some, {none} nothing");
}

#[test]
fn a_flipped_bit_stays_flipped_seen_and_stored() {
    let medium = SimMedium::new(15);
    let file = synced_file(&medium, "rows", 2, 0);
    file.write_at(&[0; SECTOR_BYTES], 0).unwrap();
    medium.flip_bit("rows", 77);
    medium.flip_bit("rows", 600);
    let flips = |bytes: Vec<u8>| bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
    assert_eq!(flips(contents(&medium, "rows").unwrap()), 2);
    file.sync().unwrap();
    for seed in 0..8 {
        assert_eq!(flips(contents(&medium.reboot(seed), "rows").unwrap()), 2);
    }
}

#[test]
fn the_same_seeds_give_the_same_bytes() {
    let run = || {
        let medium = SimMedium::new(16);
        let file = synced_file(&medium, "rows", 64, 1);
        let mut queue = medium.queue(8, Buffers::equal(8, SECTOR_BYTES)).unwrap();
        let mut done = Vec::new();
        for request in 0..8 {
            let buffer = queue.acquire().unwrap();
            queue.buffer_mut(buffer).fill(request as u8 + 2);
            queue.write(&file, request * SECTOR, SECTOR_BYTES, buffer, request).unwrap();
        }
        queue.wait(3, &mut done).unwrap();
        let order: Vec<_> = done.iter().map(|completion| completion.token).collect();
        (order, contents(&medium.reboot(99), "rows"), medium.counters())
    };
    assert_eq!(run(), run());
}

#[test]
fn counters_tell_what_was_done() {
    let medium = SimMedium::new(17);
    let file = synced_file(&medium, "rows", 2, 1);
    file.allocate(0, 4096).unwrap();
    file.set_len(10).unwrap();
    medium.rename("rows", "other").unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, 0).unwrap();
    let wanted = SimCounters {
        operations: 7,
        reads: 1,
        writes: 1,
        bytes_written: 1024,
        syncs: 1,
        dir_syncs: 1,
    };
    assert_eq!(medium.counters(), wanted);
}

/// Operations per second of a load as a store makes it: pages by queue, a journal, syncs.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::print_stdout, reason = "a measurement says what it found")]
fn measure_operations() {
    const PAGES: u64 = 2048;
    for capacity in [None, Some(1 << 30)] {
        let medium = SimMedium::new(1);
        medium.set_capacity(capacity);
        let open = |name: String| medium.open(&name, OpenMode::CreateNew).unwrap();
        let files: Vec<_> = (0..8).map(|file| open(format!("rows-{file}"))).collect();
        files.iter().for_each(|file| file.allocate(0, PAGES * 4096).unwrap());
        let states: Vec<_> = (0..24).map(|state| open(format!("state-{state}"))).collect();
        let journal = open("journal".to_owned());
        journal.allocate(0, 1 << 20).unwrap();
        let mut queue = medium.queue(64, Buffers::equal(64, 4096)).unwrap();
        let mut done = Vec::new();
        let start = std::time::Instant::now();
        let rounds = 4000;
        for round in 0..rounds {
            for request in 0..64 {
                let buffer = queue.acquire().unwrap();
                let file = &files[request % 8];
                let page = (round * 7919 + request as u64 * 104_729) % PAGES * 4096;
                match request % 4 {
                    0 => queue.write(file, page, 4096, buffer, 0).unwrap(),
                    _ => queue.read(file, page, 4096, buffer, 0).unwrap(),
                }
            }
            queue.wait(64, &mut done).unwrap();
            done.drain(..).for_each(|completion| queue.release(completion.buffer));
            for record in 0..8 {
                journal.write_at(&[1; 200], (round * 8 + record) * 200 % (1 << 20)).unwrap();
            }
            if round % 8 == 0 {
                files.iter().for_each(|file| file.sync().unwrap());
                journal.sync().unwrap();
                medium.sync_dir().unwrap();
            }
        }
        let counters = medium.counters();
        let total = counters.operations + counters.reads;
        let seconds = start.elapsed().as_secs_f64();
        println!("capacity {capacity:?}: {:.0} operations/s", total as f64 / seconds);
        let start = std::time::Instant::now();
        (0..20).for_each(|seed| drop(medium.reboot(seed)));
        println!("a reboot takes {:.1} ms", start.elapsed().as_secs_f64() * 50.0);
        drop(states);
    }
}
