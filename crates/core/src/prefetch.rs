//! Prefetch hints to the processor. This module contains the only `unsafe` code of this crate.
//!
//! With many flows a scheduler spends nearly all of its time waiting for memory. It can compute
//! early which flows come next, so an early hint removes one wait per packet. A hint has no visible
//! effect on a program. On processors other than x86-64, and under Miri, these functions do
//! nothing.

/// Prefetches the first 64 bytes of `value`, or all of it if it is shorter.
#[inline(always)]
pub fn first_line<T>(value: &T) {
    line(core::ptr::from_ref(value).cast());
}

/// Prefetches all of `value`.
#[inline(always)]
pub fn whole<T>(value: &T) {
    let begin: *const u8 = core::ptr::from_ref(value).cast();
    for index in 0..size_of::<T>().div_ceil(LINE) {
        line(begin.wrapping_add(LINE * index));
    }
}

#[inline(always)]
fn line(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[allow(unsafe_code)]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction needs SSE, which is part of x86-64. It accepts any address and
        // never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// Size of a cache line in bytes.
const LINE: usize = 64;
