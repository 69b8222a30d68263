//! What may arrive from the wire: frames for the receive demultiplexer.
#![no_main]

netnice_fuzz::target!(netnice_driver::hostile::receive, mended);
