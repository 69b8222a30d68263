//! Tests of the scheduler and the pacer, in virtual time: each test moves the clock itself.

mod cells;
mod channels;
mod limits;
mod pacers;
mod servers;
mod shares;
mod simulation;
mod slices;
mod stops;
mod upkeep;
