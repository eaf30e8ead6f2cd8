//! The words of a request in one line, some of them between quotation marks, as in Redis.

use std::iter::Peekable;
use std::ops::Range;
use std::slice::Iter;

/// Takes a line apart where it has quotation marks: words go to `words`, one behind the other, and
/// where each lies to `ranges`, of which there may be so many. False where a quotation mark is not
/// closed, or a word goes on behind it; `None` where there are more words.
pub(super) fn split_quoted(
    line: &[u8],
    words: &mut Vec<u8>,
    ranges: &mut Vec<Range<u32>>,
    most: usize,
) -> Option<bool> {
    let mut bytes = line.iter().peekable();
    loop {
        while bytes.next_if(|byte| byte.is_ascii_whitespace()).is_some() {}
        if bytes.peek().is_none() {
            return Some(true);
        }
        if ranges.len() == most {
            return None;
        }
        let begin = words.len();
        if !take_word(&mut bytes, words) {
            return Some(false);
        }
        ranges.push(begin as u32..words.len() as u32);
    }
}

fn take_word(bytes: &mut Peekable<Iter<'_, u8>>, to: &mut Vec<u8>) -> bool {
    while let Some(byte) = bytes.next_if(|byte| !byte.is_ascii_whitespace()) {
        let is_closed = match byte {
            b'"' => take_double(bytes, to),
            b'\'' => take_single(bytes, to),
            plain => {
                to.push(*plain);
                continue;
            }
        };
        return is_closed && bytes.peek().is_none_or(|byte| byte.is_ascii_whitespace());
    }
    true
}

/// Up to the closing mark: a backslash begins `\xff`, `\n`, `\r`, `\t`, `\b` and `\a`, and takes
/// any other byte as it is.
fn take_double(bytes: &mut Peekable<Iter<'_, u8>>, to: &mut Vec<u8>) -> bool {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return true,
            b'\\' => {
                let Some(escaped) = bytes.next() else { return false };
                to.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    b'x' => hexadecimal(bytes).unwrap_or(b'x'),
                    other => *other,
                });
            }
            plain => to.push(*plain),
        }
    }
    false
}

/// Up to the closing mark: a backslash takes another mark as it is, and is itself otherwise.
fn take_single(bytes: &mut Peekable<Iter<'_, u8>>, to: &mut Vec<u8>) -> bool {
    while let Some(byte) = bytes.next() {
        match byte {
            b'\'' => return true,
            b'\\' => to.push(*bytes.next_if(|next| **next == b'\'').unwrap_or(byte)),
            plain => to.push(*plain),
        }
    }
    false
}

/// Two digits, if they come.
fn hexadecimal(bytes: &mut Peekable<Iter<'_, u8>>) -> Option<u8> {
    let rest = bytes.clone();
    let digits: Vec<u8> = rest.take(2).copied().filter(u8::is_ascii_hexdigit).collect();
    let text = std::str::from_utf8(&digits).ok().filter(|text| text.len() == 2)?;
    let value = u8::from_str_radix(text, 16).ok()?;
    bytes.nth(1);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> Option<Vec<Vec<u8>>> {
        let (mut words, mut ranges) = (Vec::new(), Vec::new());
        let is_whole = split_quoted(line.as_bytes(), &mut words, &mut ranges, 9).unwrap();
        let word = |range: &Range<u32>| words[range.start as usize..range.end as usize].to_vec();
        is_whole.then(|| ranges.iter().map(word).collect())
    }

    #[test]
    fn words_between_quotation_marks_are_those_of_redis() {
        for (line, expected) in [
            (r#"ECHO "hello world""#, &[&b"ECHO"[..], b"hello world"][..]),
            (r#"  a  'b  c'  "" "#, &[b"a", b"b  c", b""]),
            (r#""\x00\xfF\xg\n\r\t\b\a\"\\" b"#, &[b"\x00\xffxg\n\r\t\x08\x07\"\\", b"b"]),
            (r"'it\'s' '\n'", &[b"it's", b"\\n"]),
            (r#"pre"fix""#, &[b"prefix"]),
            (r#""\x4""#, &[b"x4"]),
        ] {
            assert_eq!(split(line).unwrap(), expected, "{line}");
        }
        for line in [r#"a "b"#, "a 'b", r#""b"c"#, "'b'c", r#""b\"#, r"'b\'"] {
            assert_eq!(split(line), None, "{line}");
        }
        assert_eq!(split_quoted(b"a b 'c'", &mut Vec::new(), &mut Vec::new(), 2), None);
    }
}
