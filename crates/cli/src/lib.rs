//! Answers: what a person typed and what they should see.
//! May touch: its arguments, the terminal, and the daemon's socket.
//! Must never: change kernel state itself, or decide what is granted.
