//! Untrusted bytes from the wire, for the tests and for the fuzz targets `segment` and `stream`.
//!
//! Both functions return the name of what became of the input. A panic is a finding.

pub mod segment;
pub mod stream;

#[cfg(test)]
mod tests;
