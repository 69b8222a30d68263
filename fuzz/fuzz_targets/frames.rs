//! Fuzz target `frames`: takes the input as bytes that any user may write to the daemon's socket,
//! and decodes the frames and the messages in them.
#![no_main]

netnice_fuzz::target!(netnice_api::hostile, corrected);
