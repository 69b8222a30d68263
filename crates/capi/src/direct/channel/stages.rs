//! The stages of a channel's packets, by the flags and the secret of C: [`stages`] fails for no
//! reason but memory that is not there.

use libc::c_uint;
use netnice_channel::ExecutorSettings;
use netnice_channel::costs::StageMaker;

use super::CHECKSUM;
use crate::error::CallError;
use crate::pointers;

/// Copies the secret (NULL: no encryption), and measures what the stages cost on this machine.
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
    Ok(StageMaker::new(flags & CHECKSUM != 0, secret, largest))
}
