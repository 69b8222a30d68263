//! Fuzz target `connection`: decodes the input to pieces of a stream with descriptors, as the peer
//! of a driver's socket may send them. The result is the name of the outcome; a panic is a finding.
#![no_main]

netnice_fuzz::target!(netnice_driver::hostile::connection, corrected);
