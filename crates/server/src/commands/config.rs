//! `CONFIG GET`: what a server was started with, by Redis' names where it has some.

use super::{Call, Outcome, shown};
use crate::refusal::Refusal;
use std::time::Duration;

/// `CONFIG GET pattern ...`: what clients, benchmarks and monitors ask for.
pub(super) fn config(call: &mut Call<'_>) -> Outcome {
    if !call.argument(1)?.eq_ignore_ascii_case(b"GET") {
        return Err(Refusal::new(format!(
            "CONFIG {} is not there: a server is configured when it is started, and CONFIG GET \
             tells how",
            shown(&call.argument(1)?.to_ascii_uppercase())
        )));
    }
    let shared = call.shared;
    let options = &shared.options;
    let seconds = |time: Option<Duration>| time.map_or(0, |time| time.as_secs()).to_string();
    let all = [
        ("save", String::new()),
        ("appendonly", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("port", shared.address.port().to_string()),
        ("maxclients", options.max_connections.to_string()),
        ("maxmemory-clients", options.client_memory().to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("timeout", seconds(options.idle)),
        ("tcp-keepalive", seconds(options.tcp_keepalive)),
        ("max-keys", options.max_keys.to_string()),
        ("max-request-bytes", options.max_request_bytes.to_string()),
        ("max-reply-bytes", options.max_reply_bytes.to_string()),
        ("gather", options.gather.name().to_owned()),
        ("io-threads", options.threads.to_string()),
        ("cluster-enabled", if call.cluster.is_some() { "yes" } else { "no" }.to_owned()),
    ];
    let is_asked = |key: &str| call.arguments.from(2).any(|pattern| matches(pattern, key));
    let asked: Vec<_> = all.iter().filter(|(key, _)| is_asked(key)).collect();
    call.reply(|writer| {
        writer.map(asked.len());
        for (key, value) in asked {
            writer.bulk(key.as_bytes());
            writer.bulk(value.as_bytes());
        }
    });
    Ok(())
}

/// Whether a name is of a pattern of Redis: `*` is any text, `?` any character, `[a-c]` one of
/// these and `[^a-c]` none of them; a backslash takes the next character as it is. Capitals are the
/// same as small letters. Takes at most the product of both lengths in steps.
fn matches(pattern: &[u8], name: &str) -> bool {
    let name = name.as_bytes();
    let (mut p, mut n) = (0, 0);
    // Behind the last star, and what of the name it had taken so far.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, n));
            continue;
        }
        let one = if n < name.len() { one_of(&pattern[p..], name[n]) } else { None };
        match (one, star) {
            (Some(length), _) => (p, n) = (p + length, n + 1),
            (None, _) if p == pattern.len() && n == name.len() => return true,
            (None, Some((behind, taken))) if taken < name.len() => {
                star = Some((behind, taken + 1));
                (p, n) = (behind, taken + 1);
            }
            _ => return false,
        }
    }
}

/// The length of the pattern's first element, if this byte is of it.
fn one_of(pattern: &[u8], byte: u8) -> Option<usize> {
    let byte = byte.to_ascii_lowercase();
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', rest @ ..] => {
            // One that is not closed ends with the pattern, as in Redis.
            let end = rest.iter().position(|b| *b == b']').unwrap_or(rest.len());
            let (is_not, set) = match &rest[..end] {
                [b'^', set @ ..] => (true, set),
                set => (false, set),
            };
            let length = 1 + end + usize::from(end < rest.len());
            (is_in(set, byte) != is_not).then_some(length)
        }
        [b'\\', escaped, ..] => (escaped.to_ascii_lowercase() == byte).then_some(2),
        [plain, ..] => (plain.to_ascii_lowercase() == byte).then_some(1),
    }
}

fn is_in(mut set: &[u8], byte: u8) -> bool {
    while let [first, rest @ ..] = set {
        let low = first.to_ascii_lowercase();
        if let [b'-', last, behind @ ..] = rest {
            let last = last.to_ascii_lowercase();
            if (low.min(last)..=low.max(last)).contains(&byte) {
                return true;
            }
            set = behind;
        } else if low == byte {
            return true;
        } else {
            set = rest;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_redis() {
        for (pattern, name, is_one) in [
            ("*", "save", true),
            ("", "save", false),
            ("", "", true),
            ("max*", "maxclients", true),
            ("MAX-*", "max-keys", true),
            ("max*", "tcp-keepalive", false),
            ("*s*s", "max-request-bytes", true),
            ("*keys", "max-keys", true),
            ("*key", "max-keys", false),
            ("sa?e", "save", true),
            ("sa?", "save", false),
            ("s[a-c]ve", "save", true),
            ("s[^a-c]ve", "save", false),
            ("s[xa]*", "save", true),
            ("s[a", "sa", true),
            ("sa\\ve", "save", true),
            ("\\*", "save", false),
            ("save\\", "save", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name), is_one, "{pattern} {name}");
        }
        // Patterns that take exponential time if all ways are tried.
        let pattern = "*a".repeat(200) + "b";
        assert!(!matches(pattern.as_bytes(), &"a".repeat(2000)));
    }
}
