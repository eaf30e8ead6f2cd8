//! The mode for rows of each size: the one that the user chose, or the best one measured.

use super::measure::{Cost, Costs, Pool, Pull, measure};
use super::{RowSource, ZeroCopy};
use embedrock_core::{Error, ErrorKind, Result};
use std::fmt;
use std::time::{Duration, Instant};

/// Keys of a pull that is measured: as many as a request usually has.
const KEYS: usize = 500;
/// Bytes of the rows that are measured: 16 to 2,048 values.
const ROW_BYTES: [usize; 5] = [64, 256, 1024, 4096, 8192];
/// Time for each of them, and where rows may be lent; together with what it takes to begin, less
/// than 200 ms.
const PATIENCE: Duration = Duration::from_millis(20);
const PATIENCE_WITH_VIEWS: Duration = Duration::from_millis(35);
/// A mode is taken instead of copies if it takes at most this part of their processor time, and no
/// more time from request to last byte.
const GAIN: f64 = 0.9;

/// The mode in which rows are sent from memory to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Copied into the reply, and by the kernel.
    Copy,
    /// Copied by the kernel from where they lie.
    Vectored,
    /// Sent by the kernel from where they lie, or from the reply.
    ZeroCopy,
}

/// The user's choice for a server.
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

    /// The choice of this name. *Errors*: `Misuse` for an unknown one.
    pub fn of_name(name: &str) -> Result<Self> {
        let all = [Mode::Copy, Mode::Vectored, Mode::ZeroCopy].map(Self::Fixed);
        let found = [Self::Auto].into_iter().chain(all).find(|one| one.name() == name);
        found.ok_or_else(|| {
            let expected = "expected auto, copy, vectored or zerocopy";
            Error::new(ErrorKind::Misuse, format!("gather is {name:?}, {expected}"))
        })
    }
}

/// The modes that a server uses.
pub(crate) struct Plan {
    fixed: Option<Mode>,
    /// Bytes of a row, and what a reply of 500 of them is sent with: ascending.
    measured: Vec<(usize, Mode)>,
    /// Bytes of a row, and what such rows are sent with where they can be lent: ascending.
    lent: Vec<(usize, Mode)>,
    /// Whether rows can be sent from where they lie.
    has_views: bool,
    /// Why nothing was measured.
    reason: Option<String>,
}

impl Plan {
    /// One mode for all.
    pub(crate) fn fixed(mode: Mode) -> Self {
        let (measured, lent) = (Vec::new(), Vec::new());
        Self { fixed: Some(mode), measured, lent, has_views: true, reason: None }
    }

    /// Does what a server is told; where that is to measure, it takes less than 200 ms. `may_lend`
    /// tells whether there are tables whose rows can be lent, or may come to be some.
    ///
    /// *Errors*: `Unsupported` for zero-copy sends that the kernel does not have.
    pub(crate) fn new(gather: Gather, is_tls: bool, may_lend: bool) -> Result<Self> {
        if gather == Gather::Auto && is_tls {
            return Ok(Self::unmeasured("TLS".to_owned()));
        }
        // A ring that ends interrupts system calls of the thread that made it, once: not the
        // caller's.
        let builder = std::thread::Builder::new().name("serve-gather".to_owned());
        let chosen = builder.spawn(move || Self::choose(gather, may_lend));
        let chosen = chosen.map_err(|error| Error::os("start a thread that measures", error))?;
        let chosen = chosen.join().unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Poisoned, "the thread that measures sends has panicked"))
        });
        Ok(Self { has_views: !is_tls, ..chosen? })
    }

    fn choose(gather: Gather, may_lend: bool) -> Result<Self> {
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
                Ok(_) => Self::measured(may_lend).unwrap_or_else(|error| {
                    Self::unmeasured(format!("sends over loopback fail: {error}"))
                }),
            }),
        }
    }

    fn unmeasured(reason: String) -> Self {
        Self { reason: Some(reason), ..Self::fixed(Mode::Copy) }
    }

    /// Measures replies of rows that were copied there, what every storage has, and of rows that
    /// are lent, if there may be some.
    fn measured(may_lend: bool) -> std::io::Result<Self> {
        let (mut measured, mut lent, begin) = (Vec::new(), Vec::new(), Instant::now());
        let patience = if may_lend { PATIENCE_WITH_VIEWS } else { PATIENCE };
        for row_bytes in ROW_BYTES {
            // On a machine that is busy with other things there is no time for the last ones.
            if begin.elapsed() > patience * ROW_BYTES.len() as u32 {
                measured.push((row_bytes, Mode::Copy));
                lent.extend(may_lend.then_some((row_bytes, Mode::Copy)));
                continue;
            }
            let pool = Pool::new(row_bytes);
            let batches = pool.batches(KEYS);
            let costs = measure(&Pull {
                source: &pool as &dyn RowSource,
                row_bytes,
                batches: &batches,
                has_views: may_lend,
                patience,
                check: None,
            })?;
            measured.push((row_bytes, best(&costs)));
            lent.extend(may_lend.then(|| (row_bytes, best_lent(&costs))));
        }
        Ok(Self { fixed: None, measured, lent, has_views: true, reason: None })
    }

    /// Whether threads need a ring for zero-copy sends.
    pub(crate) fn has_zero_copy(&self) -> bool {
        self.fixed == Some(Mode::ZeroCopy)
            || self.measured.iter().chain(&self.lent).any(|(_, mode)| *mode == Mode::ZeroCopy)
    }

    /// Whether a reply of so many bytes, of rows that were copied there, is lent to the kernel.
    pub(crate) fn of_reply(&self, bytes: usize) -> bool {
        let at_most = |(row_bytes, _): &&(usize, Mode)| *row_bytes * KEYS <= bytes;
        let measured = self.measured.iter().take_while(at_most).last();
        self.fixed.or(measured.map(|(_, mode)| *mode)) == Some(Mode::ZeroCopy)
    }

    /// The mode for rows of so many bytes whose storage lends them; `Copy` if they are not lent.
    pub(crate) fn of_views(&self, row_bytes: usize) -> Mode {
        if !self.has_views {
            return Mode::Copy;
        }
        let measured = self.lent.iter().take_while(|(bytes, _)| *bytes <= row_bytes).last();
        self.fixed.or(measured.map(|(_, mode)| *mode)).unwrap_or(Mode::Copy)
    }
}

/// Whether a way is taken instead of copies.
fn pays(copy: &Cost, other: &Cost) -> bool {
    other.cpu_seconds <= copy.cpu_seconds * GAIN && other.seconds <= copy.seconds
}

/// The cheapest mode among those with a copy in the reply.
fn best(costs: &Costs) -> Mode {
    match &costs.lent_reply {
        Some(cost) if pays(&costs.copy, cost) => Mode::ZeroCopy,
        _ => Mode::Copy,
    }
}

/// The cheapest mode for rows that can be lent; `Copy` also if that is to lend the reply.
fn best_lent(costs: &Costs) -> Mode {
    let ways = [
        (Mode::Copy, costs.lent_reply),
        (Mode::Vectored, costs.vectored),
        (Mode::ZeroCopy, costs.zero_copy),
    ];
    let ways = ways.into_iter().filter_map(|(mode, cost)| Some((mode, cost?)));
    let paying = ways.filter(|(_, cost)| pays(&costs.copy, cost));
    let cheapest = paying.min_by(|(_, a), (_, b)| a.cpu_seconds.total_cmp(&b.cpu_seconds));
    cheapest.map_or(Mode::Copy, |(mode, _)| mode)
}

impl fmt::Display for Plan {
    /// As in `64:copy 256:copy 1024:zerocopy`, for rows that can be lent
    /// `, pmem 64:copy 256:vectored 1024:copy`, or one mode for all.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(mode) = self.fixed {
            to.write_str(mode.name())?;
        }
        let words = |modes: &[(usize, Mode)]| {
            let words = modes.iter().map(|(bytes, mode)| format!("{bytes}:{}", mode.name()));
            words.collect::<Vec<_>>().join(" ")
        };
        to.write_str(&words(&self.measured))?;
        if !self.lent.is_empty() {
            write!(to, ", pmem {}", words(&self.lent))?;
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
        let lent = vec![(64, Mode::Copy), (256, Mode::Vectored), (1024, Mode::ZeroCopy)];
        let plan = Plan { fixed: None, measured, lent, has_views: true, reason: None };
        let lent = |row_bytes: usize| plan.of_reply(row_bytes * KEYS);
        let sizes = [1, 64, 255, 256, 1023, 1024, 8192];
        assert_eq!(sizes.map(lent), [false, false, false, true, true, false, false]);
        assert!(plan.has_zero_copy());
        let modes = "64:copy 256:zerocopy 1024:copy, pmem 64:copy 256:vectored 1024:zerocopy";
        assert_eq!(plan.to_string(), modes);
        let (copy, vectored) = (Mode::Copy, Mode::Vectored);
        let expected = [copy, copy, copy, vectored, vectored, Mode::ZeroCopy, Mode::ZeroCopy];
        assert_eq!(sizes.map(|row_bytes| plan.of_views(row_bytes)), expected);
        // Over TLS all is encrypted on its way.
        let encrypted = Plan { has_views: false, ..Plan::fixed(vectored) };
        assert_eq!(encrypted.of_views(1024), copy);
        assert_eq!(Plan::fixed(vectored).of_views(1), vectored);
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
        let lent = |reply, vectored, zero_copy| {
            let [reply, vectored, zero_copy] = [reply, vectored, zero_copy].map(|c| cost(c, 2.0));
            let (lent_reply, vectored) = (Some(reply), Some(vectored));
            best_lent(&Costs {
                copy: cost(1.0, 2.0),
                lent_reply,
                vectored,
                zero_copy: Some(zero_copy),
            })
        };
        assert_eq!(lent(0.95, 0.95, 0.95), Mode::Copy);
        assert_eq!(lent(0.8, 0.7, 0.75), Mode::Vectored);
        assert_eq!(lent(0.8, 0.7, 0.6), Mode::ZeroCopy);
        assert_eq!(lent(0.6, 0.7, 0.75), Mode::Copy);
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
        let plan = Plan::new(Gather::Auto, false, true).unwrap();
        // 200 ms where nothing else runs.
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        assert_eq!(plan.measured.len(), ROW_BYTES.len(), "{plan}");
        assert_eq!(plan.lent.len(), ROW_BYTES.len(), "{plan}");
        assert!(Plan::new(Gather::Auto, false, false).unwrap().lent.is_empty());
    }
}
