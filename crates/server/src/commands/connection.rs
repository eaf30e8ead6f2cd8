//! Commands about the connection itself.

use super::{Call, Outcome, shown, syntax};
use crate::options::PASSWORD_BYTES_MAX;
use crate::refusal::Refusal;
use crate::resp::Protocol;
use subtle::ConstantTimeEq;

/// A connection that has given so many wrong passwords is closed.
const FAILURES_MAX: u32 = 8;
/// Longest name of a connection.
const NAME_BYTES_MAX: usize = 256;

/// `PING [message]`
pub(super) fn ping(call: &mut Call<'_>) -> Outcome {
    match call.arguments.len() {
        1 => call.reply(|writer| writer.simple("PONG")),
        2 => return echo(call),
        _ => return Err(syntax()),
    }
    Ok(())
}

/// `ECHO message`
pub(super) fn echo(call: &mut Call<'_>) -> Outcome {
    let message = call.argument(1)?;
    call.reply(|writer| writer.bulk(message));
    Ok(())
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`
pub(super) fn hello(call: &mut Call<'_>) -> Outcome {
    let mut protocol = call.session.protocol;
    if let Some(version) = call.arguments.get(1) {
        protocol = match version {
            b"2" => Protocol::Resp2,
            b"3" => Protocol::Resp3,
            _ => return Err(Refusal::coded("NOPROTO", "unsupported protocol version")),
        };
    }
    let (mut at, mut name) = (2, None);
    while let Some(option) = call.arguments.get(at) {
        match option.to_ascii_uppercase().as_slice() {
            b"AUTH" => {
                log_in(call, call.argument(at + 1)?, call.argument(at + 2)?)?;
                at += 3;
            }
            b"SETNAME" => {
                name = Some(call.argument(at + 1)?);
                at += 2;
            }
            _ => return Err(Refusal::new(format!("syntax error in HELLO at '{}'", shown(option)))),
        }
    }
    if !call.session.is_admitted {
        return Err(Refusal::coded(
            "NOAUTH",
            "HELLO must be called with the password: HELLO 3 AUTH default <password>",
        ));
    }
    if let Some(name) = name {
        set_name(call, name)?;
    }
    call.session.protocol = protocol;
    let id = call.session.id as i64;
    let mode = if call.cluster.is_some() { "cluster" } else { "standalone" };
    call.reply(|writer| {
        writer.map(7);
        for (key, value) in [("server", "embedrock"), ("version", env!("CARGO_PKG_VERSION"))] {
            writer.bulk(key.as_bytes());
            writer.bulk(value.as_bytes());
        }
        writer.bulk(b"proto");
        writer.integer(if protocol == Protocol::Resp3 { 3 } else { 2 });
        writer.bulk(b"id");
        writer.integer(id);
        for (key, value) in [("mode", mode), ("role", "master")] {
            writer.bulk(key.as_bytes());
            writer.bulk(value.as_bytes());
        }
        writer.bulk(b"modules");
        writer.array(0);
    });
    Ok(())
}

/// `AUTH [user] password`
pub(super) fn auth(call: &mut Call<'_>) -> Outcome {
    let (user, password) = match call.arguments.len() {
        2 => (&b"default"[..], call.argument(1)?),
        3 => (call.argument(1)?, call.argument(2)?),
        _ => return Err(syntax()),
    };
    log_in(call, user, password)?;
    call.done()
}

/// Lets the connection in that has given the password. The only user is `default`.
fn log_in(call: &mut Call<'_>, user: &[u8], password: &[u8]) -> Outcome {
    let shared = call.shared;
    let held = shared.password.read();
    let Some(expected) = &*held else {
        return Err(Refusal::new("AUTH came, but this server has no password: connect without"));
    };
    if user == b"default" && are_equal(password, expected.as_bytes()) {
        call.session.is_admitted = true;
        return Ok(());
    }
    call.shared.metrics.wrong_passwords.inc();
    call.session.failures += 1;
    let is_last = call.session.failures >= FAILURES_MAX;
    shared.limits.wrong_password(&call.session.peer(), is_last);
    if is_last {
        call.session.end_with_reason();
    }
    Err(Refusal::coded("WRONGPASS", "invalid username-password pair; the user is 'default'"))
}

/// Compares in a time that depends on neither password.
fn are_equal(given: &[u8], expected: &[u8]) -> bool {
    let padded = |text: &[u8]| {
        let mut bytes = [0; PASSWORD_BYTES_MAX];
        let length = text.len().min(PASSWORD_BYTES_MAX);
        bytes[..length].copy_from_slice(&text[..length]);
        bytes
    };
    let equal = padded(given).ct_eq(&padded(expected)) & given.len().ct_eq(&expected.len());
    equal.into()
}

/// `ROLE`: every server is the primary of its keys, and none has replicas.
pub(super) fn role(call: &mut Call<'_>) -> Outcome {
    call.reply(|writer| {
        writer.array(3);
        writer.bulk(b"master");
        writer.integer(0);
        writer.array(0);
    });
    Ok(())
}

/// `SELECT 0`
pub(super) fn select(call: &mut Call<'_>) -> Outcome {
    match call.argument(1)? {
        b"0" => call.done(),
        other => Err(Refusal::new(format!(
            "DB index '{}' is out of range: a server has one store, number 0",
            shown(other)
        ))),
    }
}

/// `CLIENT SETNAME|GETNAME|SETINFO|ID|INFO`
pub(super) fn client(call: &mut Call<'_>) -> Outcome {
    let (what, count) = (call.argument(1)?.to_ascii_uppercase(), call.arguments.len());
    match (what.as_slice(), count) {
        (b"SETNAME", 3) => set_name(call, call.argument(2)?)?,
        (b"SETINFO", 4) => {}
        (b"ID", 2) => {
            let id = call.session.id as i64;
            call.reply(|writer| writer.integer(id));
            return Ok(());
        }
        (b"GETNAME", 2) => {
            let name = std::mem::take(&mut call.session.name);
            call.reply(|writer| match name.is_empty() {
                true => writer.null(),
                false => writer.bulk(&name),
            });
            call.session.name = name;
            return Ok(());
        }
        (b"INFO", 2) => {
            let name = shown(&call.session.name);
            let line = format!("id={} name={name} db=0\n", call.session.id);
            call.reply(|writer| writer.bulk(line.as_bytes()));
            return Ok(());
        }
        _ => {
            return Err(Refusal::new(format!(
                "unknown subcommand or wrong number of arguments for CLIENT {}",
                shown(&what)
            )));
        }
    }
    call.done()
}

fn set_name(call: &mut Call<'_>, name: &[u8]) -> Outcome {
    let is_printable = |byte: &u8| (b'!'..=b'~').contains(byte);
    if name.len() > NAME_BYTES_MAX || !name.iter().all(is_printable) {
        return Err(Refusal::new(format!(
            "client names have at most {NAME_BYTES_MAX} characters, no spaces or newlines"
        )));
    }
    call.session.name = name.to_vec();
    Ok(())
}

/// `QUIT`
pub(super) fn quit(call: &mut Call<'_>) -> Outcome {
    call.session.is_ending = true;
    call.done()
}

/// `RESET`
pub(super) fn reset(call: &mut Call<'_>) -> Outcome {
    call.session.reset(call.shared.options.password.is_none());
    call.reply(|writer| writer.simple("RESET"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_equal_only_in_every_byte_and_length() {
        assert!(are_equal(b"secret", b"secret"));
        for other in [&b"secre"[..], b"secret\0", b"Secret", b""] {
            assert!(!are_equal(other, b"secret"), "{other:?}");
        }
        let long = [b'a'; PASSWORD_BYTES_MAX + 1];
        assert!(!are_equal(&long, &long[1..]));
    }
}
