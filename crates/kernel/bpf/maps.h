/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps. All but name_scratch are pinned: they outlive a daemon, and the next one finds them. */
#ifndef NETNICE_MAPS_H
#define NETNICE_MAPS_H

#include "map.h"

MAP(BPF_MAP_TYPE_ARRAY, 1, __u32, struct settings, 0, settings);
MAP(BPF_MAP_TYPE_ARRAY, PORT_WORDS, __u32, __u32, 0, ports);
MAP(BPF_MAP_TYPE_HASH, MAX_PROCESSES, __u32, struct proc, BPF_F_NO_PREALLOC, procs);
MAP(BPF_MAP_TYPE_HASH, MAX_TARGETS, __u32, struct target, BPF_F_NO_PREALLOC, targets);
MAP(BPF_MAP_TYPE_HASH, MAX_QUOTAS, __u64, struct quota_limit, BPF_F_NO_PREALLOC, quota_limits);
MAP(BPF_MAP_TYPE_HASH, MAX_QUOTAS, __u64, struct quota_count, BPF_F_NO_PREALLOC, quota_counts);
MAP(BPF_MAP_TYPE_HASH, MAX_TARGETS, struct app_key, __u32, BPF_F_NO_PREALLOC, apps);
MAP(BPF_MAP_TYPE_HASH, MAX_TARGETS, __u64, __u32, BPF_F_NO_PREALLOC, cgroups);
MAP(BPF_MAP_TYPE_HASH, 2 * MAX_TARGETS, struct group_name, __u32, BPF_F_NO_PREALLOC, expected_groups);
MAP(BPF_MAP_TYPE_PERCPU_ARRAY, 2, __u32, struct group_name, 0, name_scratch);
MAP(BPF_MAP_TYPE_HASH, MAX_TARGETS, __u32, __u32, BPF_F_NO_PREALLOC, users);
MAP(BPF_MAP_TYPE_HASH, MAX_TARGETS, __u32, __u32, BPF_F_NO_PREALLOC, containers);
MAP(BPF_MAP_TYPE_HASH, MAX_IFACES, __u32, __u32, BPF_F_NO_PREALLOC, container_veths);
MAP(BPF_MAP_TYPE_LRU_HASH, MAX_FLOWS, struct container_flow, __u32, 0, container_flows);
MAP(BPF_MAP_TYPE_HASH, MAX_IFACES, __u32, struct iface, BPF_F_NO_PREALLOC, ifaces);
MAP(BPF_MAP_TYPE_HASH, MAX_SLOTS, __u16, struct slot, BPF_F_NO_PREALLOC, slots);
MAP(BPF_MAP_TYPE_HASH, MAX_LINK_LEAVES, struct link_key, struct leaf, BPF_F_NO_PREALLOC, links);
MAP(BPF_MAP_TYPE_PERCPU_HASH, MAX_LINK_CLASSES, struct counter_key, struct counter, BPF_F_NO_PREALLOC, counters);
MAP(BPF_MAP_TYPE_LRU_HASH, MAX_FLOWS, struct flow_key, struct flow, 0, flows);
MAP(BPF_MAP_TYPE_LRU_HASH, MAX_FLOWS, struct window_key, struct window, 0, windows);
MAP(BPF_MAP_TYPE_SK_STORAGE, 0, int, struct sock_owner, BPF_F_NO_PREALLOC | BPF_F_CLONE, sock_owners);
MAP(BPF_MAP_TYPE_SK_STORAGE, 0, int, struct sock_cgroup, BPF_F_NO_PREALLOC | BPF_F_CLONE, sock_cgroups);
MAP(BPF_MAP_TYPE_SK_STORAGE, 0, int, struct tcp_tuning, BPF_F_NO_PREALLOC, tcp_tunings);
MAP(BPF_MAP_TYPE_HASH, MAX_COOKIES, __u64, struct sock_owner, BPF_F_NO_PREALLOC, cookie_owners);
MAP(BPF_MAP_TYPE_HASH, MAX_COOKIES, __u64, struct sock_cgroup, BPF_F_NO_PREALLOC, cookie_cgroups);
MAP(BPF_MAP_TYPE_ARRAY, COUNTS, __u32, __u64, 0, counts);
MAP(BPF_MAP_TYPE_ARRAY, MAX_IFACES, __u32, struct path_count, BPF_F_MMAPABLE, path_counts);
MAP(BPF_MAP_TYPE_ARRAY, MAX_REDIRECTS, __u32, struct redirect, BPF_F_MMAPABLE, redirects);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} events SEC(".maps");

static __always_inline struct settings *current_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

static __always_inline void count_one(__u32 which)
{
	__u64 *counted = bpf_map_lookup_elem(&counts, &which);

	if (counted)
		__sync_fetch_and_add(counted, 1);
}

#endif
