use super::decode::{Decoder, Limits, ProtocolError};
use super::encode::{Protocol, Writer};

const LIMITS: Limits = Limits { frame_bytes: 1 << 20, arguments: 1000 };

/// A random generator of 64 bits (xorshift*), whose seed a failure prints.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

fn request(arguments: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, Protocol::Resp2);
    writer.array(arguments.len());
    for argument in arguments {
        writer.bulk(argument);
    }
    bytes
}

fn random_arguments(random: &mut Random) -> Vec<Vec<u8>> {
    let count = 1 + random.below(6);
    let mut argument = |_| {
        let length = random.below(24);
        (0..length).map(|_| b"\r\n$*0a\0\xff"[random.below(8)]).collect()
    };
    (0..count).map(&mut argument).collect()
}

/// All requests of a stream that arrives in pieces, and how it ends.
fn decode_in_pieces(
    stream: &[u8],
    limits: &Limits,
    mut piece: impl FnMut() -> usize,
) -> (Vec<Vec<Vec<u8>>>, Result<usize, ProtocolError>) {
    let (mut decoder, mut requests) = (Decoder::default(), Vec::new());
    let (mut begin, mut end) = (0, 0);
    loop {
        match decoder.decode(&stream[begin..end], limits) {
            Err(error) => return (requests, Err(error)),
            Ok(Some(length)) => {
                let arguments = decoder.arguments(&stream[begin..begin + length]);
                requests.push(arguments.from(0).map(<[u8]>::to_vec).collect());
                assert_eq!(arguments.len(), requests[requests.len() - 1].len());
                assert!(length > 0, "a request of no bytes");
                begin += length;
            }
            Ok(None) if end == stream.len() => return (requests, Ok(stream.len() - begin)),
            Ok(None) => end = (end + piece()).min(stream.len()),
        }
    }
}

#[test]
fn requests_come_out_as_they_went_in_wherever_the_stream_is_cut() {
    let mut random = Random(0x5eed1);
    for _ in 0..20_000 {
        let seed = random.0;
        let count = 1 + random.below(4);
        let sent: Vec<_> = (0..count).map(|_| random_arguments(&mut random)).collect();
        let stream: Vec<u8> = sent.iter().flat_map(|arguments| request(arguments)).collect();
        let most = 1 + random.below(stream.len());
        let (came, left) = decode_in_pieces(&stream, &LIMITS, || 1 + random.below(most));
        assert_eq!((came, left), (sent, Ok(0)), "seed {seed:#x}");
    }
}

#[test]
fn a_million_random_and_mutated_frames_decode_or_fail_alike_however_they_are_cut() {
    let frames: u64 = match std::env::var("EMBEDROCK_FRAMES") {
        Ok(text) => text.parse().expect("EMBEDROCK_FRAMES is a number"),
        Err(_) => 1_000_000,
    };
    // Other counts see other frames.
    let mut random = Random(0x5eed2 ^ (frames ^ 1_000_000));
    let limits = Limits { frame_bytes: 400, arguments: 8 };
    let (mut errors, mut whole) = (0u64, 0u64);
    for _ in 0..frames {
        let seed = random.0;
        let mut frame = match random.below(4) {
            0 => (0..random.below(40)).map(|_| b"*$123-+:\r\n\0a "[random.below(13)]).collect(),
            _ => request(&random_arguments(&mut random)),
        };
        for _ in 0..random.below(4) {
            mutate(&mut frame, &mut random);
        }
        let at_once = decode_in_pieces(&frame, &limits, || usize::MAX >> 1);
        let most = 1 + random.below(9);
        let in_pieces = decode_in_pieces(&frame, &limits, || 1 + random.below(most));
        assert_eq!(at_once, in_pieces, "seed {seed:#x}");
        for arguments in &at_once.0 {
            assert!(arguments.len() <= limits.arguments, "seed {seed:#x}");
            let bytes: usize = arguments.iter().map(Vec::len).sum();
            assert!(bytes <= limits.frame_bytes, "seed {seed:#x}");
        }
        errors += u64::from(at_once.1.is_err());
        whole += at_once.0.len() as u64;
    }
    // Both ways out are taken often enough to mean something.
    assert!(errors > frames / 10 && whole > frames / 10, "{errors} errors, {whole} requests");
}

fn mutate(frame: &mut Vec<u8>, random: &mut Random) {
    if frame.is_empty() {
        return;
    }
    let at = random.below(frame.len());
    match random.below(4) {
        0 => frame[at] = random.next() as u8,
        1 => drop(frame.remove(at)),
        2 => frame.insert(at, b"*$-0129\r\n"[random.below(9)]),
        _ => frame.truncate(at),
    }
}

#[test]
fn lengths_that_are_only_claimed_take_no_memory() {
    let limits = Limits { frame_bytes: u32::MAX as usize, arguments: 1 << 20 };
    let mut decoder = Decoder::default();
    let stream = b"*1048576\r\n$4294967295\r\n";
    assert!(matches!(decoder.decode(stream, &limits), Err(ProtocolError(_))));
    let mut decoder = Decoder::default();
    assert_eq!(decoder.decode(b"*1048576\r\n$3\r\nGET\r\n$4000000", &limits), Ok(None));
    assert!(decoder.memory_bytes() < 1024, "{}", decoder.memory_bytes());
    let mut large = request(&vec![Vec::new(); 5000]);
    assert_eq!(Decoder::default().decode(&large, &limits), Ok(Some(large.len())));
    let mut decoder = Decoder::default();
    assert_eq!(decoder.decode(&large, &limits), Ok(Some(large.len())));
    large.clear();
    decoder.shrink();
    assert_eq!(decoder.memory_bytes(), 0);
}

fn error_of(stream: &[u8], limits: &Limits) -> String {
    Decoder::default().decode(stream, limits).unwrap_err().to_string()
}

#[test]
fn what_is_wrong_with_a_frame_is_said() {
    let few = Limits { frame_bytes: 64, arguments: 3 };
    for (stream, said) in [
        (&b"*4\r\n"[..], "4 arguments, expected at most 3"),
        (b"*x\r\n", "invalid multibulk length 'x'"),
        (b"*-2\r\n", "invalid multibulk length '-2'"),
        (b"*99999999999\r\n", "invalid multibulk length"),
        (b"*1\r\n*1\r\n$1\r\na\r\n", "expected '$' and a length, got '*'"),
        (b"*1\r\n\r\n", "got nothing"),
        (b"*1\r\n$-1\r\n", "invalid bulk length '-1'"),
        (b"*1\r\n$65\r\n", "at least 76 bytes, expected at most 64"),
        (b"*1\r\n$1\r\nab\r\n", "expected the end of a line behind 1 bytes, got 'b\\r'"),
        (b"*00000000000000000000000000000000001\r\n", "a line is longer than 32 bytes"),
        (&[b'a'; 64], "a line is longer than 64 bytes"),
        (b"a b c d\n", "4 arguments, expected at most 3"),
    ] {
        let error = error_of(stream, &few);
        assert!(error.starts_with("Protocol error: ") && error.contains(said), "{error}");
    }
}

#[test]
fn a_line_of_words_is_a_request_and_empty_ones_are_none() {
    let (came, left) = decode_in_pieces(b" PING  a\r\n\r\n*0\r\n*-1\r\nGET x:1\n", &LIMITS, || 3);
    let words = |text: &str| text.split(' ').map(|w| w.as_bytes().to_vec()).collect::<Vec<_>>();
    let none = Vec::<Vec<u8>>::new;
    assert_eq!(came, [words("PING a"), none(), none(), none(), words("GET x:1")]);
    assert_eq!(left, Ok(0));
}

#[test]
fn replies_are_those_of_the_version() {
    let bytes_of = |protocol, write: &dyn Fn(&mut Writer<'_>)| {
        let mut bytes = Vec::new();
        write(&mut Writer::new(&mut bytes, protocol));
        String::from_utf8(bytes).unwrap()
    };
    let all = |writer: &mut Writer<'_>| {
        writer.map(1);
        writer.simple("a");
        writer.null();
        writer.integer(-7);
        writer.integer(i64::MIN);
        writer.bulk(b"x\r\n");
        writer.error("ERR", "two\r\nlines");
    };
    let common = ":-7\r\n:-9223372036854775808\r\n";
    assert_eq!(
        bytes_of(Protocol::Resp2, &all),
        format!("*2\r\n+a\r\n$-1\r\n{common}$3\r\nx\r\n\r\n-ERR two  lines\r\n")
    );
    assert_eq!(
        bytes_of(Protocol::Resp3, &all),
        format!("%1\r\n+a\r\n_\r\n{common}$3\r\nx\r\n\r\n-ERR two  lines\r\n")
    );
}
