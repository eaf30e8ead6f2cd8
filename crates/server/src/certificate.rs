//! The validity of a certificate: the two dates of X.509, from its DER bytes.
//!
//! Nothing is verified here: that is the task of clients. A certificate that cannot be parsed has
//! no dates, and is served all the same.

use std::time::{SystemTime, UNIX_EPOCH};

/// Less than this is left: somebody should have renewed it.
const NEAR_S: i64 = 14 * DAY_S;
const DAY_S: i64 = 86_400;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Begin and end, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) begin_unix_s: i64,
    pub(crate) end_unix_s: i64,
}

impl Validity {
    /// The warning to give now: that the certificate has expired, is about to, or is not valid yet.
    /// It is about to expire within its last two weeks, or a short-lived one within the last third
    /// of its time.
    pub(crate) fn warning(self, now_unix_s: i64) -> Option<String> {
        let (left, all) = (self.end_unix_s - now_unix_s, self.end_unix_s - self.begin_unix_s);
        if left < 0 {
            Some(format!("the certificate has expired, {} ago: clients refuse it", time(-left)))
        } else if now_unix_s < self.begin_unix_s {
            let wait = time(self.begin_unix_s - now_unix_s);
            Some(format!("the certificate is not valid yet, for {wait}: clients refuse it"))
        } else if left < NEAR_S.min(all / 3) {
            Some(format!("the certificate expires in {}", time(left)))
        } else {
            None
        }
    }
}

/// Seconds since 1970, now.
pub(crate) fn now_unix_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// A span for people, rounded down.
fn time(seconds: i64) -> String {
    let (count, unit) = match seconds {
        DAY_S.. => (seconds / DAY_S, "day"),
        3600.. => (seconds / 3600, "hour"),
        _ => (seconds / 60, "minute"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// The dates of a certificate in DER, if it has some.
pub(crate) fn validity(certificate: &[u8]) -> Option<Validity> {
    let (tag, certificate, _) = element(certificate)?;
    let (inner, to_be_signed, _) = element(certificate)?;
    if (tag, inner) != (SEQUENCE, SEQUENCE) {
        return None;
    }
    let mut rest = to_be_signed;
    if rest.first() == Some(&VERSION) {
        rest = element(rest)?.2;
    }
    // The serial number, the algorithm and the issuer come before.
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (_, dates, _) = element(rest).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (tag, begin, rest) = element(dates)?;
    let begin_unix_s = date(tag, begin)?;
    let (tag, end, _) = element(rest)?;
    Some(Validity { begin_unix_s, end_unix_s: date(tag, end)? })
}

/// The first element: its tag, its content, and what is behind it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let digits = usize::from(first & 0x7f);
        let (digits, rest) = rest.split_at_checked(digits).filter(|_| (1..=4).contains(&digits))?;
        (digits.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`, as RFC 5280 has certificates write them.
fn date(tag: u8, text: &[u8]) -> Option<i64> {
    let digits = text.strip_suffix(b"Z")?;
    let (century, digits) = match (tag, digits.len()) {
        (UTC_TIME, 12) => (0, digits),
        (GENERALIZED_TIME, 14) => (number(&digits[..2])? * 100, &digits[2..]),
        _ => return None,
    };
    let parts: Vec<i64> = digits.chunks(2).map(number).collect::<Option<_>>()?;
    let [year, month, day, hour, minute, second] = parts[..] else { return None };
    let year = match tag {
        UTC_TIME if year >= 50 => 1900 + year,
        UTC_TIME => 2000 + year,
        _ => century + year,
    };
    let is_date = (1..=12).contains(&month) && (1..=31).contains(&day);
    let days = is_date.then(|| days_since_1970(year, month, day))?;
    Some(days * DAY_S + hour * 3600 + minute * 60 + second)
}

fn number(digits: &[u8]) -> Option<i64> {
    let is_number = digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| digits.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')))
}

/// Days of the Gregorian calendar; years begin in March, so that a leap day ends one.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    365 * year + leap_days + (153 * month + 2) / 5 + day - 719_469
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_that_certificates_write() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, "500101000000Z", Some(-631_152_000)),
            (GENERALIZED_TIME, "20000229120000Z", Some(951_825_600)),
            (GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000)),
            (UTC_TIME, "7001010000Z", None),
            (UTC_TIME, "700101000000", None),
            (UTC_TIME, "701301000000Z", None),
            (UTC_TIME, "70010100000xZ", None),
        ] {
            assert_eq!(date(tag, text.as_bytes()), expected, "{text}");
        }
    }

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = content.len() as u16;
        [&[tag, 0x82][..], &length.to_be_bytes(), content].concat()
    }

    #[test]
    fn a_certificate_tells_its_dates_and_one_that_is_cut_anywhere_does_not() {
        let dates = [der(UTC_TIME, b"260101000000Z"), der(GENERALIZED_TIME, b"20260331000000Z")];
        let before = [der(VERSION, b"\x02\x01\x02"), der(2, &[7; 20]), der(SEQUENCE, b"")];
        let body = [before.concat(), der(SEQUENCE, &[1; 300]), der(SEQUENCE, &dates.concat())];
        let certificate = der(SEQUENCE, &der(SEQUENCE, &body.concat()));
        let found = validity(&certificate).unwrap();
        assert_eq!((found.begin_unix_s, found.end_unix_s), (1_767_225_600, 1_774_915_200));
        for end in 0..certificate.len() {
            assert_eq!(validity(&certificate[..end]), None);
        }
    }

    #[test]
    fn a_certificate_that_is_near_its_end_or_past_it_is_told() {
        let days = |begin: i64, end: i64| {
            let validity = Validity { begin_unix_s: begin * DAY_S, end_unix_s: end * DAY_S };
            validity.warning(0).unwrap_or_default()
        };
        assert_eq!(days(-60, 30), "");
        assert_eq!(days(-80, 10), "the certificate expires in 10 days");
        assert_eq!(days(-3, 3), "", "one for six days");
        assert_eq!(days(-5, 1), "the certificate expires in 1 day");
        assert_eq!(days(-90, -1), "the certificate has expired, 1 day ago: clients refuse it");
        assert!(days(1, 90).contains("not valid yet, for 1 day"));
    }
}
