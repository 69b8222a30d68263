/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Selects the frames that go to direct flows instead of the kernel's own stack. Frames to this
 * interface whose endpoints, protocol or EtherType are registered go to the driver's socket. All
 * other frames pass to the kernel, and so do frames that this program cannot parse. If the frame's
 * queue has no socket, the frame passes. A flow that has used up its receive budget is suspended
 * for a while: this program drops its frames before they take time of the driver.
 *
 * The value of a registered key is the number of its flow's gate, counted from one, or zero for no
 * gate. The value of an EtherType is not used: its frames cannot be suspended.
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

_Static_assert(sizeof(struct direct_endpoints) == 40, "direct_endpoints");
_Static_assert(sizeof(struct direct_protocol) == 20, "direct_protocol");
_Static_assert(sizeof(struct direct_datagram) == 40, "direct_datagram");
_Static_assert(sizeof(struct direct_decision) == 16, "direct_decision");
_Static_assert(sizeof(struct direct_mac) == 8, "direct_mac");
_Static_assert(sizeof(struct direct_gate) == 16, "direct_gate");

MAP(BPF_MAP_TYPE_ARRAY, 1, __u32, struct direct_mac, 0, own_mac);
MAP(BPF_MAP_TYPE_HASH, MAX_ENDPOINTS, struct direct_endpoints, __u32, BPF_F_NO_PREALLOC, endpoints);
MAP(BPF_MAP_TYPE_HASH, MAX_PROTOCOLS, struct direct_protocol, __u32, BPF_F_NO_PREALLOC, protocols);
MAP(BPF_MAP_TYPE_HASH, MAX_ETHERTYPES, __u16, __u32, BPF_F_NO_PREALLOC, ethertypes);
MAP(BPF_MAP_TYPE_LRU_HASH, MAX_DATAGRAMS, struct direct_datagram, struct direct_decision, 0, datagrams);
MAP(BPF_MAP_TYPE_XSKMAP, MAX_QUEUES, __u32, __u32, 0, sockets);
MAP(BPF_MAP_TYPE_XSKMAP, 1, __u32, __u32, 0, redirected_socket);
MAP(BPF_MAP_TYPE_ARRAY, MAX_GATES, __u32, struct direct_gate, BPF_F_MMAPABLE, gates);

#define FRAGMENT_HEADER 44
#define V4_OFFSET 0x1fff
#define V4_MORE 0x2000
#define V6_OFFSET 0xfff8
#define V6_MORE 0x0001
#define TCP_FLAGS 13 /* offset of the flags */
#define TCP_SYN 0x02
#define TCP_ACK 0x10

/* The fields of the headers of one packet. */
struct packet {
	struct direct_endpoints endpoints; /* as for a protocol with ports */
	__u32 id;
	bool fragment;
	bool first; /* the first fragment, or a whole datagram */
	bool multicast; /* also the IPv4 broadcast address */
};

struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset;
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
	if (gate && *(volatile __u64 *)&gate->suspended_until > bpf_ktime_get_ns()) {
		__sync_fetch_and_add(&gate->dropped, 1);
		return XDP_DROP;
	}
	return to_driver(ctx);
}

/*
 * Looks up both endpoints, then for a SYN the connection requests of the local endpoint, then the
 * local endpoint, then the port at any unicast address.
 */
static __always_inline __u32 *match_endpoints(struct direct_endpoints *key, bool multicast, bool syn)
{
	__u32 *gate = bpf_map_lookup_elem(&endpoints, key);

	if (gate)
		return gate;
	__builtin_memset(key->remote, 0, sizeof(key->remote));
	key->remote_port = 0;
	if (syn) {
		key->syn = 1;
		gate = bpf_map_lookup_elem(&endpoints, key);
		if (gate)
			return gate;
		key->syn = 0;
	}
	gate = bpf_map_lookup_elem(&endpoints, key);
	if (gate || multicast)
		return gate;
	__builtin_memset(key->local, 0, sizeof(key->local));
	return bpf_map_lookup_elem(&endpoints, key);
}

/* A segment of TCP with SYN and without ACK. */
static __always_inline bool is_syn(__u8 *segment, void *end)
{
	if ((void *)(segment + TCP_FLAGS + 1) > end)
		return false;
	return (segment[TCP_FLAGS] & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* Looks up the registration by the packet's own headers. */
static __always_inline __u32 *match_packet(struct packet *packet, void *payload, void *end)
{
	struct direct_endpoints *key = &packet->endpoints;
	struct direct_protocol protocol = {};
	__be16 *ports = payload;

	if (key->protocol == IPPROTO_UDP || key->protocol == IPPROTO_TCP) {
		if (payload + 4 > end)
			return NULL;
		key->remote_port = ports[0];
		key->local_port = ports[1];
		return match_endpoints(key, packet->multicast,
				       key->protocol == IPPROTO_TCP && is_syn(payload, end));
	}
	__builtin_memcpy(protocol.local, key->local, sizeof(protocol.local));
	protocol.protocol = key->protocol;
	protocol.family = key->family;
	return bpf_map_lookup_elem(&protocols, &protocol);
}

/*
 * All fragments of a datagram go where its first fragment went. Within FRAGMENT_LIFETIME another
 * first fragment with the same id does not change this: an attacker could send one to get the
 * fragments of others.
 */
static __always_inline int classify_fragment(struct xdp_md *ctx, struct packet *packet, void *payload)
{
	struct direct_endpoints *key = &packet->endpoints;
	struct direct_datagram datagram = {};
	struct direct_decision decision = { .since = bpf_ktime_get_ns() };
	struct direct_decision *known;
	__u32 *gate;

	__builtin_memcpy(datagram.source, key->remote, sizeof(datagram.source));
	__builtin_memcpy(datagram.destination, key->local, sizeof(datagram.destination));
	datagram.id = packet->id;
	datagram.protocol = key->protocol;
	datagram.family = key->family;
	known = bpf_map_lookup_elem(&datagrams, &datagram);
	/* Another processor may have written the entry just after this one read the clock. */
	if (known && (__s64)(decision.since - known->since) >= FRAGMENT_LIFETIME)
		known = NULL;
	if (!packet->first)
		return known && known->matched ? pass_gate(ctx, known->gate) : XDP_PASS;
	gate = match_packet(packet, payload, (void *)(long)ctx->data_end);
	if (gate) {
		decision.matched = 1;
		decision.gate = *gate;
	}
	if (!known || (known->matched == decision.matched && known->gate == decision.gate))
		bpf_map_update_elem(&datagrams, &datagram, &decision, BPF_ANY);
	return decision.matched ? pass_gate(ctx, decision.gate) : XDP_PASS;
}

static __always_inline int classify(struct xdp_md *ctx, struct packet *packet, void *payload)
{
	__u32 *gate;

	if (packet->fragment)
		return classify_fragment(ctx, packet, payload);
	gate = match_packet(packet, payload, (void *)(long)ctx->data_end);
	return gate ? pass_gate(ctx, *gate) : XDP_PASS;
}

static __always_inline int classify_v4(struct xdp_md *ctx, struct iphdr *ip, bool to_multicast)
{
	void *end = (void *)(long)ctx->data_end;
	struct packet packet = {};
	__u32 header;
	__u16 offset;

	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return XDP_PASS;
	header = ip->ihl * 4;
	offset = bpf_ntohs(ip->frag_off);
	packet.endpoints.family = 4;
	packet.endpoints.protocol = ip->protocol;
	packet.endpoints.local[0] = ip->daddr;
	packet.endpoints.remote[0] = ip->saddr;
	packet.id = bpf_ntohs(ip->id);
	packet.first = (offset & V4_OFFSET) == 0;
	packet.fragment = offset & (V4_OFFSET | V4_MORE);
	packet.multicast = (ip->daddr & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000) || ip->daddr == 0xffffffff;
	if (to_multicast && !packet.multicast)
		return XDP_PASS;
	return classify(ctx, &packet, (void *)ip + header);
}

static __always_inline int classify_v6(struct xdp_md *ctx, struct ipv6hdr *ip, bool to_multicast)
{
	void *end = (void *)(long)ctx->data_end;
	struct packet packet = {};
	void *payload = ip + 1;

	if (payload > end || ip->version != 6)
		return XDP_PASS;
	packet.endpoints.family = 6;
	packet.endpoints.protocol = ip->nexthdr;
	__builtin_memcpy(packet.endpoints.local, &ip->daddr, sizeof(packet.endpoints.local));
	__builtin_memcpy(packet.endpoints.remote, &ip->saddr, sizeof(packet.endpoints.remote));
	packet.first = true;
	packet.multicast = ip->daddr.s6_addr[0] == 0xff;
	if (to_multicast && !packet.multicast)
		return XDP_PASS;
	if (ip->nexthdr == FRAGMENT_HEADER) {
		struct fragment_header *fragment = payload;
		__u16 offset;

		if ((void *)(fragment + 1) > end)
			return XDP_PASS;
		offset = bpf_ntohs(fragment->offset);
		packet.endpoints.protocol = fragment->next;
		packet.id = bpf_ntohl(fragment->id);
		packet.first = (offset & V6_OFFSET) == 0;
		packet.fragment = offset & (V6_OFFSET | V6_MORE);
		payload = fragment + 1;
	}
	return classify(ctx, &packet, payload);
}

static __always_inline int select(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = data;
	struct direct_mac *own;
	__u32 zero = 0;
	__u16 kind;
	bool to_multicast;

	if ((void *)(ethernet + 1) > end)
		return XDP_PASS;
	to_multicast = ethernet->h_dest[0] & 1;
	own = bpf_map_lookup_elem(&own_mac, &zero);
	if (!own)
		return XDP_PASS;
	if (!to_multicast) {
		for (int i = 0; i < ETH_ALEN; i++)
			if (ethernet->h_dest[i] != own->mac[i])
				return XDP_PASS;
	}
	switch (ethernet->h_proto) {
	case bpf_htons(ETH_P_IP):
		return classify_v4(ctx, (struct iphdr *)(ethernet + 1), to_multicast);
	case bpf_htons(ETH_P_IPV6):
		return classify_v6(ctx, (struct ipv6hdr *)(ethernet + 1), to_multicast);
	}
	kind = ethernet->h_proto;
	return bpf_map_lookup_elem(&ethertypes, &kind) ? to_driver(ctx) : XDP_PASS;
}

SEC("xdp")
int direct(struct xdp_md *ctx)
{
	return select(ctx);
}

/*
 * For generic mode, where a frame can be a packet of many segments. The kernel then need not make
 * one piece of memory of it; the headers are in the first piece.
 */
SEC("xdp.frags")
int direct_long(struct xdp_md *ctx)
{
	return select(ctx);
}

/* The far end of the link's redirect pair: all its frames go to the driver. */
SEC("xdp")
int redirected(struct xdp_md *ctx)
{
	return bpf_redirect_map(&redirected_socket, ctx->rx_queue_index, XDP_DROP);
}

char _license[] SEC("license") = "Dual BSD/GPL";
