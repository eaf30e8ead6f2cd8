//! Locks and holds of stores in real directories: what drops them and what must not, forked
//! children, readers that may not write, cold directories that cannot be written, working
//! directories that change.
#![expect(unsafe_code, reason = "fork, fcntl, mounts and users have no safe interface")]
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use crate::common::{child_path, get, hear, options, put, say, spawn, spec};
use embedrock_core::config::IoChoice;
use embedrock_core::optimizer::OptimizerKind;
use embedrock_core::{ErrorKind, GetBatch, Store, StoreOptions, TableId, check, copy};
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const DIM: usize = 8;
const ROWS: u64 = 3000;
const BUDGET: u64 = 600 << 10;
/// Commits after which nothing is left of one that nobody holds.
const MANY: u64 = 60;
const FORKS: i32 = 200;
const NOBODY: u32 = 65534;

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap().join("store");
    (directory, path)
}

fn reading() -> StoreOptions {
    StoreOptions { read_only: true, ..options(BUDGET) }
}

/// A row that tells its key and the step in which it was written.
fn row_of(key: u64, step: u64) -> [f32; DIM] {
    std::array::from_fn(|i| (key * 10 + i as u64) as f32 + step as f32 / 1024.0)
}

/// Writes every row and commits.
fn train(store: &Store, step: u64) {
    let table = store.table(&spec("t", DIM, Some(ROWS), OptimizerKind::None)).unwrap();
    let keys: Vec<u64> = (0..ROWS).collect();
    let values: Vec<f32> = keys.iter().flat_map(|key| row_of(*key, step)).collect();
    put(store, table, &keys, &values).unwrap();
    store.commit(step, "", &[("weights", &[step as u8; 5000])]).unwrap();
}

/// A store with commits of steps 1 to 6, of which two stay.
fn trained(path: &Path) -> Store {
    let store = Store::open(path, options(BUDGET)).unwrap();
    (1..=6).for_each(|step| train(&store, step));
    store
}

/// Reads some rows, which must be of the step.
fn read(store: &Store, keys: std::ops::Range<u64>, step: u64) -> embedrock_core::Result<()> {
    let table = store.find_table("t").unwrap();
    let keys: Vec<u64> = keys.collect();
    let values = get(store, table, &keys)?;
    for (key, row) in keys.iter().zip(values.chunks_exact(DIM)) {
        assert_eq!(row, row_of(*key, step), "key {key} of step {step}");
    }
    Ok(())
}

fn holds(path: &Path) -> usize {
    let entries = std::fs::read_dir(path).unwrap();
    entries.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().contains("hold-")).count()
}

/// Opens, reads and closes every file, as a backup or `shutil.copytree` does.
fn read_all_files(path: &Path) {
    for entry in std::fs::read_dir(path).unwrap() {
        std::fs::read(entry.unwrap().path()).unwrap();
    }
}

// ---------------------------------------------------------------- what drops a lock

#[test]
#[ignore = "the body of a child process"]
fn second_writer() {
    let Some(path) = child_path() else { return };
    match Store::open(&path, options(BUDGET)) {
        Ok(_) => say("opened"),
        Err(error) => say(&format!("{:?}", error.kind())),
    }
}

// The lock was the process's, and any close of its file dropped it: when the training process
// copied its store, a second writer could open it, and each wrote over the other's commits.
#[test]
fn a_writer_keeps_its_lock_while_its_process_copies_the_directory() {
    let (_directory, path) = directory();
    let store = trained(&path);
    read_all_files(&path);
    let mut second = spawn("locks::second_writer", &path, &[]);
    second.expect("Locked");
    second.finish();
    let here = Store::open(&path, options(BUDGET)).err().unwrap();
    assert!(here.message().contains("open in this process already"), "{here}");
    train(&store, 7);
}

#[test]
#[ignore = "the body of a child process"]
fn writer() {
    let Some(path) = child_path() else { return };
    let store = Store::open(&path, options(BUDGET)).unwrap();
    (7..7 + MANY).for_each(|step| train(&store, step));
    say("committed");
}

// As the lock, a hold went with any close of its file.
#[test]
fn a_reader_keeps_its_hold_while_its_process_copies_the_directory() {
    let (_directory, path) = directory();
    drop(trained(&path));
    let reader = Store::open(&path, reading()).unwrap();
    read(&reader, 0..10, 6).unwrap();
    read_all_files(&path);
    let mut writer = spawn("locks::writer", &path, &[]);
    writer.expect("committed");
    writer.finish();
    assert!(reader.is_held());
    read(&reader, 0..ROWS, 6).unwrap();
}

/// The lock as builds before took it: of the process, on the whole file.
fn record_lock(file: &std::fs::File) -> bool {
    let request = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the call only reads a valid structure.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const request) == 0 }
}

#[test]
#[ignore = "the body of a child process"]
fn writer_of_an_older_build() {
    let Some(path) = child_path() else { return };
    let mut open = std::fs::File::options();
    let file = open.read(true).write(true).create(true).truncate(false).open(path.join("lock"));
    let file = file.unwrap();
    say(if record_lock(&file) { "locked" } else { "refused" });
    hear();
}

#[test]
fn writers_of_older_builds_are_kept_out_and_keep_out() {
    let (_directory, path) = directory();
    let store = trained(&path);
    let mut older = spawn("locks::writer_of_an_older_build", &path, &[]);
    older.expect("refused");
    older.finish();
    drop(store);
    let mut older = spawn("locks::writer_of_an_older_build", &path, &[]);
    older.expect("locked");
    let error = Store::open(&path, options(BUDGET)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    assert!(error.message().contains("another process"), "{error}");
    older.finish();
    Store::open(&path, options(BUDGET)).unwrap();
}

// A closed reader kept its hold until it was dropped: the writer released nothing, and could not
// open the store again.
#[test]
fn a_reader_that_is_closed_holds_nothing() {
    let (_directory, path) = directory();
    drop(trained(&path));
    let reader = Store::open(&path, reading()).unwrap();
    assert_eq!(holds(&path), 1);
    reader.close().unwrap();
    assert_eq!(holds(&path), 0);
    let store = Store::open(&path, options(BUDGET)).unwrap();
    (7..17).for_each(|step| train(&store, step));
    store.close().unwrap();
    Store::open(&path, options(BUDGET)).unwrap();
    drop(reader);
}

// ---------------------------------------------------------------- the working directory

// Holds were looked for relative to the working directory of the moment: a writer saw none of
// them after it had changed, and readers lost their commits; what they left behind stayed.
#[test]
#[ignore = "the body of a child process"]
fn a_process_that_changes_its_directory() {
    let Some(path) = child_path() else { return };
    let parent = path.parent().unwrap();
    std::env::set_current_dir(parent).unwrap();
    let store = trained(Path::new("store"));
    let reader = Store::open("./store", reading()).unwrap();
    assert_eq!((store.path(), reader.path()), (path.as_path(), path.as_path()));
    std::env::set_current_dir("/").unwrap();
    (7..7 + MANY).for_each(|step| train(&store, step));
    read(&reader, 0..ROWS, 6).unwrap();
    drop(reader);
    assert_eq!(holds(&path), 0);
    std::env::set_current_dir(parent).unwrap();
    let leave = &mut |_, _| {
        std::env::set_current_dir("/").unwrap();
        Ok(())
    };
    let report = check("store", leave).unwrap();
    assert_eq!((report.commits, report.problem_count), (2, 0), "{:?}", report.problems);
    std::env::set_current_dir(parent).unwrap();
    let memory = embedrock_core::Memory::Bytes(BUDGET);
    copy("store", "copy", None, memory, None, None, leave).unwrap();
    let copied = Store::open(parent.join("copy"), reading()).unwrap();
    read(&copied, 0..ROWS, 6 + MANY).unwrap();
    say("done");
}

#[test]
fn a_store_stays_where_it_was_opened_when_the_working_directory_changes() {
    let (_directory, path) = directory();
    let mut process = spawn("locks::a_process_that_changes_its_directory", &path, &[]);
    process.expect("done");
    process.finish();
}

// ---------------------------------------------------------------- readers that may not write

/// Makes this process one that may read the store and not write to it.
fn become_another_user(path: &Path) {
    // SAFETY: the calls take numbers only.
    unsafe {
        if libc::geteuid() != 0 {
            return std::fs::set_permissions(path, PermissionsExt::from_mode(0o555)).unwrap();
        }
        assert_eq!(libc::setgid(NOBODY), 0);
        assert_eq!(libc::setuid(NOBODY), 0);
    }
}

fn let_others_read(directory: &Path, path: &Path) {
    for directory in [directory, path] {
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
    }
}

fn let_writer_write(path: &Path) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
#[ignore = "the body of a child process"]
fn reader_of_another_user() {
    let Some(path) = child_path() else { return };
    become_another_user(&path);
    let error = Store::open(&path, options(BUDGET)).err().unwrap();
    assert!(error.message().contains("open it with read_only=True"), "{error}");
    let reader = Store::open(&path, reading()).unwrap();
    assert!(!reader.is_held() && !reader.stats().unwrap().commits.held);
    read(&reader, 0..100, 6).unwrap();
    assert_eq!(reader.state().unwrap()[0].1, [6; 5000]);
    let report = check(&path, &mut |_, _| Ok(())).unwrap();
    assert_eq!((report.commits, report.problem_count), (2, 0), "{:?}", report.problems);
    say("read");
    hear();
    // Rows in memory are of its commit; all others are reported as gone, and none as damaged.
    let table = reader.find_table("t").unwrap();
    let mut gone = 0;
    for key in (0..ROWS).step_by(10) {
        match read(&reader, key..key + 10, 6) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::CommitGone, "{error}");
                gone += 1;
            }
        }
    }
    assert_eq!(reader.state().unwrap_err().kind(), ErrorKind::CommitGone);
    let digest = reader.digest(table, &mut |_, _| Ok(())).unwrap_err();
    assert_eq!(digest.kind(), ErrorKind::CommitGone, "{digest}");
    assert!(gone > 0, "the writer has written nothing again");
    let again = Store::open(&path, reading()).unwrap();
    let step = again.last_commit().unwrap().step;
    read(&again, 0..ROWS, step).unwrap();
    say(&format!("step {step}"));
    hear();
}

// A reader had to write its hold: it was refused with "Permission denied", which `check` counted
// as damage.
#[test]
fn a_reader_of_another_user_reads_its_commit_or_hears_that_it_is_gone() {
    let (directory, path) = directory();
    drop(trained(&path));
    let_others_read(directory.path(), &path);
    let mut reader = spawn("locks::reader_of_another_user", &path, &[]);
    reader.expect("read");
    let_writer_write(&path);
    let store = Store::open(&path, options(BUDGET)).unwrap();
    (7..7 + MANY).for_each(|step| train(&store, step));
    reader.nod();
    reader.expect(&format!("step {}", 6 + MANY));
    reader.finish();
}

// Page numbers begin again when a writer goes on from an earlier commit, which a hold forbids: a
// reader without one could take its pages for those of the commit that it opened.
#[test]
fn a_reader_of_another_user_sees_no_row_of_another_history() {
    let (directory, path) = directory();
    drop(trained(&path));
    let_others_read(directory.path(), &path);
    let mut reader = spawn("locks::reader_of_another_user", &path, &[]);
    reader.expect("read");
    let_writer_write(&path);
    let store = Store::open(&path, StoreOptions { step: Some(5), ..options(BUDGET) }).unwrap();
    train(&store, 70);
    reader.nod();
    reader.expect("step 70");
    reader.finish();
}

/// Mounts what `mount` does for this process alone; false where it may not.
fn mount_alone(mount: impl FnOnce() -> bool) -> bool {
    let (none, private) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
    // SAFETY: the path is a C string; other pointers may be null.
    let is_private = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, private, none.cast()) == 0
    };
    is_private && mount()
}

fn c_text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Mounts the directory on itself, read only, for this process alone; false where it may not.
fn mount_read_only(path: &Path) -> bool {
    let (target, none) = (c_text(path), std::ptr::null());
    let read_only = libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY;
    // SAFETY: the paths are C strings that live through the calls; other pointers may be null.
    mount_alone(|| unsafe {
        libc::mount(target.as_ptr(), target.as_ptr(), none, libc::MS_BIND, none.cast()) == 0
            && libc::mount(none, target.as_ptr(), none, read_only, none.cast()) == 0
    })
}

/// Mounts a file system in memory with so much room, for this process alone; false where it may
/// not.
fn mount_in_memory(path: &Path, room: &str) -> bool {
    let (target, room) = (c_text(path), CString::new(format!("size={room}")).unwrap());
    let tmpfs = c"tmpfs".as_ptr();
    // SAFETY: all arguments are C strings that live through the call.
    mount_alone(|| unsafe {
        libc::mount(tmpfs, target.as_ptr(), tmpfs, 0, room.as_ptr().cast()) == 0
    })
}

#[test]
#[ignore = "the body of a child process"]
fn reader_of_a_read_only_medium() {
    let Some(path) = child_path() else { return };
    if !mount_read_only(&path) {
        return say("this process may not mount");
    }
    let error = Store::open(&path, options(BUDGET)).err().unwrap();
    assert!(error.message().contains("open it with read_only=True"), "{error}");
    let reader = Store::open(&path, reading()).unwrap();
    assert!(!reader.is_held());
    read(&reader, 0..ROWS, 6).unwrap();
    assert_eq!(reader.state().unwrap()[0].1, [6; 5000]);
    let report = check(&path, &mut |_, _| Ok(())).unwrap();
    assert_eq!((report.commits, report.problem_count), (2, 0), "{:?}", report.problems);
    say("read");
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
fn a_store_on_a_read_only_medium_is_read_and_checked() {
    let (_directory, path) = directory();
    drop(trained(&path));
    let mut reader = spawn("locks::reader_of_a_read_only_medium", &path, &[]);
    match reader.listen().unwrap().as_str() {
        "read" => {}
        other => eprintln!("skipped: {other}"),
    }
    reader.finish();
}

// ---------------------------------------------------------------- forks

/// Everything of a store that a forked child may touch; true where each was refused, or empty.
fn is_refused(store: &Store, table: TableId) -> bool {
    let keys = [1];
    let mut values = [0.0; DIM];
    let batch = GetBatch { table, keys: &keys, values: values[..].as_mut().into(), state: None };
    let errors = [
        store.check_call().err(),
        store.get(&mut [batch]).err(),
        put(store, table, &keys, &[1.0; DIM]).err(),
        store.modify(table, &keys, &mut |_, _, _| Ok(())).err(),
        store.delete(table, &keys).err(),
        store.lookahead(table, &keys).err(),
        store.window_stats().err(),
        store.commit(8, "", &[]).err(),
        store.scan(table).err(),
        store.warm().err(),
        store.state().err(),
        store.stats().err(),
        store.len(table).err(),
        store.table(&spec("new", 4, None, OptimizerKind::Sgd)).err(),
        store.close().err(),
    ];
    let (path, options, lost) = (store.path(), store.options(), store.uncommitted());
    path.is_absolute()
        && !options.read_only
        && lost.rows < u64::MAX
        && store.commits().is_empty()
        && store.last_commit().is_none()
        && store.tables().is_empty()
        && store.find_table("t").is_none()
        && !store.is_held()
        && errors.iter().flatten().filter(|e| e.kind() == ErrorKind::Forked).count() == errors.len()
}

/// The body of a forked child; returns its exit status.
fn child(store: Store, table: TableId, round: i32) -> i32 {
    // SAFETY: the call takes a number. A child that waits for ever is killed, and found.
    unsafe { libc::alarm(60) };
    let refused = is_refused(&store, table);
    let io = if round % 2 == 0 { IoChoice::Auto } else { IoChoice::Pread };
    let own = Store::open(store.path(), StoreOptions { io, ..reading() }).unwrap();
    let step = own.last_commit().unwrap().step;
    read(&own, 0..ROWS, step).unwrap();
    drop((store, own));
    i32::from(!refused)
}

/// Ends the threads of a process when one is done, or has failed.
struct StopOthers<'a>(&'a AtomicBool);

impl Drop for StopOthers<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// ---------------------------------------------------------------- cold directories

/// Opens the store to write, with this cold directory.
fn open_with_cold(path: &Path, cold: &Path) -> embedrock_core::Result<Store> {
    let cold_directory = Some(cold.to_path_buf());
    Store::open(path, StoreOptions { cold_directory, ..options(BUDGET) })
}

/// Refuses the directory, and leaves the store as it was: it opens without.
fn refuses_cold(path: &Path, cold: &Path, kind: ErrorKind, says: &str) {
    let error = open_with_cold(path, cold).err().unwrap();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.message().contains(cold.to_str().unwrap()), "{error}");
    assert!(error.message().contains(says), "{error}");
    let store = Store::open(path, options(BUDGET)).unwrap();
    read(&store, 0..ROWS, 6).unwrap();
    assert_eq!(store.stats().unwrap().cold_directory, None);
}

#[test]
#[ignore = "the body of a child process"]
fn writer_below_a_folder_that_it_may_not_read() {
    let Some(path) = child_path() else { return };
    let closed = path.with_file_name("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o311)).unwrap();
    // SAFETY: the calls take numbers only.
    unsafe {
        if libc::geteuid() == 0 {
            std::os::unix::fs::chown(&closed, Some(NOBODY), Some(NOBODY)).unwrap();
            assert_eq!((libc::setgid(NOBODY), libc::setuid(NOBODY)), (0, 0));
        }
    }
    drop(trained(&path));
    let fresh = closed.join("fresh");
    refuses_cold(&path, &fresh, ErrorKind::Io, "let this user read it, or make the directory");
    assert!(!fresh.exists());
    std::fs::create_dir(&fresh).unwrap();
    drop(open_with_cold(&path, &fresh).unwrap());
    let store = Store::open(&path, options(BUDGET)).unwrap();
    assert_eq!(store.stats().unwrap().cold_directory.as_deref(), fresh.to_str());
    say("opened");
}

// A directory that was there already could not become a cold one where its folder was not to be
// read, and the error did not say what was to be read.
#[test]
fn a_cold_directory_in_a_folder_that_cannot_be_read_has_to_be_there() {
    let (directory, path) = directory();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let mut writer = spawn("locks::writer_below_a_folder_that_it_may_not_read", &path, &[]);
    writer.expect("opened");
    writer.finish();
}

#[test]
#[ignore = "the body of a child process"]
fn writer_beside_a_sealed_folder() {
    let Some(path) = child_path() else { return };
    let sealed = path.with_file_name("sealed");
    std::fs::create_dir(&sealed).unwrap();
    drop(trained(&path));
    if !mount_read_only(&sealed) {
        return say("this process may not mount");
    }
    for cold in [sealed.clone(), sealed.join("fresh")] {
        refuses_cold(&path, &cold, ErrorKind::Io, "Read-only file system");
    }
    say("refused");
}

#[test]
#[ignore = "the body of a child process"]
fn writer_beside_a_full_folder() {
    let Some(path) = child_path() else { return };
    let [full, roomy] = ["full", "roomy"].map(|name| path.with_file_name(name));
    drop(trained(&path));
    for (folder, room) in [(&full, "4k"), (&roomy, "4m")] {
        std::fs::create_dir(folder).unwrap();
        if !mount_in_memory(folder, room) {
            return say("this process may not mount");
        }
    }
    std::fs::write(full.join(".filler"), [1; 4096]).unwrap();
    refuses_cold(&path, &full, ErrorKind::Full, "No space left");
    // Another device, with what it has of direct requests.
    drop(open_with_cold(&path, &roomy).unwrap());
    read(&Store::open(&path, options(BUDGET)).unwrap(), 0..ROWS, 6).unwrap();
    say("refused");
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
fn a_cold_directory_that_cannot_be_written_is_refused_and_not_noted() {
    for role in ["locks::writer_beside_a_sealed_folder", "locks::writer_beside_a_full_folder"] {
        let (_directory, path) = directory();
        let mut writer = spawn(role, &path, &[]);
        match writer.listen().unwrap().as_str() {
            "refused" => {}
            other => eprintln!("skipped: {other}"),
        }
        writer.finish();
    }
}

#[test]
#[ignore = "the body of a child process"]
fn forking_process_that_commits() {
    let Some(path) = child_path() else { return };
    let store = trained(&path);
    let table = store.find_table("t").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // It starts no thread: a child that is forked while a Rust program starts one can start
        // none itself, as the standard library takes a lock of its own. (Python does not run the
        // part of it that does.)
        scope.spawn(|| {
            let _stop = StopOthers(&stop);
            (7..).take_while(|_| !stop.load(Ordering::Relaxed)).for_each(|step| {
                train(&store, step);
            });
        });
        let _stop = StopOthers(&stop);
        for round in 0..FORKS {
            // SAFETY: the child uses what is its own, and of the store what refuses it.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0);
            if pid == 0 {
                std::process::exit(child(store.clone(), table, round));
            }
            let mut status = 0;
            // SAFETY: waits for the process forked above; `status` is a valid place.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            if status != 0 {
                say(&format!("child {round} ended with {status:#x}"));
            }
        }
    });
    say("done");
}

// A child hung that was forked while another thread was in a commit, when it asked for commits or
// tables.
#[test]
fn children_forked_during_commits_are_refused_open_the_store_themselves_and_end() {
    let (_directory, path) = directory();
    let mut parent = spawn("locks::forking_process_that_commits", &path, &[]);
    parent.expect("done");
    parent.finish();
}
