//! Fuzz target `cut`: takes the input as a long packet from the wire, with what the kernel states
//! about it, and cuts it into segments. The result is the name of the outcome; a panic, or segments
//! that are not those of a naive formula, are findings.
#![no_main]

netnice_fuzz::target!(netnice_driver::hostile::cut, corrected);
