//! Answers: what netnice value a process, a group or a user has, and what it is to be; and flows past the kernel; to programs in C.
//! May touch: its arguments, errno, /proc where it says who belongs to a group or a user, the daemon's socket, the stack.
//! Must never: start a daemon, unwind into C, or keep anything that C did not ask for.
//!
//! # The interface
//! `netnice_get` and `netnice_set` in the manner of getpriority(2) and setpriority(2), which the
//! paper extended (NICE 4.2); they keep nothing between two calls. `netnice_attach` and the calls behind it are the direct path
//! ([`direct`]). `include/netnice.h` declares them, `man/` describes them.
//!
//! ```text
//!  which, who ──whom──▶ Whom ──value──▶ requests to the daemon ──▶ a value, or an errno
//!  a number ──handles──▶ a program or flow of the stack ──direct──▶ what it says, or an errno
//! ```
//!
//! # Ground rules of this room
//! Only what the header names is exported. Plain numbers need no trust; pointers are looked at in [`pointers`] alone. Nothing
//! unwinds: every call is [`guarded`].

mod direct;
mod fault;
mod handles;
mod pointers;
mod value;
mod whom;

use std::cell::RefCell;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{c_char, c_int, c_longlong, id_t};
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

/// What the last call of this thread that failed has to say beside errno. Never NULL.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn netnice_error() -> *const c_char {
    let said = LAST.try_with(|last| last.borrow().as_ptr());
    // The thread is ending.
    said.unwrap_or(c"".as_ptr())
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs what may fail, and tells C. What may have been left half done by a panic is behind a lock that is poisoned then.
fn guarded(work: impl FnOnce() -> Result<i64, Fault>) -> c_longlong {
    let fault = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return value,
        Ok(Err(fault)) => fault,
        Err(_) => Fault::Panicked,
    };
    let text = CString::new(fault.to_string().replace('\0', " ")).unwrap_or_default();
    // Nothing can be kept for a thread that is ending.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    // SAFETY: the C library returns a valid pointer to this thread's own errno.
    unsafe { *libc::__errno_location() = fault.errno() };
    -1
}

/// The daemon's folder. A program that runs with somebody else's rights is not told by its environment.
fn runtime_dir() -> RuntimeDir {
    // SAFETY: getauxval reads a table that the kernel gave this process at its start.
    let trusts = unsafe { libc::getauxval(libc::AT_SECURE) } == 0;
    let variable = std::env::var_os(RuntimeDir::VARIABLE).filter(|_| trusts);
    RuntimeDir::choose(None, variable)
}
