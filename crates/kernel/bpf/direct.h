/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What direct.bpf.c and netnice share; build.rs makes the Rust mirror of it. Addresses are in network order, IPv4's in the
 * first word with zeros behind it; ports are in network order; what is not used is zero.
 */
#ifndef NETNICE_DIRECT_H
#define NETNICE_DIRECT_H

#define MAX_ENDS 131072 /* ports and connections of direct flows */
#define MAX_HOSTS 1024 /* other IP protocols, at an address */
#define MAX_KINDS 64 /* other EtherTypes */
#define MAX_PARTS 16384 /* datagrams that are coming in parts */
#define PART_LIFETIME 2000000000 /* so many ns a datagram is whose its first part was */
#define MAX_QUEUES 64 /* receive queues of an interface */
#define MAX_GATES 65536 /* flows that can be shut for a while, by their numbers */

struct direct_ends {
	__u32 local[4];
	__u32 remote[4];
	__u16 local_port;
	__u16 remote_port;
	__u8 protocol;
	__u8 family; /* 4 or 6 */
	__u16 zero;
};

struct direct_host {
	__u32 local[4];
	__u8 protocol;
	__u8 family; /* 4 or 6 */
	__u16 zero;
};

struct direct_part {
	__u32 source[4];
	__u32 destination[4];
	__u32 id;
	__u8 protocol;
	__u8 family; /* 4 or 6 */
	__u16 zero;
};

/* Where the parts of a datagram go. */
struct direct_owner {
	__u64 since; /* its first part came, by CLOCK_MONOTONIC */
	__u32 claimed; /* 0: to the kernel */
	__u32 gate;
};

struct direct_station {
	__u8 mac[6];
	__u16 zero;
};

/* Both sides have it in their memory: the driver writes the first, the program counts in the second. */
struct direct_gate {
	__u64 shut_until; /* frames of the flow are dropped before this, by CLOCK_MONOTONIC */
	__u64 dropped; /* so many were */
};

#endif
