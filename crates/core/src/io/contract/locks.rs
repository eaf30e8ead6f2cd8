//! Locks of files.

use super::*;

fn taken(locking: crate::error::Result<Locking>) -> Option<Box<dyn FileLock>> {
    match locking.unwrap() {
        Locking::Taken(lock) => Some(lock),
        Locking::Held { here } => {
            assert!(here, "all locks of this test are this process's");
            None
        }
    }
}

#[test]
fn a_file_is_locked_once_until_the_lock_is_dropped() {
    each(|medium| {
        let lock = taken(medium.lock("lock")).expect("nobody has it");
        assert_eq!(medium.list("").unwrap(), ["lock"]);
        assert!(taken(medium.lock("lock")).is_none());
        assert!(taken(medium.lock_to_look("lock")).is_none());
        let other = taken(medium.lock("other"));
        assert!(other.is_some(), "another file is another lock");
        drop(lock);
        let again = taken(medium.lock("lock")).expect("it was given back");
        assert!(again.is_current().unwrap());
    });
}

// A record lock went with any close of the file in the process.
#[test]
fn a_lock_stays_when_its_file_is_opened_read_written_and_closed() {
    each(|medium| {
        let lock = taken(medium.lock("lock")).unwrap();
        for mode in [OpenMode::ReadWrite, OpenMode::ReadOnly] {
            let file = medium.open("lock", mode).unwrap();
            if mode == OpenMode::ReadWrite {
                file.write_at(b"holder", 0).unwrap();
            }
            let mut bytes = [0; 6];
            file.read_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes, b"holder");
        }
        assert!(taken(medium.lock("lock")).is_none());
        assert!(lock.is_current().unwrap());
    });
}

#[test]
fn who_looks_keeps_out_who_wants_a_file_alone_and_nobody_else() {
    each(|medium| {
        let missing = medium.lock_to_look("lock").unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(medium.list("").unwrap().is_empty(), "looking creates nothing");
        drop(medium.lock("lock").unwrap());
        let looks = [medium.lock_to_look("lock"), medium.lock_to_look("lock")].map(taken);
        assert!(looks.iter().all(Option::is_some));
        assert!(taken(medium.lock("lock")).is_none());
        drop(looks);
        assert!(taken(medium.lock("lock")).is_some());
    });
}

#[test]
fn a_lock_knows_whether_its_name_still_leads_to_its_file() {
    each(|medium| {
        let first = taken(medium.lock("hold-1")).unwrap();
        assert!(first.is_current().unwrap());
        medium.remove("hold-1").unwrap();
        assert!(!first.is_current().unwrap());
        let second = taken(medium.lock("hold-1")).expect("it is another file");
        assert!(second.is_current().unwrap() && !first.is_current().unwrap());
        drop(first);
        assert!(taken(medium.lock("hold-1")).is_none());
        medium.rename("hold-1", "hold-2").unwrap();
        assert!(!second.is_current().unwrap());
        for name in ["", "..", "x/y"] {
            assert_eq!(medium.lock(name).unwrap_err().kind(), ErrorKind::Misuse, "{name}");
            assert_eq!(medium.lock_to_look(name).unwrap_err().kind(), ErrorKind::Misuse);
        }
    });
}
