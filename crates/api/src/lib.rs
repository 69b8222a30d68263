//! Answers: which words pass between netnice's processes, and how they are framed on a socket.
//! May touch: bytes, and the file descriptors that travel beside them.
//! Must never: decide anything; a message is only well formed or refused.
