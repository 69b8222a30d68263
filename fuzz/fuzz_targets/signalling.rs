//! Fuzz target `signalling`: takes the input as messages of two neighbours to a host that carries a
//! channel of two others. The result is the name of the outcome; a panic is a finding.
#![no_main]

netnice_fuzz::target!(netnice_peer::hostile);
