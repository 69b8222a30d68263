//! Fuzz target `channel`: takes the input as packets from the wire for the receivers of two
//! real-time channels. The result is the name of the outcome; a panic is a finding.
#![no_main]

netnice_fuzz::target!(netnice_channel::hostile, corrected);
