/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Settings of the TCP connections of a target whose sending is limited. They keep TCP from putting
 * more into the stage than the limit can carry soon.
 *
 * Segments on lo: below 500 Mbit/s they are as short as those of cables. Otherwise a packet of lo
 * has 64 KiB, which at 4 Mbit/s takes 131 ms, and HTB gives lo as many bytes at each turn. The
 * setting has an effect only if it is made before the connection.
 *
 * Packets in flight: once per round trip, while packets wait in the stage, TCP gets a bound: what it
 * has in flight outside the stage, and its part of QUEUE_MS in the stage (at least two packets). This
 * is the window of FAST TCP (Wei, Jin, Low, Hegde 2006, equation 5) with the measured queue in place
 * of the delay. Equal parts in a FIFO make equal rates, whatever the round-trip times are. Segments
 * of segmentation offload are no longer than the window, so they become as short as the limit is
 * slow. When nothing waits in the stage, the bound ends: then the limit is not what slows TCP down.
 *
 * Pacing: with so many flows that two packets of each are too long a queue, each flow gets its part
 * of the rate as its highest pacing rate, more while the queue is short and less while it is long.
 *
 * A smaller setting of the program stays. The connections made before the limit keep their settings.
 */
#ifndef NETNICE_TCP_H
#define NETNICE_TCP_H

#define SOL_SOCKET 1
#define SOL_TCP 6
#define SO_MAX_PACING_RATE 47
#define TCP_MAXSEG 2
#define AF_INET6 10
#define MAC_BYTES 18		/* of Ethernet, with the tag of a VLAN */
#define V4_BYTES 40		/* headers of IP and TCP without options */
#define V6_BYTES 60
#define FRAME_BYTES 66		/* headers of a full segment over IPv4, with timestamps */

#define QUEUE_MS 15		/* of a limit's rate, that its flows together may have in the stage */
#define STANDING_MS 8		/* a shorter queue does not engage the bound */
#define PACED_MS 40		/* if two packets of each flow take longer, the flows are paced */
#define LEAST_PACED 4		/* flows */
#define NO_WINDOW 0x7fffffff

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct inet_sock {
	struct sock sk;
};
struct inet_connection_sock {
	struct inet_sock icsk_inet;
};
struct tcp_options_received {
	__u16 user_mss;
};
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	struct tcp_options_received rx_opt;
	__u32 packets_out;
	__u32 snd_cwnd_clamp;
};
struct bpf_iter__tcp {
	struct sock_common *sk_common;
};
#pragma clang attribute pop

/* Finds the target of a socket that need not have a packet. */
static __always_inline bool find_socket_owner(struct bpf_sock *sk, struct settings *now, struct packet *p)
{
	struct sock_owner *owner = bpf_sk_storage_get(&sock_owners, sk, 0, 0);
	struct sock_cgroup *group;
	__u32 *target, uid;

	if (owner && (set_target(p, owner->process) || set_target(p, owner->app)))
		return true;
	if (now->cgroups) {
		group = bpf_sk_storage_get(&sock_cgroups, sk, 0, 0);
		if (group && set_target(p, group->target))
			return true;
	}
	if (!now->users || !owner)
		return false;
	uid = owner->uid;
	target = bpf_map_lookup_elem(&users, &uid);
	return target && set_target(p, *target);
}

/* Sets the longest segment of a socket that is about to connect or listen. */
static __always_inline void limit_segments(struct bpf_sock_ops *ctx, struct tcp_sock *tcp, struct target *state)
{
	__u32 longest = state->cap[DIR_UP].longest, down = state->cap[DIR_DOWN].longest;
	__u32 headers = MAC_BYTES + (ctx->family == AF_INET6 ? V6_BYTES : V4_BYTES);
	int segment;

	if (down && (!longest || down < longest))
		longest = down;
	if (longest <= headers)
		return;
	segment = longest - headers;
	if (!tcp->rx_opt.user_mss || tcp->rx_opt.user_mss > segment)
		bpf_setsockopt(ctx, SOL_TCP, TCP_MAXSEG, &segment, sizeof(segment));
}

/* Sets the most packets in flight; NO_WINDOW: any number. (The kernel sets the threshold of slow
 * start to the same value.) */
static __always_inline void set_window(void *at, struct tcp_sock *tcp, struct tcp_tuning *tuning, int packets)
{
	__u32 current = tcp->snd_cwnd_clamp;

	if (current == packets || (current < NO_WINDOW && current != tuning->window))
		return;
	if (!bpf_setsockopt(at, SOL_TCP, TCP_BPF_SNDCWND_CLAMP, &packets, sizeof(packets)))
		tuning->window = packets == NO_WINDOW ? 0 : packets;
}

/* Sets the highest pacing rate in bytes per second; 0: any rate. */
static __always_inline void set_pacing(void *at, struct tcp_sock *tcp, struct tcp_tuning *tuning, __u32 rate)
{
	unsigned long current = tcp->inet_conn.icsk_inet.sk.sk_max_pacing_rate;
	__u32 wanted = rate ? rate : ~0U;

	if (current != ~0UL ? current != tuning->pacing : !rate)
		return;
	if (!bpf_setsockopt(at, SOL_SOCKET, SO_MAX_PACING_RATE, &wanted, sizeof(wanted)))
		tuning->pacing = rate;
}

static __always_inline void take_back(void *at, struct tcp_sock *tcp, struct tcp_tuning *tuning)
{
	if (tuning->window)
		set_window(at, tcp, tuning, NO_WINDOW);
	if (tuning->pacing)
		set_pacing(at, tcp, tuning, 0);
}

/* The pacing rate of a flow, if `flows` flows divide the limit and `waits` bytes wait in the stage.
 * The flows together get between 5/6 and 7/6 of the limit, and up to twice as much when next to
 * nothing waits. (The pacing of TCP counts payload.) */
static __always_inline __u32 pacing_rate(struct leaf *leaf, __u32 flows, __u32 waits, __u32 payload)
{
	__u64 full = ((__u64)waits << 6) / leaf->bound;
	__u64 part = 75 - (full > 64 ? 22 : full * 22 / 64);

	if (full < 16)
		part += 64 - 4 * full;
	return (__u64)leaf->rate * part / 64 * payload / (payload + FRAME_BYTES) / flows;
}

/* Sets the first window of a connection: its part of what may wait in the stage. Programs often
 * open all connections before they send, so every flow of the last windows counts. */
static __always_inline void set_first_window(struct bpf_sock_ops *ctx, struct leaf *leaf, struct window *w)
{
	__u32 others = w->active > w->last_active ? w->active : w->last_active;
	__u32 packets = leaf->bound / (others + 1) / (ctx->mss_cache + FRAME_BYTES);

	if (!packets)
		packets = 1;
	if (packets < ctx->snd_cwnd)
		bpf_setsockopt(ctx, SOL_TCP, TCP_BPF_IW, &packets, sizeof(packets));
}

/* Sets the window of a connection, and its pacing, from what waits in the stage now. */
static __always_inline void tune(struct bpf_sock_ops *ctx, struct tcp_sock *tcp, struct leaf *leaf,
				 struct tcp_tuning *tuning, struct window *w, __u32 sharing)
{
	struct flow_key key = { .window = { .leaf = leaf->bulk } };
	__u32 payload = ctx->mss_cache, packet = payload + FRAME_BYTES, part, of_all, of_flow = 0, outside, wanted;
	__u32 per_ms = leaf->rate / 1000;
	__u64 now = bpf_ktime_get_ns(), patience = patience_ns(leaf);
	struct flow *f;

	key.hash = (__u32)bpf_get_socket_cookie(ctx) * 0x9e3779b1;	/* as in select_leaf() */
	f = bpf_map_lookup_elem(&flows, &key);
	if (f)
		of_flow = waiting(&f->inside, now, patience);
	of_all = waiting(&w->queues[QUEUE_BULK], now, patience) + waiting(&w->queues[QUEUE_LOCAL], now, patience);
	part = per_ms * QUEUE_MS / sharing;
	if (part < 2 * packet)
		part = 2 * packet;
	outside = tcp->packets_out * packet;
	outside -= of_flow < outside ? of_flow : outside;
	wanted = (outside + part) / packet;
	/* A connection of which nothing waits here is slowed by something else. Its window may grow,
	 * but netnice must not take away what a loss elsewhere made of it. */
	if (!of_all && tuning->window)
		set_window(ctx, tcp, tuning, NO_WINDOW);
	else if (of_flow ? tuning->window || of_all > per_ms * STANDING_MS :
			   tuning->window && wanted > tuning->window)
		set_window(ctx, tcp, tuning, wanted);
	if (sharing < LEAST_PACED || sharing * 2 * packet < per_ms * PACED_MS)
		set_pacing(ctx, tcp, tuning, 0);
	else
		set_pacing(ctx, tcp, tuning, pacing_rate(leaf, sharing, of_all, payload));
}

/* Follows a connection of a target whose sending is limited: at its beginning and at each round
 * trip. */
static __always_inline void follow_connection(struct bpf_sock_ops *ctx, struct bpf_sock *sk, struct tcp_sock *tcp,
					      struct leaf *leaf)
{
	bool begins = ctx->op != BPF_SOCK_OPS_RTT_CB;
	struct window_key key = { .leaf = leaf->bulk };
	struct tcp_tuning none = {}, *tuning;
	struct window *w;
	__u32 sharing;

	tuning = bpf_sk_storage_get(&tcp_tunings, sk, &none, begins ? BPF_SK_STORAGE_GET_F_CREATE : 0);
	if (!tuning)
		return;
	w = bpf_map_lookup_elem(&windows, &key);
	if (!w || !leaf->bound) {
		take_back(ctx, tcp, tuning);
		return;
	}
	sharing = w->bulk > w->last_bulk ? w->bulk : w->last_bulk;
	if (begins)
		set_first_window(ctx, leaf, w);
	else
		tune(ctx, tcp, leaf, tuning, w, sharing ? sharing : 1);
}

SEC("sockops")
int on_tcp(struct bpf_sock_ops *ctx)
{
	struct settings *now = current_settings();
	struct tcp_tuning *tuning;
	struct packet p = {};
	struct tcp_sock *tcp;
	struct bpf_sock *sk;
	int flags;

	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_RTT_CB:
		break;
	default:
		return 1;
	}
	sk = ctx->sk;
	if (!sk || !now || bpf_get_netns_cookie(ctx) != now->netns_cookie)
		return 1;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return 1;
	if (!now->cap_stage || !find_socket_owner(sk, now, &p)) {
		tuning = bpf_sk_storage_get(&tcp_tunings, sk, 0, 0);
		if (tuning)
			take_back(ctx, tcp, tuning);
		return 1;
	}
	if (ctx->op == BPF_SOCK_OPS_TCP_CONNECT_CB || ctx->op == BPF_SOCK_OPS_TCP_LISTEN_CB) {
		limit_segments(ctx, tcp, p.state);
		return 1;
	}
	follow_connection(ctx, sk, tcp, &p.state->cap[DIR_UP]);
	flags = ctx->bpf_sock_ops_cb_flags;
	if (!(flags & BPF_SOCK_OPS_RTT_CB_FLAG) && p.state->cap[DIR_UP].bulk)
		bpf_sock_ops_cb_flags_set(ctx, flags | BPF_SOCK_OPS_RTT_CB_FLAG);
	return 1;
}

/* Takes back what was set of every TCP connection, before the programs end. */
SEC("iter/tcp")
int on_each_tcp(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct tcp_tuning *tuning;
	struct tcp_sock *tcp;

	if (!common)
		return 0;
	tcp = bpf_skc_to_tcp_sock(common);
	if (!tcp)
		return 0;
	tuning = bpf_sk_storage_get(&tcp_tunings, tcp, 0, 0);
	if (tuning)
		take_back(tcp, tcp, tuning);
	return 0;
}

#endif
