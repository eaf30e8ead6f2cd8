use super::decode::{Decoded, Decoder, Limits, ProtocolError};
use super::encode::{Protocol, Writer};

const LIMITS: Limits = Limits { frame_bytes: 1 << 20, arguments: 1000, skipped_bytes: 0 };
/// A line with a length, or the end of one, that is not whole.
const HALF_LINE: usize = 32;

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

/// A request, or why it was refused.
type Came = Result<Vec<Vec<u8>>, String>;

/// All requests of a stream that arrives in pieces, and how it ends.
fn decode_in_pieces(
    stream: &[u8],
    limits: &Limits,
    mut piece: impl FnMut() -> usize,
) -> (Vec<Came>, Result<(), ProtocolError>) {
    let (mut decoder, mut requests) = (Decoder::default(), Vec::new());
    let (mut begin, mut end) = (0, 0);
    loop {
        let length = match decoder.decode(&stream[begin..end], limits) {
            Err(error) => return (requests, Err(error)),
            Ok(Decoded::Request(length)) => {
                let arguments = decoder.arguments(&stream[begin..begin + length]);
                let sent: Vec<_> = arguments.from(0).map(<[u8]>::to_vec).collect();
                assert_eq!(arguments.len(), sent.len());
                assert!(length > 0, "a request of no bytes");
                requests.push(Ok(sent));
                length
            }
            Ok(Decoded::Refused(length, reason)) => {
                requests.push(Err(reason));
                length
            }
            Ok(Decoded::Part(length)) => {
                assert!(length > 0 && decoder.is_skipping() && decoder.memory_bytes() == 0);
                assert!(end - begin - length <= HALF_LINE, "bytes that are skipped are kept");
                length
            }
            Ok(Decoded::More) if end == stream.len() => return (requests, Ok(())),
            Ok(Decoded::More) => {
                end = (end + piece()).min(stream.len());
                0
            }
        };
        assert!(begin + length <= end, "bytes that have not come");
        begin += length;
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
        let sent = sent.into_iter().map(Ok).collect();
        assert_eq!((came, left), (sent, Ok(())), "seed {seed:#x}");
    }
}

/// A request beyond the limits, and what is said of it.
fn random_excess(random: &mut Random, limits: &Limits) -> (Vec<u8>, String) {
    let count = match random.below(3) {
        0 => limits.arguments + 1 + random.below(20),
        _ => 1 + random.below(limits.arguments),
    };
    let mut arguments: Vec<Vec<u8>> = (0..count).map(|_| vec![b'$'; random.below(9)]).collect();
    let words = |came: String, most| {
        format!("a request of {came}, expected at most {most}; send it in parts")
    };
    if count > limits.arguments {
        return (request(&arguments), words(format!("{count} arguments"), limits.arguments));
    }
    // One large argument, or many that are too large together.
    let (is_one, place) = (random.below(2) == 0, random.below(count));
    while request(&arguments).len() <= limits.frame_bytes {
        let place = if is_one { place } else { random.below(count) };
        let more = 1 + random.below(limits.frame_bytes / 4);
        arguments[place].extend((0..more).map(|_| b"\r\n$*0a\0\xff"[random.below(8)]));
    }
    let frame = request(&arguments);
    let said = words(format!("{} bytes", frame.len()), limits.frame_bytes);
    (frame, said)
}

// The connection ended, and the requests behind a large one in a pipeline with it.
#[test]
fn a_request_beyond_a_limit_is_skipped_and_those_around_it_are_taken_wherever_it_is_cut() {
    let mut random = Random(0x5eed3);
    let limits = Limits { frame_bytes: 200, arguments: 8, skipped_bytes: 2000 };
    for _ in 0..3_000 {
        let seed = random.0;
        let (mut stream, mut expected) = (Vec::new(), Vec::<Came>::new());
        for _ in 0..1 + random.below(5) {
            if random.below(2) == 0 {
                let (frame, said) = random_excess(&mut random, &limits);
                stream.extend(frame);
                expected.push(Err(said));
            } else {
                let arguments = random_arguments(&mut random);
                stream.extend(request(&arguments));
                expected.push(Ok(arguments));
            }
        }
        let most = 1 + random.below(stream.len());
        let pieces = decode_in_pieces(&stream, &limits, || 1 + random.below(most));
        assert_eq!(pieces, (expected.clone(), Ok(())), "seed {seed:#x}");
        let single = decode_in_pieces(&stream, &limits, || 1);
        assert_eq!(single, (expected.clone(), Ok(())), "seed {seed:#x}");
        let cut = random.below(stream.len());
        let mut reads = [cut, stream.len() - cut].into_iter();
        let halves = decode_in_pieces(&stream, &limits, || reads.next().unwrap());
        assert_eq!(halves, (expected, Ok(())), "seed {seed:#x}");
    }
}

#[test]
fn every_cut_in_two_of_a_pipeline_with_a_large_request_in_its_midst_gives_the_same_replies() {
    let limits = Limits { frame_bytes: 64, arguments: 3, skipped_bytes: 1000 };
    let words = |text: &str| text.split(' ').map(|w| w.as_bytes().to_vec()).collect::<Vec<_>>();
    let large = [words("SET user:2"), vec![vec![b'\n'; 90]]].concat();
    let sent = [words("SET user:1 x"), large, words("GET user:3"), words("MGET a b c")];
    let mut stream: Vec<u8> = sent.iter().flat_map(|arguments| request(arguments)).collect();
    stream.extend(b"a b c d\nPING\n");
    let said = |came: &str, most: usize| {
        Err(format!("a request of {came}, expected at most {most}; send it in parts"))
    };
    let large = request(&sent[1]).len();
    let expected: Vec<Came> = vec![
        Ok(sent[0].clone()),
        said(&format!("{large} bytes"), 64),
        Ok(sent[2].clone()),
        said("4 arguments", 3),
        said("4 arguments", 3),
        Ok(words("PING")),
    ];
    for cut in 0..stream.len() {
        let mut reads = [cut, stream.len() - cut].into_iter();
        let came = decode_in_pieces(&stream, &limits, || reads.next().unwrap());
        assert_eq!(came, (expected.clone(), Ok(())), "cut at {cut}");
    }
}

#[test]
fn a_request_that_announces_more_than_is_skipped_or_goes_on_wrongly_ends_its_connection() {
    let limits = Limits { frame_bytes: 64, arguments: 3, skipped_bytes: 200 };
    let beyond = "x".repeat(150);
    for (stream, said) in [
        ("*1\r\n$300\r\n".to_owned(), "a request of at least 312 bytes, expected at most 64; send"),
        ("*33\r\n".to_owned(), "a request of 33 arguments, expected at most 3; send"),
        ("*9999999999\r\n".to_owned(), "a request of 9999999999 arguments, expected at most 3"),
        // The first argument may be skipped, the second is too much.
        (format!("*2\r\n$150\r\n{beyond}\r\n$50\r\n"), "at least 219 bytes, expected at most 64"),
        (format!("*4\r\n$150\r\n{beyond}\r\n$50\r\n"), "4 arguments, expected at most 3"),
        (format!("*1\r\n$150\r\n{beyond}xy"), "expected the end of a line behind 150 bytes"),
        (format!("*2\r\n$150\r\n{beyond}\r\n:1\r\n"), "expected '$' and a length, got ':'"),
        (format!("*2\r\n$150\r\n{beyond}\r\n$-1\r\n"), "invalid bulk length '-1'"),
    ] {
        let all = decode_in_pieces(stream.as_bytes(), &limits, || stream.len());
        let single = decode_in_pieces(stream.as_bytes(), &limits, || 1);
        assert_eq!(all, single);
        let error = all.1.unwrap_err().to_string();
        assert!(all.0.is_empty() && error.contains(said), "{error}");
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
    let limits = Limits { frame_bytes: 80, arguments: 5, skipped_bytes: 1000 };
    let (mut errors, mut whole, mut skipped) = (0u64, 0u64, 0u64);
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
        for arguments in at_once.0.iter().flatten() {
            assert!(arguments.len() <= limits.arguments, "seed {seed:#x}");
            let bytes: usize = arguments.iter().map(Vec::len).sum();
            assert!(bytes <= limits.frame_bytes, "seed {seed:#x}");
        }
        errors += u64::from(at_once.1.is_err());
        whole += at_once.0.iter().flatten().count() as u64;
        skipped += at_once.0.iter().filter(|came| came.is_err()).count() as u64;
    }
    // All ways out are taken often enough to mean something.
    assert!(errors > frames / 10 && whole > frames / 10, "{errors} errors, {whole} requests");
    assert!(skipped > frames / 100, "{skipped} of {frames} were skipped");
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
    let limits = Limits { frame_bytes: u32::MAX as usize, arguments: 1 << 20, skipped_bytes: 0 };
    let mut decoder = Decoder::default();
    let stream = b"*1048576\r\n$4294967295\r\n";
    assert!(matches!(decoder.decode(stream, &limits), Err(ProtocolError(_))));
    let mut decoder = Decoder::default();
    assert_eq!(decoder.decode(b"*1048576\r\n$3\r\nGET\r\n$4000000", &limits), Ok(Decoded::More));
    assert!(decoder.memory_bytes() < 1024, "{}", decoder.memory_bytes());
    let mut large = request(&vec![Vec::new(); 5000]);
    assert_eq!(Decoder::default().decode(&large, &limits), Ok(Decoded::Request(large.len())));
    let mut decoder = Decoder::default();
    assert_eq!(decoder.decode(&large, &limits), Ok(Decoded::Request(large.len())));
    large.clear();
    decoder.shrink();
    assert_eq!(decoder.memory_bytes(), 0);
}

fn error_of(stream: &[u8], limits: &Limits) -> String {
    Decoder::default().decode(stream, limits).unwrap_err().to_string()
}

#[test]
fn what_is_wrong_with_a_frame_is_said() {
    let few = Limits { frame_bytes: 64, arguments: 3, skipped_bytes: 0 };
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
    let expected = [words("PING a"), none(), none(), none(), words("GET x:1")];
    assert_eq!((came, left), (expected.into_iter().map(Ok).collect(), Ok(())));
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
