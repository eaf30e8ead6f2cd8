//! Replies as bytes, in the version of the protocol that a connection has chosen.

/// A version of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Every client begins with it.
    #[default]
    Resp2,
    /// After `HELLO 3`: maps and a null of their own.
    Resp3,
}

/// Decimal digits of a number, without allocation.
struct Digits {
    text: [u8; 20],
    begin: usize,
}

/// The decimal digits of a number.
fn digits(mut number: u64) -> Digits {
    let (mut text, mut begin) = ([0; 20], 20);
    loop {
        begin -= 1;
        text[begin] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return Digits { text, begin };
        }
    }
}

impl Digits {
    /// The digits.
    fn as_bytes(&self) -> &[u8] {
        &self.text[self.begin..]
    }
}

/// Appends replies to bytes.
pub(crate) struct Writer<'a> {
    bytes: &'a mut Vec<u8>,
    protocol: Protocol,
}

impl<'a> Writer<'a> {
    /// Appends to `bytes`.
    pub(crate) fn new(bytes: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        Self { bytes, protocol }
    }

    /// A short text without ends of lines.
    pub(crate) fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// An error: its code in capitals, then what is wrong.
    pub(crate) fn error(&mut self, code: &str, message: &str) {
        self.error_without_end(code, message);
        self.bytes.extend(b"\r\n");
    }

    /// An error whose end of line something else brings.
    pub(crate) fn error_without_end(&mut self, code: &str, message: &str) {
        self.bytes.push(b'-');
        self.bytes.extend(code.as_bytes());
        self.bytes.push(b' ');
        self.text(message);
    }

    /// A whole number.
    pub(crate) fn integer(&mut self, number: i64) {
        if number < 0 {
            self.bytes.extend(b":-");
        } else {
            self.bytes.push(b':');
        }
        self.bytes.extend(digits(number.unsigned_abs()).as_bytes());
        self.bytes.extend(b"\r\n");
    }

    /// Any bytes.
    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.bulk_header(bytes.len());
        self.bytes.extend(bytes);
        self.bytes.extend(b"\r\n");
    }

    /// The header of so many bytes; `\r\n` has to follow them.
    pub(crate) fn bulk_header(&mut self, length: usize) {
        self.header(b'$', length);
    }

    /// Nothing there.
    pub(crate) fn null(&mut self) {
        self.bytes.extend(match self.protocol {
            Protocol::Resp2 => &b"$-1\r\n"[..],
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// The header of an array: its replies follow.
    pub(crate) fn array(&mut self, length: usize) {
        self.header(b'*', length);
    }

    /// The header of a map: its pairs of replies follow; of version 2 it is an array.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', pairs * 2),
            Protocol::Resp3 => self.header(b'%', pairs),
        }
    }

    fn header(&mut self, kind: u8, length: usize) {
        self.bytes.push(kind);
        self.bytes.extend(digits(length as u64).as_bytes());
        self.bytes.extend(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &str) {
        self.bytes.push(kind);
        self.text(text);
        self.bytes.extend(b"\r\n");
    }

    /// Text within a line: an end of line in it would be the end of the reply.
    fn text(&mut self, text: &str) {
        let clean = |byte: u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte };
        self.bytes.extend(text.bytes().map(clean));
    }
}
