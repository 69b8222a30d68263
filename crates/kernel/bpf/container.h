/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Finds the container of a packet on a managed link. There the packet has no socket of this
 * namespace: the container's own network lies behind a veth pair.
 *
 *     veth of the container, ingress:  tc_index = the pair's slot_from_container
 *                │  bridge, routing, address translation: tc_index stays
 *     managed link, egress:            tc_index ──> container; the flow is learned
 *     managed link, ingress:           the flow ──> container
 *
 * On receive the flow alone tells the container, because addresses are translated later. So what a
 * container receives on a flow counts to it from its first answer on.
 */
#ifndef NETNICE_CONTAINER_H
#define NETNICE_CONTAINER_H

#define MAX_EXTENSIONS 4

/* Skips the extension headers of an IPv6 packet that may precede any upper-layer header (RFC 8200
 * 4.1). Otherwise a sender could hide a packet from its limit with such a header. */
static __always_inline bool skip_extensions(struct __sk_buff *skb, __u8 *proto, __u32 *l4)
{
	struct {
		__u8 next;
		__u8 words;	/* units of 8 bytes, beyond the first */
	} head;

	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		if (*proto != IPPROTO_HOPOPTS && *proto != IPPROTO_ROUTING && *proto != IPPROTO_DSTOPTS)
			return true;
		if (bpf_skb_load_bytes(skb, *l4, &head, sizeof(head)))
			return false;
		*proto = head.next;
		*l4 += (head.words + 1) * 8;
	}
	return true;
}

/* Reads the flow of a packet of TCP or UDP. False for other packets, and for fragments without
 * ports. */
static __always_inline bool read_container_flow(struct __sk_buff *skb, __u32 flags, bool sent,
						struct container_flow *flow)
{
	__u32 l3 = flags & IFACE_NO_MAC ? 0 : ETH_HLEN, l4;
	__u32 *from = sent ? flow->local : flow->remote;
	__u32 *to = sent ? flow->remote : flow->local;
	__be16 ports[2];
	__u8 proto;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		__u8 words;
		__be16 offset;

		if (bpf_skb_load_bytes(skb, l3, &words, 1) ||
		    bpf_skb_load_bytes(skb, l3 + offsetof(struct iphdr, frag_off), &offset, 2) ||
		    bpf_skb_load_bytes(skb, l3 + offsetof(struct iphdr, protocol), &proto, 1) ||
		    bpf_skb_load_bytes(skb, l3 + offsetof(struct iphdr, saddr), from, 4) ||
		    bpf_skb_load_bytes(skb, l3 + offsetof(struct iphdr, daddr), to, 4) ||
		    offset & bpf_htons(0x1fff))
			return false;
		l4 = l3 + (words & 0x0f) * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, l3 + offsetof(struct ipv6hdr, nexthdr), &proto, 1) ||
		    bpf_skb_load_bytes(skb, l3 + offsetof(struct ipv6hdr, saddr), from, 16) ||
		    bpf_skb_load_bytes(skb, l3 + offsetof(struct ipv6hdr, daddr), to, 16))
			return false;
		l4 = l3 + sizeof(struct ipv6hdr);
		if (!skip_extensions(skb, &proto, &l4))
			return false;
	} else {
		return false;
	}
	if ((proto != IPPROTO_TCP && proto != IPPROTO_UDP) ||
	    bpf_skb_load_bytes(skb, l4, ports, sizeof(ports)))
		return false;
	flow->local_port = sent ? ports[0] : ports[1];
	flow->remote_port = sent ? ports[1] : ports[0];
	flow->proto = proto;
	return true;
}

/* Records that a container sends on the flow of this packet. A flow of two containers, one after
 * the other, belongs to the one that sent last. */
__noinline int learn_container_flow(struct __sk_buff *skb, __u32 flags, __u32 target)
{
	struct container_flow flow = {};
	__u32 *known;

	if (!read_container_flow(skb, flags, true, &flow))
		return 0;
	known = bpf_map_lookup_elem(&container_flows, &flow);
	if (!known || *known != target)
		bpf_map_update_elem(&container_flows, &flow, &target, BPF_ANY);
	return 0;
}

/* The target of the container that sends on the flow of this received packet; 0: none is known. */
__noinline __u32 receiving_container(struct __sk_buff *skb, __u32 flags)
{
	struct container_flow flow = {};
	__u32 *known;

	if (!read_container_flow(skb, flags, false, &flow))
		return 0;
	known = bpf_map_lookup_elem(&container_flows, &flow);
	return known ? *known : 0;
}

/* The interface by which this packet of a container arrived; 0: the packet has no such mark. */
static __always_inline __u32 marked_interface(struct __sk_buff *skb)
{
	__u16 mark = skb->tc_index;
	struct slot *from;

	if (!mark)
		return 0;
	from = bpf_map_lookup_elem(&slots, &mark);
	return from && from->stage == STAGE_FROM_CONTAINER ? from->ifindex : 0;
}

/* The target of the container that sent this packet; 0: none did. A packet that entered this
 * namespace without being received, from a macvlan of another, may carry any tc_index. */
static __always_inline __u32 sending_container(struct __sk_buff *skb, struct settings *now)
{
	__u32 ifindex, *target;

	if (!now->containers || !skb->ingress_ifindex)
		return 0;
	ifindex = marked_interface(skb);
	if (!ifindex)
		return 0;
	target = bpf_map_lookup_elem(&container_veths, &ifindex);
	return target ? *target : 0;
}

/* Whether the other end of this interface may be in a container that is a target. */
static __always_inline bool may_lead_to_container(struct settings *now, struct iface *iface)
{
	return now->containers && iface->flags & IFACE_VETH;
}

/* Marks a packet that a container sends, for its class on a managed link. A mark that the packet
 * brought along from another namespace is removed. */
static __always_inline void mark_container(struct __sk_buff *skb, struct settings *now, struct iface *iface)
{
	__u32 ifindex = skb->ifindex;

	if (!may_lead_to_container(now, iface))
		return;
	if (now->links && bpf_map_lookup_elem(&container_veths, &ifindex))
		skb->tc_index = iface->slot_from_container;
	else if (marked_interface(skb))
		skb->tc_index = 0;
}

#endif
