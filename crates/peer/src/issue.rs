//! Certificates for a laboratory: an authority, and a certificate for each host
//! ([`Laboratory`]), and the folder in which both are kept ([`into_folder`]). Fails with
//! [`IssueError`]. An installation with an authority of its own does not need this module.
//!
//! The authority is a key with a fixed name, so its key is all that issues further certificates.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::message::HostName;

mod certificates;

pub use certificates::{Written, into_folder};

/// An authority of a laboratory.
pub struct Laboratory {
    key: KeyPair,
}

/// A certificate with its key, both as PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// When certificates are valid.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    /// From when.
    pub from: SystemTime,
    /// Until when.
    pub until: SystemTime,
}

impl Validity {
    /// From an hour ago, because clocks differ, for this number of days.
    pub fn days(days: u32) -> Validity {
        let now = SystemTime::now();
        Validity {
            from: now - Duration::from_secs(3_600),
            until: now + Duration::from_secs(86_400 * u64::from(days)),
        }
    }
}

/// Why certificates cannot be issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The key cannot be made or read, or the certificate cannot be made.
    #[error("the certificate cannot be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A file cannot be written.
    #[error("{} cannot be written: {error}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
    /// A folder cannot be made.
    #[error("the folder {} cannot be made: {error}", .folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
    /// A file of the authority cannot be used.
    #[error("{} cannot be used as the authority: {why}", .file.display())]
    Authority {
        /// The file.
        file: PathBuf,
        /// The reason.
        why: String,
    },
    /// A file of a host exists.
    #[error("{} exists and is not replaced; no certificate was issued", .0.display())]
    Exists(PathBuf),
    /// Two hosts would have the same files.
    #[error("the host `{0}` is named twice")]
    Twice(HostName),
    /// A host has the name of the authority's files.
    #[error("a host cannot be called `{0}`: the files of the authority have that name")]
    Reserved(HostName),
}

impl Laboratory {
    /// A new authority.
    ///
    /// # Errors
    /// If no key can be made.
    pub fn new() -> Result<Laboratory, IssueError> {
        let key = KeyPair::generate()?;
        Ok(Laboratory { key })
    }

    /// The authority with this key, as PEM.
    ///
    /// # Errors
    /// If the text is not a private key.
    pub fn from_key(pem: &str) -> Result<Laboratory, IssueError> {
        let key = KeyPair::from_pem(pem)?;
        Ok(Laboratory { key })
    }

    /// The certificate of the authority, which hosts trust, and its key.
    ///
    /// # Errors
    /// If the certificate cannot be made.
    pub fn authority(&self, validity: Validity) -> Result<Issued, IssueError> {
        let mut params = authority_params();
        params.not_before = validity.from.into();
        params.not_after = validity.until.into();
        let certificate = params.self_signed(&self.key)?.pem();
        let key = self.key.serialize_pem();
        Ok(Issued { certificate, key })
    }

    /// A certificate for a host, with a new key.
    ///
    /// # Errors
    /// If the certificate cannot be made.
    pub fn host(&self, host: &HostName, validity: Validity) -> Result<Issued, IssueError> {
        let mut params = CertificateParams::new(vec![host.as_str().to_owned()])?;
        params.distinguished_name = named(host.as_str());
        params.not_before = validity.from.into();
        params.not_after = validity.until.into();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // A host is the server of some neighbours, and the client of others.
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let issuer = Issuer::new(authority_params(), &self.key);
        let certificate = params.signed_by(&key, &issuer)?.pem();
        let key = key.serialize_pem();
        Ok(Issued { certificate, key })
    }
}

impl Issued {
    /// Writes the certificate to `NAME.pem` and the key to `NAME.key`, which only the owner can
    /// read, in a folder. Returns the two paths. No existing file is replaced.
    ///
    /// # Errors
    /// [`IssueError::File`] if a file exists or cannot be written.
    pub fn write(&self, folder: &Path, name: &str) -> Result<(PathBuf, PathBuf), IssueError> {
        let [key, certificate] = certificates::files(folder, name);
        certificates::create(&key, &self.key, certificates::SECRET)?;
        certificates::create(&certificate, &self.certificate, certificates::PUBLIC)?;
        Ok((certificate, key))
    }
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named("netnice laboratory");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn named(name: &str) -> rcgen::DistinguishedName {
    let mut named = rcgen::DistinguishedName::new();
    // The longest common name has 64 characters (RFC 5280, appendix A.1).
    let end = name.floor_char_boundary(64);
    named.push(DnType::CommonName, &name[..end]);
    named
}
