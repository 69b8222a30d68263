//! Answers: does netnice keep its promises on real packets (worlds, traffic, experiments, the demo).
//! May touch: namespaces, interfaces and processes that it made itself, and every other room.
//! Must never: leave anything behind, or be used by another room.
//!
//! Read in this order: [`world`] makes private networks that clean up after themselves,
//! [`traffic`] starts programs in them, [`wire`] measures what passes, [`stats`] says what the
//! numbers mean.

pub mod process;
pub mod stats;
pub mod sys;
pub mod traffic;
pub mod wire;
pub mod world;
