//! Prefetch hints to the processor. This module contains the only `unsafe` code of this crate.
//!
//! With many flows a scheduler spends most of its time waiting for memory. The scheduler can
//! compute early which flows come next, so an early hint removes one wait per packet. A hint
//! changes no value, only the processor's caches, and cannot fail. On processors other than x86-64,
//! and under Miri, these functions do nothing.

use core::ops::Range;

/// Prefetches the cache line (64 bytes) that contains the first byte of `value`.
#[inline(always)]
pub fn first_line<T>(value: &T) {
    line(core::ptr::from_ref(value).cast());
}

/// Prefetches as many cache lines as `value` fills, from the line of its first byte on. This is all
/// of `value` if it begins at the start of a line.
#[inline(always)]
pub fn whole<T>(value: &T) {
    bytes(value, 0..size_of::<T>());
}

/// As [`whole`], for a range of the bytes of `value`, which begins at the start of a line.
#[inline(always)]
pub fn bytes<T>(value: &T, range: Range<usize>) {
    let begin: *const u8 = core::ptr::from_ref(value).cast();
    for index in range.start / LINE..range.end.div_ceil(LINE) {
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
