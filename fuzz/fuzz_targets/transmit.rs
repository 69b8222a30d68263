//! Fuzz target `transmit`: decodes the input to frames that a program submits, and checks them with
//! the driver's templates.
#![no_main]

netnice_fuzz::target!(netnice_driver::hostile::transmit, corrected);
