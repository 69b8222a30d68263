//! Answers: whether a TCP behaves as a script says.
//! May touch: the script's text, and the TCP under test through the trait [`Peer`].
//! Must never: be part of a shipped program (only tests use it), or share code with a TCP.
//!
//! A script is one scenario of one connection. [`Script::parse`] reads it, [`run`] runs it on any
//! [`Peer`]: a TCP with a program on one side and the wire on the other. Both return errors that
//! name the script and the line.
//!
//! # Format
//! The first line names the RFC and the section, and what is tested. `connection:` lines have the
//! parameters of the TCP under test. Every other line is one step. `#` begins a comment.
//! ```text
//! RFC 2018, 4: a segment behind a gap is reported at once
//! connection: mss 1000, sack, window 20000
//!
//! open                                    the handshake, by the TCP under test
//! < A seq 1001 ack 1 len 1000             this segment arrives
//! > A seq 1 ack 1 sack 1001-2001          this segment must leave now
//! +10ms < A seq 1 ack 1 len 1000          10 ms after the step before
//! > A seq 1 ack 2001
//! read 2000                               the program reads exactly 2,000 bytes
//! nothing for 500ms                       no segment leaves
//! ```
//! Sequence numbers count from the initial ones of both ends; the SYN has number 0. Payload is the
//! pattern of its position ([`pattern`]), and the interpreter checks every byte.
//!
//! ## Segments
//! Flags are the letters `S F R P A U E C` (`E`: ECE, `C`: CWR), or `-` for none. `<` and `>` take
//! `seq N`, `ack N` (with `A`), `len N` (0 by default), `win N` (the field, not scaled), `mss N`,
//! `wscale N`, `sackok`, `ts`, and `sack L-R,L-R`.
//!
//! - `<`: the window is that of the last `<` by default. After timestamps were agreed on, every
//!   segment has them: the milliseconds since the start of the script, and an echo of the latest
//!   value. `ts N` and `ecr N` set them (`ecr NAME`: the value of a segment that left), `no-ts`
//!   leaves them out. `urgent N` is the urgent pointer, `ce` a congestion mark.
//! - `>`: flags, numbers, length and SACK blocks must be equal. `P` must be set if the line has
//!   it; otherwise the line does not say. `no-push`: it must not be set. A reset without `A` may
//!   acknowledge or not. `win N`, `win A..B` and
//!   `ecr N` are checked if they are present. A SYN has exactly the options of the line, where `*`
//!   is any value. Timestamps must be present exactly if they were agreed on. `ect` and `not-ect`
//!   check the IP header. `as NAME` names the segment.
//!
//! ## Times
//! `+10ms` before a step: 10 ms after the step before; for `>`, after the departure of the segment
//! before. `+10ms..20ms` with `>` allows a range. Without a time a step is due at once. A segment
//! that leaves and is not expected is an error.
//!
//! ## Program and checks
//! `connect`, `listen`, `open`, `open passive`, `write N`, `write fails`, `read N`, `readable N`,
//! `read end` (the peer has shut down), `shutdown`, `close`, `abort`, `no-delay on|off`,
//! `state X`, `error X` (`none refused reset timed-out unreachable aborted`), `nothing for T`,
//! `icmp unreachable seq N`, `icmp too-big MTU seq N` (the quoted sequence number).

mod interpreter;
mod parse;
mod peer;
mod script;
mod segment;

pub use interpreter::{Failure, run};
pub use parse::ParseError;
pub use peer::{Action, Error, Icmp, Peer, Sent, State, Tolerance};
pub use script::{Keepalive, Options, Script};
pub use segment::{Flags, Segment};

/// The byte of the pattern at a position of the stream: 0 is the first byte behind the SYN.
pub fn pattern(position: u32) -> u8 {
    // Every byte of the product's upper half depends on all lower bits of the position.
    (u64::from(position).wrapping_mul(2_654_435_761) >> 13) as u8
}

/// The pattern's bytes that begin at a position.
pub fn pattern_bytes(position: u32, length: u32) -> Vec<u8> {
    (0..length)
        .map(|at| pattern(position.wrapping_add(at)))
        .collect()
}

#[cfg(test)]
mod tests;
