//! A hint to the processor that something will be read soon. The only `unsafe` of this crate.
//!
//! With many flows nearly all of a scheduler's time is waiting for memory, and which flows come
//! next is known long before: asking early turns one wait per packet into none. A hint changes
//! nothing that a program can see, so leaving it out (other processors, Miri) is always right.

/// Asks that `value`, or the first 64 bytes of it, be brought near.
#[inline(always)]
pub fn soon<T>(value: &T) {
    near(core::ptr::from_ref(value).cast());
}

/// The same for all of `value`, and not its first 64 bytes alone.
#[inline(always)]
pub fn whole<T>(value: &T) {
    let begin: *const u8 = core::ptr::from_ref(value).cast();
    for line in 0..size_of::<T>().div_ceil(LINE) {
        near(begin.wrapping_add(LINE * line));
    }
}

#[inline(always)]
fn near(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[allow(unsafe_code)]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE, which the instruction needs, is part of x86-64. It takes any address and
        // never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// Bytes that are brought at a time.
const LINE: usize = 64;
