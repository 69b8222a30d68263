//! Answers: does netnice keep its guarantees on real packets (worlds, traffic, experiments, demo).
//! May touch: namespaces, interfaces and processes that it made itself, and every other crate.
//! Must never: leave anything behind, or be used by another crate.
//!
//! Reading order: [`world`] makes private networks that clean up after themselves, [`traffic`]
//! starts programs in them, [`wire`] measures the packets that pass, [`stats`] evaluates the
//! numbers, and [`experiment`] combines the four into verdicts. [`processor_time`] measures what
//! programs get of the processors. `plot` draws figures of the results, and
//! [`evidence`] makes a page of all of them. [`alibi`] decides which
//! late packets a stop of the machine excuses. [`process`], [`sys`] and `worker` start child
//! processes, make system calls, and run threads. [`testbed`] is the test bed of the system tests.
//! Three modules serve single tests: [`storm`] has the programs of a storm (hostile users beside
//! good ones), [`tracer`] stops a process before its system calls, and [`terminal`] reads the
//! screen of a program. [`demo`] shows the whole product in less than three minutes, and
//! [`simulate`] runs a scenario file in virtual time.
//!
//! An experiment on the kernel path tests the binaries `netnice` and `netniced` through the command
//! line that people type; [`process::binary`] finds them. An experiment on the direct path tests
//! `netnice-driver` too, with processes that use the library `netnice-stack`. For tests of one
//! layer [`direct`] runs the driver's event loop in a thread, with programs in other threads. The
//! experiments in virtual time run the scheduler of `netnice-core` in `netnice-sim`.
//!
//! NICE, NTCP, VERT, CELL and RTC are the papers that docs/deviations.md names; some experiments
//! repeat a figure of one of them. Most experiments have a quick form for tests, which takes less
//! time than the full form and may have wider bounds.
//!
//! A function fails if the kernel, a program or a file refuses what the function needs. A promise
//! that does not hold is a result and no failure.

pub mod alibi;
pub mod demo;
pub mod direct;
pub mod evidence;
pub mod experiment;
mod plot;
pub mod process;
pub mod processor_time;
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

/// The example of the manual's page about TCP, which is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/manual/tcp.md")]
struct TcpManual;
