//! Tells the program which RocksDB it carries: the binding's version ends with it.

use std::{env, fs, path::Path};

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package lies");
    let lock = Path::new(&root).join("Cargo.lock");
    println!("cargo::rerun-if-changed={}", lock.display());
    let text = fs::read_to_string(&lock).expect("the package has a lock file");
    let version = text
        .split("name = \"rust-librocksdb-sys\"")
        .nth(1)
        .and_then(|rest| rest.split('"').nth(1))
        .and_then(|version| version.split('+').nth(1))
        .unwrap_or("of an unknown version");
    println!("cargo::rustc-env=ROCKSDB_VERSION={version}");
}
