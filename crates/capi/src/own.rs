//! `netnice_change` and `netnice_reserve`: the contract of the calling process, and parts of its
//! processor time for its threads. They call [`netnice_stack::own`], and fail with its errors, with
//! EFAULT for NULL, and with EINVAL for a text that is not UTF-8 or a negative number.

use std::time::Duration;

use libc::{c_char, c_int, c_longlong, pid_t};
use netnice_stack::own;

use crate::error::CallError;
use crate::{guarded, pointers, runtime_dir};

/// Changes the contract of the calling process. Returns 0.
// SAFETY: the name belongs to this library; no other function with this name is linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_change(change: *const c_char) -> c_int {
    status(|| {
        let change = pointers::text(change)?.ok_or(CallError::Null("the change"))?;
        own::change(&runtime_dir(), &change)?;
        Ok(())
    })
}

/// Gives a thread a part of the processor time of the calling process, or takes it back. Returns 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_reserve(thread: pid_t, nanoseconds: c_longlong) -> c_int {
    status(|| {
        let thread = u32::try_from(thread).map_err(|_| CallError::Invalid)?;
        let time = u64::try_from(nanoseconds).map_err(|_| CallError::Invalid)?;
        let time = (time > 0).then(|| Duration::from_nanos(time));
        own::reserve(&runtime_dir(), (thread > 0).then_some(thread), time)?;
        Ok(())
    })
}

fn status(work: impl FnOnce() -> Result<(), CallError>) -> c_int {
    match guarded(|| work().map(|()| 0)) {
        0 => 0,
        _ => -1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_arguments_fail_before_a_daemon_is_asked() {
        let errno = || std::io::Error::last_os_error().raw_os_error();
        let calls: [(fn() -> c_int, c_int); 4] = [
            (|| netnice_change(std::ptr::null()), libc::EFAULT),
            (|| netnice_change(c"\xff".as_ptr()), libc::EINVAL),
            (|| netnice_reserve(-1, 1), libc::EINVAL),
            (|| netnice_reserve(0, -1), libc::EINVAL),
        ];
        for (call, expected) in calls {
            assert_eq!(call(), -1);
            assert_eq!(errno(), Some(expected));
        }
    }
}
