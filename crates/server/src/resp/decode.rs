//! Requests from the bytes of a connection, as they arrive.
//!
//! A request is an array of bulk strings, or one line of words ("inline"). The decoder goes on
//! where it stopped, so bytes that trickle in are looked at once. It copies nothing but words
//! between quotation marks: other arguments are ranges of the caller's buffer. It allocates for
//! arguments that are there, never for what a length says.

use super::words::split_quoted;
use crate::stream::HANDSHAKE;
use std::fmt;
use std::ops::Range;

/// Longest line that holds a length: a sign and 10 digits are enough for every valid one.
const LENGTH_LINE_MAX: usize = 32;
/// Longest request in one line, as in Redis.
const INLINE_MAX: usize = 64 << 10;
/// Least bytes of an argument with its length: `$0\r\n\r\n`.
const ARGUMENT_BYTES_MIN: usize = 6;

/// What a request may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of a whole request; below 4 GiB.
    pub(crate) frame_bytes: usize,
    /// Arguments, the command's name included.
    pub(crate) arguments: usize,
}

/// Why a connection cannot go on: where its next request begins is not known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProtocolError(pub(crate) String);

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protocol error: {}", self.0)
    }
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The first byte of a request.
    #[default]
    Begin,
    /// A line of words.
    Inline,
    /// The number of arguments.
    Count,
    /// The length of an argument.
    Length,
    /// So many bytes of an argument, and the end of its line.
    Bytes(usize),
}

/// Decodes one request after the other.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    state: State,
    /// Bytes of the request that are decoded.
    decoded: usize,
    /// Bytes that have no end of line, from `decoded` on.
    searched: usize,
    /// Arguments to come.
    left: usize,
    arguments: Vec<Range<u32>>,
    /// The words of a line with quotation marks, which its arguments lie in, if there are such.
    words: Option<Vec<u8>>,
}

impl Decoder {
    /// Goes on with a request. `bytes` begin with its first byte and may end anywhere, or behind
    /// it; they are those of the last call and what has come since.
    ///
    /// Returns the bytes of the request once it is whole. The next call begins another one.
    pub(crate) fn decode(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
    ) -> Result<Option<usize>, ProtocolError> {
        if self.state == State::Begin {
            let Some(first) = bytes.first() else { return Ok(None) };
            self.arguments.clear();
            self.words = None;
            (self.decoded, self.searched) = (0, 0);
            if *first == HANDSHAKE {
                return Err(ProtocolError(
                    "a client speaks TLS, and this server does not encrypt: connect with a \
                     redis:// URL, or start the server with --tls-cert and --tls-key"
                        .to_owned(),
                ));
            }
            self.state = if *first == b'*' { State::Count } else { State::Inline };
        }
        loop {
            let done = match self.state {
                State::Begin => true,
                State::Inline => match self.line(bytes, INLINE_MAX.min(limits.frame_bytes))? {
                    Some(line) => {
                        self.take_words(bytes, line, limits)?;
                        true
                    }
                    None => return Ok(None),
                },
                State::Count => match self.line(bytes, LENGTH_LINE_MAX)? {
                    Some(line) => {
                        self.left = count_of(&bytes[line], limits)?;
                        self.state = State::Length;
                        self.left == 0
                    }
                    None => return Ok(None),
                },
                State::Length => match self.line(bytes, LENGTH_LINE_MAX)? {
                    Some(line) => {
                        let length = self.length_of(&bytes[line], limits)?;
                        self.state = State::Bytes(length);
                        false
                    }
                    None => return Ok(None),
                },
                State::Bytes(length) => match self.take_argument(bytes, length)? {
                    true => self.left == 0,
                    false => return Ok(None),
                },
            };
            if done {
                self.state = State::Begin;
                return Ok(Some(self.decoded));
            }
        }
    }

    /// The arguments of the request that was decoded last, in the bytes that it was decoded from.
    pub(crate) fn arguments<'a>(&'a self, bytes: &'a [u8]) -> Arguments<'a> {
        Arguments { bytes: self.words.as_deref().unwrap_or(bytes), ranges: &self.arguments }
    }

    /// The memory that arguments take.
    pub(crate) fn memory_bytes(&self) -> usize {
        let words = self.words.as_ref().map_or(0, Vec::capacity);
        self.arguments.capacity() * size_of::<Range<u32>>() + words
    }

    /// Gives back what a large request has taken.
    pub(crate) fn shrink(&mut self) {
        if self.state == State::Begin {
            (self.arguments, self.words) = (Vec::new(), None);
        }
    }

    /// The next line without its end, if it is there.
    fn line(&mut self, bytes: &[u8], most: usize) -> Result<Option<Range<usize>>, ProtocolError> {
        let rest = &bytes[self.decoded..];
        let within = &rest[self.searched..rest.len().min(most)];
        let Some(found) = within.iter().position(|byte| *byte == b'\n') else {
            self.searched = rest.len().min(most);
            if rest.len() >= most {
                return Err(ProtocolError(format!("a line is longer than {most} bytes")));
            }
            return Ok(None);
        };
        let end = self.searched + found;
        let text = if end > 0 && rest[end - 1] == b'\r' { end - 1 } else { end };
        let line = self.decoded..self.decoded + text;
        self.decoded += end + 1;
        self.searched = 0;
        Ok(Some(line))
    }

    /// The length that an argument says it has.
    fn length_of(&self, line: &[u8], limits: &Limits) -> Result<usize, ProtocolError> {
        let Some(digits) = line.strip_prefix(b"$") else {
            let came = line.first().map_or("nothing".to_owned(), |byte| quoted(&[*byte]));
            return Err(ProtocolError(format!(
                "expected '$' and a length, got {came}: a request is an array of bulk strings"
            )));
        };
        let Some(length) = number(digits) else {
            return Err(ProtocolError(format!("invalid bulk length {}", quoted(digits))));
        };
        let rest = self.left.saturating_sub(1).saturating_mul(ARGUMENT_BYTES_MIN);
        let frame = self.decoded.saturating_add(length).saturating_add(2).saturating_add(rest);
        if frame > limits.frame_bytes {
            return Err(ProtocolError(format!(
                "a request of at least {frame} bytes, expected at most {}; send it in parts",
                limits.frame_bytes
            )));
        }
        Ok(length)
    }

    /// Takes an argument whose bytes are all there.
    fn take_argument(&mut self, bytes: &[u8], length: usize) -> Result<bool, ProtocolError> {
        let rest = &bytes[self.decoded..];
        if rest.len() < length + 2 {
            return Ok(false);
        }
        if &rest[length..length + 2] != b"\r\n" {
            return Err(ProtocolError(format!(
                "expected the end of a line behind {length} bytes, got {}",
                quoted(&rest[length..length + 2])
            )));
        }
        self.arguments.push(self.decoded as u32..(self.decoded + length) as u32);
        self.decoded += length + 2;
        self.left -= 1;
        self.state = State::Length;
        Ok(true)
    }

    /// Takes the words of a line as arguments.
    fn take_words(
        &mut self,
        bytes: &[u8],
        line: Range<usize>,
        limits: &Limits,
    ) -> Result<(), ProtocolError> {
        if bytes[line.clone()].iter().any(|byte| matches!(byte, b'"' | b'\'')) {
            let (words, most) = (self.words.insert(Vec::new()), limits.arguments);
            return match split_quoted(&bytes[line], words, &mut self.arguments, most) {
                Some(true) => Ok(()),
                Some(false) => Err(ProtocolError("unbalanced quotes in request".to_owned())),
                None => Err(too_many(&(most + 1), limits)),
            };
        }
        let mut at = line.start;
        for word in bytes[line].split(|byte| byte.is_ascii_whitespace()) {
            if !word.is_empty() {
                if self.arguments.len() == limits.arguments {
                    return Err(too_many(&(limits.arguments + 1), limits));
                }
                self.arguments.push(at as u32..(at + word.len()) as u32);
            }
            at += word.len() + 1;
        }
        Ok(())
    }
}

/// The number of arguments that a request says it has. Redis, too, takes -1 for none.
fn count_of(line: &[u8], limits: &Limits) -> Result<usize, ProtocolError> {
    let digits = line.strip_prefix(b"*").unwrap_or(line);
    if digits == b"-1" {
        return Ok(0);
    }
    match number(digits) {
        Some(count) if count <= limits.arguments => Ok(count),
        Some(count) => Err(too_many(&count, limits)),
        None => Err(ProtocolError(format!("invalid multibulk length {}", quoted(digits)))),
    }
}

fn too_many(count: &usize, limits: &Limits) -> ProtocolError {
    ProtocolError(format!(
        "a request of {count} arguments, expected at most {}; send it in parts",
        limits.arguments
    ))
}

/// A number without sign of at most 10 digits.
fn number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 10 {
        return None;
    }
    digits.iter().try_fold(0usize, |number, digit| match digit {
        b'0'..=b'9' => Some(number * 10 + usize::from(digit - b'0')),
        _ => None,
    })
}

/// Bytes that came, for messages.
pub(super) fn quoted(bytes: &[u8]) -> String {
    format!("'{}'", bytes[..bytes.len().min(40)].escape_ascii())
}

/// The arguments of a request, the name of its command first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments<'a> {
    bytes: &'a [u8],
    ranges: &'a [Range<u32>],
}

impl<'a> Arguments<'a> {
    /// Those that lie at `ranges` of `bytes`.
    pub(crate) fn new(bytes: &'a [u8], ranges: &'a [Range<u32>]) -> Self {
        Self { bytes, ranges }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// One of them, if there are so many.
    pub(crate) fn get(&self, index: usize) -> Option<&'a [u8]> {
        let range = self.ranges.get(index)?;
        Some(&self.bytes[range.start as usize..range.end as usize])
    }

    /// All from one on.
    pub(crate) fn from(&self, first: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + 'a {
        let bytes = self.bytes;
        let ranges = &self.ranges[first.min(self.ranges.len())..];
        ranges.iter().map(move |range| &bytes[range.start as usize..range.end as usize])
    }
}
