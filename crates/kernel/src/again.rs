//! What would leave something half done if it failed once is tried again.
//!
//! Removing an entry of a map, putting a setting back, or reading a folder of /proc fails where memory is short for a moment,
//! where a signal arrives, or where an entry's chain is in use on this processor (EBUSY of a hash map). The request that
//! wanted it may be answered already, so nobody would try it later.

use std::error::Error;
use std::fs;
use std::path::Path;

use aya::Pod;
use aya::maps::{HashMap, MapData, MapError, PerCpuHashMap};

use crate::error::{self, KernelError};

/// Tries something three times. What is not there, or not permitted, stays so: that is tried once.
///
/// # Errors
/// Of the last time.
pub(crate) fn insist<T, E: Error + 'static>(mut act: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    for _ in 1..TIMES {
        match act() {
            Err(error) if !is_final(&error) => {}
            result => return result,
        }
    }
    act()
}

fn is_final(error: &(dyn Error + 'static)) -> bool {
    matches!(
        error::number(error),
        Some(libc::ENOENT | libc::ESRCH | libc::EACCES)
    )
}

/// A map whose entries can be removed.
pub(crate) trait Forget<K> {
    /// Removes an entry, where there is one.
    ///
    /// # Errors
    /// There is one, and it could not be removed in three tries.
    fn forget(&mut self, key: &K) -> Result<(), KernelError>;
}

impl<K: Pod, V: Pod> Forget<K> for HashMap<&mut MapData, K, V> {
    fn forget(&mut self, key: &K) -> Result<(), KernelError> {
        removed(insist(|| self.remove(key)))
    }
}

impl<K: Pod, V: Pod> Forget<K> for PerCpuHashMap<&mut MapData, K, V> {
    fn forget(&mut self, key: &K) -> Result<(), KernelError> {
        removed(insist(|| self.remove(key)))
    }
}

fn removed(result: Result<(), MapError>) -> Result<(), KernelError> {
    match result {
        Err(error) if error::number(&error) != Some(libc::ENOENT) => {
            Err(KernelError::bpf("remove an entry of a map", error))
        }
        _ => Ok(()),
    }
}

/// Looks an entry of a map up; `None` if there is none.
///
/// # Errors
/// It could not be read in three tries.
pub(crate) fn look_up<V>(
    mut read: impl FnMut() -> Result<V, MapError>,
) -> Result<Option<V>, KernelError> {
    let found = insist(|| match read() {
        Err(MapError::KeyNotFound) => Ok(None),
        result => result.map(Some),
    });
    found.map_err(|error| KernelError::bpf("read an entry of a map", error))
}

/// Removes a file or a pin, where there is one. One that cannot be removed is told in the log.
pub(crate) fn remove_file(path: impl AsRef<Path>) {
    let path = path.as_ref();
    match insist(|| fs::remove_file(path)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, "removing {}", path.display());
        }
        _ => {}
    }
}

const TIMES: u32 = 3;

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Fails so often, and tells how often it was tried.
    fn tried(fails: u32, errno: i32) -> (u32, io::Result<()>) {
        let mut tries = 0;
        let result = insist(|| {
            tries += 1;
            match tries > fails {
                true => Ok(()),
                false => Err(io::Error::from_raw_os_error(errno)),
            }
        });
        (tries, result)
    }

    #[test]
    fn what_fails_twice_is_done_all_the_same() {
        assert!(matches!(tried(0, libc::ENOMEM), (1, Ok(()))));
        assert!(matches!(tried(2, libc::ENOMEM), (3, Ok(()))));
        assert!(matches!(tried(3, libc::ENOMEM), (3, Err(_))));
    }

    #[test]
    fn what_is_not_there_is_not_looked_for_again() {
        assert!(matches!(tried(1, libc::ENOENT), (1, Err(_))));
        assert!(matches!(tried(1, libc::ESRCH), (1, Err(_))));
    }
}
