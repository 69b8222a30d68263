//! Fuzz target `ring`: decodes the input to a scenario of a hostile program, which writes entries
//! and indices to its rings between steps of both sides. The result is the name of the outcome; a
//! panic is a finding.
#![no_main]

netnice_fuzz::target!(netnice_ring::hostile);
