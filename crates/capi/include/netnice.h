/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * libnetnice: limits on what a process, a process group or a user sends and
 * receives, modelled on getpriority(2) and setpriority(2), see netnice_set(3);
 * processor time of the calling process, see netnice_reserve(3);
 * flows on the direct path, see netnice_flow(3), and TCP on them, see netnice_tcp(3).
 * netnice_channel.h has channels to programs on other hosts, see netnice_channel(3).
 */
#ifndef NETNICE_H
#define NETNICE_H

#include <sys/socket.h> /* struct sockaddr_storage, socklen_t */
#include <sys/types.h>  /* id_t, pid_t, size_t, ssize_t */
#include <sys/uio.h>    /* struct iovec */

#ifdef __cplusplus
extern "C" {
#endif

/* Values of `which`: those of PRIO_PROCESS, PRIO_PGRP and PRIO_USER. */
#define NETNICE_PROCESS 0
#define NETNICE_PGRP 1
#define NETNICE_USER 2

/* No limit. */
#define NETNICE_UNLIMITED 0

/* Returns the netnice value in bytes per second, 0 if there is no limit; -1 on
 * failure, with errno set. `who` 0 means the caller. */
long long netnice_get(int which, id_t who);

/* Sets the netnice value in bytes per second, 0 for no limit. Returns 0, or -1
 * with errno set. `who` 0 means the caller. */
int netnice_set(int which, id_t who, long long value);

/* Changes the contract of the calling process, for example "cpu 6ms/10ms" or
 * "up 4mbit", as `netnice set` does. The clauses that `change` does not name stay.
 * Returns 0, or -1 with errno set: EPERM for a clause that the caller may not name
 * (`cpu` is for root and the group netnice), ENOSPC if the result does not fit,
 * EINVAL if `change` is no valid change. */
int netnice_change(const char *change);

/* Gives a thread of the calling process `nanoseconds` in each period of the
 * processor time that is reserved for the process (`cpu`), exactly, by
 * SCHED_DEADLINE. 0 gives the part back. `thread` is a thread id (gettid(2)); 0
 * means the calling thread. All other threads share what is left. Returns 0, or -1
 * with errno set: ENOSPC if no time is reserved, or the part does not fit; EPERM if
 * the thread is not one of the process, or its time is that of several users. */
int netnice_reserve(pid_t thread, long long nanoseconds);

/*
 * The direct path. All calls but netnice_error() return -1 on failure, with errno
 * set. These calls assign numbers to programs and flows; the numbers are not file
 * descriptors. Only one thread may use a flow at a time: a second thread gets
 * EBUSY. A timeout is in milliseconds; 0 does not wait, and -1 waits without a
 * limit. EAGAIN means that the timeout has expired, or, from a call without a
 * timeout, that no buffer is free or no datagram has arrived.
 */

/* Returns the message of the thread's last failed call, for example the daemon's
 * reason. Never NULL; valid until the thread's next failure. */
const char *netnice_error(void);

/* Attaches the program to the link `iface`, or to the only managed link if it is
 * NULL. `flows` is the largest number of flows that are open at once, at most
 * 4096. `bytes` is the memory for the buffers of all flows that are open at once:
 * the sum of netnice_buffer_bytes() over them, for n equal flows n times that, at
 * most 64 GiB. The memory of a flow lies in one piece: a program that opens and
 * closes flows of different sizes should ask for more than the sum. The daemon
 * bounds the flows and the memory of each user (by default 4096 flows, 1 GiB and
 * 64 programs). Returns the program's number.
 * Fails with ENODEV if there is no such interface, and with ENOSPC if it is not a
 * managed link or the user would have more than permitted.
 * A flow to one remote host follows its route to another managed link. With the
 * first one, the library attaches there too, with the same numbers of flows and
 * bytes, which count for the user a second time. The calls of the flow see no
 * error; its number stays. If the flow cannot be opened there, or the program has
 * made no call of it or held a buffer of it for 10 s, the flow is closed. */
int netnice_attach(const char *iface, unsigned int flows, unsigned long long bytes);

/* Closes all flows, streams and listeners of the program and detaches it. Returns 0. */
int netnice_detach(int program);

/* Returns a descriptor for poll(2) and epoll(7). After netnice_arm() has returned
 * 1, it becomes readable when the driver delivers or returns packets, or when the
 * daemon sends a notification. The library owns it: do not close it. */
int netnice_descriptor(int program);

/* Prepares for sleeping. 1: the descriptor will become readable. 0: packets or a
 * notification have come already, so do not sleep. */
int netnice_arm(int program);

/* Call this after sleeping, and if netnice_arm() has returned 0. Stores the numbers
 * of the flows for which packets or a notification have come, at most `room`, and
 * returns how many they are. Call it again if it returns `room`. `flows` may be
 * NULL if `room` is 0. */
int netnice_poll(int program, int *flows, int room);

/* The kinds of notifications from the daemon. */
#define NETNICE_NOTIFICATION_LINK 1     /* `up`: 1 if the link is up */
#define NETNICE_NOTIFICATION_MTU 2      /* `mtu`: the path MTU of the flow */
#define NETNICE_NOTIFICATION_NEXT_HOP 3 /* `up`: 1 if the next hop answers; it is `mac` */
#define NETNICE_NOTIFICATION_DEGRADED 4 /* the flow gets less than was granted: `why`;
                                           an empty `why`: it gets its full contract again */
#define NETNICE_NOTIFICATION_CLOSED 5   /* the flow is closed: `why` */
#define NETNICE_NOTIFICATION_ENDED 6    /* all flows are closed: `why` */
#define NETNICE_NOTIFICATION_UNDELIVERED 7 /* a router or the remote host reported that a packet
                                              was not delivered: `error`, `why`; if it was too
                                              long, `mtu` is the path MTU to its destination */
#define NETNICE_NOTIFICATION_MOVING 8   /* the route of the flow leads over the link `why` now: the
                                           next call that takes a buffer, a datagram or a result
                                           moves the flow there */

struct netnice_notification {
    int kind;
    int flow; /* -1 if the caller has closed the flow, or the kind is not about a flow */
    int up;
    unsigned int mtu;
    int error; /* ECONNREFUSED, EHOSTUNREACH, ENETUNREACH or EMSGSIZE */
    unsigned char mac[6];
    char why[230]; /* ends with a 0; truncated if it is longer */
};

/* Stores the next notification. 1: there was one; 0: there is none. */
int netnice_notification(int program, struct netnice_notification *notification);

/* The parameters of a UDP flow. If all bytes are 0, the addresses are missing and
 * everything else has its default. */
#define NETNICE_UDP_GROUP 1     /* `remote` is a group, and the flow is a member */
#define NETNICE_UDP_SEND_ONLY 2 /* no buffers for receiving */
#define NETNICE_UDP_VERIFY 4    /* refuse partial checksums too */
#define NETNICE_UDP_TRUST 8     /* do not validate checksums */
#define NETNICE_UDP_IN_ORDER 16 /* deliver no fragment behind a gap */
#define NETNICE_UDP_ERRORS 32   /* calls fail with reported errors, see netnice_flow_error() */

struct netnice_udp {
    const struct sockaddr *local;  /* NULL, port 0: chosen; required for any host */
    const struct sockaddr *remote; /* NULL: any host, see netnice_flow_send_to() */
    socklen_t local_length;
    socklen_t remote_length;
    const char *contract;      /* NULL: best effort; see below */
    unsigned int buffer_bytes; /* bytes of a buffer, a power of two of at most 65536 that holds
                                  a frame of the link; 0: 2048 */
    unsigned int sending;      /* number of buffers for sending, at most 16384; 0: 64 */
    unsigned int receiving;    /* number of buffers for receiving, at most 16384; 0: 64 */
    unsigned int hops;         /* TTL or hop limit, at most 255; 0: 64, for a group 1 */
    unsigned int flags;
};

/*
 * The contract of a flow is text, see docs/reference/contracts.md; for example
 *
 *   up 10mbit                                        a limit (every user may have it)
 *   min 5mbit                                        a rate
 *   slice 2ms/20ms extra                             2 ms of the link in every 20 ms, and more
 *                                                    if it is free
 *   cell pcr=10mbit,cdvt=1ms,scr=5mbit,mbs=30kB      a peak rate; bursts of `mbs` bytes at it, and
 *                                                    5 Mbit/s in the long run
 *   channel mmax=16KiB,rmax=100/s,bmax=2,deadline=10ms   messages with a deadline
 *   receive 25%                                      a part of the driver's time for received
 *                                                    packets, beside any of these
 *
 * `bucket=single` (the default) or `bucket=dual` may follow `mbs`: when the burst
 * is spent, single continues at `scr`, and dual is silent until the whole burst is
 * possible again. `mbs` is at least a frame of the link (1514 bytes).
 * `mmax` counts the frames of all packets of a message with their headers: 42
 * bytes for each datagram over IPv4, 62 over IPv6.
 * `overload=block` (the default), `decay`, `space`, `drop` or `best-effort` may
 * follow `deadline`: what happens to messages beyond `rmax` and `bmax`, see
 * netnice_flow_send_message(). `processing=2ms` may follow it too: the deadline
 * counts from the message's arrival, see netnice_flow_arrival(), if the program
 * queues all of the message within this part of the deadline.
 * How short `cdvt` and `deadline` can be depends on the rate of the link: on an
 * idle link of 100 Mbit/s some 0.3 ms, of 1 Gbit/s some 50 us. A refusal says what
 * would fit.
 */

/* Returns the bytes of the program's memory that such a flow uses. */
long long netnice_buffer_bytes(const struct netnice_udp *udp);

/* Opens a flow. Returns its number. Fails with EADDRINUSE if the port is in use,
 * ENETUNREACH if no route leads over the link, EHOSTUNREACH if the next hop does
 * not answer (after some seconds), EADDRNOTAVAIL if the local address is not of
 * this host, EPERM if the caller may not have the contract, and ENOSPC if it does
 * not fit. */
int netnice_open_udp(int program, const struct netnice_udp *udp);

/*
 * Flows of other protocols, for root and the group netnice. All calls on a flow
 * are those of UDP flows; a payload is everything behind the IP header, or behind
 * the EtherType. The program computes and validates checksums of its protocol. The
 * memory of such a flow is that of a UDP flow with the same buffers
 * (netnice_buffer_bytes()).
 *
 * In place of an address with a port, calls take and return
 *   for an IP protocol: a sockaddr_in or sockaddr_in6; the port is 0;
 *   for an EtherType: a sockaddr_ll with sll_family, sll_halen (6) and sll_addr.
 */

/* One term of a filter of received packets: the byte at `offset`, masked by `mask`,
 * equals `value`. Offsets count from the first byte of a payload, and are below
 * 128. All terms of a filter must hold; at most 32. */
struct netnice_term {
    unsigned short offset;
    unsigned char mask;
    unsigned char value;
};

/* The parameters of a flow of an IP protocol: as in struct netnice_udp. The flags
 * are NETNICE_UDP_SEND_ONLY, NETNICE_UDP_IN_ORDER and NETNICE_UDP_ERRORS. */
struct netnice_ip {
    const struct sockaddr *local;  /* NULL: chosen; required for any host */
    const struct sockaddr *remote; /* NULL: any host, see netnice_flow_send_to() */
    socklen_t local_length;
    socklen_t remote_length;
    const char *contract;
    const struct netnice_term *pattern; /* NULL: no filter */
    unsigned int terms;                 /* number of terms of the pattern */
    unsigned int protocol;              /* the protocol number, for example 132 for SCTP */
    unsigned int buffer_bytes;
    unsigned int sending;
    unsigned int receiving;
    unsigned int hops;
    unsigned int flags;
};

/* Opens a flow of an IP protocol. Returns its number. Fails as netnice_open_udp(),
 * and with EINVAL for ICMP, IGMP, TCP and UDP, which stay with the kernel. */
int netnice_open_ip(int program, const struct netnice_ip *ip);

/* The parameters of a flow of an EtherType: as in struct netnice_udp. The only flag
 * is NETNICE_UDP_SEND_ONLY. */
struct netnice_ether {
    const char *contract;
    const struct netnice_term *pattern; /* NULL: no filter */
    unsigned int terms;                 /* number of terms of the pattern */
    unsigned int number;                /* the EtherType, for example 0x88b5 */
    unsigned int buffer_bytes;
    unsigned int sending;
    unsigned int receiving;
    unsigned int flags;
};

/* Opens a flow of an EtherType. Returns its number. Each packet names its
 * destination (netnice_flow_send_to()), the Ethernet address of one station. Fails
 * as netnice_open_udp(), and with EINVAL for the EtherTypes of IP, ARP and VLAN
 * tags. A received payload of less than 46 bytes can have zeros behind it. */
int netnice_open_ether(int program, const struct netnice_ether *ether);

/* Closes a flow. Queued packets are not sent. */
int netnice_flow_close(int flow);

/* Requests another contract. If the daemon refuses it, the old one stays. */
int netnice_flow_change(int flow, const char *contract);

struct netnice_flow_info {
    struct sockaddr_storage local;
    struct sockaddr_storage remote; /* AF_UNSPEC for any host, and for an EtherType */
    size_t longest;                 /* current largest payload, in bytes */
    unsigned long long under_way;   /* packets that the driver has not returned */
    unsigned long long no_buffer;   /* lost received packets: no buffer was primed */
    unsigned long long over_share;  /* lost: beyond the flow's receive budget */
    unsigned long long too_long;    /* lost: longer than a buffer */
    unsigned long long dropped;     /* received frames without a datagram for this flow */
    unsigned int id;                /* the daemon's number of the flow */
    char contract[212];             /* ends with a 0; truncated if it is longer */
};

/* Returns the errno of the latest report (ICMP) that a packet of the flow was not
 * delivered, and forgets the report; 0 if there is no new one. ECONNREFUSED: no
 * socket at the port; EHOSTUNREACH, ENETUNREACH: no way to the host; EMSGSIZE: longer
 * than the path MTU, which netnice_flow_info() has from now on. A report arrives with
 * the notifications: call netnice_notification(), netnice_poll() or a waiting call
 * before. With NETNICE_UDP_ERRORS, the next call that sends, or that would fail with
 * EAGAIN, fails with this errno instead. Any host can forge a report. */
int netnice_flow_error(int flow);

/* Stores the state of a flow. */
int netnice_flow_info(int flow, struct netnice_flow_info *info);

/* Sends one datagram. Returns its length. */
ssize_t netnice_flow_send(int flow, const void *bytes, size_t length, int timeout);

/* Sends one datagram on a flow to any host. Returns its length. */
ssize_t netnice_flow_send_to(int flow, const void *bytes, size_t length, const struct sockaddr *to,
                             socklen_t to_length, int timeout);

/* Sends the datagrams in order, without waiting, up to the first that cannot be
 * sent. Returns the number of sent datagrams. Fails if the first cannot be sent:
 * with EAGAIN if no buffer is free. */
int netnice_flow_send_batch(int flow, const struct iovec *datagrams, int count);

/* Sends a message of a real-time channel, one datagram for each part. It sends
 * all of them or none. Returns 0. Fails with EMSGSIZE if there are more parts than
 * buffers for sending, or if the parts and their headers together are longer than
 * the `mmax` of the contract. (The other sending calls fail so too, for a datagram
 * or a continued message that is longer.) */
int netnice_flow_send_message(int flow, const struct iovec *parts, int count, int timeout);

/*
 * A message is also what one call of the other sending calls sends, unless it
 * continues the message before it. With the contract's overload policy
 *
 *   block        a message while `bmax` messages wait: the call waits, or fails with
 *                EAGAIN
 *   space        the same, and also before 1/rmax has passed since the message before
 *   drop         a message while `bmax` messages wait fails with ENOBUFS and is dropped
 *   decay        every message is queued; beyond the contract it is due later
 *   best-effort  every message is queued; beyond the contract it is sent as best effort
 */
struct netnice_messages {
    unsigned long long queued;      /* messages that were queued */
    unsigned long long waiting;     /* of these, those that the driver has not returned */
    unsigned long long held_back;   /* messages that had to wait before they were queued */
    unsigned long long dropped;     /* messages that were dropped */
    unsigned long long retry_after; /* ns until the message that was held back can be queued,
                                       with `space`; 0: none was, or the driver must return
                                       packets first */
};

/* Stores the numbers of messages of a flow with a `channel` contract. Returns 0. */
int netnice_flow_messages(int flow, struct netnice_messages *messages);

/* Sets when the message that is queued next arrived, in ns of CLOCK_MONOTONIC.
 * 0, and the default: when it is queued. A program whose messages are due at fixed
 * times sets these, so that its own delay does not move the deadline. An arrival
 * that is longer ago than the contract's `processing` counts as that. Returns 0. */
int netnice_flow_arrival(int flow, unsigned long long arrival);

/* Publishes the queued packets, and waits until the driver has returned all
 * packets. Returns 0. */
int netnice_flow_drain(int flow, int timeout);

struct netnice_received {
    struct sockaddr_storage from;
    size_t bytes;             /* bytes that were copied */
    size_t whole;             /* bytes of the datagram */
    unsigned long long stamp; /* time of reception, in ns of CLOCK_MONOTONIC */
};

/* Receives one datagram. Returns the number of copied bytes. `received` may be
 * NULL. */
ssize_t netnice_flow_recv(int flow, void *bytes, size_t length, struct netnice_received *received,
                          int timeout);

/* Receives the datagrams that have arrived, one into each element of `places`,
 * without waiting. Returns their number, at least 1. */
int netnice_flow_recv_batch(int flow, const struct iovec *places, struct netnice_received *received,
                            int count);

/*
 * Sending and receiving without a copy: the caller writes and reads the payload
 * in the buffers of the ring. The caller must give each buffer back by one of the
 * calls that the comment of the taking call names. The buffer is valid until then.
 */
struct netnice_buffer {
    void *data;
    size_t length; /* bytes of the buffer, or bytes received */
    unsigned long long id;
};

/* Takes a free buffer for sending. Give it back by netnice_flow_queue(),
 * netnice_flow_queue_to() or netnice_flow_discard(). */
int netnice_flow_packet(int flow, struct netnice_buffer *buffer);

/* The packet continues the message of the packet queued before it. */
#define NETNICE_GOES_ON 1

/* Queues the first `length` bytes to be sent. The driver sees them after the next
 * netnice_flow_flush(). If the call fails, the caller still holds the buffer.
 * Returns the packet's number; numbers count from 0. */
long long netnice_flow_queue(int flow, const struct netnice_buffer *buffer, size_t length,
                             unsigned int flags);

/* As netnice_flow_queue(), on a flow to any host. */
long long netnice_flow_queue_to(int flow, const struct netnice_buffer *buffer, size_t length,
                                const struct sockaddr *to, socklen_t to_length);

/* Gives a buffer back without sending it. */
int netnice_flow_discard(int flow, const struct netnice_buffer *buffer);

/* Takes the next datagram in its buffer. Give it back by netnice_flow_release().
 * `received` may be NULL. */
int netnice_flow_receive(int flow, struct netnice_buffer *buffer, struct netnice_received *received);

/* Primes the buffer of a datagram again. The driver sees it after the next
 * netnice_flow_flush(). */
int netnice_flow_release(int flow, const struct netnice_buffer *buffer);

/* Publishes what was queued and released, and notifies the driver if it sleeps. */
int netnice_flow_flush(int flow);

/* The status of a sent packet; the numbers are those of docs/reference/ring.md. */
#define NETNICE_SENT 0
#define NETNICE_FORBIDDEN 1 /* the flow is not permitted to send it */
#define NETNICE_TOO_LONG 2  /* too long for the link or the contract */
#define NETNICE_NO_LINK 3   /* the link is down, or the next hop does not answer */

struct netnice_outcome {
    unsigned long long number;
    unsigned long long stamp; /* time of sending, in ns of CLOCK_MONOTONIC; 0 if not sent */
    unsigned int status;
};

/* Stores the result of the next returned packet. 1: there was one; 0: there is
 * none. A program that needs no results need not call this: the buffers of sent
 * packets come back all the same. The flow keeps the results of the last 1024
 * returned packets that were not read yet, or of as many as it has buffers for
 * sending if those are more; each further one replaces the oldest, so gaps in
 * `number` are packets whose results were lost. */
int netnice_flow_outcome(int flow, struct netnice_outcome *outcome);

/*
 * TCP on the direct path. The program itself sends, receives, acknowledges and
 * retransmits, in a thread of the library and in its calls; the driver sends each
 * segment by the contract. Streams and listeners have numbers like flows. Any number
 * of threads may use one at the same time. A call fails with the errno of a socket:
 * ECONNREFUSED, ECONNRESET, ETIMEDOUT, EHOSTUNREACH, ECONNABORTED after
 * netnice_tcp_abort(), EPIPE after netnice_tcp_shutdown(); EAGAIN if the timeout has
 * expired. The library raises no SIGPIPE.
 */

/* The parameters of a connection or a listener. If all bytes are 0, the addresses
 * are missing and everything else has its default. A connection has `remote`; a
 * listener has `local` and no `remote`; netnice_tcp_promote() has neither, and no
 * hops and no backlog. */
struct netnice_tcp {
    const struct sockaddr *local;  /* NULL, port 0: chosen; a listener needs the address */
    const struct sockaddr *remote; /* NULL: a listener */
    socklen_t local_length;
    socklen_t remote_length;
    const char *contract;      /* NULL: best effort; of all connections of a listener together */
    unsigned int buffer_bytes; /* as in struct netnice_udp */
    unsigned int sending;      /* number of buffers for what is written and not acknowledged;
                                  0: 512, for a listener 1024, which its connections share */
    unsigned int receiving;    /* number of buffers for what is received and not read; as above */
    unsigned int hops;         /* TTL or hop limit, at most 255; 0: 64 */
    unsigned int backlog;      /* connections that may wait to be accepted; 0: 128; for a
                                  connection 0 */
    unsigned int flags;        /* 0 */
};

/* Returns the bytes of the program's memory that a connection or a listener uses; without
 * addresses, a promoted connection. A connection is 1 flow for netnice_attach(), a listener
 * with all its connections 2, and a promoted connection 1 more. */
long long netnice_tcp_bytes(const struct netnice_tcp *tcp);

/* Opens a connection, and waits until the peer has accepted it. Returns the number
 * of the stream. Fails as netnice_open_udp() too. */
int netnice_tcp_connect(int program, const struct netnice_tcp *tcp, int timeout);

/* Listens. Returns the number of the listener. Fails as netnice_open_udp(). */
int netnice_tcp_listen(int program, const struct netnice_tcp *tcp);

/* Takes the next connection of a listener. Returns the number of the stream. */
int netnice_tcp_accept(int listener, int timeout);

/* Moves a connection that a listener accepted to a flow of its own, with the contract and
 * the buffers of `tcp`. No byte is lost, also while other threads read and write. The
 * flow is closed when the stream is closed and the connection is over. Returns 0. Fails
 * as netnice_open_udp() too, with EALREADY if the connection was promoted before,
 * EOPNOTSUPP if this program opened it, ENOTCONN if both ends have shut down, and EINVAL
 * with less than 6 buffers for sending or 3 for receiving; nothing changes then. */
int netnice_tcp_promote(int stream, const struct netnice_tcp *tcp);

/* Reads at most `length` bytes, as soon as there are some. Returns their number; 0
 * if the peer has shut down its end, or `length` is 0. */
ssize_t netnice_tcp_read(int stream, void *bytes, size_t length, int timeout);

/* Writes as many bytes as there is room for, as soon as there is some. Returns their
 * number. */
ssize_t netnice_tcp_write(int stream, const void *bytes, size_t length, int timeout);

/* The same with several parts, one after the other. Those of netnice_tcp_readv()
 * must not overlap. */
ssize_t netnice_tcp_readv(int stream, const struct iovec *parts, int count, int timeout);
ssize_t netnice_tcp_writev(int stream, const struct iovec *parts, int count, int timeout);

/*
 * Payload in place, without a copy. A buffer is the caller's, and its memory is
 * valid, until it is given back by netnice_tcp_commit() or netnice_tcp_release(), or
 * the stream is closed. A buffer that is not given back is missing for sending or
 * receiving; on a listener's stream, for all its connections.
 */

/* Takes a free buffer for payload; its `length` is the largest payload of a segment.
 * Returns 0. */
int netnice_tcp_reserve(int stream, struct netnice_buffer *buffer, int timeout);

/* Sends the first `length` bytes of a buffer, at least 1, behind what was written
 * before. Returns 0. If the call fails, the caller still holds the buffer. */
int netnice_tcp_commit(int stream, const struct netnice_buffer *buffer, size_t length);

/* Takes the next received payload in its buffer. It counts as read. Returns 1, or 0
 * if the peer has shut down its end and there is no buffer. */
int netnice_tcp_receive(int stream, struct netnice_buffer *buffer, int timeout);

/* Gives a received buffer back, or a reserved one without sending it. Returns 0. */
int netnice_tcp_release(int stream, const struct netnice_buffer *buffer);

/* Shuts down the sending end: the peer reads an end after what was written. Reading
 * goes on. Returns 0. */
int netnice_tcp_shutdown(int stream);

/* The same, and waits until the peer has acknowledged everything. Returns 0. */
int netnice_tcp_finish(int stream, int timeout);

/* Resets the connection: what was not sent is lost. Returns 0. */
int netnice_tcp_abort(int stream);

/* Closes a stream or a listener. Returns 0. What was written to a stream is still
 * sent, while the program lives, see NETNICE_TCP_LINGER; if something was not read,
 * the peer gets a reset. Connections that a listener has not handed out are reset.
 * If another thread is in a call of the stream, it is closed when that call returns;
 * netnice_tcp_abort() makes such a call return. */
int netnice_tcp_close(int number);

/* Options of a stream, with their values. */
#define NETNICE_TCP_NO_DELAY 1     /* 1: send short segments at once; 0: Nagle's algorithm */
#define NETNICE_TCP_QUICK 2        /* 1: acknowledge each segment at once */
#define NETNICE_TCP_USER_TIMEOUT 3 /* ms without an acknowledgement that the peer owes, after
                                      which the connection ends: 1 to a year */
#define NETNICE_TCP_LINGER 4       /* -1: closing does not wait; else ms that it waits until all
                                      is acknowledged, before it resets; 0: resets at once */

/* Sets an option. Returns 0. Fails with ENOPROTOOPT if there is no such option, and
 * with EINVAL if the value is out of its range. */
int netnice_tcp_set(int stream, int option, long long value);

/* Probes the peer when nothing was received for `idle` ms, each `interval` ms, and
 * ends the connection when `probes` (1 to 127) were not answered. `idle` 0: does
 * not. Returns 0. */
int netnice_tcp_keepalive(int stream, long long idle, long long interval, unsigned int probes);

/* What holds the sender back. */
#define NETNICE_TCP_BY_PROGRAM 0     /* the program has written nothing more */
#define NETNICE_TCP_BY_PEER 1        /* the peer's window is full */
#define NETNICE_TCP_BY_CONGESTION 2  /* the congestion window is full */
#define NETNICE_TCP_BY_NAGLE 3       /* a short segment waits for an acknowledgement */

struct netnice_tcp_info {
    struct sockaddr_storage local;
    struct sockaddr_storage remote; /* AF_UNSPEC for a listener; all below is 0 for it but state */
    int state;                      /* TCP_ESTABLISHED, ... of <netinet/tcp.h> */
    int error;                      /* why the connection ended, an errno; else 0 */
    int held_back;                  /* NETNICE_TCP_BY_... */
    unsigned int mss;               /* largest payload of a segment, in bytes */
    unsigned int congestion_window; /* this and the next three in bytes */
    unsigned int threshold;         /* of slow start */
    unsigned int in_flight;
    unsigned int peer_window;
    unsigned long long rtt;          /* smoothed round trip in us; 0: not measured */
    unsigned long long timeout;      /* of retransmissions, in us */
    unsigned long long acknowledged; /* bytes */
    unsigned long long received;     /* bytes */
    unsigned long long segments_sent;
    unsigned long long segments_received;
    unsigned long long retransmitted; /* segments */
    unsigned long long timeouts;
};

/* Stores the state of a stream or a listener. Returns 0. */
int netnice_tcp_info(int number, struct netnice_tcp_info *info);

/*
 * Many connections over one descriptor. A program watches streams and listeners with
 * netnice_tcp_watch(), waits until netnice_tcp_descriptor() is readable, and takes the
 * events with netnice_tcp_poll(). An event comes once. The next one of its kind comes
 * when a call has found that nothing more is possible (EAGAIN, or it read or wrote less
 * than it could have), and something is possible again. This descriptor is another one
 * than netnice_descriptor(), and needs no netnice_arm().
 */
#define NETNICE_TCP_READABLE 1 /* bytes or an end can be read, or a connection accepted */
#define NETNICE_TCP_WRITABLE 2 /* there is room for bytes */
#define NETNICE_TCP_ENDED 4    /* the connection has failed, or both ends have shut down;
                                  a flow of the listener has ended */

struct netnice_tcp_event {
    int number; /* of the stream or listener */
    unsigned int events;
};

/* Returns the descriptor. The library owns it: do not read or close it. */
int netnice_tcp_descriptor(int program);

/* Begins (`on` 1) or ends (0) the events of a stream or listener. What is possible
 * already is an event. Returns 0. */
int netnice_tcp_watch(int number, int on);

/* Stores the oldest events, at most `room`, without waiting. Returns their number. */
int netnice_tcp_poll(int program, struct netnice_tcp_event *events, int room);

/* Returns a descriptor (eventfd(2)) for one stream, which becomes readable at each
 * event of the stream. Read 8 bytes from it, then make calls until they fail with
 * EAGAIN. The library owns it, and closes it with the stream. */
int netnice_tcp_event_fd(int stream);

#ifdef __cplusplus
}
#endif

#endif /* NETNICE_H */
