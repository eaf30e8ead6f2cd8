//! The options with which a server is started, and the values that it refuses.

use crate::gather::Gather;
use embedrock_core::buckets::Buckets;
use embedrock_core::{Error, ErrorKind, Result};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// Longest password: comparisons take this length, whatever was sent.
pub(crate) const PASSWORD_BYTES_MAX: usize = 512;

/// Certificate chain and key of a server, in PEM files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, and those that it was signed with.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// A server's place among several that divide the buckets of their tables.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The file that says which server has which buckets: JSON where its name ends in `.json`,
    /// otherwise TOML.
    pub map: PathBuf,
    /// The node of the map that this server is; without it, the one whose address it listens at.
    pub node: Option<String>,
    /// The buckets that the store was made with; `None` if it has all, or if they are unknown. A
    /// map that gives this server any other bucket is refused; if the store has changed, only a map
    /// that gives it none of these is.
    pub buckets: Option<Buckets>,
    /// Whether commits were made since, by which the store may have got more buckets.
    pub has_changed: bool,
}

/// The options with which a server is started. Limits are of one connection, unless they say
/// otherwise. It cannot be printed: it has a password.
#[derive(Clone)]
pub struct Options {
    /// Host and port; port 0 takes a free one.
    pub listen: String,
    /// Threads that serve connections.
    pub threads: usize,
    /// The password that clients must give first.
    pub password: Option<String>,
    /// Encryption.
    pub tls: Option<TlsFiles>,
    /// Host and port of `/metrics` and `/healthz`.
    pub metrics: Option<String>,
    /// Others that it shares the keys with.
    pub cluster: Option<ClusterOptions>,
    /// Connections of the whole server.
    pub max_connections: usize,
    /// A connection without a request for so long is closed.
    pub idle: Option<Duration>,
    /// One with half a request, or with replies that it does not take, for so long.
    pub stall: Duration,
    /// Bytes of a request.
    pub max_request_bytes: usize,
    /// Keys of a request.
    pub max_keys: usize,
    /// Bytes of a reply; requests behind as many wait until the client has taken them.
    pub max_reply_bytes: usize,
    /// Memory of requests and replies of all connections together, in bytes. Past it the connection
    /// with most of it ends. `None` is four times `max_reply_bytes`.
    pub client_memory: Option<usize>,
    /// A connection that is silent for so long is asked by the system whether its other side is
    /// still there, and ends where three questions are not answered.
    pub tcp_keepalive: Option<Duration>,
    /// A server that writes commits so often, if something changed. It commits at its end, too.
    pub commit_every: Option<Duration>,
    /// A server that reads moves to the newest commit so often.
    pub refresh_every: Option<Duration>,
    /// The choice of the mode in which rows are sent.
    pub gather: Gather,
}

impl Options {
    /// The defaults, for this address.
    pub fn new(listen: impl Into<String>) -> Self {
        Self {
            listen: listen.into(),
            threads: std::thread::available_parallelism().map_or(1, |n| n.get().min(16)),
            password: None,
            tls: None,
            metrics: None,
            cluster: None,
            max_connections: 10_000,
            idle: Some(Duration::from_secs(3600)),
            stall: Duration::from_secs(60),
            max_request_bytes: 64 << 20,
            max_keys: 1 << 20,
            max_reply_bytes: 64 << 20,
            client_memory: None,
            tcp_keepalive: Some(Duration::from_secs(300)),
            commit_every: Some(Duration::from_secs(60)),
            refresh_every: Some(Duration::from_secs(5)),
            gather: Gather::Auto,
        }
    }

    /// The address to listen at. `Misuse` for options that cannot work, and for an address that
    /// others can reach without a password and TLS.
    pub(crate) fn validate(&self) -> Result<SocketAddr> {
        let misuse = |message: String| Err(Error::new(ErrorKind::Misuse, message));
        for (name, value) in [
            ("threads", self.threads),
            ("max_connections", self.max_connections),
            ("max_keys", self.max_keys),
            ("max_request_bytes", self.max_request_bytes),
            ("max_reply_bytes", self.max_reply_bytes),
        ] {
            if value == 0 {
                return misuse(format!("{name} is 0, expected at least 1"));
            }
        }
        if self.max_request_bytes > 1 << 31 {
            let bytes = self.max_request_bytes;
            return misuse(format!(
                "max_request_bytes is {bytes}, expected at most {}",
                1u64 << 31
            ));
        }
        self.password.as_deref().map_or(Ok(()), check_password)?;
        if self.client_memory() < self.max_reply_bytes {
            return misuse(format!(
                "client_memory is {} bytes, expected at least max_reply_bytes, {}: one reply may \
                 take that",
                self.client_memory(),
                self.max_reply_bytes
            ));
        }
        let address = address_of("listen", &self.listen)?;
        if !address.ip().is_loopback() && (self.password.is_none() || self.tls.is_none()) {
            let has = match (&self.password, &self.tls) {
                (Some(_), _) => "no TLS",
                (_, Some(_)) => "no password",
                _ => "neither a password nor TLS",
            };
            return misuse(format!(
                "listen is {address}, which other machines can reach, and there is {has}: give \
                 both, or listen on 127.0.0.1"
            ));
        }
        Ok(address)
    }

    /// Memory of requests and replies of all connections, in bytes.
    pub(crate) fn client_memory(&self) -> usize {
        self.client_memory.unwrap_or(self.max_reply_bytes.saturating_mul(4))
    }

    /// The address for metrics, which are not encrypted.
    pub(crate) fn metrics_address(&self) -> Result<Option<SocketAddr>> {
        let Some(text) = &self.metrics else { return Ok(None) };
        let address = address_of("metrics", text)?;
        if !address.ip().is_loopback() {
            let message = format!(
                "metrics is {address}, which other machines can reach: use 127.0.0.1, and let a \
                 proxy or an agent on this machine pass them on"
            );
            return Err(Error::new(ErrorKind::Misuse, message));
        }
        Ok(Some(address))
    }
}

/// Refuses a password that is empty, or too long to be compared.
pub(crate) fn check_password(password: &str) -> Result<()> {
    let bytes = password.len();
    if (1..=PASSWORD_BYTES_MAX).contains(&bytes) {
        return Ok(());
    }
    let message = format!("the password has {bytes} bytes, expected 1 to {PASSWORD_BYTES_MAX}");
    Err(Error::new(ErrorKind::Misuse, message))
}

fn address_of(name: &str, text: &str) -> Result<SocketAddr> {
    let expected = "expected HOST:PORT, such as 127.0.0.1:6380";
    let found = text.to_socket_addrs().map_err(|error| {
        Error::new(ErrorKind::Misuse, format!("{name} is {text:?}, {expected} ({error})"))
    })?;
    found.into_iter().next().ok_or_else(|| {
        Error::new(
            ErrorKind::Misuse,
            format!("{name} is {text:?}, which is no address; {expected}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Options)) -> String {
        let mut options = Options::new("127.0.0.1:0");
        change(&mut options);
        options.validate().unwrap_err().message().to_owned()
    }

    #[test]
    fn an_address_that_others_reach_takes_a_password_and_tls() {
        let tls = || Some(TlsFiles { certificate: "a".into(), key: "b".into() });
        let open = |o: &mut Options| o.listen = "0.0.0.0:6380".into();
        assert!(refused(open).contains("neither a password nor TLS"));
        let said = refused(|o| (open(o), o.password = Some("x".into())).1);
        assert!(said.contains("no TLS"), "{said}");
        assert!(refused(|o| (open(o), o.tls = tls()).1).contains("no password"));
        let options = Options { tls: tls(), password: Some("x".into()), ..Options::new("[::]:1") };
        options.validate().unwrap();
        Options::new("[::1]:1").validate().unwrap();
        let metrics = Options { metrics: Some("0.0.0.0:1".into()), ..options };
        assert!(metrics.metrics_address().unwrap_err().message().contains("a proxy"));
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        assert!(refused(|o| o.threads = 0).contains("threads is 0"));
        assert!(refused(|o| o.max_request_bytes = usize::MAX).contains("max_request_bytes"));
        assert!(refused(|o| o.password = Some(String::new())).contains("0 bytes, expected 1 to"));
        let said = refused(|o| o.client_memory = Some(1 << 20));
        assert!(said.contains("client_memory is 1048576 bytes, expected at least"), "{said}");
        assert!(refused(|o| o.listen = "6380".into()).contains("expected HOST:PORT"));
    }
}
