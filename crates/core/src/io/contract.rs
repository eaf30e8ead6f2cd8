//! One contract suite for every medium: io_uring and pread, direct and buffered, and the simulated
//! device.

use super::request::TRANSFER_MAX;
use super::{
    Buffers, Completion, DirectoryMedium, File, FileLock, IoChoice, Locking, Medium, OpenMode,
    Queue, RoutedMedium, SimMedium,
};
use crate::error::ErrorKind;
use crate::hash::mix;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

mod folders;
mod locks;
mod misuse;

/// A medium and what must live as long.
struct Subject {
    label: &'static str,
    medium: Box<dyn Medium>,
    _directories: Vec<tempfile::TempDir>,
}

/// Two simulated directories as one.
fn routed_sim(label: &'static str, prefix: &'static str) -> Subject {
    let own = SimMedium::new(43);
    let apart = Arc::new(own.folder("apart"));
    let medium = Box::new(RoutedMedium::new(Arc::new(own), apart, prefix, true));
    Subject { label, medium, _directories: Vec::new() }
}

/// Every medium that this machine has. io_uring is left out, aloud, where the kernel refuses it.
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
fn subjects() -> Vec<Subject> {
    let sim = Box::new(SimMedium::new(42));
    let mut subjects = vec![
        Subject { label: "sim", medium: sim, _directories: Vec::new() },
        routed_sim("sim, rows apart", "rows"),
        routed_sim("sim, all apart", ""),
    ];
    for (label, choice, direct) in [
        ("uring direct", IoChoice::Uring, true),
        ("uring buffered", IoChoice::Uring, false),
        ("pread direct", IoChoice::Pread, true),
        ("pread buffered", IoChoice::Pread, false),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let opened = if direct {
            DirectoryMedium::open(directory.path(), choice)
        } else {
            DirectoryMedium::open_buffered(directory.path(), choice)
        };
        match opened {
            Ok(medium) => {
                medium.notes().iter().for_each(|note| eprintln!("{label}: {note}"));
                let medium = Box::new(medium);
                subjects.push(Subject { label, medium, _directories: vec![directory] });
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                eprintln!("{label} is skipped: {error}");
            }
            Err(error) => panic!("{label}: {error}"),
        }
    }
    subjects.push(routed_directories());
    subjects
}

/// Two directories of the operating system, of which one has direct I/O and the other none.
fn routed_directories() -> Subject {
    let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [own, apart] = &directories;
    let own = DirectoryMedium::open(own.path(), IoChoice::Auto).unwrap();
    let apart = DirectoryMedium::open_buffered(apart.path(), IoChoice::Auto).unwrap();
    let medium = RoutedMedium::new(Arc::new(own), Arc::new(apart), "rows", true);
    let label = "two directories, rows apart";
    Subject { label, medium: Box::new(medium), _directories: directories.into() }
}

/// Runs `test` on every medium; a failure names it.
fn each(test: impl Fn(&dyn Medium)) {
    on_each(&test);
}

/// Not generic: it would be compiled again for each test.
fn on_each(test: &dyn Fn(&dyn Medium)) {
    for subject in subjects() {
        let result = catch_unwind(AssertUnwindSafe(|| test(subject.medium.as_ref())));
        if let Err(panic) = result {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            panic!("on {}: {}", subject.label, text.unwrap_or_default());
        }
    }
}

/// The bytes that page `page` holds after its `version`-th write.
fn pattern(page: u64, version: u64, bytes: &mut [u8]) {
    for (word, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&mix(word as u64, mix(page, version)).to_le_bytes());
    }
}

fn is_pattern(page: u64, version: u64, bytes: &[u8]) -> bool {
    let mut wanted = vec![0; bytes.len()];
    pattern(page, version, &mut wanted);
    wanted == bytes
}

/// Writes `pages` pages of `bytes` through the queue, in a scattered order.
fn write_pages(
    queue: &mut dyn Queue,
    file: &Arc<dyn File>,
    pages: u64,
    bytes: usize,
    version: u64,
) {
    let mut done = Vec::new();
    for i in 0..pages {
        let page = (i * 7919) % pages;
        let buffer = loop {
            match queue.acquire().filter(|_| queue.in_flight() < queue.depth()) {
                Some(buffer) => break buffer,
                None => queue.wait(1, &mut done).unwrap(),
            }
            release(queue, &mut done);
        };
        pattern(page, version, &mut queue.buffer_mut(buffer)[..bytes]);
        queue.write(file, page * bytes as u64, bytes, buffer, page).unwrap();
    }
    queue.wait(queue.in_flight(), &mut done).unwrap();
    release(queue, &mut done);
}

fn release(queue: &mut dyn Queue, done: &mut Vec<Completion>) {
    for completion in done.drain(..) {
        completion.result.unwrap();
        queue.release(completion.buffer);
    }
}

#[test]
fn pages_written_by_queue_are_read_back_by_queue_and_by_blocking_call() {
    each(|medium| {
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        let (pages, bytes) = (193, 4096);
        file.allocate(0, pages * bytes as u64).unwrap();
        let mut queue = medium.queue(32, Buffers::equal(32, bytes)).unwrap();
        for version in 0..3 {
            write_pages(queue.as_mut(), &file, pages, bytes, version);
            let mut seen = HashSet::new();
            let mut done = Vec::new();
            let mut next = 0;
            while seen.len() < pages as usize {
                while next < pages && queue.in_flight() < queue.depth() {
                    let buffer = queue.acquire().unwrap();
                    queue.read(&file, next * bytes as u64, bytes, buffer, next).unwrap();
                    next += 1;
                }
                queue.wait(1, &mut done).unwrap();
                assert!(!done.is_empty());
                for completion in done.drain(..) {
                    completion.result.unwrap();
                    let page = completion.token;
                    assert!(is_pattern(page, version, queue.buffer(completion.buffer)));
                    assert!(seen.insert(page), "page {page} completed twice");
                    queue.release(completion.buffer);
                }
            }
            assert_eq!(queue.in_flight(), 0);
            let mut page = vec![0; bytes];
            file.read_at(&mut page, 100 * bytes as u64).unwrap();
            assert!(is_pattern(100, version, &page));
        }
    });
}

#[test]
fn buffered_and_queued_calls_that_follow_one_another_see_one_another() {
    each(|medium| {
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        let bytes = 4096;
        file.allocate(0, 8 * bytes as u64).unwrap();
        let mut queue = medium.queue(4, Buffers::equal(4, bytes)).unwrap();
        let mut done = Vec::new();
        let mut page = vec![0; bytes];
        for version in 0..20 {
            pattern(3, version, &mut page);
            file.write_at(&page, 3 * bytes as u64).unwrap();
            let buffer = queue.acquire().unwrap();
            queue.read(&file, 3 * bytes as u64, bytes, buffer, 0).unwrap();
            queue.wait(1, &mut done).unwrap();
            assert!(is_pattern(3, version, queue.buffer(buffer)), "queue read, {version}");
            release(queue.as_mut(), &mut done);

            let buffer = queue.acquire().unwrap();
            pattern(3, version + 1000, queue.buffer_mut(buffer));
            queue.write(&file, 3 * bytes as u64, bytes, buffer, 0).unwrap();
            queue.wait(1, &mut done).unwrap();
            release(queue.as_mut(), &mut done);
            file.read_at(&mut page, 3 * bytes as u64).unwrap();
            assert!(is_pattern(3, version + 1000, &page), "blocking read, {version}");
        }
    });
}

/// Makes requests of this thread move so many bytes at once at most, while it lives.
struct ShortTransfers;

impl ShortTransfers {
    fn of(bytes: u32) -> Self {
        TRANSFER_MAX.set(bytes);
        Self
    }
}

impl Drop for ShortTransfers {
    fn drop(&mut self) {
        TRANSFER_MAX.set(u32::MAX);
    }
}

#[test]
fn transfers_that_move_a_part_are_continued_where_they_ended() {
    each(|medium| {
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        let mut queue = medium.queue(8, Buffers::equal(8, 32_768)).unwrap();
        // A direct transfer is a multiple of the alignment; others end anywhere.
        let most = if medium.direct() { medium.alignment() as u32 } else { 3000 };
        let short = ShortTransfers::of(most);
        write_pages(queue.as_mut(), &file, 16, 32_768, 1);
        drop(short);
        let mut bytes = vec![0; 32_768];
        for page in 0..16 {
            file.read_at(&mut bytes, page * 32_768).unwrap();
            assert!(is_pattern(page, 1, &bytes), "page {page} as it was written");
        }
        let _short = ShortTransfers::of(most);
        let mut done = Vec::new();
        for page in 0..8 {
            let buffer = queue.acquire().unwrap();
            queue.buffer_mut(buffer).fill(0);
            queue.read(&file, page * 32_768, 32_768, buffer, page).unwrap();
        }
        queue.wait(8, &mut done).unwrap();
        for completion in &done {
            completion.result.as_ref().unwrap();
            assert!(is_pattern(completion.token, 1, queue.buffer(completion.buffer)));
        }
    });
}

#[test]
fn requests_of_several_sizes_and_files_share_a_queue() {
    each(|medium| {
        let files: Vec<_> = (0..3)
            .map(|i| medium.open(&format!("rows-{i}"), OpenMode::CreateNew).unwrap())
            .collect();
        let most = 65_536;
        let mut queue = medium.queue(9, Buffers::equal(9, most)).unwrap();
        let step = medium.alignment().max(512);
        let mut done = Vec::new();
        let sizes = [step, 2 * step, 8192, 12_288, most];
        for (f, file) in files.iter().enumerate() {
            let mut offset = 0;
            for &size in &sizes {
                let buffer = queue.acquire().unwrap();
                pattern(f as u64, size as u64, &mut queue.buffer_mut(buffer)[..size]);
                queue.write(file, offset, size, buffer, 0).unwrap();
                offset += size as u64;
            }
            queue.wait(usize::MAX, &mut done).unwrap();
            assert_eq!(done.len(), sizes.len(), "more than are in flight means all");
            release(queue.as_mut(), &mut done);
        }
        for (f, file) in files.iter().enumerate() {
            let mut offset = 0;
            for &size in &sizes {
                let buffer = queue.acquire().unwrap();
                queue.read(file, offset, size, buffer, size as u64).unwrap();
                offset += size as u64;
            }
            queue.wait(sizes.len(), &mut done).unwrap();
            for completion in done.drain(..) {
                completion.result.unwrap();
                let size = completion.token;
                let bytes = &queue.buffer(completion.buffer)[..size as usize];
                assert!(is_pattern(f as u64, size, bytes));
                queue.release(completion.buffer);
            }
        }
    });
}

#[test]
fn a_buffer_stays_readable_while_it_is_written_and_acquired_until_release() {
    each(|medium| {
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        let mut queue = medium.queue(2, Buffers::equal(2, 262_144)).unwrap();
        let buffer = queue.acquire().unwrap();
        pattern(1, 1, queue.buffer_mut(buffer));
        queue.write(&file, 0, 262_144, buffer, 5).unwrap();
        assert_eq!(queue.in_flight(), 1);
        queue.submit().unwrap();
        assert!(is_pattern(1, 1, queue.buffer(buffer)));
        let mut done = Vec::new();
        queue.wait(1, &mut done).unwrap();
        assert_eq!((done[0].token, done[0].buffer), (5, buffer));
        assert!(is_pattern(1, 1, queue.buffer(buffer)));
        queue.buffer_mut(buffer).fill(0);
        let other = queue.acquire().unwrap();
        assert_ne!(other, buffer);
        assert!(queue.acquire().is_none());
        queue.release(buffer);
        assert_eq!(queue.acquire(), Some(buffer));
        assert!(queue.memory_bytes() >= 2 * 262_144);
        assert_eq!((queue.depth(), queue.buffer_bytes()), (2, 262_144));
    });
}

#[test]
fn a_queue_takes_no_more_memory_than_is_said_beforehand() {
    each(|medium| {
        for (depth, buffers) in [
            (2, Buffers::equal(2, 16_384)),
            (43, Buffers::sharing(64 << 12, 4096, 16_384)),
            (171, Buffers::sharing(256 << 10, 512, 32_768)),
            (256, Buffers::sharing(3 << 20, 4096, 32_768)),
        ] {
            let (taken, most) = {
                let queue = medium.queue(depth, buffers).unwrap();
                (queue.memory_bytes(), buffers.queue_bytes(depth))
            };
            assert!(taken <= most && most < taken + 512 * depth + 16_384, "{taken} of {most}");
        }
    });
}

#[test]
fn polling_waits_for_nothing_and_completes_everything_in_the_end() {
    each(|medium| {
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        file.write_at(&[7; 65_536], 0).unwrap();
        let mut queue = medium.queue(16, Buffers::equal(16, 4096)).unwrap();
        let mut done = Vec::new();
        queue.wait(0, &mut done).unwrap();
        queue.wait(3, &mut done).unwrap();
        assert!(done.is_empty(), "nothing is in flight, so nothing to wait for");
        for i in 0..16 {
            let buffer = queue.acquire().unwrap();
            queue.read(&file, i * 4096, 4096, buffer, i).unwrap();
        }
        queue.submit().unwrap();
        while done.len() < 16 {
            queue.wait(0, &mut done).unwrap();
            std::thread::yield_now();
        }
        assert_eq!(done.iter().map(|c| c.token).collect::<HashSet<_>>().len(), 16);
    });
}

#[test]
fn a_read_beyond_the_end_is_a_corrupt_file_by_name_and_place() {
    each(|medium| {
        let file = medium.open("short", OpenMode::CreateNew).unwrap();
        file.write_at(&[1; 5000], 0).unwrap();
        let mut buffer = [0; 100];
        let error = file.read_at(&mut buffer, 4950).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        for part in ["short", "4950", "100", "5000"] {
            assert!(error.message().contains(part), "{error} lacks {part}");
        }
        file.read_at(&mut buffer, 4900).unwrap();

        let mut queue = medium.queue(4, Buffers::equal(4, 8192)).unwrap();
        let mut done = Vec::new();
        for (offset, bytes) in [(0, 8192), (4096, 4096), (8192, 4096), (0, 4096)] {
            let id = queue.acquire().unwrap();
            queue.read(&file, offset, bytes, id, offset + bytes as u64).unwrap();
        }
        queue.wait(4, &mut done).unwrap();
        for completion in &done {
            match (completion.token, &completion.result) {
                (4096, result) => assert!(result.is_ok(), "{result:?}"),
                (_, Err(error)) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    assert!(error.message().contains("short"), "{error}");
                }
                (token, Ok(())) => panic!("the read that ends at {token} succeeded"),
            }
        }
    });
}

#[test]
fn a_file_opened_to_read_refuses_writes_by_call_and_by_queue() {
    each(|medium| {
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        file.write_at(&[1; 4096], 0).unwrap();
        let reader = medium.open("rows", OpenMode::ReadOnly).unwrap();
        assert_eq!(reader.write_at(&[2; 4096], 0).unwrap_err().kind(), ErrorKind::Io);
        let mut page = [0; 4096];
        reader.read_at(&mut page, 0).unwrap();
        assert_eq!(page, [1; 4096]);
        if medium.kind() == super::IoKind::Simulated {
            return;
        }
        let mut queue = medium.queue(1, Buffers::equal(1, 4096)).unwrap();
        let buffer = queue.acquire().unwrap();
        queue.write(&reader, 0, 4096, buffer, 0).unwrap();
        let mut done = Vec::new();
        queue.wait(1, &mut done).unwrap();
        let error = done.pop().unwrap().result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.message().contains("write rows"), "{error}");
        // The queue goes on after a failed request.
        queue.read(&reader, 0, 4096, buffer, 0).unwrap();
        queue.wait(1, &mut done).unwrap();
        assert!(done[0].result.is_ok());
    });
}

#[test]
fn allocation_extends_by_zeros_keeps_data_and_never_shrinks() {
    each(|medium| {
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        assert!(file.is_empty().unwrap());
        file.write_at(b"header", 0).unwrap();
        file.allocate(0, 1 << 20).unwrap();
        assert_eq!(file.len().unwrap(), 1 << 20);
        file.allocate(4096, 4096).unwrap();
        file.allocate(0, 0).unwrap();
        assert_eq!(file.len().unwrap(), 1 << 20);
        let mut bytes = vec![1; 1 << 20];
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[..6], b"header");
        assert!(bytes[6..].iter().all(|&byte| byte == 0));
        file.set_len(3).unwrap();
        file.set_len(10).unwrap();
        file.read_at(&mut bytes[..10], 0).unwrap();
        assert_eq!(&bytes[..10], b"hea\0\0\0\0\0\0\0");
        file.sync().unwrap();
        assert!(medium.free_bytes().unwrap() > 0);
    });
}

#[test]
fn an_impossible_allocation_is_full_and_leaves_the_length() {
    each(|medium| {
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        file.allocate(0, 10_000).unwrap();
        let error = file.allocate(0, 1 << 60).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert!(error.message().contains("rows"), "{error}");
        assert_eq!(file.len().unwrap(), 10_000);
    });
}

#[test]
fn names_are_created_listed_renamed_and_removed() {
    each(|medium| {
        for name in ["b-2", "b-1", "a"] {
            let file = medium.open(name, OpenMode::CreateNew).unwrap();
            assert_eq!(file.name(), name);
            file.write_at(name.as_bytes(), 0).unwrap();
        }
        assert_eq!(medium.list("").unwrap(), ["a", "b-1", "b-2"]);
        assert_eq!(medium.list("b-").unwrap(), ["b-1", "b-2"]);
        assert_eq!(medium.open("a", OpenMode::CreateNew).unwrap_err().kind(), ErrorKind::Io);
        medium.rename("b-1", "a").unwrap();
        assert_eq!(medium.list("").unwrap(), ["a", "b-2"]);
        let moved = medium.open("a", OpenMode::ReadWrite).unwrap();
        let mut bytes = [0; 3];
        moved.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"b-1");
        medium.remove("a").unwrap();
        moved.read_at(&mut bytes, 0).unwrap();
        medium.sync_dir().unwrap();
        moved.read_at(&mut bytes, 0).unwrap();
        for error in [
            medium.open("a", OpenMode::ReadWrite).err(),
            medium.open("a", OpenMode::ReadOnly).err(),
            medium.remove("a").err(),
            medium.rename("a", "c").err(),
        ] {
            assert_eq!(error.unwrap().kind(), ErrorKind::NotFound);
        }
        for name in ["", ".", "..", "x/y", "/x"] {
            let error = medium.open(name, OpenMode::CreateNew).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misuse, "{name}");
        }
        assert_eq!(medium.list("").unwrap(), ["b-2"]);
    });
}

#[test]
fn dropping_a_queue_finishes_its_writes() {
    each(|medium| {
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        let mut queue = medium.queue(8, Buffers::equal(8, 65_536)).unwrap();
        for page in 0..8 {
            let buffer = queue.acquire().unwrap();
            pattern(page, 9, queue.buffer_mut(buffer));
            queue.write(&file, page * 65_536, 65_536, buffer, page).unwrap();
        }
        queue.submit().unwrap();
        drop(queue);
        let mut bytes = vec![0; 65_536];
        for page in 0..8 {
            file.read_at(&mut bytes, page * 65_536).unwrap();
            assert!(is_pattern(page, 9, &bytes));
        }
    });
}

#[test]
fn several_queues_work_at_once_from_several_threads() {
    each(|medium| {
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        file.allocate(0, 4 * 64 * 4096).unwrap();
        std::thread::scope(|scope| {
            for part in 0..4u64 {
                let mut queue = medium.queue(16, Buffers::equal(16, 4096)).unwrap();
                let file = &file;
                scope.spawn(move || {
                    let mut done = Vec::new();
                    for page in (part * 64)..(part * 64 + 64) {
                        if queue.in_flight() == 16 {
                            queue.wait(1, &mut done).unwrap();
                            release(queue.as_mut(), &mut done);
                        }
                        let buffer = queue.acquire().unwrap();
                        pattern(page, 1, queue.buffer_mut(buffer));
                        queue.write(file, page * 4096, 4096, buffer, page).unwrap();
                    }
                    queue.wait(16, &mut done).unwrap();
                });
            }
        });
        let mut bytes = vec![0; 4096];
        for page in 0..256 {
            file.read_at(&mut bytes, page * 4096).unwrap();
            assert!(is_pattern(page, 1, &bytes), "page {page}");
        }
    });
}

#[test]
fn a_queue_moves_between_threads_with_requests_in_flight() {
    each(|medium| {
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        file.write_at(&[5; 65_536], 0).unwrap();
        let mut queue = medium.queue(16, Buffers::equal(16, 4096)).unwrap();
        for _ in 0..20 {
            // The submitting thread ends before its requests are waited for.
            queue = std::thread::scope(|scope| {
                let file = &file;
                let submitting = scope.spawn(move || {
                    for i in 0..16 {
                        let buffer = queue.acquire().unwrap();
                        queue.read(file, i * 4096, 4096, buffer, i).unwrap();
                    }
                    queue.submit().unwrap();
                    queue
                });
                submitting.join().unwrap()
            });
            let mut done = Vec::new();
            queue.wait(16, &mut done).unwrap();
            assert_eq!(done.len(), 16);
            assert!(done.iter().all(|c| queue.buffer(c.buffer).iter().all(|&b| b == 5)));
            release(queue.as_mut(), &mut done);
        }
    });
}

#[test]
fn queues_that_cannot_work_are_refused() {
    each(|medium| {
        for (depth, buffers, bytes) in
            [(0, 1, 4096), (1, 0, 4096), (1, 1, 0), (1, 1, 1000), (1, 1, 2 << 30)]
        {
            let error = medium.queue(depth, Buffers::equal(buffers, bytes)).err();
            assert_eq!(
                error.map(|e| e.kind()),
                Some(ErrorKind::Misuse),
                "{depth} {buffers} {bytes}"
            );
        }
        for (pieces, piece_bytes, longest) in [(4, 4096, 5), (4, 4096, 0), (4, 12_288, 2)] {
            let error = medium.queue(4, Buffers { pieces, piece_bytes, longest }).err();
            let kind = error.map(|e| e.kind());
            assert_eq!(kind, Some(ErrorKind::Misuse), "{pieces} {piece_bytes} {longest}");
        }
    });
}

#[test]
fn memory_is_shared_by_as_many_buffers_as_are_worth_an_account() {
    let pieces = |buffers: Buffers| (buffers.pieces, buffers.piece_bytes, buffers.longest);
    assert_eq!(pieces(Buffers::sharing(96 << 12, 4096, 16 << 10)), (96, 4096, 4));
    assert_eq!(pieces(Buffers::sharing(3 << 20, 4096, 32 << 10)), (768, 4096, 8));
    assert_eq!(pieces(Buffers::sharing(3 << 20, 512, 32 << 10)), (768, 4096, 8));
    assert_eq!(pieces(Buffers::sharing(64 << 20, 512, 16 << 10)), (4096, 16 << 10, 1));
    assert_eq!(pieces(Buffers::sharing(2048, 1024, 4096)), (2, 1024, 2));
    assert_eq!(pieces(Buffers::sharing(100, 512, 512)), (0, 512, 1));
}

#[test]
fn requests_take_as_much_of_the_memory_as_they_are_long() {
    each(|medium| {
        let (pages, bytes) = (256, 4096);
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        file.allocate(0, pages * bytes as u64).unwrap();
        let mut queue = medium.queue(8, Buffers::equal(8, bytes)).unwrap();
        write_pages(queue.as_mut(), &file, pages, bytes, 0);
        let mut queue = medium.queue(64, Buffers::sharing(32 * bytes, bytes, 8 * bytes)).unwrap();
        assert_eq!((queue.depth(), queue.buffer_bytes()), (32, 8 * bytes));
        let mut done = Vec::new();
        let (mut page, mut seen, mut most) = (0, 0, 0);
        while seen < pages {
            let span = (1 + mix(page, 1) % 8).min(pages - page);
            let room = queue.in_flight() < queue.depth() && page < pages;
            let length = span as usize * bytes;
            if let Some(buffer) = room.then(|| queue.acquire_for(length)).flatten() {
                queue.read(&file, page * bytes as u64, length, buffer, page << 8 | span).unwrap();
                page += span;
                most = most.max(queue.in_flight());
                continue;
            }
            queue.wait(1, &mut done).unwrap();
            for completion in done.drain(..) {
                completion.result.unwrap();
                let (first, span) = (completion.token >> 8, completion.token & 255);
                let found = queue.buffer(completion.buffer);
                assert_eq!(found.len(), span as usize * bytes);
                for (i, one) in found.chunks_exact(bytes).enumerate() {
                    assert!(is_pattern(first + i as u64, 0, one));
                }
                seen += span;
                queue.release(completion.buffer);
            }
        }
        assert!(most > 4, "{most} requests at once: no more than of the longest");
    });
}

#[test]
fn a_file_looks_different_after_a_change() {
    each(|medium| {
        let missing = medium.state_of("journal").unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let file = medium.open("journal", OpenMode::CreateNew).unwrap();
        file.write_at(b"12", 0).unwrap();
        let before = medium.state_of("journal").unwrap();
        assert_eq!(before.bytes, 2);
        let again = medium.state_of("journal").unwrap();
        assert_eq!((again.bytes, again.stamp), (before.bytes, before.stamp));
        file.write_at(b"3", 2).unwrap();
        assert_eq!(medium.state_of("journal").unwrap().bytes, 3);
    });
}

#[test]
fn room_given_back_reads_as_zero_and_can_be_taken_again() {
    each(|medium| {
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        let block = 64 << 10;
        file.allocate(0, 4 * block).unwrap();
        file.write_at(&vec![7; 4 * block as usize], 0).unwrap();
        if !file.give_back(block, 2 * block).unwrap() {
            assert!(medium.notes().iter().any(|note| note.contains("takes no room back")));
            return;
        }
        assert_eq!(file.len().unwrap(), 4 * block);
        let mut bytes = vec![1; 4 * block as usize];
        file.read_at(&mut bytes, 0).unwrap();
        let whole = bytes.chunks(block as usize).zip([7, 0, 0, 7]);
        assert!(whole.into_iter().all(|(part, b)| part.iter().all(|byte| *byte == b)));
        file.allocate(block, block).unwrap();
        file.write_at(&[9; 100], block).unwrap();
        file.sync().unwrap();
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!((bytes[block as usize], bytes[block as usize + 100]), (9, 0));
        // A range without a whole block keeps its bytes unless it was given back.
        if !file.give_back(100, 300).unwrap() {
            file.read_at(&mut bytes, 0).unwrap();
            assert!(bytes[..block as usize].iter().all(|byte| *byte == 7));
        }
    });
}
