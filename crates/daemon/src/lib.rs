//! Answers: who holds which contract on this host, and keeps it enforced.
//! May touch: the ledger (its one writer), the runtime folder, the policy file, and the kernel room.
//! Must never: trust a client's parsing, or let a measurement edit the ledger.
