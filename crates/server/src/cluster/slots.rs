//! Slots, as clients of Redis Cluster compute them: CRC-16 of a part of a key's name.

use embedrock_core::buckets::BUCKETS;

/// Slots of a Redis Cluster.
pub(crate) const SLOTS: u16 = 16_384;
/// Digits of a bucket in the name of a key.
const DIGITS: usize = 4;

/// CRC-16/XMODEM of each byte.
const TABLE: [u16; 256] = {
    let (mut table, mut byte) = ([0; 256], 0);
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

const fn crc16(bytes: &[u8]) -> u16 {
    let (mut crc, mut at) = (0u16, 0);
    while at < bytes.len() {
        crc = (crc << 8) ^ TABLE[((crc >> 8) as u8 ^ bytes[at]) as usize];
        at += 1;
    }
    crc
}

/// The slot of each bucket: that of its four digits. No two have the same one, so that every node
/// can have any buckets.
const OF_BUCKETS: [u16; BUCKETS] = {
    let (mut slots, mut bucket) = ([0; BUCKETS], 0);
    while bucket < BUCKETS {
        let (mut tag, mut rest, mut at) = ([0; DIGITS], bucket, DIGITS);
        while at > 0 {
            at -= 1;
            tag[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        slots[bucket] = crc16(&tag) % SLOTS;
        bucket += 1;
    }
    slots
};

/// The slot of a bucket.
pub(crate) fn slot_of_bucket(bucket: u16) -> u16 {
    OF_BUCKETS[usize::from(bucket)]
}

/// The slot of any name: what is between its first `{` and the next `}` counts alone, if there is
/// something.
pub(crate) fn slot_of_name(name: &[u8]) -> u16 {
    let tag = name.iter().position(|byte| *byte == b'{').and_then(|open| {
        let inner = &name[open + 1..];
        let end = inner.iter().position(|byte| *byte == b'}').filter(|end| *end > 0)?;
        Some(&inner[..end])
    });
    crc16(tag.unwrap_or(name)) % SLOTS
}

/// Splits `table:{0017}` into the table's name and the text between the braces, which should be a
/// bucket.
pub(crate) fn split_tag(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let open = name.iter().position(|byte| *byte == b'{')?;
    let tag = name[open + 1..].strip_suffix(b"}")?;
    Some((name[..open].strip_suffix(b":")?, tag))
}

/// The bucket that four digits stand for.
pub(crate) fn bucket_of_tag(tag: &[u8]) -> Option<u16> {
    let is_one = tag.len() == DIGITS && tag.iter().all(u8::is_ascii_digit);
    let number = || tag.iter().fold(0, |number, digit| number * 10 + u16::from(digit - b'0'));
    is_one.then(number).filter(|bucket| usize::from(*bucket) < BUCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // From the specification of Redis Cluster, and from `CLUSTER KEYSLOT` of a server.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        for (name, slot) in [
            ("foo", 12_182),
            ("{user1000}.following", 3_443),
            ("foo{}{bar}", 8_363),
            ("foo{{bar}}zap", 4_015),
            ("foo{bar}{zap}", 5_061),
        ] {
            assert_eq!(slot_of_name(name.as_bytes()), slot, "{name}");
        }
    }

    #[test]
    fn every_bucket_has_a_slot_of_its_own() {
        let mut slots = OF_BUCKETS.to_vec();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), BUCKETS);
        for bucket in [0, 17, 1023] {
            let name = format!("user:{{{bucket:04}}}:42");
            assert_eq!(slot_of_bucket(bucket), slot_of_name(name.as_bytes()));
        }
    }

    #[test]
    fn names_with_a_bucket_are_taken_apart() {
        assert_eq!(split_tag(b"a:b:{0017}"), Some((&b"a:b"[..], &b"0017"[..])));
        assert_eq!(bucket_of_tag(b"1023"), Some(1023));
        for name in ["user", "user:17", "user{0017}", "{0017}", "user:{0017}x"] {
            assert_eq!(split_tag(name.as_bytes()), None, "{name}");
        }
        for tag in ["", "17", "1024", "00017", "+017"] {
            assert_eq!(bucket_of_tag(tag.as_bytes()), None, "{tag}");
        }
    }
}
