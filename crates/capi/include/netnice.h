/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * libnetnice: what a process, a process group or a user may send and receive,
 * in the manner of getpriority(2) and setpriority(2), see netnice_set(3); and
 * flows of UDP past the kernel, see netnice_flow(3).
 */
#ifndef NETNICE_H
#define NETNICE_H

#include <sys/socket.h> /* struct sockaddr_storage, socklen_t */
#include <sys/types.h>  /* id_t, size_t, ssize_t */
#include <sys/uio.h>    /* struct iovec */

#ifdef __cplusplus
extern "C" {
#endif

/* Values of `which`; they are those of PRIO_PROCESS, PRIO_PGRP and PRIO_USER. */
#define NETNICE_PROCESS 0
#define NETNICE_PGRP 1
#define NETNICE_USER 2

/* No limit. */
#define NETNICE_UNLIMITED 0

/* The netnice value in bytes per second, 0 where there is no limit; -1 on
 * failure, with errno set. `who` 0 is the caller. */
long long netnice_get(int which, id_t who);

/* Sets the netnice value in bytes per second, 0 for no limit. Returns 0, or -1
 * with errno set. `who` 0 is the caller. */
int netnice_set(int which, id_t who, long long value);

/*
 * The direct path. All calls return -1 on failure, with errno set. Programs and
 * flows are named by numbers that these calls give out; they are no file
 * descriptors. A flow is used by one thread at a time: a second one gets EBUSY.
 * A timeout is in milliseconds; 0 does not wait, -1 waits for ever, and a time
 * that is over is EAGAIN.
 */

/* What the last call of this thread that failed has to say beside errno: the
 * daemon's reason, say. Never NULL; valid until the thread's next failure. */
const char *netnice_error(void);

/* Takes part on the link `iface`, NULL for the only one that is managed, with at
 * most `flows` flows at a time and `bytes` bytes for the buffers of all of them
 * (netnice_buffer_bytes() for each). Returns the program's number. */
int netnice_attach(const char *iface, unsigned int flows, unsigned long long bytes);

/* Closes all flows of the program, and ends its part. */
int netnice_detach(int program);

/* A descriptor for poll(2) and epoll(7): readable when netnice_hear() has
 * something to say. It stays the library's. */
int netnice_descriptor(int program);

/* Says that the caller sleeps from now on. 1: the descriptor becomes readable
 * when something happens. 0: something has happened already. */
int netnice_arm(int program);

/* After sleeping: stores the numbers of flows in which there is something new,
 * and returns how many they are. At most `room` at a time: call again if it was
 * filled. `flows` may be NULL if `room` is 0. */
int netnice_hear(int program, int *flows, int room);

/* What happened without having been asked for. */
#define NETNICE_NEWS_LINK 1     /* `up`: the link is up, or down */
#define NETNICE_NEWS_MTU 2      /* `mtu` of the flow */
#define NETNICE_NEWS_NEXT_HOP 3 /* `up`: the next station answers, and is `mac` */
#define NETNICE_NEWS_DEGRADED 4 /* the flow gets less than was granted: `why` */
#define NETNICE_NEWS_CLOSED 5   /* the flow is closed: `why` */
#define NETNICE_NEWS_ENDED 6    /* all flows are closed: `why` */

struct netnice_news {
    int kind;
    int flow; /* -1 if it is about no flow, or one that is not open any more */
    int up;
    unsigned int mtu;
    unsigned char mac[6];
    char why[234]; /* ends with a 0, cut if it is longer */
};

/* The next of the news. 1: there was one; 0: there is none. */
int netnice_news(int program, struct netnice_news *news);

/* How a flow of UDP is to be. All bytes 0: to nobody yet, best effort, usual
 * buffers. */
#define NETNICE_UDP_GROUP 1     /* `remote` is a group: be a member */
#define NETNICE_UDP_SEND_ONLY 2 /* no buffers to receive into */
#define NETNICE_UDP_VERIFY 4    /* refuse half a checksum, too */
#define NETNICE_UDP_TRUST 8     /* do not look at checksums */
#define NETNICE_UDP_IN_ORDER 16 /* of datagrams in parts, none behind a gap */

struct netnice_udp {
    const struct sockaddr *local;  /* NULL, port 0: chosen; to any host it is needed */
    const struct sockaddr *remote; /* NULL: any host, see netnice_flow_send_to() */
    socklen_t local_length;
    socklen_t remote_length;
    const char *contract;      /* NULL: best effort */
    unsigned int buffer_bytes; /* of each; a power of two; 0: 2048 */
    unsigned int sending;      /* buffers; 0: 64 */
    unsigned int receiving;    /* buffers; 0: 64 */
    unsigned int hops;         /* TTL or hop limit; 0: 64, of a group 1 */
    unsigned int flags;
};

/* Bytes of the program's memory that such a flow takes. */
long long netnice_buffer_bytes(const struct netnice_udp *udp);

/* Opens a flow. Returns its number. */
int netnice_open_udp(int program, const struct netnice_udp *udp);

/* Closes a flow; what waits in it is not sent. */
int netnice_flow_close(int flow);

/* Asks for another contract; the old one stays if it is refused. */
int netnice_flow_change(int flow, const char *contract);

struct netnice_flow_info {
    struct sockaddr_storage local;
    struct sockaddr_storage remote; /* AF_UNSPEC if it is any host */
    size_t longest;                 /* bytes of payload at most, now */
    unsigned long long under_way;   /* packets that have not come back */
    unsigned long long no_buffer;   /* received packets that were lost: no buffer was primed, */
    unsigned long long over_share;  /* the driver had no time for them, */
    unsigned long long too_long;    /* or they were longer than a buffer */
    unsigned long long dropped;     /* frames without a datagram for this flow */
    unsigned int id;                /* by which the daemon knows it */
    char contract[212];             /* ends with a 0, cut if it is longer */
};

/* Tells how a flow stands. */
int netnice_flow_info(int flow, struct netnice_flow_info *info);

/* Sends one datagram. Returns its bytes. */
ssize_t netnice_flow_send(int flow, const void *bytes, size_t length, int timeout);

/* The same on a flow to any host. */
ssize_t netnice_flow_send_to(int flow, const void *bytes, size_t length, const struct sockaddr *to,
                             socklen_t to_length, int timeout);

/* Sends as many of these datagrams as there are buffers for, without waiting.
 * Returns how many. */
int netnice_flow_send_batch(int flow, const struct iovec *datagrams, int count);

/* Sends a message of a real-time channel: each part is a datagram; all of them
 * go, or none. Returns 0. */
int netnice_flow_send_message(int flow, const struct iovec *parts, int count, int timeout);

/* Waits until all that was sent has come back. */
int netnice_flow_drain(int flow, int timeout);

struct netnice_received {
    struct sockaddr_storage from;
    size_t bytes;             /* that there was room for */
    size_t whole;             /* that the datagram had */
    unsigned long long stamp; /* when it came, in ns of CLOCK_MONOTONIC */
};

/* Receives one datagram. Returns how many bytes there was room for. `received`
 * may be NULL. */
ssize_t netnice_flow_recv(int flow, void *bytes, size_t length, struct netnice_received *received,
                          int timeout);

/* Receives as many datagrams as have come, without waiting, one into each
 * place. Returns how many, at least 1. */
int netnice_flow_recv_batch(int flow, const struct iovec *places, struct netnice_received *received,
                            int count);

/*
 * Without copies: the payload is written and read where the driver takes it
 * from and puts it. Whoever took a buffer gives it back, by one of the calls
 * named with it; until then it may be used, and never after.
 */
struct netnice_buffer {
    void *data;
    size_t length; /* bytes of room, or that were received */
    unsigned long long id;
};

/* A free buffer to send from: for netnice_flow_queue() or _discard(). */
int netnice_flow_packet(int flow, struct netnice_buffer *buffer);

/* Goes on with the message that the packet before it began. */
#define NETNICE_GOES_ON 1

/* Hands the first `length` bytes over to be sent, with the next
 * netnice_flow_flush(). Where it fails, the buffer is still the caller's.
 * Returns the packet's number: they count from 0. */
long long netnice_flow_queue(int flow, const struct netnice_buffer *buffer, size_t length,
                             unsigned int flags);

/* The same on a flow to any host. */
long long netnice_flow_queue_to(int flow, const struct netnice_buffer *buffer, size_t length,
                                const struct sockaddr *to, socklen_t to_length);

/* Gives a buffer back unsent. */
int netnice_flow_discard(int flow, const struct netnice_buffer *buffer);

/* The next datagram, in its buffer: for netnice_flow_release(). `received` may
 * be NULL. */
int netnice_flow_receive(int flow, struct netnice_buffer *buffer, struct netnice_received *received);

/* Primes the buffer of a datagram again, with the next netnice_flow_flush(). */
int netnice_flow_release(int flow, const struct netnice_buffer *buffer);

/* Shows the driver what was queued and released. */
int netnice_flow_flush(int flow);

/* What became of a packet; the numbers are those of docs/reference/ring.md. */
#define NETNICE_SENT 0
#define NETNICE_FORBIDDEN 1 /* the flow may not send it */
#define NETNICE_TOO_LONG 2  /* for the link or the contract */
#define NETNICE_NO_LINK 3   /* the link is down, or the next station does not answer */

struct netnice_outcome {
    unsigned long long number;
    unsigned long long stamp; /* when it was sent, in ns of CLOCK_MONOTONIC; 0 if it was not */
    unsigned int status;
};

/* The next packet that came back. 1: there was one; 0: there is none. */
int netnice_flow_outcome(int flow, struct netnice_outcome *outcome);

#ifdef __cplusplus
}
#endif

#endif /* NETNICE_H */
