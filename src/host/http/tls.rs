//! TLS configuration: which certificates a server is verified with.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, Error, RootCertStore};
use rustls_platform_verifier::Verifier;
use url::Url;

use super::{HttpError, HttpSettings};

/// The ALPN protocol that is offered to a server.
const HTTP_1: &[u8] = b"http/1.1";

/// The configuration for an endpoint. Reading the certificates of the system takes milliseconds, so
/// an endpoint without TLS gets a configuration that trusts none.
pub fn tls_config(settings: &HttpSettings, endpoint: &Url) -> Result<ClientConfig, HttpError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error(&error))?;
    let builder = if endpoint.scheme() != "https" {
        builder.with_root_certificates(RootCertStore::empty())
    } else if let Some(path) = &settings.cert_file {
        let mut roots = RootCertStore::empty();
        let certificates = certificates("SSL_CERT_FILE", path)?;
        for certificate in extra_roots(settings)?.into_iter().chain(certificates) {
            roots.add(certificate).map_err(|error| certificate_error(&error))?;
        }
        builder.with_root_certificates(roots)
    } else {
        let extra = extra_roots(settings)?;
        let has_extra = !extra.is_empty();
        let verifier = Verifier::new_with_extra_roots(extra, provider).map_err(|error| {
            if has_extra { certificate_error(&error) } else { tls_error(&error) }
        })?;
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![HTTP_1.to_vec()];
    Ok(config)
}

fn extra_roots(settings: &HttpSettings) -> Result<Vec<CertificateDer<'static>>, HttpError> {
    let mut found = Vec::new();
    for path in &settings.extra_roots {
        found.extend(certificates("tls.extra_roots", path)?);
    }
    Ok(found)
}

fn certificates(source: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, HttpError> {
    let refuse =
        |reason: String| HttpError::Setting(format!("{source}: {} {reason}", path.display()));
    let pem = std::fs::read(path).map_err(|error| refuse(format!("cannot be read: {error}")))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(refuse("holds no certificate in PEM form".to_owned())),
    }
}

fn tls_error(error: &Error) -> HttpError {
    HttpError::InvalidRequest(format!("TLS cannot be used: {error}"))
}

fn certificate_error(error: &Error) -> HttpError {
    HttpError::Setting(format!("invalid certificate in tls.extra_roots or SSL_CERT_FILE: {error}"))
}
