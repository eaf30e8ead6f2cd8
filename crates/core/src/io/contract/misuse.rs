//! Misuse of a queue asserts.

use super::*;

/// Runs `misuse` on every medium and asserts that each time it panics saying `expected`.
fn each_asserts(expected: &str, misuse: impl Fn(&mut dyn Queue, &Arc<dyn File>)) {
    each(|medium| {
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        file.write_at(&[0; 16_384], 0).unwrap();
        let mut queue = medium.queue(2, Buffers::equal(3, 4096)).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| misuse(queue.as_mut(), &file)));
        let panic = outcome.expect_err("the misuse was not noticed");
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        let text = text.unwrap_or_default();
        assert!(text.contains(expected), "it says: {text}");
    });
}

#[test]
fn looking_at_a_buffer_that_is_read_into_asserts() {
    each_asserts("is Reading", |queue, file| {
        let buffer = queue.acquire().unwrap();
        queue.read(file, 0, 4096, buffer, 0).unwrap();
        let _ = queue.buffer(buffer);
    });
}

#[test]
fn changing_a_buffer_that_is_written_from_asserts() {
    each_asserts("is Writing", |queue, file| {
        let buffer = queue.acquire().unwrap();
        queue.write(file, 0, 4096, buffer, 0).unwrap();
        let _ = queue.buffer_mut(buffer);
    });
}

#[test]
fn releasing_a_buffer_in_flight_asserts() {
    each_asserts("cannot release", |queue, file| {
        let buffer = queue.acquire().unwrap();
        queue.read(file, 0, 4096, buffer, 0).unwrap();
        queue.release(buffer);
    });
}

#[test]
fn a_request_on_a_buffer_in_flight_asserts() {
    each_asserts("must be Acquired", |queue, file| {
        let buffer = queue.acquire().unwrap();
        queue.write(file, 0, 4096, buffer, 0).unwrap();
        let _ = queue.read(file, 0, 4096, buffer, 1);
    });
}

#[test]
fn a_free_buffer_is_nobodys() {
    each_asserts("is Free", |queue, _| {
        let buffer = queue.acquire().unwrap();
        queue.release(buffer);
        let _ = queue.buffer(buffer);
    });
}

#[test]
fn more_requests_than_the_depth_assert() {
    each_asserts("the queue is full", |queue, file| {
        for i in 0..3 {
            let buffer = queue.acquire().unwrap();
            queue.read(file, 0, 4096, buffer, i).unwrap();
        }
    });
}

#[test]
fn requests_off_the_alignment_assert() {
    each_asserts("is not aligned", |queue, file| {
        let buffer = queue.acquire().unwrap();
        let _ = queue.read(file, 100, 4096, buffer, 0);
    });
    each_asserts("does not fit a buffer", |queue, file| {
        let buffer = queue.acquire().unwrap();
        let _ = queue.write(file, 0, 8192, buffer, 0);
    });
}

#[test]
fn a_file_of_another_medium_asserts() {
    let foreign = SimMedium::new(1).open("rows", OpenMode::CreateNew).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let local = DirectoryMedium::open(directory.path(), IoChoice::Pread).unwrap();
    let local = local.open("rows", OpenMode::CreateNew).unwrap();
    each(|medium| {
        let file = if medium.kind() == crate::io::IoKind::Simulated { &local } else { &foreign };
        let mut queue = medium.queue(1, Buffers::equal(1, 4096)).unwrap();
        let buffer = queue.acquire().unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| queue.read(file, 0, 4096, buffer, 0)));
        assert!(outcome.is_err());
    });
}
