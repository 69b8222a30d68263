//! Answers: does netnice keep its guarantees on real packets (worlds, traffic, experiments, demo).
//! May touch: namespaces, interfaces and processes that it made itself, and every other crate.
//! Must never: leave anything behind, or be used by another crate.
//!
//! Reading order: [`world`] makes private networks that clean up after themselves, [`traffic`]
//! starts programs in them, [`wire`] measures the packets that pass, [`stats`] evaluates the
//! numbers, and [`experiment`] combines the four into verdicts. `plot` draws figures of the
//! results. [`testbed`] is the test bed of the system tests. [`demo`] shows the whole product in
//! less than three minutes.
//!
//! An experiment on the kernel path tests the binaries `netnice` and `netniced` through the command
//! line that people type. The binaries are in `NETNICE_BIN_DIR`, else beside the running
//! executable. For the direct path [`direct`] runs the driver's event loop in a thread, with
//! programs in other threads. The experiments in virtual time run the scheduler of `netnice-core`
//! in `netnice-sim`.

pub mod demo;
pub mod direct;
pub mod experiment;
mod plot;
pub mod process;
pub mod simulate;
pub mod stats;
pub mod storm;
pub mod sys;
pub mod terminal;
pub mod testbed;
pub mod tracer;
pub mod traffic;
pub mod wire;
mod worker;
pub mod world;
