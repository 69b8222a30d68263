//! Answers: what netnice value a process, a group or a user has, and what it is to be, to programs in C.
//! May touch: its arguments, errno, /proc where it says who belongs to a group or a user, the daemon's socket.
//! Must never: start a daemon, unwind into C, or keep anything between two calls.
//!
//! # The interface
//! `netnice_get` and `netnice_set` in the manner of getpriority(2) and setpriority(2), which the
//! paper extended (NICE 4.2). `include/netnice.h` declares them, `man/netnice_set.3` describes them.
//!
//! ```text
//!  which, who ──whom──▶ Whom ──value──▶ requests to the daemon ──▶ a value, or an errno
//! ```
//!
//! # Ground rules of this room
//! Only the two functions below are exported. They take and return plain numbers, so there is no
//! pointer to trust; the one that is written through is errno's own.

mod fault;
mod value;
mod whom;

use std::panic::catch_unwind;

use libc::{c_int, c_longlong, id_t};
use netnice_api::RuntimeDir;

use fault::Fault;
use whom::Whom;

/// The netnice value, in bytes per second, of a process, a group or a user; 0 is unlimited.
///
/// Of several processes it is the smallest. On failure -1, and errno says why.
// SAFETY: no other function of this name is linked; the name is the library's own.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_get(which: c_int, who: id_t) -> c_longlong {
    guarded(|| value::get(&runtime_dir(), &Whom::find(which, who)?))
}

/// Sets the netnice value, in bytes per second; 0 is unlimited. Returns 0, or -1 with errno.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_set(which: c_int, who: id_t, value: c_longlong) -> c_int {
    let done = guarded(|| {
        // Bad arguments are told before anybody is looked for, as setpriority(2) does.
        let change = value::change(value)?;
        value::set(&runtime_dir(), &Whom::find(which, who)?, &change).map(|()| 0)
    });
    if done < 0 { -1 } else { 0 }
}

/// Runs what may fail, and tells C.
fn guarded(work: impl FnOnce() -> Result<i64, Fault> + std::panic::UnwindSafe) -> c_longlong {
    let error = match catch_unwind(work) {
        Ok(Ok(value)) => return value,
        Ok(Err(fault)) => fault.errno(),
        Err(_) => libc::EIO,
    };
    // SAFETY: the C library returns a valid pointer to this thread's own errno.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// The daemon's folder. A program that runs with somebody else's rights is not told by its environment.
fn runtime_dir() -> RuntimeDir {
    // SAFETY: getauxval reads a table that the kernel gave this process at its start.
    let trusts = unsafe { libc::getauxval(libc::AT_SECURE) } == 0;
    let variable = std::env::var_os(RuntimeDir::VARIABLE).filter(|_| trusts);
    RuntimeDir::choose(None, variable)
}
