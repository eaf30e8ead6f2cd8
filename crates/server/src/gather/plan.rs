//! Which mode a server uses for which rows: the one that it was told, or what it has measured.

use super::measure::{Cost, Costs, Pool, Pull, measure};
use super::{RowSource, ZeroCopy};
use embedrock_core::{Error, ErrorKind, Result};
use std::fmt;
use std::time::{Duration, Instant};

/// Keys of a pull that is measured: as many as a request usually has.
const KEYS: usize = 500;
/// Bytes of the rows that are measured: 16 to 2,048 values.
const ROW_BYTES: [usize; 5] = [64, 256, 1024, 4096, 8192];
/// Time for each of them; together with what it takes to begin, less than 200 ms.
const PATIENCE: Duration = Duration::from_millis(20);
/// A mode is taken instead of copies if it takes at most this part of their processor time, and no
/// more time from request to last byte.
const GAIN: f64 = 0.9;

/// How rows get from memory into a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Copied into the reply, and by the kernel.
    Copy,
    /// Copied by the kernel from where they lie.
    Vectored,
    /// Sent by the kernel from where they lie, or from the reply.
    ZeroCopy,
}

/// What a server is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gather {
    /// To measure, when it starts, and to take what costs least processor time.
    Auto,
    /// This mode, wherever it is possible. Connections over TLS are copied always.
    Fixed(Mode),
}

impl Mode {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Vectored => "vectored",
            Self::ZeroCopy => "zerocopy",
        }
    }
}

impl Gather {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Fixed(mode) => mode.name(),
        }
    }

    /// What a name says. *Errors*: `Misuse` for one that says nothing.
    pub fn of_name(name: &str) -> Result<Self> {
        let all = [Mode::Copy, Mode::Vectored, Mode::ZeroCopy].map(Self::Fixed);
        let found = [Self::Auto].into_iter().chain(all).find(|one| one.name() == name);
        found.ok_or_else(|| {
            let expected = "expected auto, copy, vectored or zerocopy";
            Error::new(ErrorKind::Misuse, format!("gather is {name:?}, {expected}"))
        })
    }
}

/// What a server does.
pub(crate) struct Plan {
    fixed: Option<Mode>,
    /// Bytes of a row, and what a reply of 500 of them is sent with: ascending.
    measured: Vec<(usize, Mode)>,
    /// Why nothing was measured.
    reason: Option<String>,
}

impl Plan {
    /// One mode for all.
    pub(crate) fn fixed(mode: Mode) -> Self {
        Self { fixed: Some(mode), measured: Vec::new(), reason: None }
    }

    /// Does what a server is told; where that is to measure, it takes less than 200 ms.
    ///
    /// *Errors*: `Unsupported` for zero-copy sends that the kernel does not have.
    pub(crate) fn new(gather: Gather, is_tls: bool) -> Result<Self> {
        if gather == Gather::Auto && is_tls {
            return Ok(Self::unmeasured("TLS".to_owned()));
        }
        // A ring that ends interrupts system calls of the thread that made it, once: not the
        // caller's.
        let builder = std::thread::Builder::new().name("serve-gather".to_owned());
        let chosen = builder.spawn(move || Self::choose(gather));
        let chosen = chosen.map_err(|error| Error::os("start a thread that measures", error))?;
        chosen.join().unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Poisoned, "the thread that measures sends has panicked"))
        })
    }

    fn choose(gather: Gather) -> Result<Self> {
        let zero_copy = ZeroCopy::<()>::new();
        match gather {
            Gather::Fixed(Mode::ZeroCopy) if zero_copy.is_err() => {
                let why = zero_copy.err().map_or_else(String::new, |error| error.to_string());
                Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "gather is zerocopy, which takes io_uring of Linux 6.1 or newer, and the \
                         kernel refuses it ({why}); use auto or copy"
                    ),
                ))
            }
            Gather::Fixed(mode) => Ok(Self::fixed(mode)),
            Gather::Auto => Ok(match zero_copy {
                Err(error) => Self::unmeasured(format!("no zero-copy sends: {error}")),
                Ok(_) => Self::measured().unwrap_or_else(|error| {
                    Self::unmeasured(format!("sends over loopback fail: {error}"))
                }),
            }),
        }
    }

    fn unmeasured(reason: String) -> Self {
        Self { reason: Some(reason), ..Self::fixed(Mode::Copy) }
    }

    /// Measures replies of rows that were copied there: what every storage has.
    fn measured() -> std::io::Result<Self> {
        let (mut measured, begin) = (Vec::with_capacity(ROW_BYTES.len()), Instant::now());
        for row_bytes in ROW_BYTES {
            // On a machine that is busy with other things there is no time for the last ones.
            if begin.elapsed() > PATIENCE * ROW_BYTES.len() as u32 {
                measured.push((row_bytes, Mode::Copy));
                continue;
            }
            let pool = Pool::new(row_bytes);
            let batches = pool.batches(KEYS);
            let costs = measure(&Pull {
                source: &pool as &dyn RowSource,
                row_bytes,
                batches: &batches,
                has_views: false,
                patience: PATIENCE,
                check: None,
            })?;
            measured.push((row_bytes, best(&costs)));
        }
        Ok(Self { fixed: None, measured, reason: None })
    }

    /// Whether threads need a ring for zero-copy sends.
    pub(crate) fn has_zero_copy(&self) -> bool {
        self.fixed == Some(Mode::ZeroCopy)
            || self.measured.iter().any(|(_, mode)| *mode == Mode::ZeroCopy)
    }

    /// Whether a reply of so many bytes, of rows that were copied there, is lent to the kernel.
    pub(crate) fn of_reply(&self, bytes: usize) -> bool {
        let at_most = |(row_bytes, _): &&(usize, Mode)| *row_bytes * KEYS <= bytes;
        let measured = self.measured.iter().take_while(at_most).last();
        self.fixed.or(measured.map(|(_, mode)| *mode)) == Some(Mode::ZeroCopy)
    }
}

/// What is cheapest of what can be done with a copy in the reply.
fn best(costs: &Costs) -> Mode {
    let copy = &costs.copy;
    let is_cheaper =
        |cost: &Cost| cost.cpu_seconds <= copy.cpu_seconds * GAIN && cost.seconds <= copy.seconds;
    match &costs.lent_reply {
        Some(cost) if is_cheaper(cost) => Mode::ZeroCopy,
        _ => Mode::Copy,
    }
}

impl fmt::Display for Plan {
    /// As in `64:copy 256:copy 1024:zerocopy`, or one mode for all.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(mode) = self.fixed {
            to.write_str(mode.name())?;
        }
        for (number, (row_bytes, mode)) in self.measured.iter().enumerate() {
            let space = if number == 0 { "" } else { " " };
            write!(to, "{space}{row_bytes}:{}", mode.name())?;
        }
        match &self.reason {
            Some(reason) => write!(to, " ({})", reason.replace(['\r', '\n'], " ")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_for_each_reply_whether_it_is_lent() {
        let measured = vec![(64, Mode::Copy), (256, Mode::ZeroCopy), (1024, Mode::Copy)];
        let plan = Plan { fixed: None, measured, reason: None };
        let lent = |row_bytes: usize| plan.of_reply(row_bytes * KEYS);
        let sizes = [1, 64, 255, 256, 1023, 1024, 8192];
        assert_eq!(sizes.map(lent), [false, false, false, true, true, false, false]);
        assert!(plan.has_zero_copy());
        assert_eq!(plan.to_string(), "64:copy 256:zerocopy 1024:copy");
        assert!(Plan::fixed(Mode::ZeroCopy).of_reply(1));
        assert!(!Plan::fixed(Mode::Copy).of_reply(1 << 30));
    }

    #[test]
    fn a_reply_is_lent_where_that_saves_a_tenth_and_nobody_waits_longer() {
        let cost = |cpu_seconds, seconds| Cost { cpu_seconds, seconds, copied: 0.0 };
        let chosen = |cpu, seconds| {
            let lent_reply = Some(cost(cpu, seconds));
            best(&Costs { copy: cost(1.0, 2.0), lent_reply, vectored: None, zero_copy: None })
        };
        assert_eq!(chosen(0.89, 2.0), Mode::ZeroCopy);
        assert_eq!(chosen(0.91, 1.0), Mode::Copy);
        assert_eq!(chosen(0.5, 2.1), Mode::Copy);
    }

    #[test]
    fn names_are_those_of_the_options_and_others_are_refused() {
        for name in ["auto", "copy", "vectored", "zerocopy"] {
            assert_eq!(Gather::of_name(name).unwrap().name(), name);
        }
        let error = Gather::of_name("dma").unwrap_err();
        assert!(error.message().contains("\"dma\", expected auto, copy"), "{error}");
    }

    #[test]
    fn all_sizes_are_measured_in_a_moment() {
        let begin = Instant::now();
        let plan = Plan::new(Gather::Auto, false).unwrap();
        // 200 ms where nothing else runs.
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        assert_eq!(plan.measured.len(), ROW_BYTES.len(), "{plan}");
    }
}
