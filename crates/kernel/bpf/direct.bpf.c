/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Selects the frames that go to direct flows instead of the kernel's own stack. Frames to this
 * station whose endpoints, protocol or EtherType are registered go to the driver's socket. All
 * other frames pass to the kernel, and so do frames that this program cannot parse. If the frame's
 * queue has no socket, the frame passes. A flow that has used up its share of the driver's time is
 * suspended for a while: this program drops its frames, at the cost of their sender or of the
 * interface.
 *
 * The value of a registered key is the number of its flow's gate, counted from one, or zero for no
 * gate.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "direct.h"
#include "map.h"

_Static_assert(sizeof(struct direct_ends) == 40, "direct_ends");
_Static_assert(sizeof(struct direct_host) == 20, "direct_host");
_Static_assert(sizeof(struct direct_part) == 40, "direct_part");
_Static_assert(sizeof(struct direct_owner) == 16, "direct_owner");
_Static_assert(sizeof(struct direct_station) == 8, "direct_station");
_Static_assert(sizeof(struct direct_gate) == 16, "direct_gate");

MAP(BPF_MAP_TYPE_ARRAY, 1, __u32, struct direct_station, 0, station);
MAP(BPF_MAP_TYPE_HASH, MAX_ENDS, struct direct_ends, __u32, BPF_F_NO_PREALLOC, ends);
MAP(BPF_MAP_TYPE_HASH, MAX_HOSTS, struct direct_host, __u32, BPF_F_NO_PREALLOC, hosts);
MAP(BPF_MAP_TYPE_HASH, MAX_KINDS, __u16, __u32, BPF_F_NO_PREALLOC, kinds);
MAP(BPF_MAP_TYPE_LRU_HASH, MAX_PARTS, struct direct_part, struct direct_owner, 0, parts);
MAP(BPF_MAP_TYPE_XSKMAP, MAX_QUEUES, __u32, __u32, 0, sockets);
MAP(BPF_MAP_TYPE_ARRAY, MAX_GATES, __u32, struct direct_gate, BPF_F_MMAPABLE, gates);

#define FRAGMENT_HEADER 44
#define V4_OFFSET 0x1fff
#define V4_MORE 0x2000
#define V6_OFFSET 0xfff8
#define V6_MORE 0x0001

/* The fields of the headers of one packet. */
struct packet {
	struct direct_ends ends; /* endpoints, as for a protocol with ports */
	__u32 id;
	bool part; /* a fragment of a datagram */
	bool first; /* the first fragment, or a whole datagram */
	bool group;
};

struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 place;
	__be32 id;
};

static __always_inline int to_driver(struct xdp_md *ctx)
{
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

/* Redirects to the driver, unless the flow of this gate is suspended. */
static __always_inline int pass_gate(struct xdp_md *ctx, __u32 number)
{
	struct direct_gate *gate;
	__u32 index = number - 1;

	gate = number ? bpf_map_lookup_elem(&gates, &index) : NULL;
	if (gate && *(volatile __u64 *)&gate->shut_until > bpf_ktime_get_ns()) {
		__sync_fetch_and_add(&gate->dropped, 1);
		return XDP_DROP;
	}
	return to_driver(ctx);
}

/* Looks up both endpoints, then the local endpoint, then the port at any unicast address. */
static __always_inline __u32 *claim_of(struct direct_ends *key, bool group)
{
	__u32 *gate = bpf_map_lookup_elem(&ends, key);

	if (gate)
		return gate;
	__builtin_memset(key->remote, 0, sizeof(key->remote));
	key->remote_port = 0;
	gate = bpf_map_lookup_elem(&ends, key);
	if (gate || group)
		return gate;
	__builtin_memset(key->local, 0, sizeof(key->local));
	return bpf_map_lookup_elem(&ends, key);
}

/* Looks up the registration by the packet's own headers. */
static __always_inline __u32 *claim_of_packet(struct packet *packet, void *payload, void *end)
{
	struct direct_ends *key = &packet->ends;
	struct direct_host host = {};
	__be16 *ports = payload;

	if (key->protocol == IPPROTO_UDP || key->protocol == IPPROTO_TCP) {
		if (payload + 4 > end)
			return NULL;
		key->remote_port = ports[0];
		key->local_port = ports[1];
		return claim_of(key, packet->group);
	}
	__builtin_memcpy(host.local, key->local, sizeof(host.local));
	host.protocol = key->protocol;
	host.family = key->family;
	return bpf_map_lookup_elem(&hosts, &host);
}

/*
 * All fragments of a datagram go where its first fragment went. Within PART_LIFETIME another first
 * fragment with the same id does not change this: an attacker could send one to get the fragments
 * of others.
 */
static __always_inline int judge_part(struct xdp_md *ctx, struct packet *packet, void *payload)
{
	struct direct_ends *key = &packet->ends;
	struct direct_part part = {};
	struct direct_owner owner = { .since = bpf_ktime_get_ns() };
	struct direct_owner *known;
	__u32 *claimed;

	__builtin_memcpy(part.source, key->remote, sizeof(part.source));
	__builtin_memcpy(part.destination, key->local, sizeof(part.destination));
	part.id = packet->id;
	part.protocol = key->protocol;
	part.family = key->family;
	known = bpf_map_lookup_elem(&parts, &part);
	/* Another processor may have written the entry just after this one read the clock. */
	if (known && (__s64)(owner.since - known->since) >= PART_LIFETIME)
		known = NULL;
	if (!packet->first)
		return known && known->claimed ? pass_gate(ctx, known->gate) : XDP_PASS;
	claimed = claim_of_packet(packet, payload, (void *)(long)ctx->data_end);
	if (claimed) {
		owner.claimed = 1;
		owner.gate = *claimed;
	}
	if (!known || (known->claimed == owner.claimed && known->gate == owner.gate))
		bpf_map_update_elem(&parts, &part, &owner, BPF_ANY);
	return owner.claimed ? pass_gate(ctx, owner.gate) : XDP_PASS;
}

static __always_inline int judge(struct xdp_md *ctx, struct packet *packet, void *payload)
{
	__u32 *claimed;

	if (packet->part)
		return judge_part(ctx, packet, payload);
	claimed = claim_of_packet(packet, payload, (void *)(long)ctx->data_end);
	return claimed ? pass_gate(ctx, *claimed) : XDP_PASS;
}

static __always_inline int judge_v4(struct xdp_md *ctx, struct iphdr *ip, bool to_group)
{
	void *end = (void *)(long)ctx->data_end;
	struct packet packet = {};
	__u32 header;
	__u16 place;

	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return XDP_PASS;
	header = ip->ihl * 4;
	place = bpf_ntohs(ip->frag_off);
	packet.ends.family = 4;
	packet.ends.protocol = ip->protocol;
	packet.ends.local[0] = ip->daddr;
	packet.ends.remote[0] = ip->saddr;
	packet.id = bpf_ntohs(ip->id);
	packet.first = (place & V4_OFFSET) == 0;
	packet.part = place & (V4_OFFSET | V4_MORE);
	packet.group = (ip->daddr & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000) || ip->daddr == 0xffffffff;
	if (to_group && !packet.group)
		return XDP_PASS;
	return judge(ctx, &packet, (void *)ip + header);
}

static __always_inline int judge_v6(struct xdp_md *ctx, struct ipv6hdr *ip, bool to_group)
{
	void *end = (void *)(long)ctx->data_end;
	struct packet packet = {};
	void *payload = ip + 1;

	if (payload > end || ip->version != 6)
		return XDP_PASS;
	packet.ends.family = 6;
	packet.ends.protocol = ip->nexthdr;
	__builtin_memcpy(packet.ends.local, &ip->daddr, sizeof(packet.ends.local));
	__builtin_memcpy(packet.ends.remote, &ip->saddr, sizeof(packet.ends.remote));
	packet.first = true;
	packet.group = ip->daddr.s6_addr[0] == 0xff;
	if (to_group && !packet.group)
		return XDP_PASS;
	if (ip->nexthdr == FRAGMENT_HEADER) {
		struct fragment_header *fragment = payload;
		__u16 place;

		if ((void *)(fragment + 1) > end)
			return XDP_PASS;
		place = bpf_ntohs(fragment->place);
		packet.ends.protocol = fragment->next;
		packet.id = bpf_ntohl(fragment->id);
		packet.first = (place & V6_OFFSET) == 0;
		packet.part = place & (V6_OFFSET | V6_MORE);
		payload = fragment + 1;
	}
	return judge(ctx, &packet, payload);
}

SEC("xdp")
int direct(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = data;
	struct direct_station *own;
	__u32 zero = 0;
	__u16 kind;
	bool to_group;

	if ((void *)(ethernet + 1) > end)
		return XDP_PASS;
	to_group = ethernet->h_dest[0] & 1;
	own = bpf_map_lookup_elem(&station, &zero);
	if (!own)
		return XDP_PASS;
	if (!to_group) {
		for (int i = 0; i < ETH_ALEN; i++)
			if (ethernet->h_dest[i] != own->mac[i])
				return XDP_PASS;
	}
	switch (ethernet->h_proto) {
	case bpf_htons(ETH_P_IP):
		return judge_v4(ctx, (struct iphdr *)(ethernet + 1), to_group);
	case bpf_htons(ETH_P_IPV6):
		return judge_v6(ctx, (struct ipv6hdr *)(ethernet + 1), to_group);
	}
	kind = ethernet->h_proto;
	return bpf_map_lookup_elem(&kinds, &kind) ? to_driver(ctx) : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
