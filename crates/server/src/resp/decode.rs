//! Requests from the bytes of a connection, as they arrive.
//!
//! A request is an array of bulk strings, or one line of words ("inline"). The decoder goes on
//! where it stopped, so bytes that trickle in are looked at once. It copies nothing but words
//! between quotation marks: other arguments are ranges of the caller's buffer. It allocates for
//! arguments that are there, never for what a length says.
//!
//! A request beyond a limit whose lengths are numbers is skipped: the caller drops its bytes as
//! they come, and it ends in the error. Bytes that are no request, or announce more than may be
//! skipped, end their connection.

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

/// The limits of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of a whole request; below 4 GiB.
    pub(crate) frame_bytes: usize,
    /// Arguments, the command's name included.
    pub(crate) arguments: usize,
    /// Bytes of a request that is skipped because it has more of either; 0 to skip none.
    pub(crate) skipped_bytes: usize,
}

/// The result of decoding some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// Nothing yet.
    More,
    /// A request of so many bytes.
    Request(usize),
    /// The next bytes of a request that is skipped, by their number. The following ones begin
    /// behind them.
    Part(usize),
    /// The last bytes of such a request, and what was wrong with it.
    Refused(usize, String),
}

/// The limit that a request exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Excess {
    Bytes,
    /// The number of arguments.
    Arguments(usize),
}

impl Excess {
    /// The error for a request of so many bytes.
    fn words(self, bytes: impl fmt::Display, limits: &Limits) -> String {
        let (came, most) = match self {
            Self::Bytes => (format!("{bytes} bytes"), limits.frame_bytes),
            Self::Arguments(count) => (format!("{count} arguments"), limits.arguments),
        };
        format!("a request of {came}, expected at most {most}; send it in parts")
    }
}

/// Why a connection cannot go on: where its next request begins is not known, or too far away.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProtocolError(pub(crate) String);

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protocol error: {}", self.0)
    }
}

/// The kind of the next bytes.
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
    /// The bytes of an argument, by their number, and the end of its line.
    Bytes(usize),
    /// The same of a request that is skipped, of which so many bytes are left.
    Skipped { length: usize, left: usize },
}

/// Decodes one request after the other.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    state: State,
    /// Why the request is skipped, if it is.
    excess: Option<Excess>,
    /// Bytes of the request that the caller has dropped: none, unless it is skipped.
    dropped: usize,
    /// Bytes behind those that are decoded.
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
    /// Goes on with a request. `bytes` begin with its first byte, or behind the last part of it
    /// that was skipped, and may end anywhere, or behind it; they are those of the last call,
    /// without such a part, and what has come since.
    ///
    /// Returns the bytes of the request once it is whole. The next call begins another one.
    pub(crate) fn decode(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
    ) -> Result<Decoded, ProtocolError> {
        if self.state == State::Begin {
            let Some(first) = bytes.first() else { return Ok(Decoded::More) };
            self.begin(*first)?;
        }
        loop {
            match self.advance(bytes, limits)? {
                Some(false) => {}
                Some(true) => {
                    self.state = State::Begin;
                    return Ok(match self.excess.take() {
                        None => Decoded::Request(self.decoded),
                        Some(excess) => {
                            let all = self.dropped + self.decoded;
                            Decoded::Refused(self.decoded, excess.words(all, limits))
                        }
                    });
                }
                None if self.is_skipping() && self.decoded > 0 => {
                    let part = std::mem::take(&mut self.decoded);
                    self.dropped += part;
                    return Ok(Decoded::Part(part));
                }
                None => return Ok(Decoded::More),
            }
        }
    }

    /// Whether a request is skipped whose end has not come.
    pub(crate) fn is_skipping(&self) -> bool {
        self.excess.is_some()
    }

    fn begin(&mut self, first: u8) -> Result<(), ProtocolError> {
        self.arguments.clear();
        (self.words, self.excess) = (None, None);
        (self.dropped, self.decoded, self.searched) = (0, 0, 0);
        if first == HANDSHAKE {
            return Err(ProtocolError(
                "a client speaks TLS, and this server does not encrypt: connect with a redis:// \
                 URL, or start the server with --tls-cert and --tls-key"
                    .to_owned(),
            ));
        }
        self.state = if first == b'*' { State::Count } else { State::Inline };
        Ok(())
    }

    /// Takes the next line or argument. Returns whether it was the last one, or nothing while it is
    /// not there.
    fn advance(&mut self, bytes: &[u8], limits: &Limits) -> Result<Option<bool>, ProtocolError> {
        let most = match self.state {
            State::Begin => return Ok(Some(true)),
            State::Bytes(length) => return self.take_argument(bytes, length),
            State::Skipped { length, left } => return self.skip_argument(bytes, length, left),
            State::Inline => INLINE_MAX.min(limits.frame_bytes),
            State::Count | State::Length => LENGTH_LINE_MAX,
        };
        let Some(line) = self.line(bytes, most)? else { return Ok(None) };
        match self.state {
            State::Count => {
                self.left = self.count_of(&bytes[line], limits)?;
                self.state = State::Length;
                Ok(Some(self.left == 0))
            }
            State::Length => {
                let length = self.length_of(&bytes[line], limits)?;
                self.state = match self.is_skipping() {
                    true => State::Skipped { length, left: length },
                    false => State::Bytes(length),
                };
                Ok(Some(false))
            }
            _ => {
                self.take_words(bytes, line, limits)?;
                Ok(Some(true))
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
    fn length_of(&mut self, line: &[u8], limits: &Limits) -> Result<usize, ProtocolError> {
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
        let before = self.dropped.saturating_add(self.decoded);
        let least = before.saturating_add(length).saturating_add(2).saturating_add(rest);
        match self.excess {
            Some(excess) => self.exceed(excess, least, limits)?,
            None if least > limits.frame_bytes => self.exceed(Excess::Bytes, least, limits)?,
            None => {}
        }
        Ok(length)
    }

    /// The number of arguments that a request says it has. Redis, too, takes -1 for none.
    fn count_of(&mut self, line: &[u8], limits: &Limits) -> Result<usize, ProtocolError> {
        let digits = line.strip_prefix(b"*").unwrap_or(line);
        if digits == b"-1" {
            return Ok(0);
        }
        let Some(count) = number(digits) else {
            return Err(ProtocolError(format!("invalid multibulk length {}", quoted(digits))));
        };
        if count > limits.arguments {
            let least = self.decoded.saturating_add(count.saturating_mul(ARGUMENT_BYTES_MIN));
            self.exceed(Excess::Arguments(count), least, limits)?;
        }
        Ok(count)
    }

    /// Skips the request, which has more than it may, and at least so many bytes.
    ///
    /// *Errors*: for one with more than are skipped.
    fn exceed(
        &mut self,
        excess: Excess,
        least: usize,
        limits: &Limits,
    ) -> Result<(), ProtocolError> {
        if least > limits.skipped_bytes {
            return Err(ProtocolError(excess.words(format_args!("at least {least}"), limits)));
        }
        self.excess = Some(excess);
        (self.arguments, self.words) = (Vec::new(), None);
        Ok(())
    }

    /// Takes an argument whose bytes are all there.
    fn take_argument(
        &mut self,
        bytes: &[u8],
        length: usize,
    ) -> Result<Option<bool>, ProtocolError> {
        let rest = &bytes[self.decoded..];
        if rest.len() < length + 2 {
            return Ok(None);
        }
        check_end(&rest[length..length + 2], length)?;
        self.arguments.push(self.decoded as u32..(self.decoded + length) as u32);
        Ok(Some(self.end_argument(length + 2)))
    }

    /// Takes what is there of an argument that nobody reads.
    fn skip_argument(
        &mut self,
        bytes: &[u8],
        length: usize,
        left: usize,
    ) -> Result<Option<bool>, ProtocolError> {
        let there = left.min(bytes.len() - self.decoded);
        self.decoded += there;
        self.state = State::Skipped { length, left: left - there };
        let Some(end) = bytes.get(self.decoded..self.decoded + 2) else { return Ok(None) };
        check_end(end, length)?;
        Ok(Some(self.end_argument(2)))
    }

    /// Goes behind an argument. Returns whether it was the last one.
    fn end_argument(&mut self, bytes: usize) -> bool {
        self.decoded += bytes;
        self.left -= 1;
        self.state = State::Length;
        self.left == 0
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
                None => self.exceed(Excess::Arguments(most + 1), self.decoded, limits),
            };
        }
        let mut at = line.start;
        for word in bytes[line].split(|byte| byte.is_ascii_whitespace()) {
            if !word.is_empty() {
                if self.arguments.len() == limits.arguments {
                    let excess = Excess::Arguments(limits.arguments + 1);
                    return self.exceed(excess, self.decoded, limits);
                }
                self.arguments.push(at as u32..(at + word.len()) as u32);
            }
            at += word.len() + 1;
        }
        Ok(())
    }
}

/// Looks for the end of a line behind an argument of so many bytes.
fn check_end(end: &[u8], length: usize) -> Result<(), ProtocolError> {
    match end {
        b"\r\n" => Ok(()),
        _ => Err(ProtocolError(format!(
            "expected the end of a line behind {length} bytes, got {}",
            quoted(end)
        ))),
    }
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
    /// The arguments that lie at `ranges` of `bytes`.
    pub(crate) fn new(bytes: &'a [u8], ranges: &'a [Range<u32>]) -> Self {
        Self { bytes, ranges }
    }

    /// Number of arguments.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// An argument by its index, if there are so many.
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
