//! Faults by chance and single ones: what each does, and that it is counted.

use super::*;
use crate::io::Buffers;

const PAGE: usize = 4096;
const MILLION: u32 = 1_000_000;

fn pages(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(PAGE).map(|page| page[0]).collect()
}

/// The first bytes of the sectors.
fn marks(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(SECTOR_BYTES).map(|sector| sector[0]).collect()
}

/// The contents that all reboots of a device find; they must be equal.
fn stored(medium: &SimMedium, name: &str) -> Vec<u8> {
    let mut all = outcomes(medium, name);
    assert_eq!(all.len(), 1, "the reboots of {name} differ");
    all.pop().unwrap().unwrap()
}

// A failed sync forgot changes each for itself, so a sector could hold a later write without an
// earlier one to the same sector, which no page cache can give.
#[test]
fn after_a_failed_sync_a_sector_is_stored_in_a_state_it_went_through() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let medium = SimMedium::new(seed);
        let file = synced_file(&medium, "journal", 1, 0);
        file.write_at(&[1; 10], 0).unwrap();
        file.write_at(&[2; 10], 10).unwrap();
        medium.fail_sync(0);
        file.sync().unwrap_err();
        file.sync().unwrap();
        let bytes = stored(&medium, "journal");
        seen.insert((bytes[0], bytes[10]));
    }
    let wanted = [(0, 0), (1, 0), (1, 2)];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), wanted);
}

// A sector written again after a failed sync was stored without the bytes that it had lost before.
#[test]
fn a_sector_that_is_written_again_in_part_is_stored_whole() {
    for seed in 0..40 {
        let medium = SimMedium::new(seed);
        let file = synced_file(&medium, "journal", 3, 0);
        file.write_at(&[1; 3 * SECTOR_BYTES], 0).unwrap();
        medium.fail_sync(0);
        file.sync().unwrap_err();
        file.write_at(&[2; 10], SECTOR + 100).unwrap();
        file.sync().unwrap();
        let bytes = stored(&medium, "journal");
        let mut middle = [1; SECTOR_BYTES];
        middle[100..110].fill(2);
        assert_eq!(bytes[SECTOR_BYTES..2 * SECTOR_BYTES], middle);
        let apart = marks(&bytes).iter().filter(|&&mark| mark == 0).count();
        assert!(apart == 0 || medium.faults_fired().syncs_apart == 1);
    }
}

#[test]
fn a_failed_sync_may_lose_the_length_of_a_write_until_it_is_written_again() {
    let mut lost = 0;
    for seed in 0..60 {
        let medium = SimMedium::new(seed);
        let file = synced_file(&medium, "journal", 1, 1);
        file.write_at(&[2; SECTOR_BYTES], SECTOR).unwrap();
        medium.fail_sync(0);
        file.sync().unwrap_err();
        file.sync().unwrap();
        assert_eq!(file.len().unwrap(), 2 * SECTOR, "as seen");
        let found = stored(&medium, "journal");
        lost += u64::from(found.len() == SECTOR_BYTES);
        file.write_at(&[3; SECTOR_BYTES], SECTOR).unwrap();
        file.sync().unwrap();
        assert_eq!(marks(&stored(&medium, "journal")), [1, 3]);
    }
    assert!((1..60).contains(&lost), "{lost} of 60 lengths were lost");
}

#[test]
fn a_failed_sync_forgets_no_length_of_the_journal_and_no_name() {
    for seed in 0..40 {
        let medium = SimMedium::new(seed);
        let file = synced_file(&medium, "rows", 1, 1);
        file.allocate(0, 4 * SECTOR).unwrap();
        file.set_len(3 * SECTOR).unwrap();
        medium.fail_sync(0);
        file.sync().unwrap_err();
        file.sync().unwrap();
        assert_eq!(stored(&medium, "rows").len(), 3 * SECTOR_BYTES);
        medium.rename("rows", "other").unwrap();
        medium.fail_sync(0);
        medium.sync_dir().unwrap_err();
        medium.sync_dir().unwrap();
        for reboot in 0..20 {
            assert_eq!(medium.reboot(reboot).list("").unwrap(), ["other"]);
        }
        let fired = medium.faults_fired();
        assert_eq!((fired.sync_error, fired.syncs_apart), (2, 0));
    }
}

#[test]
fn a_lost_write_is_acknowledged_and_never_seen_nor_stored() {
    let (mut whole, mut blocks, mut sectors) = (0, 0, 0);
    for seed in 0..60 {
        let medium = SimMedium::new(seed);
        let file = synced_file(&medium, "rows", 4 * PAGE / SECTOR_BYTES, 1);
        medium.lose_write(1);
        file.write_at(&[2; PAGE], 3 * PAGE as u64).unwrap();
        file.write_at(&[3; 3 * PAGE], 0).unwrap();
        assert_eq!(medium.faults_fired().lost_write, 1);
        let seen = contents(&medium, "rows").unwrap();
        assert!(seen[..3 * PAGE].contains(&1) && seen[3 * PAGE..] == [2; PAGE]);
        file.sync().unwrap();
        assert_eq!(stored(&medium, "rows"), seen);
        let whole_blocks = seen.chunks(PAGE).all(|page| page.iter().all(|&b| b == page[0]));
        match seen[..3 * PAGE].contains(&3) {
            false => whole += 1,
            true if whole_blocks => blocks += 1,
            true => sectors += 1,
        }
        file.write_at(&[4; 4 * PAGE], 0).unwrap();
        file.sync().unwrap();
        assert_eq!(stored(&medium, "rows"), [4; 4 * PAGE], "a later write is done");
    }
    assert!(whole > 0 && blocks > 0 && sectors > 0, "{whole} whole, {blocks}, {sectors}");
}

#[test]
fn a_lost_write_of_what_was_there_is_not_counted() {
    let medium = SimMedium::new(1);
    let file = synced_file(&medium, "rows", 8, 1);
    medium.lose_write(0);
    file.write_at(&[1; PAGE], 0).unwrap();
    assert_eq!(medium.faults_fired().lost_write, 0);
}

#[test]
fn a_lost_write_at_the_end_leaves_zeros() {
    for seed in 0..20 {
        let medium = SimMedium::new(seed);
        let file = synced_file(&medium, "journal", 1, 1);
        medium.lose_write(0);
        file.write_at(&[2; SECTOR_BYTES], SECTOR).unwrap();
        file.sync().unwrap();
        assert_eq!(marks(&stored(&medium, "journal")), [1, 0]);
    }
}

#[test]
fn a_misdirected_write_lands_at_another_aligned_place_of_its_file() {
    let mut places = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let medium = SimMedium::new(seed);
        let file = synced_file(&medium, "rows", 4 * PAGE / SECTOR_BYTES, 1);
        medium.misdirect_write(0);
        file.write_at(&[2; PAGE], PAGE as u64).unwrap();
        file.sync().unwrap();
        let found = stored(&medium, "rows");
        let fired = medium.faults_fired();
        assert_eq!(fired.misdirected_write + fired.lost_write, 1);
        let twos = found.iter().filter(|&&byte| byte == 2).count();
        assert_eq!(twos, PAGE * fired.misdirected_write as usize);
        assert_eq!(pages(&found)[1], 1);
        places.extend(pages(&found).iter().position(|&page| page == 2));
    }
    assert_eq!(places.into_iter().collect::<Vec<_>>(), [0, 2, 3]);
    let medium = SimMedium::new(1);
    let file = synced_file(&medium, "head", 1, 1);
    medium.misdirect_write(0);
    file.write_at(&[2; SECTOR_BYTES], 0).unwrap();
    assert_eq!(contents(&medium, "head").unwrap(), [1; SECTOR_BYTES]);
    assert_eq!(medium.faults_fired().lost_write, 1, "there is no other place");
}

#[test]
fn a_stale_read_returns_what_was_there_before_the_last_write_and_only_once() {
    let (mut whole, mut part) = (0, 0);
    for seed in 0..60 {
        let medium = SimMedium::new(seed);
        let file = synced_file(&medium, "rows", 2 * PAGE / SECTOR_BYTES, 1);
        file.write_at(&[2; PAGE], 0).unwrap();
        file.write_at(&[3; PAGE], PAGE as u64).unwrap();
        file.write_at(&[4; PAGE], 0).unwrap();
        let stale = |offset: usize| {
            let mut bytes = vec![0; PAGE];
            medium.stale_read(0);
            file.read_at(&mut bytes, offset as u64).unwrap();
            bytes
        };
        let first = stale(0);
        assert!(first.contains(&2) && first.iter().all(|byte| [2, 4].contains(byte)));
        let second = stale(PAGE);
        assert!(second.contains(&1) && second.iter().all(|byte| [1, 3].contains(byte)));
        assert_eq!(medium.faults_fired().stale_read, 2);
        assert_eq!(pages(&contents(&medium, "rows").unwrap()), [4, 3], "the next read is right");
        file.sync().unwrap();
        assert_eq!(pages(&stored(&medium, "rows")), [4, 3]);
        match first.contains(&4) {
            true => part += 1,
            false => whole += 1,
        }
    }
    assert!(whole > 0 && part > 0, "{whole} whole, {part} in part");
}

#[test]
fn a_short_read_is_an_io_error_that_says_how_much_came() {
    let medium = SimMedium::new(1);
    let file = synced_file(&medium, "rows", 8, 1);
    medium.short_read(1);
    let mut bytes = vec![0; PAGE];
    file.read_at(&mut bytes, 0).unwrap();
    let error = file.read_at(&mut bytes, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.message().starts_with("read rows: 4096 bytes at 0: only "), "{error}");
    file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(medium.faults_fired().short_read, 1);
}

#[test]
fn a_disk_that_is_full_at_a_write_or_an_allocation_says_so_once() {
    let mut done = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let medium = SimMedium::new(seed);
        let file = synced_file(&medium, "rows", 2 * PAGE / SECTOR_BYTES, 1);
        medium.full_write(0);
        let error = file.write_at(&[2; 2 * PAGE], 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        done.insert(pages(&contents(&medium, "rows").unwrap()));
        file.write_at(&[3; 2 * PAGE], 0).unwrap();
        let free = medium.free_bytes().unwrap();
        medium.full_allocate(0);
        let error = file.allocate(0, 8 * PAGE as u64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert_eq!(file.len().unwrap(), 2 * PAGE as u64);
        assert_eq!(medium.free_bytes().unwrap(), free);
        file.allocate(0, 8 * PAGE as u64).unwrap();
        let fired = medium.faults_fired();
        assert_eq!((fired.full_write, fired.full_allocate), (1, 1));
    }
    assert_eq!(done.into_iter().collect::<Vec<_>>(), [[1, 1], [2, 1]]);
}

#[test]
fn bits_flip_in_the_file_that_is_read_and_stay() {
    let medium = SimMedium::new(1);
    let file = synced_file(&medium, "rows", 64, 0);
    let other = synced_file(&medium, "other", 64, 0);
    medium.set_faults(SimFaults { bit_flip: MILLION / 4, ..SimFaults::default() });
    let mut byte = [0];
    (0..100).for_each(|_| file.read_at(&mut byte, 0).unwrap());
    medium.set_faults(SimFaults::default());
    let flips = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
    let seen = contents(&medium, "rows").unwrap();
    let fired = medium.faults_fired().bit_flip;
    assert!((10..50).contains(&fired) && flips(&seen) == fired, "{fired}");
    assert_eq!(stored(&medium, "rows"), seen);
    assert_eq!(flips(&contents(&medium, "other").unwrap()), 0);
    drop(other);
}

/// Queues `requests` one-sector reads, or writes of 9, from sector `first` on.
fn ask(queue: &mut dyn Queue, file: &Arc<dyn File>, write: bool, first: u64, requests: u64) {
    for sector in first..first + requests {
        let buffer = queue.acquire().unwrap();
        if write {
            queue.buffer_mut(buffer).fill(9);
            queue.write(file, sector * SECTOR, SECTOR_BYTES, buffer, sector).unwrap();
        } else {
            queue.read(file, sector * SECTOR, SECTOR_BYTES, buffer, sector).unwrap();
        }
    }
    queue.submit().unwrap();
}

#[test]
fn late_requests_stay_in_flight_while_others_overtake_them() {
    let medium = SimMedium::new(1);
    let file = synced_file(&medium, "rows", 64, 1);
    let mut queues: Vec<_> =
        (0..2).map(|_| medium.queue(16, Buffers::equal(16, SECTOR_BYTES)).unwrap()).collect();
    for (first, queue) in [0, 16].into_iter().zip(&mut queues) {
        medium.set_faults(SimFaults { latency: MILLION, ..SimFaults::default() });
        ask(queue.as_mut(), &file, true, first, 4);
        medium.set_faults(SimFaults::default());
        ask(queue.as_mut(), &file, false, first + 4, 4);
        let mut done = Vec::new();
        queue.wait(4, &mut done).unwrap();
        assert!(done.iter().take(4).all(|c| c.token >= first + 4), "reads overtake late writes");
        done.drain(..).for_each(|completion| queue.release(completion.buffer));
    }
    assert_eq!(medium.faults_fired().latency, 8);
    assert_eq!(marks(&contents(&medium, "rows").unwrap()).len(), 64);
    for queue in &mut queues {
        let late = queue.in_flight();
        assert!(late > 0);
        let mut done = Vec::new();
        let mut waits = 0;
        while queue.in_flight() > 0 {
            queue.wait(0, &mut done).unwrap();
            waits += 1;
        }
        assert!(waits > 4 && done.len() == late, "{waits} waits for {late}");
    }
    let written: Vec<_> = marks(&contents(&medium, "rows").unwrap());
    assert!(written[..4] == [9; 4] && written[16..20] == [9; 4]);
}

#[test]
fn who_waits_for_nothing_but_late_requests_gets_them() {
    let medium = SimMedium::new(1);
    let file = synced_file(&medium, "rows", 64, 1);
    let mut queue = medium.queue(8, Buffers::equal(8, SECTOR_BYTES)).unwrap();
    medium.set_faults(SimFaults { latency: MILLION, ..SimFaults::default() });
    ask(queue.as_mut(), &file, false, 0, 8);
    let mut done = Vec::new();
    queue.wait(8, &mut done).unwrap();
    assert_eq!(done.len(), 8);
}

#[test]
fn chances_are_parts_per_million_of_the_operations_and_what_fails_is_counted() {
    let medium = SimMedium::new(1);
    let file = synced_file(&medium, "rows", 8, 1);
    let mut byte = [0];
    let mut failed = |faults: SimFaults, operation: &dyn Fn(&mut [u8]) -> Result<()>| {
        medium.set_faults(faults);
        (0..20_000).filter(|_| operation(&mut byte).is_err()).count() as u64
    };
    let (none, tenth) = (SimFaults::default(), MILLION / 10);
    assert_eq!(failed(none, &|byte| file.read_at(byte, 0)), 0);
    assert_eq!(medium.faults_fired(), SimFired::default());
    let reads = failed(SimFaults { read_error: tenth, ..none }, &|byte| file.read_at(byte, 0));
    let writes = failed(SimFaults { write_error: tenth, ..none }, &|byte| file.write_at(byte, 0));
    let full = failed(SimFaults { full_write: tenth, ..none }, &|byte| file.write_at(byte, 0));
    let allocations = failed(SimFaults { full_allocate: tenth, ..none }, &|_| file.allocate(0, 1));
    let syncs = failed(SimFaults { sync_error: tenth, ..none }, &|_| file.sync());
    let dirs = failed(SimFaults { sync_error: tenth, ..none }, &|_| medium.sync_dir());
    for count in [reads, writes, full, allocations, syncs, dirs] {
        assert!((1_800..2_200).contains(&count), "{count} of 20,000");
    }
    let wanted = SimFired {
        read_error: reads,
        write_error: writes,
        full_write: full,
        full_allocate: allocations,
        sync_error: syncs + dirs,
        ..medium.faults_fired()
    };
    assert_eq!(medium.faults_fired(), wanted);
}

#[test]
fn a_reboot_counts_torn_writes_and_lost_names() {
    let medium = SimMedium::new(1);
    let file = synced_file(&medium, "rows", 8, 1);
    let new = medium.open("new", OpenMode::CreateNew).unwrap();
    file.write_at(&[2; PAGE], 0).unwrap();
    let (mut torn, mut lost) = (0, 0);
    for seed in 0..SEEDS {
        let rebooted = medium.reboot(seed);
        let fired = rebooted.faults_fired();
        let bytes = contents(&rebooted, "rows").unwrap();
        assert_eq!(fired.torn_writes, u64::from(bytes.contains(&1) && bytes.contains(&2)));
        assert_eq!(fired.lost_names, u64::from(contents(&rebooted, "new").is_none()));
        torn += fired.torn_writes;
        lost += fired.lost_names;
    }
    assert!((1..SEEDS).contains(&torn) && (1..SEEDS).contains(&lost));
    assert_eq!(medium.faults_fired(), SimFired::default());
    drop(new);
}

/// A mixed load under every fault: what each call answered, what was read, what struck.
fn storm(seed: u64) -> (Vec<String>, Vec<u8>, SimFired, SimCounters) {
    let medium = SimMedium::new(seed);
    let file = synced_file(&medium, "rows", 256, 1);
    let often = MILLION / 8;
    medium.set_faults(SimFaults {
        read_error: often,
        short_read: often,
        write_error: often,
        sync_error: often,
        full_write: often,
        full_allocate: often,
        latency: often,
        lost_write: often,
        misdirected_write: often,
        stale_read: often,
        bit_flip: often,
    });
    let mut answers = Vec::new();
    let mut note = |result: Result<()>| {
        answers.push(result.map_or_else(|error| error.to_string(), |()| "done".to_owned()));
    };
    let mut queue = medium.queue(8, Buffers::equal(8, 2 * SECTOR_BYTES)).unwrap();
    let mut done = Vec::new();
    for round in 0..400u64 {
        let place = (round * 7919) % 250;
        if let Some(buffer) = queue.acquire() {
            let bytes = 2 * SECTOR_BYTES;
            if round % 3 == 0 {
                queue.read(&file, place * SECTOR, bytes, buffer, round).unwrap();
            } else {
                queue.buffer_mut(buffer).fill(round as u8);
                queue.write(&file, place * SECTOR, bytes, buffer, round).unwrap();
            }
        }
        match round % 10 {
            0 => note(file.sync()),
            1 => note(medium.sync_dir()),
            2 => note(file.allocate(0, (256 + round) * SECTOR)),
            3 => note(file.write_at(&[round as u8; 700], place * 100)),
            _ => {}
        }
        queue.wait(usize::from(queue.in_flight() == 8), &mut done).unwrap();
        for completion in done.drain(..) {
            note(completion.result);
            queue.release(completion.buffer);
        }
    }
    drop(queue);
    medium.set_faults(SimFaults::default());
    let seen = contents(&medium, "rows").unwrap();
    let found = contents(&medium.reboot(seed), "rows").unwrap();
    (answers, [seen, found].concat(), medium.faults_fired(), medium.counters())
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let run = storm(1);
    assert_eq!(run, storm(1));
    let (answers, _, fired, _) = run;
    assert_ne!(answers, storm(2).0, "another seed, other faults");
    assert_eq!((fired.torn_writes, fired.lost_names), (0, 0), "no power was cut");
    let others = SimFired { torn_writes: 1, lost_names: 1, ..fired };
    assert!(!format!("{others:?}").contains(": 0"), "every fault struck: {fired:?}");
}
