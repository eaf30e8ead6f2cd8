//! Arbitrary bytes in the files of a store give an error or the right rows, never a panic.
//!
//! Two loops over mutations of a small store. Bytes that break a checksum must end in an error that
//! says damage, or in exactly the rows of the last commit. Bytes with a valid checksum over
//! nonsense, which no disk makes, reach the decoders behind it; they may say anything but must not
//! panic, hang, or take more memory than a process of 2 GiB has. `EMBEDROCK_FUZZ` sets the rounds.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use crate::common::{Model, Random, child_path, options, spec};
use embedrock_core::optimizer::OptimizerKind;
use embedrock_core::{ErrorKind, GetBatch, StorageKind, Store, StoreOptions, TableSpec, check};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const DIM: usize = 5;
const STEPS: u64 = 6;
const RECORD_HEADER_BYTES: usize = 16;
const JOURNAL_HEADER_BYTES: usize = 40;
/// Address space of a process, in KiB: far above the needs of a small store, far below what sizes
/// in its files could ask for.
const ADDRESS_KIB: u64 = 2 << 20;

/// Files of a store by name.
type Files = BTreeMap<String, Vec<u8>>;

fn small() -> StoreOptions {
    StoreOptions { max_disk_bytes: None, ..options(2 << 20) }
}

/// A store with all kinds of records: several tables and classes, deletes, complete cycles.
fn store(directory: &Path) -> (Files, Model) {
    let path = directory.join("sound");
    let mut model = Model::new(vec![
        spec("dense", DIM, Some(600), OptimizerKind::Adagrad),
        spec("growing", DIM, None, OptimizerKind::Adagrad),
        spec("wide", 40, Some(50), OptimizerKind::Adam),
    ]);
    let options = StoreOptions { check_disk: false, ..options(2 << 20) };
    let store = Store::open(&path, options).unwrap();
    let tables = model.open_tables(&store).unwrap();
    let mut random = Random(1);
    for step in 1..=STEPS {
        // Enough changes that the journal is begun anew in between.
        for _ in 0..12 {
            for (table, (rows, dim)) in [(600, DIM), (4000, DIM), (50, 40)].into_iter().enumerate()
            {
                let keys: Vec<u64> = (0..600).map(|_| random.below(rows)).collect();
                let all: Vec<f32> = (0..keys.len() * dim).map(|_| random.value()).collect();
                crate::common::update(&store, tables[table], &keys, &all).unwrap();
                model.update(table, &keys, &all);
            }
        }
        let doomed: Vec<u64> = (0..40).map(|_| random.below(4000)).collect();
        store.delete(tables[1], &doomed).unwrap();
        model.delete(1, &doomed);
        store.commit(step, "meta", &[("weights", &[7; 300]), ("none", b"")]).unwrap();
    }
    drop(store);
    let mut files = Files::new();
    for entry in std::fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        files.insert(name, std::fs::read(entry.path()).unwrap());
    }
    files.remove("lock");
    // Room that was reserved and never written only makes the test slow.
    for (name, bytes) in files.iter_mut().filter(|(name, _)| name.starts_with("journal-")) {
        let written = with_records(bytes, &records(bytes));
        assert!(bytes.starts_with(&written), "{name}: this test knows the format");
        *bytes = written;
    }
    (files, model)
}

/// A record of a journal file.
#[derive(Clone)]
struct Record {
    kind: u8,
    payload: Vec<u8>,
}

fn records(journal: &[u8]) -> Vec<Record> {
    let mut found = Vec::new();
    let mut at = JOURNAL_HEADER_BYTES;
    while at + RECORD_HEADER_BYTES <= journal.len() && journal[at + 4] != 0 {
        let len = u32::from_le_bytes(journal[at..at + 4].try_into().unwrap()) as usize;
        let payload = journal[at + RECORD_HEADER_BYTES..][..len].to_vec();
        found.push(Record { kind: journal[at + 4], payload });
        at += RECORD_HEADER_BYTES + len.next_multiple_of(8);
    }
    found
}

/// The journal file with the header of `journal` and these records, each with a valid checksum.
fn with_records(journal: &[u8], records: &[Record]) -> Vec<u8> {
    let number = u64::from_le_bytes(journal[16..24].try_into().unwrap());
    let seed = u64::from_le_bytes(journal[24..32].try_into().unwrap());
    let mut bytes = journal[..JOURNAL_HEADER_BYTES].to_vec();
    for Record { kind, payload } in records {
        let place = [number.to_le_bytes(), (bytes.len() as u64).to_le_bytes()].concat();
        let mut head = (payload.len() as u32).to_le_bytes().to_vec();
        head.extend_from_slice(&[*kind, 0, 0, 0]);
        let sum = xxh3_64_with_seed(&head, xxh3_64_with_seed(&place, seed));
        head.extend_from_slice(&xxh3_64_with_seed(payload, sum).to_le_bytes());
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes
}

fn write(path: &Path, files: &Files) {
    let _ = std::fs::remove_dir_all(path);
    std::fs::create_dir(path).unwrap();
    for (name, bytes) in files {
        std::fs::write(path.join(name), bytes).unwrap();
    }
}

/// Opens the store and reads all that it has.
fn read_all(path: &Path) -> embedrock_core::Result<Store> {
    let store = Store::open(path, small())?;
    for info in store.tables() {
        let rows = info.spec.num_embeddings.unwrap_or(4000).min(4000);
        let keys: Vec<u64> = (0..rows).collect();
        let mut values = vec![0.0; keys.len() * info.spec.embedding_dim];
        let mut state = vec![0.0; keys.len() * info.state_words];
        let (v, s) = (&mut values[..], Some(&mut state[..]));
        store.get(&mut [GetBatch { table: info.id, keys: &keys, values: v.into(), state: s }])?;
        if info.rows < 1 << 20 && info.spec.num_embeddings.is_none_or(|rows| rows < 1 << 20) {
            store.digest(info.id, &mut |_, _| Ok(()))?;
        }
    }
    store.state()?;
    store.stats()?;
    Ok(store)
}

/// Changes rows of all tables and commits, twice, so that copies are outdated and cleaned.
fn write_some(store: &Store, random: &mut Random) -> embedrock_core::Result<()> {
    for step in 100..102 {
        for info in store.tables() {
            let rows = info.spec.num_embeddings.unwrap_or(4000);
            let keys: Vec<u64> = (0..900).map(|_| random.below(rows)).collect();
            let words = keys.len() * info.spec.embedding_dim;
            let gradients: Vec<f32> = (0..words).map(|_| random.value()).collect();
            crate::common::update(store, info.id, &keys, &gradients)?;
            store.delete(info.id, &keys[..20])?;
        }
        store.commit(step, "", &[("weights", &[1; 50])])?;
    }
    Ok(())
}

/// Runs `f` so that a panic names the round.
fn no_panic<R>(what: &str, f: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| panic!("panic at {what}"))
}

fn rounds() -> u64 {
    std::env::var("EMBEDROCK_FUZZ").map_or(80, |n| n.parse().unwrap())
}

/// Breaks one file in one of many ways; says how.
fn break_one(files: &mut Files, random: &mut Random) -> String {
    let names: Vec<String> = files.keys().cloned().collect();
    let name = names[random.below(names.len() as u64) as usize].clone();
    let other = names[random.below(names.len() as u64) as usize].clone();
    let donor = files[&other].clone();
    let bytes = files.get_mut(&name).unwrap();
    let len = bytes.len() as u64;
    let (at, n) = (random.below(len) as usize, 1 + random.below(600) as usize);
    let end = (at + n).min(bytes.len());
    let how = match random.below(8) {
        0 | 1 => {
            bytes[at] ^= 1 << random.below(8);
            "a bit"
        }
        2 => {
            bytes[at..end].iter_mut().for_each(|b| *b = random.next() as u8);
            "noise"
        }
        3 => {
            bytes[at..end].fill(0);
            "zeros"
        }
        4 => {
            bytes.truncate(at);
            "truncated"
        }
        5 => {
            let from = random.below(donor.len() as u64) as usize;
            let n = (end - at).min(donor.len() - from);
            bytes[at..at + n].copy_from_slice(&donor[from..from + n]);
            "bytes of another place"
        }
        6 => {
            bytes.splice(at..at, donor[..n.min(donor.len())].iter().copied());
            "inserted"
        }
        _ => {
            *bytes = donor;
            "replaced by another file"
        }
    };
    format!("{name} byte {at} to {end}: {how} ({other})")
}

#[test]
fn broken_bytes_are_reported_or_harmless_and_never_a_wrong_row() {
    let directory = tempfile::tempdir().unwrap();
    let (sound, model) = store(directory.path());
    assert!(sound.keys().filter(|name| name.starts_with("journal-")).count() > 0);
    let path = directory.path().join("broken");
    let mut found = 0;
    for seed in 0..rounds() {
        let mut files = sound.clone();
        let what = format!("seed {seed}: {}", break_one(&mut files, &mut Random(seed)));
        write(&path, &files);
        no_panic(&what, || {
            let report = check(&path, &mut |_, _| Ok(()));
            let problems = report.as_ref().map_or(1, |report| report.problem_count);
            match Store::open(&path, small()) {
                Err(error) => {
                    let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported];
                    assert!(kinds.contains(&error.kind()), "{what}: {error:?}");
                    assert!(problems > 0, "{what}: check found nothing");
                    found += 1;
                }
                Ok(store) => {
                    let step = store.last_commit().map(|c| c.step);
                    assert_eq!(step, Some(STEPS), "{what}: opened at another commit");
                    if let Some(difference) = model.difference(&store, &[vec![], vec![], vec![]]) {
                        assert!(difference.contains("restore"), "{what}: {difference}");
                        assert!(problems > 0, "{what}: check found nothing");
                        found += 1;
                    }
                    if let Err(error) = store.state() {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error:?}");
                        assert!(problems > 0, "{what}: check found nothing");
                    }
                }
            }
        });
    }
    assert!(found > rounds() / 4, "only {found} of {} did any harm", rounds());
}

/// Changes bytes in a way that keeps their form: digits stay digits.
fn mutate(bytes: &mut [u8], random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len() as u64) as usize;
        let byte = &mut bytes[at];
        *byte = match random.below(4) {
            _ if byte.is_ascii_digit() => b'0' + random.below(10) as u8,
            0 => random.next() as u8,
            1 => byte.wrapping_add(1),
            2 => *byte ^ (1 << random.below(8)),
            _ => [0, 0xFF, 1, 0x7F][random.below(4) as usize],
        };
    }
}

/// Puts another number, often one at a bound of some type, in the place of one in a text.
fn replace_number(text: &mut Vec<u8>, random: &mut Random) {
    let begins =
        |at: &usize| text[*at].is_ascii_digit() && (*at == 0 || !text[at - 1].is_ascii_digit());
    let places: Vec<usize> = (0..text.len()).filter(begins).collect();
    let Some(last) = places.len().checked_sub(1) else { return };
    let at = places[random.below(last as u64 + 1) as usize];
    let len = text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let power = 1u64 << random.below(64);
    let number = match random.below(6) {
        0 => random.below(20),
        1 => power,
        2 => power - 1,
        3 => power.wrapping_neg(),
        4 => u64::MAX,
        _ => power + random.below(8),
    };
    text.splice(at..at + len, number.to_string().into_bytes());
}

/// Changes one record, or where the records are; says what.
fn change_records(records: &mut Vec<Record>, random: &mut Random) -> String {
    let any = |random: &mut Random| random.below(records.len() as u64) as usize;
    // Each kind as often as the others, however many records there are of it.
    let kind = 1 + random.below(6) as u8;
    let some: Vec<usize> = (0..records.len()).filter(|i| records[*i].kind == kind).collect();
    let Some(last) = some.len().checked_sub(1) else { return "nothing".to_owned() };
    let (at, other) = (some[random.below(last as u64 + 1) as usize], any(random));
    let json = [1, 2, 6].contains(&kind);
    let how = match random.below(12) {
        0 => {
            records[at].kind = 1 + random.below(6) as u8;
            "of another kind"
        }
        1 => {
            let len = records[at].payload.len();
            records[at].payload.truncate(len - random.below(len.min(9) as u64 + 1) as usize);
            "shorter"
        }
        2 => {
            let from = records[other].payload.clone();
            let to = &mut records[at].payload;
            let n = from.len().min(to.len());
            to[..n].copy_from_slice(&from[..n]);
            "with another's beginning"
        }
        3 => {
            drop(records.remove(at));
            "removed"
        }
        4 => {
            let record = records[at].clone();
            records.insert(other, record);
            "twice"
        }
        5 => {
            records.swap(at, other);
            "exchanged with another"
        }
        6..=9 if json => {
            replace_number(&mut records[at].payload, random);
            "with another number"
        }
        _ => {
            mutate(&mut records[at].payload, random);
            "with other bytes"
        }
    };
    format!("record {at} of kind {kind} {how} ({other})")
}

/// Changes something and makes its checksum right again; says what.
fn reseal_one(files: &mut Files, seed: u64, random: &mut Random) -> String {
    let pick = |random: &mut Random, prefix: &str| -> String {
        let names: Vec<&String> = files.keys().filter(|name| name.starts_with(prefix)).collect();
        names[random.below(names.len() as u64) as usize].clone()
    };
    match random.below(12) {
        0 => {
            let block = files.get_mut("superblock").unwrap();
            let len = u32::from_le_bytes(block[12..16].try_into().unwrap()) as usize;
            let end = if random.below(3) == 0 { 16 } else { 16 + len };
            mutate(&mut block[8..end], random);
            let at = block.len() - 8;
            let sum = xxh3_64(&block[..at]);
            block[at..].copy_from_slice(&sum.to_le_bytes());
            "superblock".to_owned()
        }
        1 => {
            let mut head = random.next().to_le_bytes().to_vec();
            head.extend_from_slice(&xxh3_64_with_seed(&head, seed).to_le_bytes());
            files.insert("head".to_owned(), head);
            "head".to_owned()
        }
        2..=3 => {
            let name = pick(random, "rows-");
            let rows = files.get_mut(&name).unwrap();
            let pages: Vec<usize> =
                (0..rows.len() / 4096).filter(|p| rows[p * 4096 + 8..][..4] == *b"ERPG").collect();
            let page = pages[random.below(pages.len() as u64) as usize];
            let page_bytes = &mut rows[page * 4096..][..4096];
            // The directory of rows is at the end, and otherwise hardly ever hit.
            let from = [12..32, 12..4096, 3000..4096][random.below(3) as usize].clone();
            mutate(&mut page_bytes[from], random);
            let sum = xxh3_64_with_seed(&page_bytes[8..], seed);
            page_bytes[..8].copy_from_slice(&sum.to_le_bytes());
            format!("{name} page {page}")
        }
        _ => {
            let name = pick(random, "journal-");
            let journal = files.get_mut(&name).unwrap();
            let mut all = records(journal);
            let how = change_records(&mut all, random);
            *journal = with_records(journal, &all);
            format!("{name} {how}")
        }
    }
}

#[test]
fn nonsense_with_valid_checksums_never_panics() {
    const NAME: &str = "decoders::nonsense_with_valid_checksums_never_panics";
    if child_path().is_none() {
        // A process that asks for too much memory is aborted, so it must be another one.
        let limited = format!("ulimit -v {ADDRESS_KIB} && exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.arg("-c").arg(limited).arg(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture", "--test-threads=1"]);
        let output = command.env("EMBEDROCK_CHILD", "here").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("1 passed"), "another test than {NAME} ran: {said}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (sound, _) = store(directory.path());
    let journal = &sound[sound.keys().find(|name| name.starts_with("journal-")).unwrap()];
    let store_seed = u64::from_le_bytes(journal[24..32].try_into().unwrap());
    let path = directory.path().join("nonsense");
    write(&path, &sound);
    write_some(&read_all(&path).unwrap(), &mut Random(0)).unwrap();
    let (mut refused, mut kinds) = (0, std::collections::BTreeSet::new());
    for seed in 0..rounds() {
        let mut random = Random(seed + 1_000_000);
        let mut files = sound.clone();
        let what = format!("seed {seed}: {}", reseal_one(&mut files, store_seed, &mut random));
        kinds.insert(what.split(' ').nth(2).unwrap().split('-').next().unwrap().to_owned());
        write(&path, &files);
        no_panic(&what, || {
            let _ = check(&path, &mut |_, _| Ok(()));
            match read_all(&path) {
                Ok(store) => drop(write_some(&store, &mut random)),
                Err(_) => refused += 1,
            }
        });
    }
    assert!(kinds.len() >= 4, "{kinds:?}");
    assert!(refused > rounds() / 4, "only {refused} of {} were refused", rounds());
}

/// The two small files that tie a store to its cold directory: one that is broken is refused, or
/// the rows are right, whether its checksum tells of it or not.
#[test]
fn broken_ties_to_a_cold_directory_are_refused_and_never_panic() {
    let directory = tempfile::tempdir().unwrap();
    let (path, cold) = (directory.path().join("store"), directory.path().join("cold"));
    // Small pages and segments, or so few rows are never merged.
    let options = StoreOptions {
        cold_directory: Some(cold.clone()),
        page_bytes: Some(512),
        segment_bytes: Some(8 << 10),
        ..small()
    };
    let spec = TableSpec { storage: StorageKind::Lsm, ..spec("t", DIM, None, OptimizerKind::Sgd) };
    let mut model = Model::new(vec![spec]);
    let store = Store::open(&path, options).unwrap();
    let table = model.open_tables(&store).unwrap()[0];
    let mut random = Random(3);
    for step in 1..=STEPS {
        for _ in 0..30 {
            let keys: Vec<u64> = (0..400).map(|_| random.below(4000)).collect();
            let all: Vec<f32> = (0..keys.len() * DIM).map(|_| random.value()).collect();
            crate::common::update(&store, table, &keys, &all).unwrap();
            model.update(0, &keys, &all);
        }
        store.commit(step, "", &[]).unwrap();
    }
    drop(store);
    let ties = [path.join("cold"), cold.join("embedrock-cold")];
    let sound = ties.clone().map(|tie| std::fs::read(tie).unwrap());
    let mut refused = 0;
    for seed in 0..rounds() {
        let random = &mut Random(seed);
        let at = random.below(2) as usize;
        let mut bytes = sound[at].clone();
        let mends = random.below(2) == 0;
        if mends {
            let body = bytes.len() - 8;
            bytes.truncate(body);
            match random.below(2) {
                0 => replace_number(&mut bytes, random),
                _ => mutate(&mut bytes, random),
            }
            let sum = xxh3_64(&bytes);
            bytes.extend_from_slice(&sum.to_le_bytes());
        } else {
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            mutate(&mut bytes, random);
        }
        std::fs::write(&ties[at], &bytes).unwrap();
        let what = format!("seed {seed}, {}, checksum mended: {mends}", ties[at].display());
        no_panic(&what, || match Store::open(&path, small()) {
            Err(error) => {
                let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::Mismatch];
                assert!(kinds.contains(&error.kind()), "{what}: {error:?}");
                refused += 1;
            }
            Ok(store) => {
                let difference = model.difference(&store, &[vec![]]);
                assert!(mends && difference.is_none(), "{what}: {difference:?}");
            }
        });
        for (tie, sound) in ties.iter().zip(&sound) {
            std::fs::write(tie, sound).unwrap();
        }
    }
    assert!(refused > rounds() / 4, "only {refused} of {} were refused", rounds());
    assert!(std::fs::read_dir(&cold).unwrap().count() > 2, "there is a partition");
    assert!(model.difference(&Store::open(&path, small()).unwrap(), &[vec![]]).is_none());
}
