//! Answers: does netnice keep its promises on real packets (worlds, traffic, experiments, the demo).
//! May touch: namespaces, interfaces and processes that it made itself, and every other room.
//! Must never: leave anything behind, or be used by another room.
//!
//! Read in this order: [`world`] makes private networks that clean up after themselves,
//! [`traffic`] starts programs in them, [`wire`] measures what passes, [`stats`] says what the
//! numbers mean, and [`experiment`] puts the four together into verdicts, drawn by [`plot`];
//! System tests speak in the words of [`desk`], and [`demo`] shows the whole thing in under three minutes.
//!
//! On the kernel path the library uses no other room: what is proved here is proved of the binaries
//! `netnice` and `netniced` and of the command line that people type (found by `NETNICE_BIN_DIR`,
//! else beside the running executable). On the direct path [`direct`] runs the driver's own loop in a thread, with programs in
//! others. The experiments in virtual time run the scheduler of `netnice-core` in `netnice-sim`.

pub mod demo;
pub mod desk;
pub mod direct;
pub mod experiment;
pub mod play;
pub mod plot;
pub mod process;
pub mod stats;
pub mod storm;
pub mod sys;
pub mod terminal;
pub mod tracer;
pub mod traffic;
pub mod wire;
pub mod world;
