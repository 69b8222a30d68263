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

/* The results of enter_place and redirect_to_driver, beside the verdicts of a classifier. */
#define NOT_REDIRECTED -1	/* as TC_ACT_UNSPEC: the packet continues to the classes */
#define ENTERED 0
#define REFUSED 1

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

/* The place of a target on this link, if its driver takes packets. */
static __always_inline struct redirect *open_place(struct __sk_buff *skb, __u32 target)
{
	struct link_key key = { .ifindex = skb->ifindex, .target = target, .dir = DIR_UP };
	struct leaf *leaf = bpf_map_lookup_elem(&links, &key);
	struct redirect *r;
	__u32 place;

	if (!leaf || !leaf->redirect)
		return 0;
	place = leaf->redirect - 1;
	r = bpf_map_lookup_elem(&redirects, &place);
	if (!r || bpf_ktime_get_ns() >= *(volatile __u64 *)&r->alive_until)
		return 0;
	return r;
}

/* Whether a packet of this length may wait beside what waits at this place. */
static __always_inline bool fits(struct redirect *r, struct redirect_flow *f, __u32 length)
{
	__u32 of_all = r->entered - *(volatile __u32 *)&r->left;
	__u32 of_flow = f->entered - *(volatile __u32 *)&f->left;
	__u32 active = r->active, bound = r->bound, part = bound / (active ? active : 1);

	if (!of_all)
		return true;
	if (!of_flow || of_flow + length <= FEW_PACKETS)
		return of_all + length <= 2 * bound;
	if (of_flow + length <= part)
		return of_all + length <= bound;
	return of_all + length <= bound / 2;
}

/* Counts a packet that is to wait at its target's place: NOT_REDIRECTED, ENTERED or REFUSED. */
__noinline int enter_place(struct __sk_buff *skb, __u32 target)
{
	struct redirect *r = open_place(skb, target);
	struct redirect_flow *f;
	__u32 length;

	if (!r)
		return NOT_REDIRECTED;
	f = redirect_flow(r, redirect_bucket(skb));
	length = redirect_length(skb);
	if (!fits(r, f, length)) {
		__sync_fetch_and_add(&r->refused, skb->gso_segs ? skb->gso_segs : 1);
		return REFUSED;
	}
	__sync_fetch_and_add(&r->entered, length);
	__sync_fetch_and_add(&f->entered, length);
	return ENTERED;
}

/* Takes back what enter_place counted. */
__noinline int leave_place(struct __sk_buff *skb, __u32 target)
{
	struct redirect *r = open_place(skb, target);
	__u32 length = redirect_length(skb);
	struct redirect_flow *f;

	if (!r)
		return 0;
	f = redirect_flow(r, redirect_bucket(skb));
	__sync_fetch_and_add(&r->entered, -length);
	__sync_fetch_and_add(&f->entered, -length);
	return 0;
}

/* Sends a packet that was counted to the driver, by this redirect pair; NOT_REDIRECTED if the driver
 * takes no packets. */
__noinline int redirect_to_driver(struct __sk_buff *skb, __u32 target, __u32 pair)
{
	struct link_key key = { .ifindex = skb->ifindex, .target = target, .dir = DIR_UP };
	__u32 place, bucket = redirect_bucket(skb);
	struct leaf *leaf;
	__u8 source[ETH_ALEN] = { 2 };

	if (!open_place(skb, target))
		return NOT_REDIRECTED;
	leaf = bpf_map_lookup_elem(&links, &key);
	if (!leaf)
		return NOT_REDIRECTED;
	place = leaf->redirect - 1;
	source[1] = place >> 8;
	source[2] = place;
	source[3] = bucket >> 8;
	source[4] = bucket;
	if (bpf_skb_store_bytes(skb, ETH_ALEN, source, sizeof(source), 0))
		return TC_ACT_SHOT;
	return bpf_redirect(pair, 0);
}

#endif
