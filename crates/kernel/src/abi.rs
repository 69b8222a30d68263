//! The keys, values and numbers that the eBPF programs and this room share, generated from `bpf/abi.h`.

include!(concat!(env!("OUT_DIR"), "/abi.rs"));
