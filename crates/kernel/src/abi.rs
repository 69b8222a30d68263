//! The keys, values and constants that the eBPF programs and this crate share, generated from
//! `bpf/abi.h`.

include!(concat!(env!("OUT_DIR"), "/abi.rs"));
