//! Trust: whose word about a server's name is taken.

use std::path::Path;
use std::sync::Arc;

use rustls_platform_verifier::Verifier;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};

use super::{Network, NetworkError};

/// What is said when a server asks which protocols we speak.
const HTTP_1: &[u8] = b"http/1.1";

/// Reads the certificates; this takes milliseconds, so it is left undone where nothing needs it.
pub fn trusted(network: &Network) -> Result<Arc<ClientConfig>, NetworkError> {
    let mut own = Vec::new();
    for path in &network.extra_roots {
        own.extend(certificates("tls.extra_roots", path)?);
    }
    let unusable = |error: Error| NetworkError::Unusable(format!("no TLS: {error}"));
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let builder = if let Some(path) = &network.cert_file {
        own.extend(certificates("SSL_CERT_FILE", path)?);
        let mut roots = RootCertStore::empty();
        for certificate in own {
            roots.add(certificate).map_err(|error| odd(&error))?;
        }
        builder.with_root_certificates(roots)
    } else {
        let is_own = !own.is_empty();
        let verifier = Verifier::new_with_extra_roots(own, provider)
            .map_err(|error| if is_own { odd(&error) } else { unusable(error) })?;
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![HTTP_1.to_vec()];
    Ok(Arc::new(config))
}

fn certificates(source: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, NetworkError> {
    let refuse =
        |reason: String| NetworkError::Setting(format!("{source}: {} {reason}", path.display()));
    let pem = std::fs::read(path).map_err(|error| refuse(format!("cannot be read: {error}")))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(refuse("holds no certificate in PEM form".to_owned())),
    }
}

fn odd(error: &Error) -> NetworkError {
    NetworkError::Setting(format!("a certificate of tls.extra_roots or SSL_CERT_FILE: {error}"))
}
