//! Fuzz target `endpoint`: decodes the input to segments of several peers, calls of the program,
//! departures and times, and runs them on a TCP endpoint that listens and connects. The result is
//! the name of the outcome; a panic is a finding, also that of the oracle for ended connections.
#![no_main]

netnice_fuzz::target!(netnice_tcp::hostile::endpoint);
