//! Fuzz target `ring`: decodes the input to a scenario of a hostile program, which writes entries
//! and indices to its rings between steps of both sides.
#![no_main]

netnice_fuzz::target!(netnice_ring::hostile);
