//! Answers: netnice values, direct flows, and channels between hosts, to programs in C.
//! May touch: its arguments, errno, /proc for members and users, sockets of daemons, the stack.
//! Must never: start a daemon, unwind into C, or keep anything that C did not ask for.
//!
//! # The interface
//! `netnice_get` and `netnice_set` follow getpriority(2) and setpriority(2), which paper NICE
//! extended (4.2): they read and set a limit, the *netnice value*, of a process, a process group or
//! a user. `netnice_change` and `netnice_reserve` ([`own`]) set what the calling process has.
//! `netnice_attach` and the calls declared after it are the direct path ([`direct`]), with channels
//! to programs on other hosts (`netnice_channel_connect`).
//! The headers in `include/` declare the calls, `man/` describes them.
//!
//! The arguments of a call on the left, the modules on the arrows, and what C gets on the right:
//! ```text
//!  which, who ──subject──▶ Subject ──value──▶ requests to the daemon ──▶ a value, or an errno
//!  a number ──handles──▶ a program, flow, channel, … ──direct──▶ its result, or an errno
//! ```
//!
//! # Rules of this crate
//! The library exports only the names of the headers. Only [`pointers`] dereferences pointers of C.
//! No call unwinds into C: every call is [`guarded`], except `netnice_error`, which cannot panic.
//! On failure a guarded call returns -1 and sets errno, and `netnice_error` returns the message.

mod direct;
mod error;
mod handles;
mod own;
mod pointers;
mod subject;
mod value;

use std::cell::RefCell;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use libc::{c_char, c_int, c_longlong, id_t};
use netnice_api::RuntimeDir;
use netnice_channel::costs;

use error::CallError;
use subject::Subject;

/// The netnice value of a process, a group or a user, in bytes per second; 0 is unlimited.
///
/// For a process group it returns the smallest value of the members that have a limit. On failure
/// it returns -1 and sets errno.
// SAFETY: the name belongs to this library; no other function with this name is linked.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_get(which: c_int, who: id_t) -> c_longlong {
    guarded(|| value::get(&runtime_dir(), &Subject::find(which, who)?))
}

/// Sets the netnice value of a process, a group or a user, in bytes per second; 0 is unlimited.
/// Returns 0, or -1 and sets errno.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_set(which: c_int, who: id_t, value: c_longlong) -> c_int {
    let done = guarded(|| {
        // As setpriority(2) does, report an invalid argument before searching for the process.
        let change = value::change(value)?;
        value::set(&runtime_dir(), &Subject::find(which, who)?, &change).map(|()| 0)
    });
    if done < 0 { -1 } else { 0 }
}

/// The message of this thread's last failed call; empty if none has failed. Never NULL. It is valid
/// until the thread's next call fails.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_error() -> *const c_char {
    let text = LAST_ERROR.try_with(|last| last.borrow().as_ptr());
    // The access fails only while the thread is ending.
    text.unwrap_or(c"".as_ptr())
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs `work`, catches panics, and returns the value of `work`. On failure it stores the message
/// for [`netnice_error`], sets errno and returns -1. A panic poisons the locks that `work` holds.
fn guarded(work: impl FnOnce() -> Result<i64, CallError>) -> c_longlong {
    let error = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => error,
        Err(_) => CallError::Panicked,
    };
    let text = CString::new(error.to_string().replace('\0', " ")).unwrap_or_default();
    // The message cannot be stored while the thread is ending.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
    // SAFETY: the C library returns a valid pointer to this thread's own errno.
    unsafe { *libc::__errno_location() = error.errno() };
    -1
}

/// The runtime folder of the daemon: from the environment, else the default.
fn runtime_dir() -> RuntimeDir {
    let variable = std::env::var_os(RuntimeDir::VARIABLE).filter(|_| trusts_environment());
    RuntimeDir::choose(None, variable)
}

/// The file of what processing costs on this machine, if the environment names one.
fn costs_file() -> Option<PathBuf> {
    costs::named_file().filter(|_| trusts_environment())
}

/// False in set-user-ID execution (AT_SECURE), in which the environment is ignored.
fn trusts_environment() -> bool {
    // SAFETY: getauxval reads a table that the kernel created when the process started.
    unsafe { libc::getauxval(libc::AT_SECURE) == 0 }
}
