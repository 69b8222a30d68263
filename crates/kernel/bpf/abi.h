/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the eBPF programs and the daemon agree on: the keys and values of the maps, and the numbers in them.
 *
 * This file is the only definition. build.rs reads it and writes the Rust mirror from it, so it keeps to a small
 * form: `#define NAME number`, and structs whose fields are `__u8/__u16/__u32/__u64 name;`, `__u32 name[N];` or
 * `struct other name[N];`, one a line, naturally aligned, without holes. Sizes are asserted on both sides.
 */
#ifndef NETNICE_ABI_H
#define NETNICE_ABI_H

/* Directions, from the target's point of view. */
#define DIR_UP 0
#define DIR_DOWN 1

/* The stage of a slot: where a packet continues after its detour through a stage. */
#define STAGE_CAP_UP 0
#define STAGE_CAP_DOWN 1
#define STAGE_LINK_DOWN 2
#define STAGE_HANDLED 3		/* no stage: the interface over this one handled the packet */
#define STAGE_CONTAINER_UP 4	/* the cap stage; the packet came from a container */
#define STAGE_CONTAINER_DOWN 5	/* the cap stage; the packet goes to a container */
#define STAGE_FROM_CONTAINER 6	/* no stage: the packet came from the container behind the interface */

/* iface.flags */
#define IFACE_LOOPBACK 1
#define IFACE_NO_MAC 2
#define IFACE_MANAGED_UP 4
#define IFACE_MANAGED_DOWN 8
#define IFACE_PORT 16		/* of a bridge, bond or team: the master handles its packets */
#define IFACE_BELOW 32		/* the interface below handled the packets that arrive here */
#define IFACE_VETH 64		/* the other end may be in a container */

#define DSCP_SET 64		/* in target.dscp: the lower six bits are a code point */

#define MAX_TARGETS 7280
#define MAX_QUOTAS 16384
#define QUOTAS_AROUND 8		/* quotas that hold one packet, of its target and those around it */
#define MAX_PROCESSES 262144	/* the daemon raises this to what the machine can run */
#define MAX_COOKIES 65536
#define MAX_IFACES 4096
#define MAX_SLOTS 28672
#define MAX_LINK_CLASSES 65536
#define MAX_LINK_LEAVES 131072	/* a target that yields has some on every managed link */
#define MAX_FLOWS 65536
#define MAX_CGROUP_LEVELS 24
#define MAX_GROUP_NAME 256	/* including the terminating zero */
#define PORT_WORDS 2048		/* 32 ports in each word */
#define MAX_REDIRECTS 256	/* redirected targets of all links */
#define REDIRECT_GROUPS 32	/* flows of a redirected target are counted in 32 groups of 32 */
#define REDIRECT_OVERHEAD 128	/* bytes that a waiting packet counts beyond its length */

/* A packet longer than this is never sparse. */
#define MAX_SPARSE 3028

/* The queues of a class. 0: no class. */
struct leaf {
	__u32 sparse;		/* class id, major:minor, of the leaf for flows far below their share */
	__u32 bulk;		/* class id of the leaf for all other flows */
	__u32 local;		/* class id of the leaf for other flows on lo with long packets */
	__u32 patient;		/* class id of the leaf for other flows whose sender waits (not TCP) */
	__u32 window_us;	/* length of a window of the flow accounting, in microseconds */
	__u32 window_bytes;	/* bytes that the class is assured in a window */
	__u32 bound;		/* bytes that may wait in the bulk leaf; 0: not counted, its queue drops */
	__u32 longest;		/* longest packet in bytes that the bulk leaf takes whole; 0: any */
	__u32 rate;		/* of the limit, in bytes per second; 0 on a link */
	__u32 redirect;		/* place in redirects, counted from one, on a link; 0: none */
};

/* targets: target id -> the queues that hold its packets, and their code point. */
struct target {
	__u32 counters;		/* target id under which packets are counted */
	__u32 dscp;		/* DSCP_SET and the code point of what it sends; 0: packets keep theirs */
	__u64 quotas[8];	/* keys of the quotas that hold its packets; 0 ends the list */
	struct leaf cap[2];	/* by direction: leaf of the nearest limit around the target */
};

/* quota_limits: a quota -> what may pass. The daemon alone writes it, each entry at once. */
struct quota_limit {
	__u64 start;		/* begin of the period, in nanoseconds since 1970; for the daemon */
	__u64 base;		/* count of bytes at the begin of the period, modulo 2^64 */
	__u64 limit;		/* bytes that may pass in the period; all bits set: only counted */
	__u64 refused_base;	/* count of refused packets at the begin of the period; for the daemon */
	__u32 directions;	/* bit 0: up counts, bit 1: down counts */
	__u32 pad;
};

/* quota_counts: a quota -> what has passed since the entry was made. The programs alone change it. */
struct quota_count {
	__u64 bytes;		/* wire bytes that passed */
	__u64 refused;		/* packets that did not fit; one of segmentation offload counts once */
	__u64 refused_bytes;	/* wire bytes of these */
};

/* links: (interface, target id, direction) -> its class on a managed link. */
struct link_key {
	__u32 ifindex;
	__u32 target;
	__u32 dir;
};

/* ifaces: interface index -> the slots that return packets to it, and its managed directions. */
struct iface {
	__u16 slot_up;		/* tc_index that returns a packet to this interface's egress */
	__u16 slot_down;	/* tc_index that returns a packet from the cap stage to ingress */
	__u16 slot_link;	/* tc_index that returns a packet from the receive stage to ingress */
	__u16 flags;		/* IFACE_* */
	__u32 link_stage;	/* interface index of this link's own receive stage */
	__u16 slot_handled;	/* tc_index of a packet from an interface over this one */
	__u16 slot_below;	/* slot_handled of the interface below this one; 0: none */
	__u16 slot_container_up;	/* tc_index that returns a container's packet to ingress */
	__u16 slot_container_down;	/* tc_index that returns a packet for a container to egress */
	__u16 slot_from_container;	/* tc_index of a packet of the container, on its way to a link */
	__u16 path_count;	/* place in path_counts, if managed for sending; 0: none */
	__u32 redirect_pair;	/* interface index of the near end of the redirect pair; 0: none */
	struct leaf rest[2];	/* by direction: class of traffic without a target, if managed */
};

/* path_counts: place -> what the classes of a managed link were given to send. A driver of the direct
 * path maps this array, and reads each number by itself. */
struct path_count {
	__u64 bytes;		/* on the wire, with the headers of each segment */
	__u64 packets;		/* each segment counts */
};

/* redirects: place -> what a redirected target has in the redirect pair of a link and in its driver.
 * The driver maps this array. The program on egress writes `entered` and `refused`, the driver all
 * else. The counts are modulo 2^32, and each packet counts REDIRECT_OVERHEAD bytes more than it
 * has. A packet that is lost on the way stays counted, until the driver finds that the place is
 * idle. */
struct redirect_flow {
	__u32 entered;
	__u32 left;
};

struct redirect_group {
	struct redirect_flow flows[32];
};

struct redirect {
	__u64 alive_until;	/* until then the driver takes packets; CLOCK_MONOTONIC, in ns */
	__u64 refused;		/* packets, with each segment */
	__u32 entered;		/* of all flows */
	__u32 left;
	__u32 bound;		/* what may wait */
	__u32 active;		/* flows with packets that wait */
	struct redirect_group groups[32];	/* a flow's bucket: group * 32 + place in the group */
};

/* slots: tc_index -> the interface and the stage that the slot names. */
struct slot {
	__u32 ifindex;
	__u32 stage;		/* STAGE_* */
};

/* procs: thread-group id -> the targets of its new sockets. 0: none. */
struct proc {
	__u32 process;		/* target defined by pid, by run or by name */
	__u32 app;		/* target defined by executable */
};

/* sock_owners: a socket's owner. cookie_owners: by cookie, the owner of a socket whose option
 * memory (net.core.optmem_max) has no room for a tag. An entry there overrides the tag. */
struct sock_owner {
	__u32 process;
	__u32 app;
	__u32 uid;
	__u32 inode;		/* in cookie_owners: the socket's inode, to detect that it is gone */
};

/* sock_cgroups: the cgroup target of a socket, valid while the generation is the current one.
 * cookie_cgroups: the same, by the socket's cookie, of sockets that have no room for a tag. */
struct sock_cgroup {
	__u32 target;
	__u32 generation;
};

/* tcp_tunings: what netnice set of a TCP connection, so that it can be taken back. 0: nothing. */
struct tcp_tuning {
	__u32 window;		/* the most packets in flight */
	__u32 pacing;		/* the highest rate in bytes per second */
};

/* expected_groups: name of a cgroup that will belong to a target -> target. The name is the path
 * from the root, or the last component alone for a cgroup that has only slices above it. */
struct group_name {
	__u64 text[32];		/* padded with zeros */
};

/* apps: executable -> target. */
struct app_key {
	__u64 inode;
	__u32 dev;		/* the kernel's internal form: major << 20 | minor */
	__u32 pad;
};

/* container_flows: a flow that a container sent by a managed link -> the container's target. With
 * the addresses and ports that it has there, behind address translation. */
struct container_flow {
	__u32 local[4];		/* address on this side, in network byte order; IPv4: the first word */
	__u32 remote[4];
	__u16 local_port;	/* network byte order */
	__u16 remote_port;
	__u32 proto;		/* IPPROTO_TCP or IPPROTO_UDP */
};

/* settings: one entry, read by the programs that handle sockets and packets. */
struct settings {
	__u64 netns_cookie;	/* the served namespace; the programs ignore other sockets */
	__u32 cap_stage;	/* interface index of nn0; 0: no cap anywhere */
	__u32 generation;	/* generation of the cgroup targets */
	__u32 cgroups;		/* whether cgroup targets exist or are expected */
	__u32 users;		/* number of user targets */
	__u32 targets;		/* number of targets */
	__u32 links;		/* number of managed links */
	__u32 containers;	/* number of containers that are targets */
	__u32 cookie_owners;	/* whether the map cookie_owners may have entries */
	__u32 key[2];		/* random; a packet returned by a stage carries it in cb */
};

/* counters: (target id, direction) -> traffic on the first pass, before any queue. */
struct counter_key {
	__u32 target;
	__u32 dir;
};

struct counter {
	__u64 packets;		/* segments, as on the wire */
	__u64 bytes;		/* wire bytes: layer 2 without preamble and gap */
	__u64 dropped;		/* packets among these that found the class full */
	__u64 dropped_bytes;	/* wire bytes of the dropped packets */
};

/* flows and windows: the accounting of one bulk leaf. The daemon removes the window when it makes the
 * leaf's queue anew; then what was in the queue is gone. */
struct window_key {
	__u32 leaf;		/* class id of the bulk leaf */
	__u32 link;		/* index of the managed link (links share ids); 0: cap stage */
};

struct flow_key {
	struct window_key window;
	__u32 hash;
};

/* What is in a queue of the cap stage, or of one flow in all of them: wire bytes that entered and
 * left, modulo 2^32. */
struct content {
	__u32 entered;
	__u32 left;
	__u64 moved_ns;		/* when it last left, or entered an empty queue */
};

struct flow {
	__u32 epoch;
	__u32 bytes;		/* in this window */
	__u32 last_bytes;	/* in the window before */
	__u32 dropped_ms;	/* time of the last drop of a received packet */
	__u32 dropped_seq;	/* its sequence number, if it was of TCP */
	__u32 generation;	/* of the window to which `inside` belongs */
	__u32 long_on_lo;	/* whether its last packet entered the local leaf */
	__u32 bulk_epoch;	/* as window.bulk, when it last had a packet that was not sparse */
	struct content inside;	/* in all leaves but the sparse one */
};

struct window {
	__u32 epoch;
	__u32 active;		/* flows seen in this window */
	__u32 last_active;
	__u32 sparse_bytes;	/* sent to the sparse leaf in this window */
	__u64 bytes;
	__u64 last_bytes;
	__u32 generation;	/* differs each time that the entry is made */
	__u32 local_ms;		/* time of the last packet in the local leaf; 0: none */
	__u32 bulk;		/* flows with a packet that was not sparse, in these BULK_WINDOWS windows */
	__u32 last_bulk;	/* the same of the windows before */
	struct content queues[2];	/* of the bulk leaf, and of the local leaf */
};

/* events: notifications to the daemon. */
struct event {
	__u32 kind;		/* EVENT_* */
	__u32 tgid;
	__u32 process;
	__u32 app;
};

#define EVENT_EXIT 1

/* counts: what the programs count for the daemon, by index. */
#define COUNT_MISSED_FORKS 0	/* children that could not join their parent's targets */
#define COUNT_COOKIE_CGROUPS 1	/* entries made in cookie_cgroups since it was last empty */
#define COUNT_LOCAL 2	/* packets that entered a local leaf */
#define COUNTS 3

#endif
