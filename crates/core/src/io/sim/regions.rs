//! Files of a simulated device that are mapped: they lie in a folder of the system, in memory where
//! it has one, until the last handle of the device goes.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The folder, once somebody has asked for it.
#[derive(Debug, Default)]
pub(super) struct Regions(OnceLock<Option<PathBuf>>);

impl Regions {
    /// The folder for a directory of the device; `None` where it cannot be made.
    pub(super) fn folder(&self, directory: &str) -> Option<PathBuf> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let made = self.0.get_or_init(|| {
            let memory = Path::new("/dev/shm");
            let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let folder = base.join(format!("embedrock-sim-{}-{number}", std::process::id()));
            std::fs::create_dir_all(&folder).ok().map(|()| folder)
        });
        let folder = made.as_ref()?.join(directory.trim_end_matches('/'));
        std::fs::create_dir_all(&folder).ok().map(|()| folder)
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        if let Some(Some(folder)) = self.0.get() {
            // A folder of a test may stay behind.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}
