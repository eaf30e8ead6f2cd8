//! The certificate and key of a server, from PEM files, which can be read again while it runs.

use crate::certificate::{self, Validity};
use crate::options::TlsFiles;
use embedrock_core::{Error, ErrorKind, Result};
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;

/// The current configuration of sessions, and the files from which it was made.
pub(crate) struct Tls {
    files: TlsFiles,
    /// A leaf: nobody waits for anything while it is held.
    loaded: RwLock<Loaded>,
}

/// The contents of the files when they were read.
#[derive(Clone)]
struct Loaded {
    config: Arc<ServerConfig>,
    /// The validity of the certificate, if its dates can be parsed.
    validity: Option<Validity>,
}

impl Tls {
    /// Reads the files.
    ///
    /// *Errors*: `Misuse` naming the file that cannot be read, or does not hold what it should.
    pub(crate) fn open(files: TlsFiles) -> Result<Self> {
        let loaded = RwLock::new(load(&files)?);
        Ok(Self { files, loaded })
    }

    /// Reads the files again: sessions that begin from then on are made with what is in them.
    ///
    /// *Errors*: as [`open`](Self::open); what was read before stays.
    pub(crate) fn reload(&self) -> Result<()> {
        let new = load(&self.files)?;
        *self.loaded.write() = new;
        Ok(())
    }

    /// The file of its certificate.
    pub(crate) fn certificate(&self) -> &Path {
        &self.files.certificate
    }

    /// The configuration of new sessions.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.loaded.read().config.clone()
    }

    /// The validity of the server's certificate, if it is known.
    pub(crate) fn validity(&self) -> Option<Validity> {
        self.loaded.read().validity
    }
}

fn load(files: &TlsFiles) -> Result<Loaded> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect)
        .map_err(|error| unreadable("certificate", &files.certificate, &error))?;
    let Some(first) = chain.first() else {
        return Err(unreadable("certificate", &files.certificate, &pem::Error::NoItemsFound));
    };
    let validity = certificate::validity(first);
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| unreadable("key", &files.key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unusable = |error: rustls::Error| {
        let (certificate, key) = (files.certificate.display(), files.key.display());
        misuse(format!("certificate {certificate} and key {key} cannot be used: {error}"))
    };
    let versions = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let config = versions.with_no_client_auth().with_single_cert(chain, key).map_err(unusable)?;
    Ok(Loaded { config: Arc::new(config), validity })
}

fn unreadable(what: &str, path: &Path, error: &pem::Error) -> Error {
    misuse(format!("no {what} can be read from {}, expected a PEM file: {error}", path.display()))
}

fn misuse(message: String) -> Error {
    Error::new(ErrorKind::Misuse, message)
}
