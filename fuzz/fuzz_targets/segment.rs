//! Fuzz target `segment`: reads the input as the header of a TCP segment, and writes it again. The
//! result is the name of the outcome; a panic is a finding.
#![no_main]

netnice_fuzz::target!(netnice_tcp::hostile::segment, corrected);
