/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Counts the bytes and packets that each socket of the served network namespace sends and receives,
 * whether or not its program belongs to a target. The daemon loads these programs while a client
 * asks for the traffic of programs, and unloads them afterwards.
 *
 * Each packet is counted in `totals`, and in the entry of its socket in `counted`. If that map is
 * full, the packet is counted in the entry of the socket's user in `overflow`. So the totals are
 * complete even if a map is full.
 *
 * A packet is counted where the kernel's stack passes it to or from its socket: when sending before
 * any limit and queue, when receiving after them. If a limit refuses a segment, TCP offers the same
 * segment again, and it is counted once: see count_sent().
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "usage.h"
#include "map.h"

#define DIR_UP 0
#define DIR_DOWN 1

_Static_assert(sizeof(struct creator) == 40, "creator");
_Static_assert(sizeof(struct traffic) == 32, "traffic");
_Static_assert(sizeof(struct counted) == 104, "counted");

MAP(BPF_MAP_TYPE_ARRAY, 1, __u32, __u64, 0, served);
MAP(BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct traffic, 0, totals);
MAP(BPF_MAP_TYPE_HASH, MAX_COUNTED, __u64, struct counted, BPF_F_NO_PREALLOC, counted);
MAP(BPF_MAP_TYPE_HASH, MAX_COUNTED_USERS, __u32, struct traffic, BPF_F_NO_PREALLOC, overflow);
MAP(BPF_MAP_TYPE_SK_STORAGE, 0, int, struct creator, BPF_F_NO_PREALLOC | BPF_F_CLONE, creators);

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct task_struct {
	int tgid;
	__u64 start_boottime;
	char comm[COMMAND_LEN];
	struct task_struct *group_leader;
};
struct net {
	__u64 net_cookie;
};
struct possible_net_core {
	struct net *net;
};
struct sock_common {
	struct possible_net_core skc_net;
};
struct sock {
	struct sock_common __sk_common;
};
#pragma clang attribute pop

#define NS_PER_TICK 10000000	/* of the clock that /proc/PID/stat reports start times in */

/* The cookie of the served network namespace. */
static __always_inline __u64 served_namespace(void)
{
	__u32 zero = 0;
	__u64 *cookie = bpf_map_lookup_elem(&served, &zero);

	return cookie ? *cookie : 0;
}

/* Notes the process that makes a socket. */
SEC("cgroup/sock_create")
int on_socket_made(struct bpf_sock *ctx)
{
	struct creator by = {};
	struct task_struct *task, *leader = 0;
	__u64 started = 0;

	if (bpf_get_netns_cookie(ctx) != served_namespace())
		return 1;
	task = (struct task_struct *)bpf_get_current_task();
	bpf_probe_read_kernel(&leader, sizeof(leader), &task->group_leader);
	bpf_probe_read_kernel(&by.tgid, sizeof(by.tgid), &leader->tgid);
	bpf_probe_read_kernel(&started, sizeof(started), &leader->start_boottime);
	bpf_probe_read_kernel_str(by.command, sizeof(by.command), &leader->comm);
	by.started = started / NS_PER_TICK;
	by.cookie = bpf_get_socket_cookie(ctx);
	bpf_sk_storage_get(&creators, ctx, &by, BPF_SK_STORAGE_GET_F_CREATE);
	return 1;
}

/* The cookie of a socket's network namespace. The verifier permits no arithmetic on a pointer to a
 * socket, so the pointer is read back from the stack as a number. */
static __always_inline __u64 namespace_of(struct bpf_sock *sk)
{
	struct bpf_sock *pointer = sk;
	struct sock *at = 0;
	struct net *net = 0;
	__u64 cookie = 0;

	bpf_probe_read_kernel(&at, sizeof(at), &pointer);
	bpf_probe_read_kernel(&net, sizeof(net), &at->__sk_common.skc_net.net);
	bpf_probe_read_kernel(&cookie, sizeof(cookie), &net->net_cookie);
	return cookie;
}

/* The headers of a packet, which begins with that of IP. */
struct headers {
	__u32 length;		/* bytes of all of them */
	bool is_tcp;
	__u32 seq;		/* of TCP, in host order */
};

/* Reads the headers. Extension headers of IPv6 count as payload. */
static __always_inline void read_headers(struct __sk_buff *skb, struct headers *found)
{
	__u8 first = 0, protocol = 0, offset = 0;
	__u32 seq = 0;

	found->length = 0;
	found->is_tcp = false;
	if (bpf_skb_load_bytes(skb, 0, &first, 1))
		return;
	if (first >> 4 == 4) {
		found->length = (first & 15) * 4;
		bpf_skb_load_bytes(skb, offsetof(struct iphdr, protocol), &protocol, 1);
	} else {
		found->length = sizeof(struct ipv6hdr);
		bpf_skb_load_bytes(skb, offsetof(struct ipv6hdr, nexthdr), &protocol, 1);
	}
	if (protocol == IPPROTO_UDP) {
		found->length += sizeof(struct udphdr);
	} else if (protocol == IPPROTO_TCP) {
		if (bpf_skb_load_bytes(skb, found->length + offsetof(struct tcphdr, seq), &seq, 4))
			return;
		if (bpf_skb_load_bytes(skb, found->length + 12, &offset, 1))
			return;
		found->is_tcp = true;
		found->seq = bpf_ntohl(seq);
		found->length += (offset >> 4) * 4;
	}
}

/* Makes the entry of a socket at its first packet. 0: not of the served namespace, or no room. */
static __noinline int make_entry(struct __sk_buff *skb, __u64 cookie)
{
	struct bpf_sock *sk = skb->sk;
	struct counted fresh = {};
	struct creator *by;

	if (!sk)
		return 0;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return 0;
	by = bpf_sk_storage_get(&creators, sk, 0, 0);
	if (by)
		fresh.creator = *by;
	fresh.cgroup = bpf_skb_cgroup_id(skb);
	fresh.uid = bpf_get_socket_uid(skb);
	fresh.port = sk->src_port;
	fresh.protocol = sk->protocol;
	/* Another processor may have made the entry meanwhile. */
	bpf_map_update_elem(&counted, &cookie, &fresh, BPF_NOEXIST);
	return 1;
}

/* The counts of a user for whose sockets there is no room. */
static __noinline struct traffic *user_entry(struct __sk_buff *skb)
{
	__u32 uid = bpf_get_socket_uid(skb);
	struct traffic none = {}, *of_user;

	of_user = bpf_map_lookup_elem(&overflow, &uid);
	if (of_user)
		return of_user;
	bpf_map_update_elem(&overflow, &uid, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&overflow, &uid);
}

static __always_inline void add(struct traffic *to, __u32 dir, __u64 bytes, __u64 packets)
{
	__sync_fetch_and_add(&to->bytes[dir], bytes);
	__sync_fetch_and_add(&to->packets[dir], packets);
}

/* Subtracts the last segments if TCP offers them again because a limit refused them. TCP advances
 * snd_nxt after the segments were accepted; so if snd_nxt is still their sequence number when the
 * same number is sent, the former segments did not leave. TCP sends with the socket locked. */
static __always_inline void count_sent(struct __sk_buff *skb, struct bpf_sock *sk,
				       struct counted *entry, struct headers *headers, __u64 *bytes,
				       __u64 *packets)
{
	struct bpf_tcp_sock *tcp = bpf_tcp_sock(sk);
	__u64 new_bytes = *bytes, new_packets = *packets;

	if (!tcp || tcp->snd_nxt != headers->seq || skb->len <= headers->length)
		return;
	if (entry->retry_bytes && entry->retry_seq == headers->seq) {
		*bytes -= entry->retry_bytes;
		*packets -= entry->retry_packets;
	}
	entry->retry_seq = headers->seq;
	entry->retry_bytes = new_bytes;
	entry->retry_packets = new_packets;
}

static __always_inline int count(struct __sk_buff *skb, __u32 dir)
{
	__u64 cookie = bpf_get_socket_cookie(skb), packets = skb->gso_segs ? skb->gso_segs : 1, bytes;
	struct headers headers = {};
	struct traffic *all, *of_user;
	struct counted *entry;
	struct bpf_sock *sk = skb->sk;
	__u32 zero = 0;

	if (!sk || !cookie)
		return 1;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return 1;
	entry = bpf_map_lookup_elem(&counted, &cookie);
	if (!entry) {
		if (namespace_of(sk) != served_namespace())
			return 1;
		if (make_entry(skb, cookie))
			entry = bpf_map_lookup_elem(&counted, &cookie);
	}
	if (packets > 1 || (dir == DIR_UP && sk->protocol == IPPROTO_TCP))
		read_headers(skb, &headers);
	/* Each segment has its own headers on the wire. */
	bytes = skb->len + ETH_HLEN + (packets - 1) * (headers.length + ETH_HLEN);
	if (entry && dir == DIR_UP && headers.is_tcp)
		count_sent(skb, sk, entry, &headers, &bytes, &packets);
	all = bpf_map_lookup_elem(&totals, &zero);
	if (all) {
		/* A program on this processor may be interrupted by another one. */
		add(all, dir, bytes, packets);
	}
	if (entry) {
		add(&entry->traffic, dir, bytes, packets);
		return 1;
	}
	of_user = user_entry(skb);
	if (of_user)
		add(of_user, dir, bytes, packets);
	return 1;
}

SEC("cgroup_skb/egress")
int on_sent(struct __sk_buff *skb)
{
	return count(skb, DIR_UP);
}

SEC("cgroup_skb/ingress")
int on_received(struct __sk_buff *skb)
{
	return count(skb, DIR_DOWN);
}

char _license[] SEC("license") = "Dual BSD/GPL";
