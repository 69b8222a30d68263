//! Answers: what may be asked of a host's network (units, contracts, targets as text and types) and does it fit (admission).
//! May touch: its arguments only; no_std + alloc, the caller passes the time.
//! Must never: do I/O, read a clock, start a thread, or use unsafe code outside `prefetch`.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
