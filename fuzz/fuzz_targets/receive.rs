//! Fuzz target `receive`: decodes the input to received frames, and compares the flows that the
//! driver's demultiplexer gives them to with those that an independent parser names. The result is
//! the name of the outcome; a panic is a finding.
#![no_main]

netnice_fuzz::target!(netnice_driver::hostile::receive, corrected);
