//! The certificate that a host presents, and the authorities that it trusts: [`Identity`]. Loading
//! fails with [`IdentityError`]. [`explain`] states in one sentence why a connection failed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, Error, RootCertStore, ServerConfig,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::message::HostName;

/// The files of a host, all in PEM.
#[derive(Clone, Debug)]
pub struct IdentityFiles {
    /// The host's certificate, and those that lead from it to the authority.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The certificates of the authorities whose hosts may be neighbours.
    pub authority: PathBuf,
}

/// The certificate of a host with its key, and the authorities that it trusts.
#[derive(Clone)]
pub struct Identity {
    host: HostName,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// Why an identity cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read, or has no such object.
    #[error("{} has no usable {what}: {error}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What was looked for.
        what: &'static str,
        /// The reason.
        error: String,
    },
    /// The certificate names no host.
    #[error("{}: {error}", .file.display())]
    Name {
        /// The file of the certificate.
        file: PathBuf,
        /// The reason.
        error: String,
    },
    /// Certificate and key do not fit, or the authority is invalid.
    #[error("the certificates cannot be used: {0}")]
    Tls(String),
}

impl Identity {
    /// Reads the files. The name of the host is the first DNS name of its certificate.
    ///
    /// # Errors
    /// [`IdentityError`] if a file cannot be read or used, if the certificate names no host, or if
    /// the key is not that of the certificate.
    pub fn load(files: &IdentityFiles) -> Result<Identity, IdentityError> {
        let chain = certificates(&files.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&files.key);
        let key = key.map_err(|error| unusable(&files.key, "private key", &error.to_string()))?;
        let name = chain.first().map(name_in).unwrap_or_else(no_certificate);
        let host = name.map_err(|error| IdentityError::Name {
            file: files.certificate.clone(),
            error,
        })?;
        let mut roots = RootCertStore::empty();
        for authority in certificates(&files.authority)? {
            let added = roots.add(authority);
            added.map_err(|error| unusable(&files.authority, "certificate", &error.to_string()))?;
        }
        let tls = |error: &dyn std::fmt::Display| IdentityError::Tls(error.to_string());
        let (roots, provider) = (Arc::new(roots), Arc::new(default_provider()));
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let verifier = verifier.map_err(|error| tls(&error))?;
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .and_then(|builder| {
                let verified = builder.with_client_cert_verifier(verifier);
                verified.with_single_cert(chain.clone(), key.clone_key())
            });
        let mut server = server.map_err(|error| tls(&error))?;
        // Each connection proves both certificates again.
        server.send_tls13_tickets = 0;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .and_then(|builder| {
                let trusting = builder.with_root_certificates(roots);
                trusting.with_client_auth_cert(chain, key)
            });
        let mut client = client.map_err(|error| tls(&error))?;
        client.resumption = rustls::client::Resumption::disabled();
        Ok(Identity {
            host,
            server: Arc::new(server),
            client: Arc::new(client),
        })
    }

    /// The name of the host.
    pub fn host(&self) -> &HostName {
        &self.host
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.server.clone())
    }

    pub(super) fn connector(&self) -> TlsConnector {
        TlsConnector::from(self.client.clone())
    }
}

/// The name of a neighbour for TLS.
pub(super) fn server_name(host: &HostName) -> Result<ServerName<'static>, String> {
    let name = ServerName::try_from(host.as_str().to_owned());
    name.map_err(|error| format!("{host} is no DNS name: {error}"))
}

/// The host that a verified certificate names; the error is for people.
pub(super) fn name_of(certificates: Option<&[CertificateDer<'_>]>) -> Result<HostName, String> {
    let first = certificates.and_then(<[_]>::first);
    first.map(name_in).unwrap_or_else(no_certificate)
}

fn no_certificate() -> Result<HostName, String> {
    Err("there is no certificate".to_owned())
}

fn name_in(certificate: &CertificateDer<'_>) -> Result<HostName, String> {
    let parsed = webpki::EndEntityCert::try_from(certificate);
    let parsed = parsed.map_err(|error| format!("the certificate is invalid: {error}"))?;
    let first = parsed.valid_dns_names().next();
    let first = first.ok_or("the certificate has no DNS name (subjectAltName) for the host")?;
    let name = HostName::new(first);
    name.map_err(|error| format!("the certificate names no host: {error}"))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let what = "certificate";
    let all = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    match all {
        Ok(all) => {
            let all: Vec<CertificateDer<'static>> = all;
            match all.is_empty() {
                true => Err(unusable(file, what, "it contains none")),
                false => Ok(all),
            }
        }
        Err(error) => Err(unusable(file, what, &error.to_string())),
    }
}

fn unusable(file: &Path, what: &'static str, error: &str) -> IdentityError {
    IdentityError::File {
        file: file.to_owned(),
        what,
        error: error.to_owned(),
    }
}

/// Why a connection to `who` failed, in one sentence.
pub(super) fn explain(error: &io::Error, who: &str) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(tls) = inner else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => format!("{who} cut the connection off"),
            _ => format!("the connection to {who} failed: {error}"),
        };
    };
    match tls {
        Error::InvalidCertificate(why) => explain_certificate(why, who),
        Error::NoCertificatesPresented => format!("{who} presents no certificate"),
        Error::PeerIncompatible(_) => format!("{who} does not offer TLS 1.3"),
        Error::InvalidMessage(_) => format!("{who} does not speak TLS"),
        Error::AlertReceived(alert) => explain_alert(*alert, who),
        other => format!("TLS with {who} failed: {other}"),
    }
}

fn explain_certificate(why: &CertificateError, who: &str) -> String {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("the certificate of {who} has expired")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("the certificate of {who} is not valid yet")
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            format!("the certificate of {who} is of an authority that this host does not trust")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("the certificate that {who} presents is that of another host")
        }
        other => format!("the certificate of {who} is not accepted: {other}"),
    }
}

fn explain_alert(alert: AlertDescription, who: &str) -> String {
    let why = match alert {
        AlertDescription::CertificateExpired => "it has expired",
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is of an authority that it does not trust"
        }
        AlertDescription::CertificateRequired => "none was presented",
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            "it is not valid there"
        }
        AlertDescription::ProtocolVersion => {
            return format!("{who} does not offer TLS 1.3");
        }
        other => return format!("{who} ended TLS: {other:?}"),
    };
    format!("{who} does not accept the certificate of this host: {why}")
}
