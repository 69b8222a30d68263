/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What usage.bpf.c and the daemon agree on. build.rs writes the Rust mirror from this file, so it
 * keeps to the form that the head of abi.h describes.
 */
#ifndef NETNICE_USAGE_H
#define NETNICE_USAGE_H

#define MAX_COUNTED 131072	/* sockets with an entry of their own */
#define MAX_COUNTED_USERS 1024	/* users with an entry in `overflow` */
#define COMMAND_LEN 16		/* including the terminating zero */

/* creators: the process that made a socket. An accepted socket has a copy of its listener's
 * entry, whose cookie is the listener's. */
struct creator {
	__u64 cookie;		/* of the socket that the process made */
	__u64 started;		/* start time of the process, in clock ticks since boot */
	__u32 tgid;		/* 0: not known */
	__u32 pad;
	__u8 command[16];	/* its command name at that time */
};

/* traffic: wire bytes and packets since counting began, by direction. */
struct traffic {
	__u64 bytes[2];
	__u64 packets[2];
};

/* counted: cookie of a socket -> its traffic. */
struct counted {
	struct traffic traffic;
	struct creator creator;
	__u64 cgroup;		/* id of the control group in which it was made */
	__u64 retry_bytes;	/* wire bytes of the last new segments that TCP offered */
	__u32 retry_packets;
	__u32 retry_seq;	/* sequence number of the first of them */
	__u32 uid;
	__u16 port;		/* local port */
	__u16 protocol;		/* of IP */
};

#endif
