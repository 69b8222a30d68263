/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The leaf of a packet in its class: sparse, bulk or local.
 *
 * The choice depends on the bytes that the packet's flow and the whole class sent in this window of
 * time and in the one before. Each window has a number, its epoch.
 */
#ifndef NETNICE_LEAF_H
#define NETNICE_LEAF_H

/* Whether a window is over. An epoch later by one comes from another processor, which read its
 * clock a moment later. An epoch later by more was counted in windows of another length. */
static __always_inline bool is_over(__u32 window, __u32 epoch)
{
	return window != epoch && window != epoch + 1;
}

/* Starts a new window exactly once, also if two processors reach its start together. (When both
 * started it, flows were not counted, the shares of the others grew, and a ping found the sparse
 * part used up.) */
static __always_inline void advance_window(struct window *w, __u32 epoch)
{
	__u32 old = w->epoch, active;
	__u64 bytes;

	if (!is_over(old, epoch) || __sync_val_compare_and_swap(&w->epoch, old, epoch) != old)
		return;
	bytes = __sync_lock_test_and_set(&w->bytes, 0);
	active = __sync_lock_test_and_set(&w->active, 0);
	w->last_bytes = old + 1 == epoch ? bytes : 0;
	w->last_active = old + 1 == epoch ? active : 0;
	w->sparse_bytes = 0;
}

/* Selects the sparse or the bulk leaf. A flow is sparse while it uses, in this window and the last,
 * at most a quarter of the mean share of the active flows. The share is a part of the larger of two
 * values: the bytes that the class is assured and the bytes that it carried. The carried bytes
 * alone are not enough: a single TCP flow in a slow class comes in bursts with empty windows
 * between them. Sparse flows get a quarter of the class together. While their number grows they may
 * get more, up to a half; the rest goes to the bulk leaf. */
static __always_inline __u32 select_leaf(struct __sk_buff *skb, struct leaf *leaf, struct iface *iface, __u32 link)
{
	__u32 rest = iface->flags & IFACE_LOOPBACK ? leaf->local : leaf->bulk;
	struct flow_key key = { .window = { .leaf = leaf->bulk, .link = link } };
	struct window *w, no_window = {};
	struct flow *f, no_flow = {};
	__u32 epoch, most, active;
	__u64 share;
	bool sparse;

	if (!leaf->window_us)
		return rest;
	epoch = bpf_ktime_get_ns() / ((__u64)leaf->window_us * 1000);
	w = bpf_map_lookup_elem(&windows, &key.window);
	if (!w) {
		no_window.epoch = epoch;
		bpf_map_update_elem(&windows, &key.window, &no_window, BPF_NOEXIST);
		return rest;
	}
	advance_window(w, epoch);
	__sync_fetch_and_add(&w->bytes, skb->len);
	key.hash = bpf_get_hash_recalc(skb);
	f = bpf_map_lookup_elem(&flows, &key);
	if (!f) {
		no_flow.epoch = epoch;
		no_flow.bytes = skb->len;
		bpf_map_update_elem(&flows, &key, &no_flow, BPF_ANY);
		__sync_fetch_and_add(&w->active, 1);
		most = skb->len;
	} else {
		if (is_over(f->epoch, epoch)) {
			f->last_bytes = f->epoch + 1 == epoch ? f->bytes : 0;
			f->bytes = 0;
			f->epoch = epoch;
			__sync_fetch_and_add(&w->active, 1);
		}
		f->bytes += skb->len;
		most = f->bytes > f->last_bytes ? f->bytes : f->last_bytes;
	}
	share = w->last_bytes > leaf->window_bytes ? w->last_bytes : leaf->window_bytes;
	active = w->active > w->last_active ? w->active : w->last_active;
	sparse = skb->len <= MAX_SPARSE && (__u64)most * 4 * active <= share &&
		 ((__u64)w->sparse_bytes + skb->len) * 2 <= share;
	if (!sparse)
		return rest;
	__sync_fetch_and_add(&w->sparse_bytes, skb->len);
	return leaf->sparse;
}

#endif
