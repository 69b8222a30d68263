//! Untrusted bytes from the wire, for the tests and for the fuzz targets `segment`, `stream` and
//! `endpoint`.
//!
//! The functions `outcome_of` return the name of what became of the input. A panic is a finding.

pub mod endpoint;
pub mod segment;
pub mod stream;

#[cfg(test)]
mod tests;
