//! What a program may hand over to be sent: frames for the transmit check.
#![no_main]

netnice_fuzz::target!(netnice_driver::hostile::transmit, mended);
