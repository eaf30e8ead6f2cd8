//! The cost of each mode: replies of some rows over loopback, in turns.

use super::{Chunk, Gatherer, RowSource, RowViews, Views};
use crate::output::Output;
use crate::pulls::LAYOUT_VERSION;
use crate::resp::{Protocol, Writer};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the pulls of a mode in its turn, about, and how many there are at most.
const TURN_BYTES: usize = 1 << 20;
const PULLS_MOST: usize = 8;
/// Turns of each mode, at least; the first one does not count.
const TURNS_LEAST: usize = 2;
/// The longest wait of a side for the other.
const STALL: Duration = Duration::from_secs(10);
/// Memory of the rows that a server measures with.
const POOL_BYTES: usize = 8 << 20;

/// Is told keys and the bytes of their rows.
pub type Check<'a> = dyn Fn(&[u64], &[u8]) + Sync + 'a;

/// The pull to measure.
pub struct Pull<'a> {
    /// The source of the rows.
    pub source: &'a dyn RowSource,
    /// Bytes of a row, whole float32 values.
    pub row_bytes: usize,
    /// Keys of each pull, all with rows, as many in each.
    pub batches: &'a [Vec<u64>],
    /// Whether the source lends rows: if not, modes that need it are left out.
    pub has_views: bool,
    /// About how long it may take.
    pub patience: Duration,
    /// Compares what has arrived, which takes time.
    pub check: Option<&'a Check<'a>>,
}

/// The cost of a pull, medians.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// From the request to the last byte of the reply.
    pub seconds: f64,
    /// Processor time of the thread that serves.
    pub cpu_seconds: f64,
    /// Part of the zero-copy sends that the kernel has copied nevertheless.
    pub copied: f64,
}

/// The cost of a pull in each mode.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Rows are copied into the reply, and by the kernel.
    pub copy: Cost,
    /// Rows are copied into the reply, which is sent without a copy; `None` where the kernel has no
    /// such sends.
    pub lent_reply: Option<Cost>,
    /// The kernel copies rows from where they lie; `None` where they are not lent.
    pub vectored: Option<Cost>,
    /// The kernel sends rows from where they lie without a copy; `None` for either reason.
    pub zero_copy: Option<Cost>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Copy,
    LentReply,
    Vectored,
    ZeroCopy,
}

/// Measures the modes in turns, over one connection on loopback.
///
/// *Errors*: those of the system, and of the source.
pub fn measure(pull: &Pull<'_>) -> io::Result<Costs> {
    let gatherer = Gatherer::new(true).or_else(|_| Gatherer::new(false))?;
    let mut ways = vec![Way::Copy];
    let has_zero_copy = gatherer.descriptor().is_some();
    ways.extend(has_zero_copy.then_some(Way::LentReply));
    ways.extend(pull.has_views.then_some(Way::Vectored));
    ways.extend((pull.has_views && has_zero_copy).then_some(Way::ZeroCopy));

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let far = TcpStream::connect(listener.local_addr()?)?;
    let (near, _) = listener.accept()?;
    for side in [&near, &far] {
        side.set_nodelay(true)?;
        side.set_read_timeout(Some(STALL))?;
    }
    let reply_bytes = Reply::bytes(pull);
    let near = Arc::new(near);
    let mut serving = Serving { pull, near, gatherer, output: Output::default(), idle: None };
    let mut samples: Vec<(Way, Vec<Cost>)> = ways.iter().map(|way| (*way, Vec::new())).collect();
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("gather-measure".to_owned());
        let (batches, check) = (pull.batches, pull.check);
        let client = builder.spawn_scoped(scope, move || ask(far, batches, check, reply_bytes))?;
        let served = serving.run(&mut samples);
        // The client ends with the connection.
        drop(serving);
        let asked = client.join().map_err(|_| io::Error::other("the client has panicked"))?;
        served.and(asked)
    })?;
    let of = |way| {
        let (_, costs) = samples.iter().find(|(of, _)| *of == way)?;
        Some(Cost {
            seconds: median(costs.iter().map(|cost| cost.seconds)),
            cpu_seconds: median(costs.iter().map(|cost| cost.cpu_seconds)),
            copied: median(costs.iter().map(|cost| cost.copied)),
        })
    };
    let copy = of(Way::Copy).ok_or(ErrorKind::InvalidData)?;
    let (lent_reply, vectored) = (of(Way::LentReply), of(Way::Vectored));
    Ok(Costs { copy, lent_reply, vectored, zero_copy: of(Way::ZeroCopy) })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The header of a reply.
struct Reply;

impl Reply {
    fn head(pull: &Pull<'_>) -> Vec<u8> {
        let (keys, mut bytes) = (pull.batches[0].len(), Vec::new());
        Writer::new(&mut bytes, Protocol::Resp2).bulk_header(12 + keys * pull.row_bytes);
        for word in [LAYOUT_VERSION, keys as u32, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    /// Bytes of the header, of the rows, and behind them.
    fn bytes(pull: &Pull<'_>) -> [usize; 3] {
        [Self::head(pull).len(), pull.batches[0].len() * pull.row_bytes, 2]
    }
}

/// The client: asks for one batch after the other, one request under way, until the end.
fn ask(
    mut far: TcpStream,
    batches: &[Vec<u64>],
    check: Option<&Check<'_>>,
    [head, rows, end]: [usize; 3],
) -> io::Result<()> {
    let mut reply = vec![0; head + rows + end];
    for keys in batches.iter().cycle() {
        let asked = far.write_all(b"?").and_then(|()| far.read_exact(&mut reply));
        match asked {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(error),
            // The other side knows why.
            Err(_) => return Ok(()),
            Ok(()) => {}
        }
        if let Some(check) = check {
            check(keys, &reply[head..head + rows]);
        }
    }
    Ok(())
}

/// The side that serves.
struct Serving<'a> {
    pull: &'a Pull<'a>,
    near: Arc<TcpStream>,
    gatherer: Gatherer,
    output: Output,
    idle: Option<Vec<f32>>,
}

impl Serving<'_> {
    fn run(&mut self, samples: &mut [(Way, Vec<Cost>)]) -> io::Result<()> {
        let (begin, mut batches) = (Instant::now(), self.pull.batches.iter().cycle());
        let pulls = self.pulls();
        let mut turn = 0;
        while turn < TURNS_LEAST || begin.elapsed() < self.pull.patience {
            for (way, costs) in &mut *samples {
                let (cpu, begin, before) = (cpu_seconds(), Instant::now(), self.gatherer.counts());
                for keys in batches.by_ref().take(pulls) {
                    (&*self.near).read_exact(&mut [0])?;
                    self.reply(*way, keys)?;
                }
                let after = self.gatherer.counts();
                if turn > 0 {
                    costs.push(Cost {
                        seconds: begin.elapsed().as_secs_f64() / pulls as f64,
                        cpu_seconds: (cpu_seconds() - cpu) / pulls as f64,
                        copied: (after.1 - before.1) as f64 / (after.0 - before.0).max(1) as f64,
                    });
                }
            }
            turn += 1;
        }
        Ok(())
    }

    /// Pulls of a mode in its turn.
    fn pulls(&self) -> usize {
        let bytes = self.pull.batches[0].len() * self.pull.row_bytes;
        (TURN_BYTES / bytes.max(1)).clamp(1, PULLS_MOST)
    }

    /// Replies the rows of keys, as a server does.
    fn reply(&mut self, way: Way, keys: &[u64]) -> io::Result<()> {
        let Self { pull, near, gatherer, output, idle } = self;
        let place = output.keep_rows();
        output.fill_text(place, Protocol::Resp2, |bytes, _| bytes.extend(Reply::head(pull)));
        let is_lent = matches!(way, Way::LentReply | Way::ZeroCopy);
        let views = match way {
            Way::Copy | Way::LentReply => None,
            Way::Vectored | Way::ZeroCopy => pull.source.views(keys)?,
        };
        let len = keys.len() * pull.row_bytes / size_of::<f32>();
        match views {
            Some(rows) => {
                let size = (keys.len(), pull.row_bytes);
                let none = (Vec::new(), Vec::new());
                output.fill_views(place, Views::new(rows, size, none, is_lent));
            }
            None => {
                let mut rows = idle.take().unwrap_or_else(|| vec![0.0; len]);
                pull.source.copy(keys, bytemuck::cast_slice_mut(&mut rows))?;
                output.fill_rows(place, rows, len, is_lent);
            }
        }
        let mut free = |rows| *idle = Some(rows);
        let mut sending = gatherer.begin();
        while !output.is_empty() {
            match sending.send(near, (0, 0), output).0 {
                Ok(count) => output.take(count, &mut free),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    output.copy_views();
                    let wait = Timespec { tv_sec: STALL.as_secs() as i64, tv_nsec: 0 };
                    let ready = poll(&mut [PollFd::new(near, PollFlags::OUT)], Some(&wait))?;
                    if ready == 0 {
                        return Err(ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        drop(sending);
        gatherer.land(|_, _, chunks: Vec<Chunk>| {
            chunks.into_iter().for_each(|chunk| output.end_lent(chunk, &mut free));
        });
        Ok(())
    }
}

/// Processor time of this thread.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Rows that a server measures with.
pub(crate) struct Pool {
    words: Arc<Vec<AtomicU64>>,
    row_words: usize,
}

struct PoolViews {
    words: Arc<Vec<AtomicU64>>,
    row_words: usize,
    keys: Vec<u64>,
}

impl Pool {
    /// Rows of so many bytes, whole words.
    pub(crate) fn new(row_bytes: usize) -> Self {
        let words = (0..POOL_BYTES / size_of::<u64>()).map(|word| AtomicU64::new(word as u64));
        Self { words: Arc::new(words.collect()), row_words: row_bytes / size_of::<u64>() }
    }

    /// Batches of so many keys, at random.
    pub(crate) fn batches(&self, keys: usize) -> Vec<Vec<u64>> {
        let rows = (self.words.len() / self.row_words) as u64;
        let mut state = 1u64;
        let mut next = || {
            // Knuth's multiplier; the upper bits are random enough.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % rows
        };
        (0..16).map(|_| (0..keys).map(|_| next()).collect()).collect()
    }
}

impl RowSource for Pool {
    fn views(&self, keys: &[u64]) -> io::Result<Option<Box<dyn RowViews>>> {
        let (words, row_words, keys) = (self.words.clone(), self.row_words, keys.to_vec());
        // Rows that are lent were read, to be verified.
        let mut row = vec![0; row_words];
        for key in &keys {
            let words = &words[*key as usize * row_words..][..row_words];
            let words = words.iter().map(|word| word.load(Ordering::Relaxed));
            row.iter_mut().zip(words).for_each(|(to, word)| *to = word);
            std::hint::black_box(&row);
        }
        Ok(Some(Box::new(PoolViews { words, row_words, keys })))
    }

    fn copy(&self, keys: &[u64], rows: &mut [u8]) -> io::Result<()> {
        let words = rows.chunks_exact_mut(size_of::<u64>());
        let from = keys.iter().flat_map(|key| {
            let begin = *key as usize * self.row_words;
            &self.words[begin..begin + self.row_words]
        });
        words.zip(from).for_each(|(to, word)| {
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        });
        Ok(())
    }
}

impl RowViews for PoolViews {
    fn row(&self, position: usize) -> Option<&[AtomicU64]> {
        let begin = *self.keys.get(position)? as usize * self.row_words;
        Some(&self.words[begin..begin + self.row_words])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn rows_arrive_as_they_are_in_every_mode_also_of_odd_sizes() {
        // The last one is more than a socket takes at once, and 12 bytes are half a word too many.
        for row_bytes in [8, 12, 512, 40_000] {
            let pool = Pool { row_words: usize::div_ceil(row_bytes, 8), ..Pool::new(8) };
            let batches = pool.batches(200);
            let checked = AtomicUsize::new(0);
            let check = |keys: &[u64], rows: &[u8]| {
                for (key, row) in keys.iter().zip(rows.chunks_exact(row_bytes)) {
                    let first = key * pool.row_words as u64;
                    let words = (first..).flat_map(u64::to_le_bytes);
                    assert!(words.take(row_bytes).eq(row.iter().copied()), "row of key {key}");
                }
                checked.fetch_add(1, Ordering::Relaxed);
            };
            let pull = Pull {
                source: &Odd(&pool, row_bytes),
                row_bytes,
                batches: &batches,
                has_views: true,
                patience: Duration::ZERO,
                check: Some(&check),
            };
            let costs = measure(&pull).unwrap();
            assert!(costs.zero_copy.is_some_and(|cost| cost.seconds > 0.0));
            // The client may not have checked the last one when the server ends.
            assert!(checked.load(Ordering::Relaxed) >= 4 * TURNS_LEAST - 1);
        }
    }

    /// Rows of a pool without their last bytes.
    struct Odd<'a>(&'a Pool, usize);

    impl RowSource for Odd<'_> {
        fn views(&self, keys: &[u64]) -> io::Result<Option<Box<dyn RowViews>>> {
            self.0.views(keys)
        }

        fn copy(&self, keys: &[u64], rows: &mut [u8]) -> io::Result<()> {
            let whole = self.0.row_words * 8;
            let mut all = vec![0; keys.len() * whole];
            self.0.copy(keys, &mut all)?;
            for (row, from) in rows.chunks_exact_mut(self.1).zip(all.chunks_exact(whole)) {
                row.copy_from_slice(&from[..self.1]);
            }
            Ok(())
        }
    }
}
