//! What anybody may write to the daemon's socket: frames, and the messages in them.
#![no_main]

netnice_fuzz::target!(netnice_api::hostile, mended);
