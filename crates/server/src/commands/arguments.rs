//! Keys, rows and options as requests have them.

use super::shown;
use crate::catalog::Table;
use crate::refusal::Refusal;
use crate::timer::STEP_MOST;
use embedrock_core::NonFinite;
use std::str::FromStr;

/// A key in decimal digits; a negative one is the same 64 bits as int64.
pub(super) fn key(text: &[u8]) -> Result<u64, Refusal> {
    let digits = |digits: &[u8]| {
        let valid = !digits.is_empty() && digits.len() <= 40;
        let number = digits.iter().try_fold(0u64, |number, digit| match digit {
            b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
            _ => None,
        });
        number.filter(|_| valid)
    };
    let found = match text.strip_prefix(b"-") {
        Some(rest) => digits(rest).filter(|n| *n <= 1 << 63).map(u64::wrapping_neg),
        None => digits(text),
    };
    found.ok_or_else(|| {
        Refusal::new(format!("'{}' is no key, expected a whole number of 64 bits", shown(text)))
    })
}

/// The two parts of `table:key`.
pub(super) fn split_key(name: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    let colon = name.iter().rposition(|byte| *byte == b':').ok_or_else(|| {
        Refusal::new(format!("'{}' is no key, expected table:key, such as user:42", shown(name)))
    })?;
    Ok((&name[..colon], &name[colon + 1..]))
}

/// Appends packed keys: 8 bytes each, the least significant first.
pub(super) fn packed_keys(bytes: &[u8], keys: &mut Vec<u64>) -> Result<(), Refusal> {
    let (words, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        let length = bytes.len();
        return Err(Refusal::new(format!("keys of {length} bytes, expected a multiple of 8")));
    }
    keys.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
    Ok(())
}

/// Appends rows of a table: float32 values, the least significant byte first.
pub(super) fn rows(
    what: &str,
    table: &Table,
    count: usize,
    bytes: &[u8],
    values: &mut Vec<f32>,
) -> Result<(), Refusal> {
    if count.checked_mul(table.row_bytes()) != Some(bytes.len()) {
        return Err(Refusal::coded(
            "MISUSE",
            format!(
                "{what} of {} bytes for {count} keys, table '{}' takes {} bytes for each: {} \
                 float32 values",
                bytes.len(),
                table.name,
                table.row_bytes(),
                table.dim
            ),
        ));
    }
    let (words, _) = bytes.as_chunks::<4>();
    values.extend(words.iter().map(|word| f32::from_le_bytes(*word)));
    Ok(())
}

/// Refuses keys that a dense table does not have, before the engine sees them.
pub(super) fn check_keys(table: &Table, keys: &[u64]) -> Result<(), Refusal> {
    let Some(ids) = table.ids else { return Ok(()) };
    match keys.iter().find(|key| **key >= ids) {
        None => Ok(()),
        Some(key) => Err(Refusal::coded(
            "KEYRANGE",
            format!("key {key} of table '{}', expected 0 to {}", table.name, ids - 1),
        )),
    }
}

/// Refuses more keys than a request may have.
pub(super) fn check_count(keys: usize, most: usize) -> Result<(), Refusal> {
    if keys > most {
        return Err(Refusal::new(format!(
            "{keys} keys, expected at most {most} in a request; send them in parts"
        )));
    }
    Ok(())
}

/// Text.
pub(super) fn utf8<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a str, Refusal> {
    std::str::from_utf8(bytes)
        .map_err(|error| Refusal::coded("MISUSE", format!("{what} is no UTF-8: {error}")))
}

/// The number that an option has.
pub(super) fn number<T: FromStr>(option: &str, text: &[u8]) -> Result<T, Refusal> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| Refusal::new(format!("{option} is '{}', expected a number", shown(text))))
}

/// The step of a commit: replies tell it as a signed number of 64 bits.
pub(super) fn step(text: &[u8]) -> Result<u64, Refusal> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.filter(|step| *step <= STEP_MOST).ok_or_else(|| {
        Refusal::new(format!("step is '{}', expected a whole number, 0 to 2^63 - 1", shown(text)))
    })
}

/// The treatment of non-finite rows.
pub(super) fn non_finite(text: &[u8]) -> Result<NonFinite, Refusal> {
    match text.to_ascii_lowercase().as_slice() {
        b"refuse" => Ok(NonFinite::Refuse),
        b"skip" => Ok(NonFinite::Skip),
        b"apply" => Ok(NonFinite::Apply),
        _ => Err(Refusal::new(format!(
            "NONFINITE is '{}', expected REFUSE, SKIP or APPLY",
            shown(text)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_64_bits_with_a_sign_or_without() {
        for (text, expected) in [
            ("0", 0),
            ("000000000042", 42),
            ("18446744073709551615", u64::MAX),
            ("-1", u64::MAX),
            ("-9223372036854775808", 1 << 63),
        ] {
            assert_eq!(key(text.as_bytes()).unwrap(), expected);
        }
        for text in ["", "-", "1a", "18446744073709551616", "-9223372036854775809", "+1", " 1"] {
            assert!(key(text.as_bytes()).unwrap_err().message.contains("no key"), "{text}");
        }
        assert_eq!(split_key(b"a:b:7").unwrap(), (&b"a:b"[..], &b"7"[..]));
        assert!(split_key(b"user").unwrap_err().message.contains("expected table:key"));
    }

    #[test]
    fn packed_keys_come_in_words_of_8_bytes() {
        let mut keys = Vec::new();
        packed_keys(&[1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255], &mut keys)
            .unwrap();
        assert_eq!(keys, [1, u64::MAX]);
        assert!(packed_keys(&[0; 12], &mut keys).unwrap_err().message.contains("12 bytes"));
    }
}
