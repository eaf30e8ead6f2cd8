//! Keys, the hash function that all maps share, and how long a thread waited for a processor.

use std::hash::{BuildHasher, Hasher};

/// Different for different numbers, and without any order (SplitMix64).
pub(crate) fn scatter(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// PETHash's own mixing function, for every other map: none pays for a slower one.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mixing;

pub(crate) struct Mixed(u64);

impl BuildHasher for Mixing {
    type Hasher = Mixed;

    fn build_hasher(&self) -> Mixed {
        Mixed(0)
    }
}

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("keys are words");
    }

    fn write_u64(&mut self, key: u64) {
        let mut x = key ^ key >> 27;
        x = x.wrapping_mul(0x3C79_AC49_2BA7_B653);
        x ^= x >> 33;
        x = x.wrapping_mul(0x1C69_B3F7_4AC4_AE35);
        self.0 = x ^ x >> 27;
    }
}

/// Seconds that this thread has waited for a processor; `None` where the kernel does not count it.
pub(crate) fn waited() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(nanoseconds as f64 / 1e9)
}
