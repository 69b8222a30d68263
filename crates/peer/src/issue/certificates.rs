//! The folder of a laboratory's certificates ([`into_folder`]): `authority.pem` and
//! `authority.key`, and for each host `HOST.pem` and `HOST.key`. Fails with [`IssueError`]. A call
//! writes all of its files or none, and replaces no file.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rcgen::PublicKeyData as _;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::{IssueError, Laboratory, Validity};
use crate::message::HostName;

/// What a call of [`into_folder`] has written.
#[derive(Debug)]
pub struct Written {
    /// The authority's key, if the call made the authority.
    pub new_authority: Option<PathBuf>,
    /// All files that were written, in the order in which they were.
    pub files: Vec<PathBuf>,
}

/// A file to write.
struct NewFile {
    path: PathBuf,
    text: String,
    mode: u32,
}

/// Issues a certificate for each host, by the authority in `folder`. An authority that the folder
/// lacks is made, valid for the same time, and so is the folder, which then only its owner can
/// enter.
///
/// # Errors
/// [`IssueError`] if a file of a host exists, if a host is named twice or called `authority`, if
/// the folder has the certificate of an authority without its key or with another one's, or if a
/// file cannot be read or written. Then no file of this call is left.
pub fn into_folder(
    folder: &Path,
    hosts: &[HostName],
    validity: Validity,
) -> Result<Written, IssueError> {
    check_names(folder, hosts)?;
    let (laboratory, mut new) = authority(folder, validity)?;
    let is_new = new.iter().any(|file| file.mode == SECRET);
    let new_authority = is_new.then(|| files(folder, AUTHORITY)[0].clone());
    for host in hosts {
        let issued = laboratory.host(host, validity)?;
        new.extend(pair(folder, host.as_str(), issued.key, issued.certificate));
    }
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(PRIVATE_FOLDER).create(folder);
    made.map_err(|error| IssueError::Folder {
        folder: folder.to_owned(),
        error,
    })?;
    write_all(&new)?;
    Ok(Written {
        new_authority,
        files: new.into_iter().map(|file| file.path).collect(),
    })
}

/// Fails if two hosts would have the same files, or if a file of a host exists.
fn check_names(folder: &Path, hosts: &[HostName]) -> Result<(), IssueError> {
    let mut named = BTreeSet::new();
    for host in hosts {
        if host.as_str() == AUTHORITY {
            return Err(IssueError::Reserved(host.clone()));
        }
        if !named.insert(host) {
            return Err(IssueError::Twice(host.clone()));
        }
        for file in files(folder, host.as_str()) {
            if exists(&file)? {
                return Err(IssueError::Exists(file));
            }
        }
    }
    Ok(())
}

/// The authority in the folder, or a new one, and those of its files that the folder lacks.
fn authority(folder: &Path, validity: Validity) -> Result<(Laboratory, Vec<NewFile>), IssueError> {
    let [key_file, certificate_file] = files(folder, AUTHORITY);
    let unusable = |file: &Path, why: String| IssueError::Authority {
        file: file.to_owned(),
        why,
    };
    let has_certificate = exists(&certificate_file)?;
    if !exists(&key_file)? {
        if has_certificate {
            let why = format!("its key {} does not exist", key_file.display());
            return Err(unusable(&certificate_file, why));
        }
        let laboratory = Laboratory::new()?;
        let issued = laboratory.authority(validity)?;
        let new = pair(folder, AUTHORITY, issued.key, issued.certificate);
        return Ok((laboratory, new.into()));
    }
    let key = std::fs::read_to_string(&key_file);
    let key = key.map_err(|error| unusable(&key_file, error.to_string()))?;
    let laboratory = Laboratory::from_key(&key);
    let laboratory = laboratory.map_err(|error| unusable(&key_file, error.to_string()))?;
    if !has_certificate {
        let issued = laboratory.authority(validity)?;
        let [_, certificate] = pair(folder, AUTHORITY, String::new(), issued.certificate);
        return Ok((laboratory, vec![certificate]));
    }
    let certificate = CertificateDer::from_pem_file(&certificate_file);
    let certificate =
        certificate.map_err(|error| unusable(&certificate_file, error.to_string()))?;
    if !has_key_of(&certificate, &laboratory) {
        let why = format!("it is not the certificate of {}", key_file.display());
        return Err(unusable(&certificate_file, why));
    }
    Ok((laboratory, Vec::new()))
}

/// True if the certificate contains the public key of the authority.
fn has_key_of(certificate: &CertificateDer<'_>, laboratory: &Laboratory) -> bool {
    let key = laboratory.key.der_bytes();
    certificate.windows(key.len()).any(|part| part == key)
}

/// The paths of a key and a certificate.
pub(super) fn files(folder: &Path, name: &str) -> [PathBuf; 2] {
    ["key", "pem"].map(|ending| folder.join(format!("{name}.{ending}")))
}

fn pair(folder: &Path, name: &str, key: String, certificate: String) -> [NewFile; 2] {
    let [key_file, certificate_file] = files(folder, name);
    [
        (key_file, key, SECRET),
        (certificate_file, certificate, PUBLIC),
    ]
    .map(|(path, text, mode)| NewFile { path, text, mode })
}

/// True if there is a file, a folder or a link of this name.
fn exists(file: &Path) -> Result<bool, IssueError> {
    match file.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(IssueError::File {
            file: file.to_owned(),
            error,
        }),
    }
}

/// Writes all files. After a failure those that were written are removed.
fn write_all(new: &[NewFile]) -> Result<(), IssueError> {
    for (written, file) in new.iter().enumerate() {
        if let Err(error) = create(&file.path, &file.text, file.mode) {
            for earlier in &new[..written] {
                let _ = std::fs::remove_file(&earlier.path);
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Creates a file with this content; no file is left if that fails. An existing file is not
/// replaced, which counts as a failure.
pub(super) fn create(file: &Path, text: &str, mode: u32) -> Result<(), IssueError> {
    let failed = |error| IssueError::File {
        file: file.to_owned(),
        error,
    };
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(mode).open(file);
    opened
        .map_err(failed)?
        .write_all(text.as_bytes())
        .map_err(|error| {
            let _ = std::fs::remove_file(file);
            failed(error)
        })
}

/// The name of the authority's files.
const AUTHORITY: &str = "authority";
/// The mode of a key's file: only the owner can read it.
pub(super) const SECRET: u32 = 0o600;
/// The mode of a certificate's file.
pub(super) const PUBLIC: u32 = 0o644;
/// The mode of a new folder.
const PRIVATE_FOLDER: u32 = 0o700;

#[cfg(test)]
mod tests;
