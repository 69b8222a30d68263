//! The stages of a channel's packets, by the flags and the secret of C: [`stages`] fails if
//! memory is not there, or the file of costs cannot be used.

use libc::c_uint;
use netnice_channel::ExecutorSettings;
use netnice_channel::costs::StageMaker;

use super::CHECKSUM;
use crate::error::CallError;
use crate::pointers;

/// Copies the secret (NULL: no encryption), and finds out what the stages cost on this machine.
pub(super) fn stages(
    secret: *const u8,
    flags: c_uint,
    settings: &ExecutorSettings,
) -> Result<StageMaker, CallError> {
    let secret = match secret.is_null() {
        true => None,
        false => Some(pointers::read(secret.cast(), "the secret")?),
    };
    let largest = settings.processor.largest;
    let file = crate::costs_file();
    let maker = StageMaker::new(flags & CHECKSUM != 0, secret, largest, file.as_deref())?;
    Ok(maker)
}
