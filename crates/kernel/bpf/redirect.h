/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Redirected targets: what they send on a managed link goes to the link's driver, which schedules
 * each packet by the target's contract.
 *
 *     egress of the link ──> near end of the redirect pair ──> far end: XDP, the driver's socket
 *                                                                                │
 *     the link  <──────────────────── AF_XDP, past the classes  <────────────────┘
 *
 * The source address of the Ethernet header carries the place of the target and the bucket of the
 * packet's flow; the driver writes the link's own address there.
 *
 * What waits at a place is bounded here. A refused packet is to TCP what a full queue of the sending
 * host is: it slows down, and nothing is lost. (Behind the redirect nobody would be told.) A flow
 * without a waiting packet is refused only if twice the bound waits: TCP with nothing in flight
 * would try again after 0.2 s at the earliest.
 */
#ifndef NETNICE_REDIRECT_H
#define NETNICE_REDIRECT_H

#define ETH_ALEN 6
#define REDIRECT_FLOWS (REDIRECT_GROUPS * 32)
#define FEW_PACKETS (2 * (1514 + REDIRECT_OVERHEAD))	/* a flow with so little is not cut down */

/* The bucket of a packet's flow. One socket is one flow: a hash of the packet would change when TCP
 * selects another path. Packets without a socket are told apart by their addresses and ports. */
static __always_inline __u32 redirect_bucket(struct __sk_buff *skb)
{
	__u64 number = bpf_get_socket_cookie(skb);

	if (!number)
		number = bpf_get_hash_recalc(skb);
	/* Cookies are consecutive on each processor; the multiplication spreads them. */
	return (number * 0x9e3779b97f4a7c15ULL) >> 54;
}

static __always_inline struct redirect_flow *redirect_flow(struct redirect *r, __u32 bucket)
{
	return &r->groups[bucket / 32 % REDIRECT_GROUPS].flows[bucket % 32];
}

/* What a packet counts while it waits. */
static __always_inline __u32 redirect_length(struct __sk_buff *skb)
{
	__u32 segments = skb->gso_segs ? skb->gso_segs : 1;

	return wire_bytes(skb) + segments * REDIRECT_OVERHEAD;
}

/* The place of a redirected target, if its driver takes packets. */
static __always_inline struct redirect *open_redirect(struct iface *iface, struct leaf *leaf)
{
	__u32 place = leaf->redirect - 1;
	struct redirect *r;

	if (!leaf->redirect || !iface->redirect_pair)
		return 0;
	r = bpf_map_lookup_elem(&redirects, &place);
	if (!r || bpf_ktime_get_ns() >= *(volatile __u64 *)&r->alive_until)
		return 0;
	return r;
}

/* Counts a packet that is to wait at this place; false: it does not fit. */
static __always_inline bool enter_redirect(struct __sk_buff *skb, struct redirect *r)
{
	struct redirect_flow *f = redirect_flow(r, redirect_bucket(skb));
	__u32 length = redirect_length(skb), of_all, of_flow, part, active, bound = r->bound;
	bool fits;

	of_all = r->entered - *(volatile __u32 *)&r->left;
	of_flow = f->entered - *(volatile __u32 *)&f->left;
	active = r->active;
	part = bound / (active ? active : 1);
	if (!of_all)
		fits = true;
	else if (!of_flow || of_flow + length <= FEW_PACKETS)
		fits = of_all + length <= 2 * bound;
	else if (of_flow + length <= part)
		fits = of_all + length <= bound;
	else
		fits = of_all + length <= bound / 2;
	if (!fits) {
		__sync_fetch_and_add(&r->refused, skb->gso_segs ? skb->gso_segs : 1);
		return false;
	}
	__sync_fetch_and_add(&r->entered, length);
	__sync_fetch_and_add(&f->entered, length);
	return true;
}

/* Takes back what enter_redirect counted. */
static __always_inline void leave_redirect(struct __sk_buff *skb, struct redirect *r)
{
	__u32 length = redirect_length(skb);
	struct redirect_flow *f = redirect_flow(r, redirect_bucket(skb));

	__sync_fetch_and_add(&r->entered, -length);
	__sync_fetch_and_add(&f->entered, -length);
}

/* Sends a packet to the driver. */
static __always_inline int redirect_to_driver(struct __sk_buff *skb, struct iface *iface, struct leaf *leaf)
{
	__u32 place = leaf->redirect - 1, bucket = redirect_bucket(skb);
	__u8 source[ETH_ALEN] = { 0x02, place >> 8, place, bucket >> 8, bucket, 0 };

	if (bpf_skb_store_bytes(skb, ETH_ALEN, source, sizeof(source), 0))
		return TC_ACT_SHOT;
	return bpf_redirect(iface->redirect_pair, 0);
}

#endif
