//! Fuzz target `stream`: decodes the input to segments, calls of the program, departures and times,
//! and runs them on a TCP connection. The result is the name of the outcome; a panic is a finding.
#![no_main]

netnice_fuzz::target!(netnice_tcp::hostile::stream);
