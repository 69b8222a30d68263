//! Access to the whole memory file of a program as bytes, without the ring library and its checks.
//! Test programs that violate the rules of `docs/reference/ring.md` on purpose use it. A read or
//! write fails if its range is not inside the file. Mapping the file fails if the kernel refuses
//! it, as it does for a sealed file.

use std::fs::File;

use anyhow::{Result, ensure};

use crate::sys::Mapped;

/// A mapping of a memory file for reading and writing. With the first flow the driver seals the
/// file against all writes except those through such mappings (rule R5 of
/// `docs/reference/ring.md`).
pub struct Shared(Mapped);

impl Shared {
    /// Maps the whole file for reading and writing. Fails if the file may not be mapped so, for
    /// example because the driver has sealed it.
    pub fn map(file: &File) -> Result<Shared> {
        let length = file.metadata()?.len();
        Ok(Shared(Mapped::map(file, length as usize)?))
    }

    /// Writes bytes at offset `at`. Fails if the range is not inside the file.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.inside(at, bytes.len())?;
        self.0.write(at as usize, bytes);
        Ok(())
    }

    /// Writes `length` copies of a byte at offset `at`. Fails if the range is not inside the file.
    pub fn fill(&self, at: u64, length: u64, byte: u8) -> Result<()> {
        self.write(at, &vec![byte; length as usize])
    }

    /// Reads bytes at offset `at`. Fails if the range is not inside the file.
    pub(crate) fn read<const N: usize>(&self, at: u64) -> Result<[u8; N]> {
        self.inside(at, N)?;
        let mut bytes = [0; N];
        self.0.read(at as usize, &mut bytes);
        Ok(bytes)
    }

    /// Removes the pages of the `length` bytes at offset `at` (in bytes, a multiple of the page
    /// size) from the file through the mapping (`MADV_REMOVE`). Fails with EPERM once the driver
    /// has sealed the file.
    ///
    /// # Panics
    /// If the range is not inside the file.
    pub fn remove(&self, at: u64, length: usize) -> std::io::Result<()> {
        self.0.remove(at as usize, length)
    }

    /// Fails if the range is not inside the file.
    fn inside(&self, at: u64, length: usize) -> Result<()> {
        let end = at.checked_add(length as u64);
        let whole = self.0.length() as u64;
        ensure!(
            end.is_some_and(|end| end <= whole),
            "{length} bytes at {at} of {whole}"
        );
        Ok(())
    }
}
