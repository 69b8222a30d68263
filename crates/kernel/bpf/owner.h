/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Finds and records the owner of a socket: its process target, its executable target, its user and
 * its cgroup target.
 *
 * A thread group is a member of at most one process target (pid, run, name) and one executable
 * target; a child inherits both at fork. A socket takes its creator's membership at its creation,
 * and an accepted socket its listener's (BPF_F_CLONE). The kernel creates the subflows of an MPTCP
 * socket itself and hides them from sock_create; the first subflow passes bind or connect in the
 * program's own context and is tagged there.
 */
#ifndef NETNICE_OWNER_H
#define NETNICE_OWNER_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct atomic_core {
	int counter;
};
struct signal_struct {
	struct atomic_core live;
};
struct task_struct {
	int pid;
	int tgid;
	struct signal_struct *signal;
};
struct super_block {
	__u32 s_dev;
};
struct inode {
	unsigned long i_ino;
	struct super_block *i_sb;
};
struct file {
	struct inode *f_inode;
};
struct linux_binprm {
	struct file *file;
};
struct kernfs_node {
	__u64 id;
};
struct cgroup_root {
	int hierarchy_id;
};
struct cgroup {
	struct kernfs_node *kn;
	struct cgroup_root *root;
};
struct atomic64_core {
	long long counter;
};
struct net {
	__u64 net_cookie;
};
struct possible_net_core {
	struct net *net;
};
struct sock_common {
	struct possible_net_core skc_net;
	struct atomic64_core skc_cookie;
};
struct sock {
	struct sock_common __sk_common;
	unsigned long sk_max_pacing_rate;
};
#pragma clang attribute pop

#define EEXIST 17

SEC("tp_btf/sched_process_fork")
int on_fork(__u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0];
	struct task_struct *child = (void *)ctx[1];
	__u32 from = parent->tgid, to = child->tgid;
	struct proc *membership;
	struct proc copy;
	long failed;

	if (from == to)
		return 0;	/* a thread of a known group */
	membership = bpf_map_lookup_elem(&procs, &from);
	if (!membership)
		return 0;
	copy = *membership;
	failed = bpf_map_update_elem(&procs, &to, &copy, BPF_NOEXIST);
	/* The map is full, or there is no memory: the daemon reads the count and looks for the
	 * child. */
	if (failed && failed != -EEXIST)
		count_one(COUNT_MISSED_FORKS);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int on_exec(__u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct linux_binprm *binprm = (void *)ctx[2];
	__u32 tgid = task->tgid;
	struct app_key key = {};
	struct proc *membership;
	struct proc fresh = {};
	__u32 *app;

	key.inode = binprm->file->f_inode->i_ino;
	key.dev = binprm->file->f_inode->i_sb->s_dev;
	app = bpf_map_lookup_elem(&apps, &key);
	if (!app)
		return 0;	/* the parent's targets still apply: rsync's ssh belongs to rsync */
	membership = bpf_map_lookup_elem(&procs, &tgid);
	if (membership)
		fresh = *membership;
	fresh.app = *app;
	bpf_map_update_elem(&procs, &tgid, &fresh, BPF_ANY);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_exit(__u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	__u32 tgid = task->tgid;
	struct proc *membership;
	struct event *event;

	/* The tracepoint fires for every thread; the group is dead when no thread of it lives. */
	if (task->signal->live.counter > 0)
		return 0;
	membership = bpf_map_lookup_elem(&procs, &tgid);
	if (!membership)
		return 0;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (event) {
		event->kind = EVENT_EXIT;
		event->tgid = tgid;
		event->process = membership->process;
		event->app = membership->app;
		bpf_ringbuf_submit(event, 0);
	}	/* if the ring is full, the daemon finds the exit later by itself */
	bpf_map_delete_elem(&procs, &tgid);
	return 0;
}

/* Records that a TCP socket of a target has this local port (see may_have_receiver() in path.h). */
static __always_inline void record_port(__u32 port)
{
	__u32 word = port / 32 % PORT_WORDS, bit = 1U << port % 32;
	__u32 *known = bpf_map_lookup_elem(&ports, &word);

	if (known && !(*known & bit))
		__sync_fetch_and_or(known, bit);
}

/* Tags a socket with the membership of the current process, unless the socket has an owner. */
static __always_inline void tag(struct bpf_sock *sk)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct proc *membership = bpf_map_lookup_elem(&procs, &tgid);
	struct settings *now = current_settings();
	struct sock_owner owner = {};

	if (!now || (!membership && !now->users))
		return;
	if (membership) {
		owner.process = membership->process;
		owner.app = membership->app;
	}
	owner.uid = (__u32)bpf_get_current_uid_gid();
	bpf_sk_storage_get(&sock_owners, sk, &owner, BPF_SK_STORAGE_GET_F_CREATE);
}

/* Stores the creator's cgroup target in a new socket, so that the target is known if the socket
 * receives before it sends. A socket's cgroup is its creator's and never changes. */
static __always_inline void tag_cgroup(struct bpf_sock *sk, struct settings *now)
{
	struct sock_cgroup fresh = { .generation = now->generation };
	int level;

	for (level = 0; level <= MAX_CGROUP_LEVELS; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);
		__u32 *target;

		if (!id)
			break;
		target = bpf_map_lookup_elem(&cgroups, &id);
		if (target)
			fresh.target = *target;
	}
	bpf_sk_storage_get(&sock_cgroups, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
}

SEC("cgroup/sock_create")
int on_sock_create(struct bpf_sock *ctx)
{
	struct settings *now = current_settings();

	if (!now || bpf_get_netns_cookie(ctx) != now->netns_cookie)
		return 1;
	tag(ctx);
	if (now->cgroups)
		tag_cgroup(ctx, now);
	return 1;
}

static __always_inline int on_sock_addr(struct bpf_sock_addr *ctx, bool bind)
{
	struct settings *now = current_settings();

	if (!now || !ctx->sk || ctx->protocol != IPPROTO_TCP || bpf_get_netns_cookie(ctx) != now->netns_cookie)
		return 1;
	tag(ctx->sk);
	if (bind && ctx->user_port && bpf_sk_storage_get(&sock_owners, ctx->sk, 0, 0))
		record_port(bpf_ntohs(ctx->user_port));	/* a listener's, for its first packet */
	return 1;
}

SEC("cgroup/bind4")
int on_bind4(struct bpf_sock_addr *ctx)
{
	return on_sock_addr(ctx, true);
}

SEC("cgroup/bind6")
int on_bind6(struct bpf_sock_addr *ctx)
{
	return on_sock_addr(ctx, true);
}

SEC("cgroup/connect4")
int on_connect4(struct bpf_sock_addr *ctx)
{
	return on_sock_addr(ctx, false);
}

SEC("cgroup/connect6")
int on_connect6(struct bpf_sock_addr *ctx)
{
	return on_sock_addr(ctx, false);
}

/* The cookie of a socket that need not be the packet's. 0: the socket has none yet. The verifier
 * permits no arithmetic on a pointer to a socket, so the pointer is read back from the stack as a
 * number. */
static __always_inline __u64 cookie_of(struct bpf_sock *sk)
{
	struct bpf_sock *pointer = sk;
	struct sock *at = 0;
	__u64 cookie = 0;

	bpf_probe_read_kernel(&at, sizeof(at), &pointer);
	bpf_probe_read_kernel(&cookie, sizeof(cookie), &at->__sk_common.skc_cookie);
	return cookie;
}

/* The cgroup target of a packet's socket that has no room for a tag; the first call makes an empty
 * entry. 0: the table is full. */
static __noinline struct sock_cgroup *cookie_cgroup_of_packet(struct __sk_buff *skb)
{
	__u64 cookie = bpf_get_socket_cookie(skb);
	struct sock_cgroup *known, none = {};

	known = bpf_map_lookup_elem(&cookie_cgroups, &cookie);
	if (known)
		return known;
	if (bpf_map_update_elem(&cookie_cgroups, &cookie, &none, BPF_ANY))
		return 0;
	count_one(COUNT_COOKIE_CGROUPS);
	return bpf_map_lookup_elem(&cookie_cgroups, &cookie);
}

/* As cookie_cgroup_of_packet(), for the socket that receives a packet. 0: no entry. */
static __noinline struct sock_cgroup *cookie_cgroup_of_receiver(struct bpf_sock *sk)
{
	__u32 which = COUNT_COOKIE_CGROUPS;
	__u64 *there = bpf_map_lookup_elem(&counts, &which), cookie;

	if (!there || !*there)
		return 0;
	cookie = cookie_of(sk);
	return bpf_map_lookup_elem(&cookie_cgroups, &cookie);
}

/* The cgroup target of a packet's socket: the deepest one among the socket's cgroup and that
 * cgroup's ancestors; 0: none. */
__noinline __u32 deepest_cgroup_target(struct __sk_buff *skb)
{
	__u32 deepest = 0;
	int level;

	for (level = 0; level <= MAX_CGROUP_LEVELS; level++) {
		__u64 id = bpf_skb_ancestor_cgroup_id(skb, level);
		__u32 *target;

		if (!id)
			break;
		target = bpf_map_lookup_elem(&cgroups, &id);
		if (target)
			deepest = *target;
	}
	return deepest;
}

/* The cgroup target of a packet's socket. The socket's storage caches it until the generation
 * changes, when a cgroup target is added or removed. */
static __always_inline __u32 cgroup_target(struct __sk_buff *skb, struct bpf_sock *sk, struct settings *now)
{
	struct sock_cgroup *known, fresh = {};

	known = bpf_sk_storage_get(&sock_cgroups, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	if (!known)
		known = cookie_cgroup_of_packet(skb);
	if (known && known->generation == now->generation)
		return known->target;
	fresh.target = deepest_cgroup_target(skb);
	if (known) {
		known->target = fresh.target;
		known->generation = now->generation;
	}
	return fresh.target;
}

/* The offset of the last name of a path; 0 if a component above it is not a slice. A map entry
 * holds the intermediate value: the verifier would follow each possible value of a register, which
 * takes seconds. */
static __always_inline int name_below_slices(const char *path)
{
	static const char slice[] = ".slice";
	__u32 second = 1;
	volatile struct group_name *found = bpf_map_lookup_elem(&name_scratch, &second);

	if (!found)
		return 0;
	found->text[0] = 0;

	for (int i = 0; i < MAX_GROUP_NAME; i++) {
		if (!path[i])
			break;
		if (path[i] != '/')
			continue;
		for (int j = 0; i && j < 6; j++) {
			if (i < 7 || path[i - 6 + j] != slice[j])
				return 0;
		}
		found->text[0] = i + 1;
	}
	return found->text[0] & (MAX_GROUP_NAME - 1);
}

/* Runs when a cgroup has been made and is still empty. If a target expects a cgroup of this name,
 * the cgroup belongs to the target from the start. (The daemon is notified later and adopts it.) */
SEC("tp_btf/cgroup_mkdir")
int on_cgroup_made(__u64 *ctx)
{
	struct cgroup *group = (void *)ctx[0];
	const char *path = (void *)ctx[1];
	__u32 zero = 0, *target;
	struct group_name *name;
	__u64 id;
	int start;

	if (group->root->hierarchy_id)
		return 0;	/* a version 1 hierarchy */
	name = bpf_map_lookup_elem(&name_scratch, &zero);
	if (!name)
		return 0;
	id = group->kn->id;
	__builtin_memset(name, 0, sizeof(*name));
	if (bpf_probe_read_kernel_str(name, sizeof(*name), path) >= MAX_GROUP_NAME)
		return 0;	/* truncated: the daemon handles this cgroup */
	target = bpf_map_lookup_elem(&expected_groups, name);
	if (!target) {
		start = name_below_slices((const char *)name);
		if (!start)
			return 0;
		__builtin_memset(name, 0, sizeof(*name));
		bpf_probe_read_kernel_str(name, sizeof(*name), path + start);
		target = bpf_map_lookup_elem(&expected_groups, name);
	}
	if (target)
		bpf_map_update_elem(&cgroups, &id, target, BPF_ANY);
	return 0;
}

/* A socket that only receives never passes egress, where the kernel provides a socket's cgroup.
 * This program stores the cgroup target of such a socket. */
SEC("cgroup_skb/ingress")
int on_cgroup_receive(struct __sk_buff *skb)
{
	struct settings *now = current_settings();
	struct bpf_sock *sk = skb->sk;

	if (!now || !sk || !now->cgroups)
		return 1;
	sk = bpf_sk_fullsock(sk);
	if (sk)
		cgroup_target(skb, sk, now);
	return 1;
}

#endif
