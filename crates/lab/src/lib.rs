//! Answers: does netnice keep its promises on real packets (worlds, traffic, experiments, the demo).
//! May touch: namespaces, interfaces and processes that it made itself, and every other room.
//! Must never: leave anything behind, or be used by another room.
