//! A hint to the processor that something will be read soon. The only `unsafe` of this crate.
//!
//! With many flows nearly all of a scheduler's time is waiting for memory, and which flows come
//! next is known long before: asking early turns one wait per packet into none. A hint changes
//! nothing that a program can see, so leaving it out (other processors, Miri) is always right.

/// Asks that `value`, or the first 64 bytes of it, be brought near.
#[inline(always)]
pub(crate) fn soon<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[allow(unsafe_code)]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE, which the instruction needs, is part of x86-64. It takes any address and
        // never faults; this one comes from a reference and is valid anyway.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(value).cast()) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}
