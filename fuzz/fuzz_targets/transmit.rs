//! Fuzz target `transmit`: decodes the input to frames that a program submits, and checks them with
//! the driver's templates. The result is the name of the outcome; a panic is a finding.
#![no_main]

netnice_fuzz::target!(netnice_driver::hostile::transmit, corrected);
