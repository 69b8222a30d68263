//! Retries operations that would leave the kernel's state incomplete if they failed once.
//!
//! Some operations fail temporarily: reading and removing map entries, restoring a setting,
//! removing a pin, and reading /proc. The causes are a shortage of memory, a signal, or an entry
//! whose hash chain is in use on this processor (EBUSY of a hash map). The daemon may have replied
//! to the request already, so no later step would repeat the operation. So this module tries each
//! operation up to three times, and then returns or logs the last error. If the error is that the
//! object does not exist or that access is denied, there is no second try.

use std::error::Error;
use std::fs;
use std::path::Path;

use aya::Pod;
use aya::maps::{HashMap, MapData, MapError, PerCpuHashMap};

use crate::error::{self, KernelError};

/// Tries an operation up to three times. It stops after one try if the error is permanent: the
/// object does not exist, or access is denied.
///
/// # Errors
/// The error of the last try.
pub(crate) fn with_retries<T, E: Error + 'static>(
    mut operation: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    for _ in 1..MAX_TRIES {
        match operation() {
            Err(error) if !is_permanent(&error) => {}
            result => return result,
        }
    }
    operation()
}

fn is_permanent(error: &(dyn Error + 'static)) -> bool {
    matches!(
        error::errno(error),
        Some(libc::ENOENT | libc::ESRCH | libc::EACCES)
    )
}

/// A map whose entries can be removed.
pub(crate) trait RemoveEntry<K> {
    /// Removes an entry, if it exists.
    ///
    /// # Errors
    /// The entry exists and could not be removed in three tries.
    fn remove_entry(&mut self, key: &K) -> Result<(), KernelError>;
}

impl<K: Pod, V: Pod> RemoveEntry<K> for HashMap<&mut MapData, K, V> {
    fn remove_entry(&mut self, key: &K) -> Result<(), KernelError> {
        gone_is_fine(with_retries(|| self.remove(key)))
    }
}

impl<K: Pod, V: Pod> RemoveEntry<K> for PerCpuHashMap<&mut MapData, K, V> {
    fn remove_entry(&mut self, key: &K) -> Result<(), KernelError> {
        gone_is_fine(with_retries(|| self.remove(key)))
    }
}

fn gone_is_fine(result: Result<(), MapError>) -> Result<(), KernelError> {
    match result {
        Err(error) if error::errno(&error) != Some(libc::ENOENT) => {
            Err(KernelError::bpf("remove an entry of a map", error))
        }
        _ => Ok(()),
    }
}

/// Looks up an entry of a map. Returns `None` if it does not exist.
///
/// # Errors
/// The entry could not be read in three tries.
pub(crate) fn look_up<V>(
    mut read: impl FnMut() -> Result<V, MapError>,
) -> Result<Option<V>, KernelError> {
    let found = with_retries(|| match read() {
        Err(MapError::KeyNotFound) => Ok(None),
        result => result.map(Some),
    });
    found.map_err(|error| KernelError::bpf("read an entry of a map", error))
}

/// Removes a file or a pin, if it exists. A failure is logged.
pub(crate) fn remove_file(path: impl AsRef<Path>) {
    let path = path.as_ref();
    match with_retries(|| fs::remove_file(path)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, "cannot remove {}", path.display());
        }
        _ => {}
    }
}

const MAX_TRIES: u32 = 3;

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Runs an operation that fails the given number of times. Returns the number of tries and the
    /// result.
    fn tries_and_result(fails: u32, errno: i32) -> (u32, io::Result<()>) {
        let mut tries = 0;
        let result = with_retries(|| {
            tries += 1;
            match tries > fails {
                true => Ok(()),
                false => Err(io::Error::from_raw_os_error(errno)),
            }
        });
        (tries, result)
    }

    #[test]
    fn an_operation_that_fails_twice_succeeds_at_the_third_try() {
        assert!(matches!(tries_and_result(0, libc::ENOMEM), (1, Ok(()))));
        assert!(matches!(tries_and_result(2, libc::ENOMEM), (3, Ok(()))));
        assert!(matches!(tries_and_result(3, libc::ENOMEM), (3, Err(_))));
    }

    #[test]
    fn an_operation_on_a_missing_object_is_not_retried() {
        assert!(matches!(tries_and_result(1, libc::ENOENT), (1, Err(_))));
        assert!(matches!(tries_and_result(1, libc::ESRCH), (1, Err(_))));
    }
}
