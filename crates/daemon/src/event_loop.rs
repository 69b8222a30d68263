//! What happens on the machine, one event after the other.

pub mod sources;
