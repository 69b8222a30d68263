//! Scenarios in virtual time: a link, its flows, and queues.

mod cells;
mod channels;
mod limits;
mod pacers;
mod servers;
mod shares;
mod simulation;
mod slices;
mod upkeep;
