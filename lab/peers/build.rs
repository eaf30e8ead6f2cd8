//! Tells the program which RocksDB it carries, and builds the face of FASTER where a checkout of
//! it is given (`make peers FASTER=/path/to/a/checkout`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Replacements in FASTER's headers that make a budget of some hundred megabytes possible: pages of
/// its log are 32 MiB and six have to be in memory, with 1 MiB it is 6 MiB; chained buckets are
/// allocated by 64 MiB, with 14 bits by 1 MiB. And a row of known size comes with the first read,
/// not with a second one.
const REPLACED: [(&str, &str, &str); 3] = [
    ("core/address.h", "kOffsetBits = 25;", "kOffsetBits = 20;"),
    ("core/malloc_fixed_page_size.h", "kOffsetBits = 20;", "kOffsetBits = 14;"),
    (
        "core/faster.h",
        "sizeof(value_t) + pad_alignment(record_t::min_disk_key_size(),",
        "value_t::size() + pad_alignment(record_t::min_disk_key_size(),",
    ),
];

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package lies");
    rocksdb_version(&Path::new(&root).join("Cargo.lock"));
    println!("cargo::rustc-check-cfg=cfg(faster)");
    println!("cargo::rerun-if-env-changed=PEERS_FASTER");
    if let Some(checkout) = env::var_os("PEERS_FASTER").filter(|path| !path.is_empty()) {
        faster(&PathBuf::from(checkout).join("cc/src"));
    }
}

/// The binding's version ends with that of the RocksDB that it carries.
fn rocksdb_version(lock: &Path) {
    println!("cargo::rerun-if-changed={}", lock.display());
    let text = fs::read_to_string(lock).expect("the package has a lock file");
    let version = text
        .split("name = \"rust-librocksdb-sys\"")
        .nth(1)
        .and_then(|rest| rest.split('"').nth(1))
        .and_then(|version| version.split('+').nth(1))
        .unwrap_or("of an unknown version");
    println!("cargo::rustc-env=ROCKSDB_VERSION={version}");
}

fn faster(source: &Path) {
    let out = env::var("OUT_DIR").expect("cargo says where to write");
    let copy = Path::new(&out).join("faster");
    copy_folder(source, &copy);
    for (name, from, to) in REPLACED {
        let path = copy.join(name);
        let text = fs::read_to_string(&path).expect("FASTER has this header");
        assert!(text.contains(from), "{name} of this FASTER does not say {from:?}");
        fs::write(&path, text.replace(from, to)).expect("the copy can be written");
    }
    println!("cargo::rerun-if-changed=src/engines/faster.cc");
    println!("cargo::rerun-if-changed={}", source.display());
    let parts = ["core/address.cc", "core/lss_allocator.cc", "core/thread.cc"];
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .flag_if_supported("-Wno-deprecated-declarations")
        .flag_if_supported("-march=native")
        .define("NDEBUG", None)
        .include(&copy)
        .files(parts.map(|part| copy.join(part)))
        .file(copy.join("environment/file_linux.cc"))
        .file("src/engines/faster.cc")
        .compile("peers_faster");
    for library in ["aio", "uuid", "tbb"] {
        println!("cargo::rustc-link-lib={library}");
    }
    println!("cargo::rustc-cfg=faster");
    // An exported tree has no history; then the version stays out.
    let mut git = Command::new("git");
    let commit = git.arg("-C").arg(source).args(["log", "-1", "--format=%h"]).output();
    let commit = commit.map(|found| String::from_utf8_lossy(&found.stdout).into_owned());
    println!("cargo::rustc-env=FASTER_VERSION={}", commit.unwrap_or_default().trim());
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the copy can be written");
    let entries = fs::read_dir(from)
        .unwrap_or_else(|error| panic!("{}: {error}; expected FASTER's", from.display()));
    for entry in entries {
        let entry = entry.expect("FASTER's folder can be read");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("the copy can be written");
        }
    }
}
