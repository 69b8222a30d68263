/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The interface between direct.bpf.c and netnice; build.rs generates the Rust mirror of it.
 * Addresses are in network order, an IPv4 address in the first word with zeros behind it. Ports are
 * in network order. Unused fields are zero.
 */
#ifndef NETNICE_DIRECT_H
#define NETNICE_DIRECT_H

#define MAX_ENDPOINTS 131072 /* ports and connections of direct flows */
#define MAX_PROTOCOLS 1024 /* other IP protocols at an address */
#define MAX_ETHERTYPES 64 /* other EtherTypes */
#define MAX_DATAGRAMS 16384 /* datagrams whose fragments are arriving */
#define FRAGMENT_LIFETIME 2000000000 /* ns for which a first fragment decides for its datagram */
#define MAX_QUEUES 64 /* receive queues of an interface */
#define MAX_GATES 65536 /* flows that can be suspended, by their numbers */

struct direct_endpoints {
	__u32 local[4];
	__u32 remote[4];
	__u16 local_port;
	__u16 remote_port;
	__u8 protocol;
	__u8 family; /* 4 or 6 */
	__u16 syn; /* 1: only segments of TCP with SYN and without ACK */
};

struct direct_protocol {
	__u32 local[4];
	__u8 protocol;
	__u8 family; /* 4 or 6 */
	__u16 zero;
};

struct direct_datagram {
	__u32 source[4];
	__u32 destination[4];
	__u32 id;
	__u8 protocol;
	__u8 family; /* 4 or 6 */
	__u16 zero;
};

/* The destination of the fragments of a datagram. */
struct direct_decision {
	__u64 since; /* arrival of the first fragment, by CLOCK_MONOTONIC, in ns */
	__u32 matched; /* 0: the fragments pass to the kernel */
	__u32 gate;
};

struct direct_mac {
	__u8 mac[6];
	__u16 zero;
};

/* In a map that the driver maps into its memory. The driver writes the first field, the XDP program
 * the second. */
struct direct_gate {
	__u64 suspended_until; /* until then the flow's frames are dropped; CLOCK_MONOTONIC, in ns */
	__u64 dropped; /* number of frames dropped */
};

#endif
