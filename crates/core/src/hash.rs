//! The mixing hash that places keys: into cache sets, index partitions and initial rows.
//!
//! It is part of the on-disk format, because stored index partitions are addressed by it.

/// Mixes all bits of `key` under `salt`: every input bit reaches every output bit, so strided keys
/// and keys that share low bits spread evenly. Bijective in `key` for a fixed `salt`.
/// (Finaliser constants: Pelle Evensen's "moremur".)
#[inline(always)]
pub fn mix(key: u64, salt: u64) -> u64 {
    let mut x = key ^ salt;
    x ^= x >> 27;
    x = x.wrapping_mul(0x3C79_AC49_2BA7_B653);
    x ^= x >> 33;
    x = x.wrapping_mul(0x1C69_B3F7_4AC4_AE35);
    x ^ (x >> 27)
}

/// The key of a mixed key: every step of [`mix`], backwards.
pub fn unmix(mixed: u64, salt: u64) -> u64 {
    let inverse = |odd: u64| {
        // Newton's iteration doubles the right bits, from 3 on.
        (0..5).fold(odd, |x, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))))
    };
    let unshift = |x: u64, bits: u32| x ^ (x >> bits) ^ x.checked_shr(2 * bits).unwrap_or(0);
    let mut x = unshift(mixed, 27);
    x = x.wrapping_mul(inverse(0x1C69_B3F7_4AC4_AE35));
    x = unshift(x, 33);
    x = x.wrapping_mul(inverse(0x3C79_AC49_2BA7_B653));
    unshift(x, 27) ^ salt
}

/// The salt of a table: a hash of its name, so that two tables never share a key sequence and
/// initial rows do not depend on the order in which tables were created.
pub fn table_salt(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}

/// The key of a text: XXH3 with 64 bits, seed 0, of its bytes. Fixed for ever, because a store that
/// was trained with such keys must find its rows again.
pub fn text_key(text: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strided_keys_spread_over_low_and_high_bits() {
        let salt = table_salt("ads");
        for shift in [0, 12, 32, 48] {
            let mut low = vec![0u32; 256];
            let mut high = vec![0u32; 256];
            for i in 0..65_536u64 {
                let h = mix(i << shift, salt);
                low[(h & 255) as usize] += 1;
                high[(h >> 56) as usize] += 1;
            }
            for count in low.into_iter().chain(high) {
                assert!((160..=360).contains(&count), "shift {shift}: bin of {count}, mean 256");
            }
        }
    }
}
