//! Fuzz target `frames`: takes the input as bytes that any user may write to the daemon's socket,
//! and decodes the frames and the messages in them. The result is the name of the outcome; a panic
//! is a finding.
#![no_main]

netnice_fuzz::target!(netnice_api::hostile, corrected);
