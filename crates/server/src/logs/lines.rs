//! Lines on standard error, or in a program's log, written by the thread that logs.
//!
//! No other thread writes them: the line is written when the call returns, so that the last one
//! before a crash is there. A thread that finds another one writing leaves its record, which that
//! one writes, too. A pipe that nobody reads becomes full: then lines wait, as many as there are
//! places, and go out with a later one. A closed pipe gets nothing any more.

use super::{Record, Waiting};
use log::Level;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A line is at most so long: what a pipe takes whole or not at all.
const LINE_BYTES_MAX: usize = 4096;

/// The file that lines go to, and the records that wait to be written.
pub struct Lines {
    level: Level,
    waiting: Waiting<Record>,
    out: Mutex<Out>,
    /// Whether no process is left that could read them.
    is_closed: AtomicBool,
}

struct Out {
    file: File,
    /// Whether it is a file on a disk, which takes everything.
    is_regular: bool,
    /// Bytes that were taken and are not written yet.
    left: Vec<u8>,
}

/// The result of an attempt to write.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Written,
    /// The reader does not read.
    Stuck,
    Closed,
}

impl Lines {
    /// Lines of this level and worse, to `file`, which may be a pipe.
    pub fn new(file: File, level: Level) -> Self {
        let is_regular = file.metadata().is_ok_and(|found| found.is_file());
        let out = Mutex::new(Out { file, is_regular, left: Vec::new() });
        Self { level, waiting: Waiting::new(), out, is_closed: AtomicBool::new(false) }
    }

    /// Writes a line, or leaves it to be written. Never waits.
    pub fn push(&self, record: &log::Record<'_>) {
        if record.level() <= self.level && !self.is_closed.load(Ordering::Relaxed) {
            self.waiting.push(Record::of(record));
            self.write_out();
        }
    }

    /// Writes what waits, as far as that goes without waiting.
    pub fn flush(&self) {
        self.write_out();
    }

    fn write_out(&self) {
        loop {
            // The thread that writes looks again once it has released the lock.
            let Ok(mut out) = self.out.try_lock() else { return };
            if self.waiting.is_empty() && out.left.is_empty() {
                return;
            }
            match out.write(&self.waiting) {
                Progress::Written => {}
                Progress::Stuck => return,
                Progress::Closed => {
                    self.is_closed.store(true, Ordering::Relaxed);
                    return;
                }
            }
            drop(out);
            if self.waiting.is_empty() {
                return;
            }
        }
    }
}

impl Out {
    /// Writes what is left of before, then what waits.
    fn write(&mut self, waiting: &Waiting<Record>) -> Progress {
        loop {
            while !self.left.is_empty() {
                let end = self.left.iter().position(|byte| *byte == b'\n');
                let length = end.map_or(self.left.len(), |end| end + 1);
                match self.write_now(&self.left[..length]) {
                    Ok(count) => drop(self.left.drain(..count)),
                    Err(ErrorKind::Interrupted) => {}
                    Err(ErrorKind::WouldBlock) => return Progress::Stuck,
                    Err(_) => return Progress::Closed,
                }
            }
            let (records, left_out) = waiting.take();
            if records.is_empty() && left_out == 0 {
                return Progress::Written;
            }
            if left_out > 0 {
                let text = format!("{left_out} lines were left out: nobody read them in time");
                self.left.extend_from_slice(&told(&text));
            }
            records.iter().for_each(|record| self.left.extend_from_slice(&line(record)));
        }
    }
}

impl Out {
    /// Writes bytes without waiting: pipes and sockets are told not to, and of others it is asked
    /// before. (To make the descriptor non-blocking would make it so for all who share it.)
    fn write_now(&self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        let mut file = &self.file;
        if self.is_regular {
            return file.write(bytes).map_err(|error| error.kind());
        }
        #[cfg(target_os = "linux")]
        {
            use rustix::io::{Errno, ReadWriteFlags, pwritev2};
            let slices = [std::io::IoSlice::new(bytes)];
            match pwritev2(file, &slices, u64::MAX, ReadWriteFlags::NOWAIT) {
                Ok(count) => return Ok(count),
                // A file that cannot say whether it would wait, or an old kernel.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::SPIPE) => {}
                Err(error) => return Err(error.kind()),
            }
        }
        let mut asked = [PollFd::new(file, PollFlags::OUT)];
        match poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) => Err(ErrorKind::WouldBlock),
            Ok(_) => file.write(bytes).map_err(|error| error.kind()),
            Err(error) => Err(error.kind()),
        }
    }
}

/// A record as it is written: time in UTC, level, target, message.
pub fn line(record: &Record) -> Vec<u8> {
    let Record { level, target, message, unix_time, .. } = record;
    let seconds = unix_time.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let text = format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z {level} {target}: \
         {message}",
        unix_time.subsec_millis()
    );
    ended(text)
}

fn told(message: &str) -> Vec<u8> {
    let record = log::Record::builder().level(Level::Warn).target("embedrock::log").build();
    line(&Record { message: message.to_owned(), ..Record::of(&record) })
}

/// One line of at most so many bytes, whatever is in it.
fn ended(text: String) -> Vec<u8> {
    let mut line = text.into_bytes();
    line.iter_mut().filter(|byte| **byte < b' ').for_each(|byte| *byte = b' ');
    line.truncate(LINE_BYTES_MAX - 1);
    line.push(b'\n');
    line
}

/// Year, month and day of a day since 1970. *Source*: Howard Hinnant, "chrono-compatible low-level
/// date algorithms", `civil_from_days`.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year + 400 * era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read};
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    fn piped() -> (Lines, PipeReader) {
        let (reader, writer) = std::io::pipe().unwrap();
        (Lines::new(File::from(OwnedFd::from(writer)), Level::Info), reader)
    }

    fn push(lines: &Lines, level: Level, message: &str) {
        let target = "embedrock::test";
        let mut record = log::Record::builder();
        record.level(level).target(target);
        lines.push(&record.args(format_args!("{message}")).build());
    }

    fn all(lines: Lines, mut reader: PipeReader) -> Vec<String> {
        drop(lines);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_line_has_time_level_target_and_message_and_is_one_line() {
        let (lines, reader) = piped();
        push(&lines, Level::Debug, "not wanted");
        push(&lines, Level::Warn, "two\nlines\r");
        push(&lines, Level::Info, &"long ".repeat(5000));
        let said = all(lines, reader);
        assert_eq!(said.len(), 2);
        let (time, rest) = said[0].split_once(' ').unwrap();
        assert_eq!(rest, "WARN embedrock::test: two lines ");
        assert!(time.len() == 24 && time.ends_with('Z') && time.starts_with("20"), "{time}");
        assert_eq!(said[1].len(), LINE_BYTES_MAX - 1);
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        let record = log::Record::builder().level(Level::Info).target("t").build();
        let at = |seconds: u64, millis: u32| {
            let unix_time = Duration::new(seconds, millis * 1_000_000);
            String::from_utf8(line(&Record { unix_time, ..Record::of(&record) })).unwrap()
        };
        assert!(at(0, 0).starts_with("1970-01-01T00:00:00.000Z INFO t: "), "{}", at(0, 0));
        assert!(at(951_782_400, 7).starts_with("2000-02-29T00:00:00.007Z"));
        assert!(at(1_709_251_199, 999).starts_with("2024-02-29T23:59:59.999Z"));
        assert!(at(4_107_542_400, 0).starts_with("2100-03-01T00:00:00.000Z"));
    }

    #[test]
    fn a_pipe_that_nobody_reads_holds_nobody_up_and_goes_on_later() {
        let (lines, mut reader) = piped();
        let message = "x".repeat(1000);
        // Far more than a pipe takes, from several threads.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..500).for_each(|_| push(&lines, Level::Info, &message)));
            }
        });
        let mut part = vec![0; 32 << 10];
        reader.read_exact(&mut part).unwrap();
        push(&lines, Level::Error, "the last one");
        // Room for all that waited.
        let reading = std::thread::spawn(move || {
            let mut text = Vec::new();
            reader.read_to_end(&mut text).unwrap();
            text
        });
        while !lines.waiting.is_empty() || !lines.out.lock().unwrap().left.is_empty() {
            lines.flush();
            std::thread::yield_now();
        }
        drop(lines);
        part.extend(reading.join().unwrap());
        let text = String::from_utf8(part).unwrap();
        assert!(text.ends_with('\n') && text.lines().all(|line| line.starts_with("20")));
        let ordinary = text.lines().filter(|line| line.ends_with(&message)).count();
        let left_out: usize = text
            .lines()
            .filter(|line| line.ends_with("nobody read them in time"))
            .map(|line| line.split(' ').nth(3).unwrap().parse::<usize>().unwrap())
            .sum();
        let last = usize::from(text.contains("the last one"));
        assert_eq!(ordinary + left_out + last, 2001);
        assert!(left_out > 0 && ordinary > 60, "{ordinary} {left_out}");
    }

    #[test]
    fn who_has_gone_gets_nothing_and_stops_nobody() {
        let (lines, reader) = piped();
        drop(reader);
        (0..1000).for_each(|_| push(&lines, Level::Info, "nobody"));
        assert!(lines.is_closed.load(Ordering::Relaxed));
    }
}
