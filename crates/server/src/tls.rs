//! The certificate and key of a server, from PEM files.

use crate::options::TlsFiles;
use embedrock_core::{Error, ErrorKind, Result};
use rustls::ServerConfig;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;

/// What sessions are made with.
///
/// *Errors*: `Misuse` naming the file that cannot be read, or does not hold what it should.
pub(crate) fn load(files: &TlsFiles) -> Result<Arc<ServerConfig>> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect)
        .map_err(|error| unreadable("certificate", &files.certificate, &error))?;
    if chain.is_empty() {
        return Err(unreadable("certificate", &files.certificate, &pem::Error::NoItemsFound));
    }
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
    Ok(Arc::new(config))
}

fn unreadable(what: &str, path: &Path, error: &pem::Error) -> Error {
    misuse(format!("no {what} can be read from {}, expected a PEM file: {error}", path.display()))
}

fn misuse(message: String) -> Error {
    Error::new(ErrorKind::Misuse, message)
}
