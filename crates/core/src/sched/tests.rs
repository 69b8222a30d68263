//! Scenarios in virtual time: a link, its flows, and queues.

mod cells;
mod channels;
mod limits;
mod pacers;
mod servers;
mod shares;
mod slices;
mod upkeep;
mod world;
