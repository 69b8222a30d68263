//! What the peer of a driver's socket may send: pieces of a stream, with descriptors beside them.
#![no_main]

netnice_fuzz::target!(netnice_driver::hostile::connection, mended);
