//! What a program may leave in its rings: entries and indices, between steps of both sides.
#![no_main]

netnice_fuzz::target!(netnice_ring::hostile);
