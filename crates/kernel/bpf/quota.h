/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Traffic quotas: a packet counts for every quota of its target and of the targets around it, and
 * passes only if it fits into each. The counts are exact: a packet is added atomically before it
 * passes, and taken back if it does not fit. So a quota never exceeds its limit, and what is left
 * of it when it refuses is less than the refused packet (two processors may refuse both of two
 * packets of which one fits; a later packet then fits).
 */
#ifndef NETNICE_QUOTA_H
#define NETNICE_QUOTA_H

/* Adds bytes to one quota. False: they do not fit, and nothing was added. */
static __always_inline bool charge_quota(__u64 key, __u32 dir, __u64 bytes)
{
	struct quota_limit *limit = bpf_map_lookup_elem(&quota_limits, &key);
	struct quota_count *count;
	__u64 before;

	if (!limit || !(limit->directions & (1 << (dir & 1))))
		return true;
	count = bpf_map_lookup_elem(&quota_counts, &key);
	if (!count)
		return true;
	before = __sync_fetch_and_add(&count->bytes, bytes) - limit->base;
	if (before + bytes <= limit->limit)
		return true;
	__sync_fetch_and_add(&count->bytes, -bytes);
	__sync_fetch_and_add(&count->refused, 1);
	__sync_fetch_and_add(&count->refused_bytes, bytes);
	return false;
}

/* Takes bytes back from the first `charged` quotas of a target. */
__noinline int refund_quotas(struct target *state, __u32 dir, __u32 bytes, __u32 charged)
{
	__u32 n;

	if (!state)
		return 0;
	for (n = 0; n < QUOTAS_AROUND; n++) {
		struct quota_limit *limit;
		struct quota_count *count;
		__u64 key = state->quotas[n];

		if (n >= charged || !key)
			break;
		limit = bpf_map_lookup_elem(&quota_limits, &key);
		if (!limit || !(limit->directions & (1 << (dir & 1))))
			continue;
		count = bpf_map_lookup_elem(&quota_counts, &key);
		if (count)
			__sync_fetch_and_add(&count->bytes, -(__u64)bytes);
	}
	return 0;
}

/* Adds bytes to all quotas of a target. False: they do not fit into one, and nothing was added. */
__noinline bool charge_quotas(struct target *state, __u32 dir, __u32 bytes)
{
	__u32 n;

	if (!state)
		return false;
	for (n = 0; n < QUOTAS_AROUND; n++) {
		__u64 key = state->quotas[n];

		if (!key)
			break;
		if (!charge_quota(key, dir, bytes)) {
			refund_quotas(state, dir, bytes, n);
			return false;
		}
	}
	return true;
}

#endif
