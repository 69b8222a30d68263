/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The leaf of a packet in its class: sparse, bulk, local or patient; or none, if the class is full.
 *
 * The choice depends on the bytes that the packet's flow and the whole class sent in this window of
 * time and in the one before, and on the bytes of both that wait in the class. Each window has a
 * number, its epoch.
 *
 * What waits is the difference of two counts. Here, where packets enter the cap stage, the program
 * counts the bytes of each flow and each queue that have entered, and writes these counts into the
 * packet's control block (which no queueing discipline but fq_codel uses). At the far end of the
 * stage they become the counts of what has left. So the next packet that leaves corrects the count
 * for a packet that was lost in between. When the daemon makes a queue anew, its window has another
 * generation, and all that entered before counts as gone. All of it also counts as gone if nothing
 * leaves for patience_ns(): no lost packet stops a flow for ever.
 */
#ifndef NETNICE_LEAF_H
#define NETNICE_LEAF_H

/* The sender of a packet, and what happens to a packet that does not fit. */
#define SENDER_REMOTE 0		/* another host or a container: the packet is dropped */
#define SENDER_TOLD 1		/* TCP of this host: the refusal is its signal to slow down */
#define SENDER_WAITS 2		/* another socket of this host, waiting for its buffer: always fits */

/* Indices of window.queues. */
#define QUEUE_BULK 0
#define QUEUE_LOCAL 1

/* cb[1] of a packet in the cap stage: its length on the wire, and this bit if it is in the local leaf. */
#define IN_LOCAL 0x80000000

/* Windows in which a bulk flow has at least one packet, if forty flows share the limit: a window is
 * at least the time of ten packets. */
#define BULK_WINDOWS 4

#define LONGEST 65550	/* bytes of a packet of segmentation offload, and of lo's longest */

#define MIN_PATIENCE 2000000000ULL	/* ns */

/* A packet whose sequence number is at most so much below that of a dropped one was sent again. */
#define MAX_RESENT (1 << 20)

/* Whether a window is over. A window whose epoch is later by one was started by another processor,
 * which read its clock a moment later. An epoch later by more belongs to windows of another
 * length. */
static __always_inline bool is_over(__u32 window, __u32 epoch)
{
	return window != epoch && window != epoch + 1;
}

/* Starts a new window exactly once, also if two processors reach its start together. (If both
 * started it, flows would not be counted, the shares of the others would grow, and a ping would
 * find the sparse part used up.) */
static __always_inline void advance_window(struct window *w, __u32 epoch)
{
	__u32 old = w->epoch, active, bulk;
	__u64 bytes;

	if (!is_over(old, epoch) || __sync_val_compare_and_swap(&w->epoch, old, epoch) != old)
		return;
	bytes = __sync_lock_test_and_set(&w->bytes, 0);
	active = __sync_lock_test_and_set(&w->active, 0);
	w->last_bytes = old + 1 == epoch ? bytes : 0;
	w->last_active = old + 1 == epoch ? active : 0;
	w->sparse_bytes = 0;
	if (old / BULK_WINDOWS == epoch / BULK_WINDOWS)
		return;
	bulk = __sync_lock_test_and_set(&w->bulk, 0);
	w->last_bulk = old / BULK_WINDOWS + 1 == epoch / BULK_WINDOWS ? bulk : 0;
}

/* How long nothing may leave before all that entered counts as gone, in ns: longer than the bytes
 * of a full queue take. */
static __always_inline __u64 patience_ns(struct leaf *leaf)
{
	__u64 windows = (__u64)leaf->window_us * 8000;

	return windows > MIN_PATIENCE ? windows : MIN_PATIENCE;
}

/* The bytes that wait; 0 if nothing has left for `patience` ns. */
static __always_inline __u32 waiting(struct content *c, __u64 now, __u64 patience)
{
	__s32 waits = c->entered - c->left;

	if (waits <= 0)
		return 0;
	if (now > c->moved_ns + patience) {
		c->left = c->entered;
		c->moved_ns = now;
		return 0;
	}
	return waits;
}

/* The most bytes that may wait in a queue, whatever the number of flows: some packets of each of a
 * hundred flows. Without it every packet of a flood from ever new senders would fit. */
static __always_inline __u32 most_waiting(struct leaf *leaf, bool local, __u32 sender)
{
	__u32 floor = local ? 16 * LONGEST : sender == SENDER_TOLD ? 164000 : LONGEST;

	return 4 * leaf->bound > floor ? 4 * leaf->bound : floor;
}

/* Counts a packet that enters; the count after it. */
static __always_inline __u32 enter(struct content *c, __u32 length, __u32 waits, __u64 now)
{
	if (!waits)
		c->moved_ns = now;
	return __sync_fetch_and_add(&c->entered, length) + length;
}

/* Counts `length` bytes of a packet that leave. The packet had `whole` bytes when it entered, and
 * `entered` was the count after it. A packet that was segmented leaves in several parts. */
static __always_inline void leave(struct content *c, __u32 entered, __u32 whole, __u32 length, __u64 now)
{
	__u32 left = c->left;

	if ((__s32)(left - (entered - whole)) < 0 || (__s32)(entered - left) < 0)
		left = entered - whole;
	left += length;
	c->left = (__s32)(entered - left) < 0 ? entered : left;
	c->moved_ns = now;
}

/* Bytes of a packet on the wire, all its segments together. */
static __always_inline __u32 wire_bytes(struct __sk_buff *skb)
{
	return skb->wire_len > skb->len ? skb->wire_len : skb->len;
}

/* Bytes of the longest of a packet's segments, on the wire. */
static __always_inline __u32 segment_bytes(struct __sk_buff *skb)
{
	__u32 more = skb->gso_segs;

	if (!skb->gso_size || more < 2)
		return skb->len;
	return skb->gso_size + (wire_bytes(skb) - skb->len) / (more - 1);
}

/* The sequence number of a TCP packet. 0 if it is not TCP or has extension headers of IPv6; a wrong
 * number if it has options of IPv4. */
static __always_inline __u32 sequence_number(struct __sk_buff *skb, struct iface *iface)
{
	__u32 l3 = iface->flags & IFACE_NO_MAC ? 0 : ETH_HLEN, l4;
	__be32 seq = 0;
	__u8 proto = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		l4 = l3 + sizeof(struct iphdr);
		bpf_skb_load_bytes(skb, l3 + offsetof(struct iphdr, protocol), &proto, 1);
	} else {
		l4 = l3 + sizeof(struct ipv6hdr);
		bpf_skb_load_bytes(skb, l3 + offsetof(struct ipv6hdr, nexthdr), &proto, 1);
	}
	if (proto == IPPROTO_TCP)
		bpf_skb_load_bytes(skb, l4 + 4, &seq, sizeof(seq));
	return bpf_ntohl(seq);
}

/* Whether a received packet that does not fit is dropped. A remote TCP sender learns of a drop one
 * round trip later and sends on meanwhile; if all of that were lost, or a packet that it sends
 * again, it would stop until a timeout. So the flow may have up to three times its part for two
 * windows after a drop, and for packets that it sends again. */
static __always_inline bool is_dropped(struct __sk_buff *skb, struct iface *iface, struct flow *f,
				       struct leaf *leaf, __u32 bytes, __u32 part, __u64 now)
{
	__u32 now_ms = now / 1000000, seq = sequence_number(skb, iface);

	if (bytes <= 3 * part && (now_ms - f->dropped_ms < leaf->window_us / 500 ||
				  f->dropped_seq - seq < MAX_RESENT))
		return false;
	f->dropped_ms = now_ms;
	f->dropped_seq = seq;
	return true;
}

/* Selects the class of a packet in the stage of a limit or on a link; 0: it does not fit.
 *
 * A flow is sparse while it uses, in this window and the last, at most a part of the mean share of
 * the active flows, and while nothing of it waits in another leaf, so that no packet overtakes an
 * earlier one of its flow. The share is a part of the larger of two values: the bytes that the class
 * is assured and the bytes that it carried. The carried bytes alone are not enough: a single TCP
 * flow in a slow class comes in bursts with empty windows between them. Sparse flows get a quarter
 * of the class together. While their number grows they may get more, up to a half; the rest goes to
 * the other leaves.
 *
 * A packet does not fit if its flow has its part of the bound in the class, and the queue is half
 * full. (While it is shorter, few of the flows that count as active wait in it. A flow that may have
 * more than its part until the queue is full makes the shares of equal flows unequal.) Two packets
 * of a flow fit until the queue is full: a single one is acknowledged late. And a flow of which
 * nothing waits may enter a packet of any length, unless the flows together have far more than the
 * bound. */
__noinline __u32 select_leaf(struct __sk_buff *skb, struct leaf *leaf, struct iface *iface, __u32 link,
			     __u32 sender)
{
	bool on_lo, local;
	struct flow_key key = { .window = { .link = link } };
	__u32 rest, epoch, most, active, length = wire_bytes(skb), of_flow, of_all, part;
	struct window *w;
	struct flow *f;
	struct content *queue;
	__u64 share, now, patience;
	bool sparse;

	if (!leaf || !iface)
		return 0;
	on_lo = iface->flags & IFACE_LOOPBACK;
	/* A packet of lo that is as short as those of cables waits with them. */
	local = on_lo && (!leaf->longest || segment_bytes(skb) > leaf->longest);
	rest = local ? leaf->local : sender == SENDER_WAITS ? leaf->patient : leaf->bulk;
	key.window.leaf = leaf->bulk;
	skb->cb[3] = 0;
	if (!leaf->window_us)
		return rest;
	now = bpf_ktime_get_ns();
	epoch = now / ((__u64)leaf->window_us * 1000);
	w = bpf_map_lookup_elem(&windows, &key.window);
	if (!w) {
		struct window first = { .epoch = epoch, .generation = now };

		bpf_map_update_elem(&windows, &key.window, &first, BPF_NOEXIST);
		return rest;
	}
	advance_window(w, epoch);
	/* TCP changes the hash of a flow's packets after a timeout, but not the socket. */
	key.hash = sender == SENDER_TOLD ? (__u32)bpf_get_socket_cookie(skb) * 0x9e3779b1 : bpf_get_hash_recalc(skb);
	f = bpf_map_lookup_elem(&flows, &key);
	if (!f) {
		struct flow first = { .epoch = epoch };

		bpf_map_update_elem(&flows, &key, &first, BPF_ANY);
		__sync_fetch_and_add(&w->active, 1);
		f = bpf_map_lookup_elem(&flows, &key);
		if (!f)
			return rest;
	} else if (is_over(f->epoch, epoch)) {
		f->last_bytes = f->epoch + 1 == epoch ? f->bytes : 0;
		f->bytes = 0;
		f->epoch = epoch;
		__sync_fetch_and_add(&w->active, 1);
	}
	most = f->bytes + skb->len;
	if (most < f->last_bytes)
		most = f->last_bytes;
	share = w->last_bytes > leaf->window_bytes ? w->last_bytes : leaf->window_bytes;
	active = w->active > w->last_active ? w->active : w->last_active;
	sparse = skb->len <= MAX_SPARSE && (__u64)most * (leaf->bound ? 2 : 4) * active <= share &&
		 ((__u64)w->sparse_bytes + skb->len) * 2 <= share;
	if (leaf->bound) {
		if (f->generation != w->generation) {
			f->generation = w->generation;
			f->inside.left = f->inside.entered;
		}
		patience = patience_ns(leaf);
		of_flow = waiting(&f->inside, now, patience);
		/* No packet changes from one leaf to the other while earlier ones of its flow wait. */
		if (on_lo && of_flow && local != f->long_on_lo) {
			if (local && sender == SENDER_TOLD)
				return 0;
			local = true;
			rest = leaf->local;
		}
		f->long_on_lo = local;
		queue = &w->queues[local ? QUEUE_LOCAL : QUEUE_BULK];
		of_all = waiting(queue, now, patience);
		part = leaf->bound / (active ? active : 1);
		/* A packet of lo is one segment, which its receiver acknowledges late if no other follows. */
		if (local && part < 2 * length)
			part = 2 * length;
		sparse = sparse && !of_flow;
		if (!sparse) {
			if (sender != SENDER_WAITS && of_all && of_all + length > most_waiting(leaf, local, sender))
				return 0;
			if (sender != SENDER_WAITS && of_flow && of_flow + length > part &&
			    of_all + length > (of_flow + length > MAX_SPARSE ? leaf->bound / 2 : leaf->bound) &&
			    (sender == SENDER_TOLD || is_dropped(skb, iface, f, leaf, of_flow + length, part, now)))
				return 0;
			if (f->bulk_epoch != epoch / BULK_WINDOWS) {
				f->bulk_epoch = epoch / BULK_WINDOWS;
				__sync_fetch_and_add(&w->bulk, 1);
			}
			if (local) {
				w->local_ms = now / 1000000 | 1;
				count_one(COUNT_LOCAL);
			}
			skb->cb[0] = sender == SENDER_WAITS ? 0 : enter(queue, length, of_all, now);
			skb->cb[1] = length | (local ? IN_LOCAL : 0);
			skb->cb[2] = key.hash;
			skb->cb[3] = leaf->bulk;
			skb->cb[4] = enter(&f->inside, length, of_flow, now);
		}
	}
	f->bytes += skb->len;
	__sync_fetch_and_add(&w->bytes, skb->len);
	if (!sparse)
		return rest;
	__sync_fetch_and_add(&w->sparse_bytes, skb->len);
	return leaf->sparse;
}

/* Counts a packet that leaves the cap stage, and clears the counts that it carries. */
static __always_inline void count_exit(struct __sk_buff *skb)
{
	struct flow_key key = { .window = { .leaf = skb->cb[3] }, .hash = skb->cb[2] };
	__u32 entered = skb->cb[0], of_flow = skb->cb[4];
	bool local = skb->cb[1] & IN_LOCAL;
	__u32 whole = skb->cb[1] & ~IN_LOCAL;
	__u32 length = skb->gso_size ? whole : skb->len;
	struct window *w;
	struct flow *f;
	__u64 now;

	if (!key.window.leaf)
		return;
	skb->cb[2] = 0;
	skb->cb[3] = 0;
	skb->cb[4] = 0;
	now = bpf_ktime_get_ns();
	w = entered ? bpf_map_lookup_elem(&windows, &key.window) : 0;
	if (w)
		leave(&w->queues[local ? QUEUE_LOCAL : QUEUE_BULK], entered, whole, length, now);
	f = bpf_map_lookup_elem(&flows, &key);
	if (f)
		leave(&f->inside, of_flow, whole, length, now);
}

#endif
