/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The target that receives a packet. A part of path.h. */
#ifndef NETNICE_RECEIVER_H
#define NETNICE_RECEIVER_H

/* Whether a target can be the receiver of this packet. The socket lookup is the most expensive step
 * of this path, and most packets have no target. A TCP connection acknowledges what it receives,
 * and bind reveals a server's port. So the ports of the targets' TCP sockets are known from what
 * they sent or bound, and a TCP packet to another port has no target. UDP gives no such evidence: a
 * socket may receive and never send. */
static __always_inline bool may_have_receiver(struct __sk_buff *skb, __u32 l3)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ipv6hdr *ip6 = data + l3;
	struct iphdr *ip4 = data + l3;
	__u32 word, port, *known;
	__be16 *dest;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		dest = (void *)(ip4 + 1) + 2;
		if ((void *)(dest + 1) > end || ip4->ihl != 5 || ip4->protocol != IPPROTO_TCP)
			return true;
		if (ip4->frag_off & bpf_htons(0x1fff))
			return false;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		dest = (void *)(ip6 + 1) + 2;
		if ((void *)(dest + 1) > end || ip6->nexthdr != IPPROTO_TCP)
			return true;
	} else {
		return false;
	}
	port = bpf_ntohs(*dest);
	word = port / 32 % PORT_WORDS;
	known = bpf_map_lookup_elem(&ports, &word);
	return known && *known & 1U << port % 32;
}

/* The receiving socket of a packet, as the kernel will find it. The caller releases it. */
static __always_inline struct bpf_sock *find_receiving_socket(struct __sk_buff *skb, __u32 l3)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct bpf_sock_tuple tuple = {};
	__u32 size, l4;
	__u8 proto;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + l3;

		if ((void *)(ip + 1) > end || ip->ihl < 5 || ip->frag_off & bpf_htons(0x1fff))
			return 0;
		proto = ip->protocol;
		l4 = l3 + ip->ihl * 4;
		tuple.ipv4.saddr = ip->saddr;
		tuple.ipv4.daddr = ip->daddr;
		size = sizeof(tuple.ipv4);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data + l3;

		if ((void *)(ip + 1) > end)
			return 0;
		proto = ip->nexthdr;
		l4 = l3 + sizeof(*ip);
		__builtin_memcpy(tuple.ipv6.saddr, &ip->saddr, 16);
		__builtin_memcpy(tuple.ipv6.daddr, &ip->daddr, 16);
		size = sizeof(tuple.ipv6);
		if (!skip_extensions(skb, &proto, &l4))
			return 0;
	} else {
		return 0;
	}
	if (proto != IPPROTO_TCP && proto != IPPROTO_UDP)
		return 0;
	/* The ports are at the same offset in TCP and UDP. */
	if (size == sizeof(tuple.ipv4)) {
		if (bpf_skb_load_bytes(skb, l4, &tuple.ipv4.sport, 4))
			return 0;
	} else if (bpf_skb_load_bytes(skb, l4, &tuple.ipv6.sport, 4)) {
		return 0;
	}
	if (proto == IPPROTO_TCP)
		return bpf_sk_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	return bpf_sk_lookup_udp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
}

/* Finds the target that receives a packet. */
static __always_inline bool find_receiver(struct __sk_buff *skb, struct settings *now, struct iface *iface,
					  struct packet *p)
{
	__u32 l3 = iface->flags & IFACE_NO_MAC ? 0 : ETH_HLEN;
	struct bpf_sock *sk;
	bool found;

	/* A packet for another address: the stack drops it here, or a macvlan's own interface will
	 * handle it. */
	if (skb->pkt_type == PACKET_OTHERHOST || !first_appears_here(skb, iface, DIR_DOWN) ||
	    !may_have_receiver(skb, l3))
		return false;
	sk = find_receiving_socket(skb, l3);
	if (!sk)
		return false;
	found = find_owner(skb, sk, now, false, p);
	bpf_sk_release(sk);
	return found;
}

#endif
