//! The texts behind the options in `--help`, as constants.

/// Behind the help of `netnice`.
pub(super) const AFTER_HELP: &str = "\
Short forms:
  netnice PID RATE   limit the sum of both directions of a process
  netnice PID        show the limits and guarantees of a process
  netnice            show those of the process that runs netnice

Rates: 4mbit, 4Mbit/s, 500kbit, 1.5gbit, 200kB/s, 2MiB/s, 128Kbyte/sec (1024); none or 0 = no limit.
Exit status: 0 done, 1 error, 2 bad usage, 3 refused, 4 no daemon; 126, 127 as env(1).";

/// Behind the help of `netnice check`.
pub(super) const CHECK_HELP: &str = "\
One of --cell, --channel, --up, --down and --both (with --burst) gives the contract. Every packet of
the capture, or of the flow, is checked with its length on the wire. With --channel, messages are
checked: the fragments of an IP datagram are one message, and with --gap also packets that follow
each other closely. A message has the time of its first packet, and the length that it would have in
one packet.

Exit status: 0 every packet conforms; 3 at least one does not, and the first one
is shown; 1 the capture cannot be read or has no packet to check; 2 bad usage.";

/// Behind the help of `netnice inetd`.
pub(super) const INETD_HELP: &str = "\
A session of a service with @RATE has that rate; the other sessions share the rest of the total.
Lines of the configuration:
  service stream|dgram protocol wait|nowait user program arguments... [@RATE]
  service program [arguments...] [@RATE]

Exit status: 2 the configuration is invalid (the error names the file, the line and the reason);
1 a port is in use.";
