/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * libnetnice: channels to programs on other hosts, see netnice_channel(3). The rules of
 * netnice.h about numbers, timeouts and failures are those of these calls too.
 */
#ifndef NETNICE_CHANNEL_H
#define NETNICE_CHANNEL_H

#include <netnice.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Channels between hosts: messages from a program on one host to a program on another,
 * each by a deadline, over any number of hosts that run netniced and netnice-peer.
 * Either all of them promise their part of the deadline, or one of them refuses the
 * channel. Networks, services and channels have numbers like flows. Any number of
 * threads may use a network; only one at a time may use a service or a channel: a
 * second thread gets EBUSY. The calls fail with EPIPE if the channel has ended, and
 * then netnice_error() returns which host ended it and why. The library raises no
 * SIGPIPE. A channel carries messages in one direction; a call of the other direction
 * fails with EBADF.
 */

/* This program's ends of its channels. If all bytes are 0, everything has its default. */
struct netnice_network {
    unsigned long long slice;  /* ns of processor time that are reserved for the program in each
                                  `period`, as by netnice_change("cpu ..."); 0: none, and then a
                                  busy machine makes messages late */
    unsigned long long period; /* ns; 0 if `slice` is 0 */
    unsigned int packet;       /* longest packet with its header of 32 bytes, 128 to 1658 bytes;
                                  0: 1452; both ends of a channel need the same */
    unsigned int receiving;    /* number of buffers for packets that have arrived at an address
                                  of this host, at most 16384; 0: 1024 */
    unsigned int flags;        /* 0 */
};

/* Connects to the netnice-peer of this host, and measures what processing costs here
 * (up to half a second). Returns the number of the network. Fails with ECONNREFUSED if
 * no netnice-peer runs, and with ENOSPC or EPERM if the processor time is refused. The
 * reservation stays when the network is closed: netnice_change("cpu none") ends it. */
int netnice_channel_connect(const struct netnice_network *network);

/* Flags of both ends. */
#define NETNICE_CHANNEL_CHECKSUM 1 /* detect corrupted packets (CRC-32C); both ends need it */
/* A flag of a service. */
#define NETNICE_CHANNEL_DROP 2 /* drop a message that finds too many ones waiting for the program;
                                  without it the messages wait */

/* A channel to open. */
struct netnice_channel {
    const char *contract;        /* see below */
    const unsigned char *secret; /* 32 bytes, from which the key of the channel is derived; both
                                    ends need the same; NULL: no encryption */
    unsigned int flags;
};

/*
 * The contract of a channel is text with one clause:
 *
 *   channel mmax=64KiB,rmax=50/s,bmax=2,deadline=60ms
 *
 * Messages have at most `mmax` bytes, without any headers. At most `rmax` come in a
 * second, and `bmax` at once. Each is complete at the other host `deadline` after
 * netnice_channel_send() accepted it; messages beyond `rmax` and `bmax` count from when
 * they would have been within. `overload=` as for a flow, and `processing=`, this
 * program's part of the deadline (without it the shortest that it can keep), may follow.
 */

/* What is known of a refusal. */
struct netnice_refusal {
    unsigned long long best_deadline; /* ns: the shortest deadline that would be granted, if it is
                                         asked for at once; 0: none is known */
    char host[256];                   /* that refuses; ends with a 0 */
};

/* Opens a channel to the service `to`, for example "camera@recorder", and waits until it
 * is established or refused. Returns the number of the channel. Fails with ENOSPC if a
 * host refuses and a longer deadline would be granted, and with ECONNREFUSED if a host
 * refuses for another reason, which netnice_error() returns; with EINVAL if the contract
 * or `to` is invalid; with ECONNRESET if the connection to netnice-peer has ended.
 * `refusal` may be NULL; its bytes are 0 if no host has refused. */
int netnice_channel_open(int network, const char *to, const struct netnice_channel *channel,
                         struct netnice_refusal *refusal);

/* A service to offer. If all bytes are 0, everything has its default. */
struct netnice_service {
    const unsigned char *secret;   /* as in struct netnice_channel */
    unsigned long long longest;    /* longest `mmax` that a channel may have, in bytes, at most
                                      16 MiB; 0: 16 MiB */
    unsigned long long processing; /* ns: this program's part of the deadline; 0: the shortest that
                                      it can keep */
    unsigned int channels;         /* open at once; 0: 64 */
    unsigned int flags;
};

/* Offers a service to programs on other hosts, by a name of at most 64 lower-case
 * letters, digits, '.', '_' and '-'. Returns the number of the service. Fails with
 * EADDRINUSE if another program offers it, or netnice-peer refuses the name. */
int netnice_channel_listen(int network, const char *name, const struct netnice_service *service);

/* Stores the name of this host, by which sources ask for the service (NAME@HOST):
 * truncated to `room` - 1 bytes, and terminated by a 0. Returns its length. */
int netnice_channel_host(int service, char *host, size_t room);

/* Takes the next channel that a program on another host has opened. Returns the number
 * of the channel. Fails with ECONNRESET if the connection to netnice-peer has ended. */
int netnice_channel_accept(int service, int timeout);

/* Sends a copy of a message. Waits for room or for the time of
 * the message if the contract's `overload` says so. Returns the number of the message;
 * numbers count from 0. Fails with EAGAIN if the timeout expires, ENOBUFS if `overload`
 * drops the message, and EMSGSIZE if it is longer than `mmax`. */
long long netnice_channel_send(int channel, const void *bytes, size_t length, int timeout);

/* Waits until all messages have left this host. Returns 0. */
int netnice_channel_drain(int channel, int timeout);

/* The same, waits for as long as the last messages may be on their way, and closes the
 * channel; so they arrive. Returns 0. If it fails, the channel stays open. */
int netnice_channel_finish(int channel, int timeout);

struct netnice_departure {
    unsigned long long number;   /* of the message */
    unsigned long long logical;  /* these in ns of CLOCK_MONOTONIC: its logical arrival, */
    unsigned long long deadline; /* when it has to have left this host, */
    unsigned long long left;     /* and when it has left; 0: some packet has not */
};

/* Stores the next message that has left. 1: there was one; 0: there is none. The channel
 * keeps the first 1024 that were not read. */
int netnice_channel_departure(int channel, struct netnice_departure *departure);

struct netnice_channel_message {
    unsigned long long number;    /* as netnice_channel_send() returned it */
    unsigned long long completed; /* when its last packet was processed, in ns of CLOCK_MONOTONIC */
    size_t whole;                 /* bytes of the message */
};

/* Receives the next message. Returns its number of bytes. If it has more than `length`,
 * the call fails with EMSGSIZE, and the next call takes the same message. `message` may be
 * NULL; it is stored in this case, too. When a channel has ended, the call returns the
 * messages that have arrived, and then fails with EPIPE. */
ssize_t netnice_channel_receive(int channel, void *bytes, size_t length,
                                struct netnice_channel_message *message, int timeout);

/* Returns a descriptor for poll(2) and epoll(7). After netnice_channel_arm() has returned
 * 1, it becomes readable when a message has arrived, or one has left, or the channel ends.
 * The library owns it: do not read or close it. A service has no descriptor. */
int netnice_channel_descriptor(int channel);

/* Prepares for sleeping. 1: the descriptor will become readable. 0: something has
 * happened already, so do not sleep. */
int netnice_channel_arm(int channel);

/* Call this after sleeping, and if netnice_channel_arm() has returned 0. Returns 0. */
int netnice_channel_disarm(int channel);

struct netnice_hop {
    unsigned long long bound; /* ns for which the host may keep a message */
    char host[256];           /* ends with a 0 */
};

/* Stores the hosts of a channel, the source first, at most `room`. Their bounds sum to the
 * deadline. Returns the number of hosts, which can be more than `room`. `hops` may be NULL
 * if `room` is 0. */
int netnice_channel_hops(int channel, struct netnice_hop *hops, int room);

/* All numbers count from the opening of the channel at this end. */
struct netnice_channel_info {
    int receives;       /* 1: this end receives; 0: it sends */
    int has_ended;      /* 1: the channel has ended: `why` */
    unsigned int hosts; /* of the channel */
    char id[33];        /* as `netnice channel ls` shows it; ends with a 0 */
    char why[227];      /* ends with a 0; truncated if it is longer */
    unsigned long long retry_after; /* of a sender: ns until a message that was held back can be
                                       sent, if only time has to pass; else 0 */
    unsigned long long messages;    /* accepted, or received whole */
    unsigned long long packets;     /* submitted, or processed */
    unsigned long long dropped;     /* messages: by `overload`, or NETNICE_CHANNEL_DROP */
    /* Of a sender; 0 for a receiver. */
    unsigned long long left;   /* messages that have left this host */
    unsigned long long late;   /* of these, after their deadline at this host */
    unsigned long long unsent; /* packets that did not leave: no link, or a path too narrow */
    /* Of a receiver; 0 for a sender. */
    unsigned long long incomplete; /* messages with a part that did not arrive */
    unsigned long long overflowed; /* from here packets: dropped by a full queue, */
    unsigned long long corrupted;  /* not accepted by checksum or encryption, */
    unsigned long long malformed;  /* of another length or number of parts, */
    unsigned long long duplicates; /* arrived before, */
    unsigned long long too_late;   /* and of messages that were over */
};

/* Stores the state and the counters of a channel. Returns 0. */
int netnice_channel_info(int channel, struct netnice_channel_info *info);

/* Closes a network, a service or a channel. Returns 0. Closing a channel ends it at the
 * other end too, and messages that are on their way are lost: see
 * netnice_channel_finish(). Closing a network or a service leaves its channels open; the
 * connection to netnice-peer ends with the last of them. Fails with EBUSY if another
 * thread is in a call of the service or channel. */
int netnice_channel_close(int number);

#ifdef __cplusplus
}
#endif

#endif /* NETNICE_CHANNEL_H */
