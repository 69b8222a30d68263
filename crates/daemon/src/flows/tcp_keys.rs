//! The keys of TCP flows, from which programs derive their initial sequence numbers and SYN
//! cookies.
//!
//! A new connection between the same endpoints must begin behind the sequence numbers of the old
//! one, at a number that other users and hosts cannot predict (RFC 6528). A program that restarts
//! has forgotten its old key. So the daemon derives the key: by SipHash-2-4 with 128 bits of
//! output, of the user, the local address and the local port, under a secret of its own. The secret
//! is 16 random bytes in a file of the runtime folder that only root can read. The daemon makes the
//! file when it first needs the secret. The file outlives the daemon, and ends with the boot, as
//! the connections do.
//!
//! [`read_or_make`] fails with the error of a file operation, or of the source of random numbers.

use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use netnice_api::direct::Endpoint;
use siphasher::sip128::{Hasher128, SipHasher24};

use super::Flows;
use super::network::Network;
use crate::error::RequestError;

impl<N: Network> Flows<N> {
    /// The secret of the keys, for an endpoint of TCP; `None` for another endpoint.
    ///
    /// # Errors
    /// If the secret cannot be read, or cannot be made.
    pub(super) fn secret_for(
        &mut self,
        endpoint: &Endpoint,
    ) -> Result<Option<[u8; 16]>, RequestError> {
        let secret = endpoint.is_tcp().then(|| self.network.tcp_secret());
        secret.transpose().map_err(|error| {
            RequestError::Failed(format!("cannot read the secret of TCP's keys: {error}"))
        })
    }
}

/// The key of a local endpoint of a user.
pub(super) fn key(secret: &[u8; 16], uid: u32, local: SocketAddr) -> [u8; 16] {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(&uid.to_be_bytes());
    // The length distinguishes the families.
    match local.ip() {
        IpAddr::V4(address) => hasher.write(&address.octets()),
        IpAddr::V6(address) => hasher.write(&address.octets()),
    }
    hasher.write(&local.port().to_be_bytes());
    hasher.finish128().as_bytes()
}

/// The secret of a file. Makes the file, with a secret of `random`, if there is none or if it has
/// another length.
pub(super) fn read_or_make(
    path: &Path,
    random: impl FnOnce() -> io::Result<[u8; 16]>,
) -> io::Result<[u8; 16]> {
    match read(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(Some(secret)) => return Ok(secret),
        Ok(None) | Err(_) => {}
    }
    let secret = random()?;
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(&secret)?;
    fs::rename(&new, path).inspect_err(|_| drop(fs::remove_file(&new)))?;
    Ok(secret)
}

/// The secret of a file; `None` if the file has another length.
fn read(path: &Path) -> io::Result<Option<[u8; 16]>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(17).read_to_end(&mut bytes)?;
    Ok(<[u8; 16]>::try_from(bytes).ok())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_depends_on_the_secret_the_user_the_address_and_the_port() {
        let local = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let known = key(&[1; 16], 1000, local("10.0.0.1:80"));
        assert_eq!(known, key(&[1; 16], 1000, local("10.0.0.1:80")));
        for other in [
            key(&[2; 16], 1000, local("10.0.0.1:80")),
            key(&[1; 16], 1001, local("10.0.0.1:80")),
            key(&[1; 16], 1000, local("10.0.0.2:80")),
            key(&[1; 16], 1000, local("10.0.0.1:81")),
            key(&[1; 16], 1000, local("[::10.0.0.1]:80")),
        ] {
            assert_ne!(known, other);
        }
    }

    #[test]
    fn the_secret_is_made_once_and_only_its_user_can_read_it() {
        let path = std::env::temp_dir().join(format!("netnice-secret-{}", std::process::id()));
        let made = read_or_make(&path, || Ok([7; 16])).expect("made");
        assert_eq!(made, [7; 16]);
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let read = read_or_make(&path, || panic!("it exists")).expect("read");
        assert_eq!(read, made);
        // A file that was not written completely.
        fs::write(&path, [1; 3]).expect("written");
        let again = read_or_make(&path, || Ok([8; 16])).expect("made");
        assert_eq!(again, [8; 16]);
        fs::remove_file(&path).expect("removed");
        let error = read_or_make(&path, || Err(io::ErrorKind::Other.into()));
        assert!(error.is_err() && !path.exists(), "{error:?}");
    }
}
