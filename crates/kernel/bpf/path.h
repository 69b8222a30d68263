/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The path of a packet: through the stages to which its targets and its link direct it.
 *
 *     egress of an interface:  find the owner ── capped ──> nn0 (HTB) ──> nn1 ──> egress again,
 *                                              │                                  slot in tc_index
 *                                              └ not capped ─┐                         │
 *                                                            └──> class on a managed link,
 *                                                                 filters of others
 *     ingress: the same with the receiving socket, then a managed link's receive stage.
 *
 * On lo a packet leaves and arrives in one step. Its egress program looks up both ends, first the
 * sender, then the receiver. Its ingress has no program (unless the receiving direction of lo is
 * managed), because each call of a program takes time for packets without a target too.
 *
 * On a managed link, packets of a redirected target go to the link's driver in place of a class
 * (redirect.h).
 *
 * A returning packet carries a slot in tc_index: a random number that names its interface and
 * stage. The far end of the stage also writes a secret key into the control block, which a
 * classifier in another namespace cannot write. The program that receives the returning packet
 * clears both and returns UNSPEC, so the filters after netnice's run once, as without netnice.
 * A macvlan hands its packets down with their socket. They carry a slot too, so that the program
 * on the lower interface skips them.
 */
#ifndef NETNICE_PATH_H
#define NETNICE_PATH_H

#define CONTINUE TC_ACT_UNSPEC
#define PACKET_HOST 0
#define PACKET_OTHERHOST 3
#define VLAN_ID 0x0fff	/* of a tag's control information */
#define CAP_STAGE 0	/* used in place of a link's index */
#define LOOPBACK 1	/* interface index of lo in every namespace */

struct packet {
	__u32 target;		/* target id; 0: none */
	struct target *state;
};

static __always_inline bool set_target(struct packet *p, __u32 target)
{
	struct target *state;

	if (!target)
		return false;
	state = bpf_map_lookup_elem(&targets, &target);
	if (!state)
		return false;	/* removed, or left by an earlier daemon */
	p->target = target;
	p->state = state;
	return true;
}

/* Finds the owner of the listener that accepted a socket. A listener without room for a tag has no
 * tag that the accepted socket could inherit. */
static __always_inline bool find_listener_owner(struct __sk_buff *skb, struct bpf_sock *sk,
						struct sock_owner *owner)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *listener;
	struct sock_owner *known;
	bool found = false;
	__u64 cookie;
	__u32 size;
	/* Read here, each separately: otherwise clang merges the reads of two branches into one
	 * read at a computed offset, and the verifier rejects that. */
	__u32 port = *(volatile __u32 *)&sk->src_port;
	__u32 v4 = *(volatile __u32 *)&sk->src_ip4;
	__u32 v6 = *(volatile __u32 *)&sk->src_ip6[3];

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		tuple.ipv4.daddr = v4;
		tuple.ipv4.dport = bpf_htons(port);
		size = sizeof(tuple.ipv4);
	} else {
		tuple.ipv6.daddr[0] = sk->src_ip6[0];
		tuple.ipv6.daddr[1] = sk->src_ip6[1];
		tuple.ipv6.daddr[2] = sk->src_ip6[2];
		tuple.ipv6.daddr[3] = v6;
		tuple.ipv6.dport = bpf_htons(port);
		size = sizeof(tuple.ipv6);
	}
	/* The source is port 0 of no address. No connection has that source, so the lookup returns
	 * a listener or nothing. */
	listener = bpf_sk_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!listener)
		return false;
	cookie = cookie_of(listener);
	known = bpf_map_lookup_elem(&cookie_owners, &cookie);
	if (known) {
		owner->process = known->process;
		owner->app = known->app;
		found = true;
	}
	bpf_sk_release(listener);
	return found;
}

/* The owner of a socket, used while some sockets have no room for a tag. */
static __noinline struct sock_owner *owner_by_cookie(struct __sk_buff *skb, struct bpf_sock *sk,
						     bool egress, struct sock_owner *tag)
{
	__u64 cookie = cookie_of(sk);
	struct sock_owner *owner, fresh = {};

	owner = bpf_map_lookup_elem(&cookie_owners, &cookie);
	if (owner)
		return owner;
	if (tag)
		return tag;
	if (!egress || sk->protocol != IPPROTO_TCP)
		return 0;
	find_listener_owner(skb, sk, &fresh);
	fresh.uid = bpf_get_socket_uid(skb);
	/* A tag avoids the lookup for the next packets. */
	owner = bpf_sk_storage_get(&sock_owners, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	if (owner)
		return owner;
	if (!fresh.process && !fresh.app)
		return 0;
	cookie = bpf_get_socket_cookie(skb);
	bpf_map_update_elem(&cookie_owners, &cookie, &fresh, BPF_ANY);
	return bpf_map_lookup_elem(&cookie_owners, &cookie);
}

/* Finds the target of a packet of this socket. The more specific target wins: process, executable,
 * cgroup, user. */
static __always_inline bool find_owner(struct __sk_buff *skb, struct bpf_sock *sk, struct settings *now,
				       bool egress, struct packet *p)
{
	struct sock_owner *owner = bpf_sk_storage_get(&sock_owners, sk, 0, 0);
	__u32 *target;
	__u32 uid;

	if (now->cookie_owners)
		owner = owner_by_cookie(skb, sk, egress, owner);
	if (owner && (set_target(p, owner->process) || set_target(p, owner->app)))
		return true;
	if (now->cgroups) {
		if (egress) {
			if (set_target(p, cgroup_target(skb, sk, now)))
				return true;
		} else {
			struct sock_cgroup *known = bpf_sk_storage_get(&sock_cgroups, sk, 0, 0);

			if (!known)
				known = cookie_cgroup_of_receiver(sk);
			if (known && set_target(p, known->target))
				return true;
		}
	}
	if (!now->users)
		return false;
	if (egress) {
		uid = bpf_get_socket_uid(skb);
		if (!owner) {
			struct sock_owner fresh = { .uid = uid };

			bpf_sk_storage_get(&sock_owners, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
		}
	} else if (owner) {
		uid = owner->uid;
	} else {
		return false;
	}
	target = bpf_map_lookup_elem(&users, &uid);
	return target && set_target(p, *target);
}

/* Counts a packet in the counters of this number, of a target or of several together. */
__noinline int count(struct __sk_buff *skb, __u32 number, __u32 dir, bool dropped)
{
	struct counter_key key = { .target = number, .dir = dir };
	struct counter *c = bpf_map_lookup_elem(&counters, &key);
	__u32 packets = skb->gso_segs ? skb->gso_segs : 1;
	__u32 bytes = wire_bytes(skb);

	if (c) {
		c->packets += packets;
		c->bytes += bytes;
		if (dropped) {
			c->dropped += packets;
			c->dropped_bytes += bytes;
		}
	} else {
		struct counter first = { .packets = packets, .bytes = bytes };

		if (dropped) {
			first.dropped = packets;
			first.dropped_bytes = bytes;
		}
		bpf_map_update_elem(&counters, &key, &first, BPF_ANY);
	}
	return 0;
}

/* Sends the packet through a stage: the class is in priority, the return slot in tc_index. */
static __always_inline int redirect_to_stage(struct __sk_buff *skb, __u32 stage, __u32 class, __u16 slot)
{
	skb->priority = class;
	skb->tc_index = slot;
	return bpf_redirect(stage, 0);
}

/* Counts a packet of a target, and selects its class if the target has a limit; class 0: it does not
 * fit into the class or a quota. False: no limit. A packet that its sender was told to send again
 * later is not counted, and a packet that does not fit into the class is not charged to a quota. */
static __always_inline bool enter_stage(struct __sk_buff *skb, struct settings *now, struct iface *iface,
					struct packet *p, __u32 dir, __u32 sender, __u32 *class)
{
	struct leaf *cap = &p->state->cap[dir & 1];
	bool limited = cap->bulk && now->cap_stage, metered = p->state->quotas[0];
	__u32 bytes = wire_bytes(skb);

	*class = 0;
	if (metered && !charge_quotas(p->state, dir, bytes)) {
		if (sender != SENDER_TOLD)
			count(skb, p->state->counters, dir, true);
		return true;
	}
	if (limited) {
		*class = select_leaf(skb, cap, iface, CAP_STAGE, sender);
		if (metered && !*class)
			refund_quotas(p->state, dir, bytes, QUOTAS_AROUND);
	}
	if (!limited || *class || sender != SENDER_TOLD)
		count(skb, p->state->counters, dir, limited && !*class);
	return limited;
}

/* Adds a blank layer 2 header to a packet of an interface without layer 2, because a stage needs
 * one. The kernel removes the header on the way back. */
static __always_inline bool add_mac_header(struct __sk_buff *skb)
{
	__be16 proto = skb->protocol;

	if (bpf_skb_change_head(skb, ETH_HLEN, 0))
		return false;
	return !bpf_skb_store_bytes(skb, 2 * ETH_ALEN, &proto, sizeof(proto), 0);
}

static __always_inline struct iface *iface_of(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;

	return bpf_map_lookup_elem(&ifaces, &ifindex);
}

/* Whether this packet returns from this stage to this interface; if so, clears the slot. A
 * classifier in another namespace can give a packet any tc_index, and the packet keeps it when it
 * crosses namespaces. So the far end of the stage, which hands the packet straight to the
 * interface, writes a key into the packet's control block. No other namespace can write or read
 * that key. */
static __always_inline bool is_returning(struct __sk_buff *skb, struct settings *now, __u16 slot)
{
	if (!slot || skb->tc_index != slot || skb->cb[0] != now->key[0] || skb->cb[1] != now->key[1])
		return false;
	skb->tc_index = 0;
	skb->cb[0] = 0;
	skb->cb[1] = 0;
	return true;
}

/* Whether a program on an interface over this one has handled this packet. The control block does
 * not survive the queue of that interface. But the socket shows whether the packet originates in
 * this namespace, where only root sets a tc_index. A packet without a socket has no owner that
 * could be missed. */
static __noinline bool was_handled(struct __sk_buff *skb, struct settings *now, struct iface *iface,
				   struct bpf_sock *sk)
{
	struct bpf_sock *pointer = sk;
	struct sock *at = 0;
	struct net *net = 0;
	__u64 cookie = 0;

	if (!iface->slot_handled || skb->tc_index != iface->slot_handled)
		return false;
	skb->tc_index = 0;
	if (!sk)
		return true;
	bpf_probe_read_kernel(&at, sizeof(at), &pointer);
	bpf_probe_read_kernel(&net, sizeof(net), &at->__sk_common.skc_net.net);
	bpf_probe_read_kernel(&cookie, sizeof(cookie), &net->net_cookie);
	return cookie == now->netns_cookie;
}

/* Lets the packet continue. A packet to an interface below gets the mark that it was handled. A
 * container's packet keeps its own mark, for the class on that interface. */
static __always_inline int pass_on(struct __sk_buff *skb, struct settings *now, struct iface *iface)
{
	if (iface->slot_below && !sending_container(skb, now))
		skb->tc_index = iface->slot_below;
	return CONTINUE;
}

/* Whether packets of sockets first appear on this interface. A VLAN's packets are handled on the
 * VLAN's own interface, a port's on its master, and packets that an ipvlan receives on the
 * interface below, whose address it shares. A received tag of VLAN 0 carries a priority and no VLAN
 * (IEEE 802.1Q 9.6), and the stack treats it as none: otherwise a sender could escape a limit with
 * such a tag. */
static __always_inline bool first_appears_here(struct __sk_buff *skb, struct iface *iface, __u32 dir)
{
	if (iface->flags & IFACE_PORT || (dir == DIR_DOWN && iface->flags & IFACE_BELOW))
		return false;
	return !skb->vlan_present || (dir == DIR_DOWN && !(skb->vlan_tci & VLAN_ID));
}

/* The class of a packet on a managed link. */
static __always_inline __u32 link_class(struct __sk_buff *skb, struct iface *iface, __u32 target, __u32 dir)
{
	struct link_key key = { .ifindex = skb->ifindex, .target = target, .dir = dir };
	struct leaf *leaf = 0;

	if (target)
		leaf = bpf_map_lookup_elem(&links, &key);
	if (!leaf)
		leaf = &iface->rest[dir];
	return select_leaf(skb, leaf, iface, skb->ifindex, SENDER_REMOTE);
}

/* Whether this packet is the outside of a tunnel. The tunnel's own interface handled the packet
 * inside, and its socket stays attached. (UDP inside UDP cannot be distinguished from UDP.) */
static __always_inline bool is_encapsulation(struct __sk_buff *skb, struct bpf_sock *sk, bool mac)
{
	__u32 l3 = mac ? ETH_HLEN : 0;
	__u8 proto = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		bpf_skb_load_bytes(skb, l3 + offsetof(struct iphdr, protocol), &proto, 1);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		bpf_skb_load_bytes(skb, l3 + offsetof(struct ipv6hdr, nexthdr), &proto, 1);
	if (proto == sk->protocol)
		return false;
	return proto == IPPROTO_IPIP || proto == IPPROTO_IPV6 || proto == IPPROTO_GRE ||
	       (proto == IPPROTO_UDP && sk->protocol == IPPROTO_TCP);
}

/* Whether this packet certainly has no owner: its socket has no tag, and nothing but a tag can give
 * it an owner now. Most packets of most hosts end here, so this check makes one call into the
 * kernel (each costs about 15 ns). */
static __always_inline bool has_no_owner(struct __sk_buff *skb, struct settings *now)
{
	struct bpf_sock *sk = skb->sk;

	if (skb->tc_index || now->links || now->containers || now->cookie_owners)
		return false;
	if (!sk)
		return true;
	return !now->cgroups && !now->users && !bpf_sk_storage_get(&sock_owners, sk, 0, 0);
}

#include "receiver.h"

/* Finds the container behind a veth, if it is a target. The interface is recorded at the
 * first packet of a socket in the container's cgroup. The daemon also records it once it has found
 * the container. */
static __always_inline bool find_container(struct __sk_buff *skb, struct settings *now, bool from_container,
					   struct packet *p)
{
	__u32 ifindex = skb->ifindex, *known, target;
	struct bpf_sock *sk;

	known = bpf_map_lookup_elem(&container_veths, &ifindex);
	if (known)
		return set_target(p, *known);
	if (!from_container)
		return false;
	sk = skb->sk;
	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (!sk)
		return false;
	target = cgroup_target(skb, sk, now);
	if (!target || !bpf_map_lookup_elem(&containers, &target))
		return false;
	bpf_map_update_elem(&container_veths, &ifindex, &target, BPF_NOEXIST);
	return set_target(p, target);
}

/* Sends a packet of a veth, from or to a container, through the stage if the container has a limit;
 * NOT_REDIRECTED if not. The container's own network lies beyond this interface. So the packet is counted here, with any
 * socket, and even if another target of this namespace holds it too. */
__noinline int redirect_to_container_stage(struct __sk_buff *skb, struct settings *now, struct iface *iface,
					   __u32 dir)
{
	bool from_container = dir == DIR_UP;
	struct packet p = {};
	__u32 class;

	if (!now || !iface || !find_container(skb, now, from_container, &p))
		return NOT_REDIRECTED;
	if (from_container && p.state->dscp)
		set_dscp(skb, iface->flags, p.state->dscp);
	if (!enter_stage(skb, now, iface, &p, dir, SENDER_REMOTE, &class))
		return NOT_REDIRECTED;
	if (!class)
		return TC_ACT_SHOT;
	return redirect_to_stage(skb, now->cap_stage, class,
				 from_container ? iface->slot_container_up : iface->slot_container_down);
}

/* The same for any interface. Most packets need no call. */
static __always_inline int redirect_container_packet(struct __sk_buff *skb, struct settings *now,
						     struct iface *iface, __u32 dir)
{
	if (!may_lead_to_container(now, iface))
		return NOT_REDIRECTED;
	return redirect_to_container_stage(skb, now, iface, dir);
}

/* Counts a packet for its receiving target, and sends it through the stage if the target has a
 * limit; NOT_REDIRECTED if not. */
static __always_inline int redirect_to_cap(struct __sk_buff *skb, struct settings *now, struct iface *iface,
					   struct packet *p)
{
	__u32 class;

	if (!enter_stage(skb, now, iface, p, DIR_DOWN, SENDER_REMOTE, &class))
		return NOT_REDIRECTED;
	if (!class || (iface->flags & IFACE_NO_MAC && !add_mac_header(skb)))
		return TC_ACT_SHOT;
	return redirect_to_stage(skb, now->cap_stage, class, iface->slot_down);
}

/* Handles the receiver's side of a packet that leaves by lo; NOT_REDIRECTED if it is not limited. */
__noinline int redirect_on_arrival(struct __sk_buff *skb, struct settings *now, struct iface *iface)
{
	struct packet p = {};

	if (!now || !iface || !find_receiver(skb, now, iface, &p))
		return NOT_REDIRECTED;
	return redirect_to_cap(skb, now, iface, &p);
}

/* Counts a packet that goes to the classes of a managed link, for the driver that shares the link. */
static __always_inline void count_for_driver(struct __sk_buff *skb, struct iface *iface)
{
	__u32 place = iface->path_count;
	struct path_count *count;

	if (!place)
		return;
	count = bpf_map_lookup_elem(&path_counts, &place);
	if (!count)
		return;
	__sync_fetch_and_add(&count->bytes, wire_bytes(skb));
	__sync_fetch_and_add(&count->packets, skb->gso_segs > 1 ? skb->gso_segs : 1);
}

SEC("classifier/egress")
int on_egress(struct __sk_buff *skb)
{
	struct settings *now = current_settings();
	struct packet p = {};
	struct bpf_sock *sk;
	struct iface *iface;
	bool arrives, returned, from_container_stage, handled, managed;
	int verdict;

	if (!now || (has_no_owner(skb, now) && (skb->ifindex != LOOPBACK || !may_have_receiver(skb, ETH_HLEN))))
		return CONTINUE;
	sk = skb->sk;
	if (sk)
		sk = bpf_sk_fullsock(sk);
	iface = iface_of(skb);
	if (!iface)
		return CONTINUE;
	arrives = iface->flags & IFACE_LOOPBACK;	/* what leaves by lo arrives by it */
	returned = is_returning(skb, now, iface->slot_up);
	if (arrives && is_returning(skb, now, iface->slot_down)) {
		returned = true;
		arrives = false;
	}
	if (returned && iface->flags & IFACE_LOOPBACK)
		bpf_skb_change_type(skb, PACKET_HOST);	/* the stage set PACKET_OTHERHOST */
	from_container_stage = is_returning(skb, now, iface->slot_container_down);
	handled = from_container_stage || returned || was_handled(skb, now, iface, sk);
	managed = iface->flags & IFACE_MANAGED_UP;
	if (returned || from_container_stage)
		skb->priority = sk ? sk->priority : 0;	/* the value before the stage */
	if (handled && !from_container_stage) {
		verdict = redirect_container_packet(skb, now, iface, DIR_DOWN);
		if (verdict != NOT_REDIRECTED)
			return verdict;
	}
	if (handled && !managed && !arrives)
		return pass_on(skb, now, iface);
	if (sk && (!handled || managed) && find_owner(skb, sk, now, true, &p) &&
	    is_encapsulation(skb, sk, !(iface->flags & IFACE_NO_MAC)))
		p = (struct packet){};
	if (p.state && !handled && first_appears_here(skb, iface, DIR_UP)) {
		__u32 sender = sk->protocol == IPPROTO_TCP ? SENDER_TOLD : SENDER_WAITS;
		int entered = NOT_REDIRECTED;
		__u32 class;

		if (sender == SENDER_TOLD)
			record_port(sk->src_port);
		if (p.state->dscp)
			set_dscp(skb, iface->flags, p.state->dscp);
		/* Before the cap stage: behind it, nobody would be told of a refusal. */
		if (managed && iface->redirect_pair)
			entered = enter_place(skb, p.target);
		if (entered == REFUSED) {
			if (sender != SENDER_TOLD)
				count(skb, p.state->counters, DIR_UP, true);
			return TC_ACT_SHOT;
		}
		if (enter_stage(skb, now, iface, &p, DIR_UP, sender, &class)) {
			if (!class || (iface->flags & IFACE_NO_MAC && !add_mac_header(skb))) {
				if (entered == ENTERED)
					leave_place(skb, p.target);
				return TC_ACT_SHOT;
			}
			return redirect_to_stage(skb, now->cap_stage, class, iface->slot_up);
		}
		if (entered == ENTERED) {
			verdict = redirect_to_driver(skb, p.target, iface->redirect_pair);
			if (verdict != NOT_REDIRECTED)
				return verdict;
		}
	}
	if (!handled) {
		verdict = redirect_container_packet(skb, now, iface, DIR_DOWN);
		if (verdict != NOT_REDIRECTED)
			return verdict;
	}
	if (arrives) {
		verdict = redirect_on_arrival(skb, now, iface);
		if (verdict != NOT_REDIRECTED)
			return verdict;
	}
	if (managed) {
		__u32 container = sending_container(skb, now);
		__u32 target = container ? container : p.target;

		if (container && iface->flags & IFACE_MANAGED_DOWN)
			learn_container_flow(skb, iface->flags, container);
		if (iface->redirect_pair && target) {
			/* A packet that returns from the cap stage was counted before it. */
			if (!returned && enter_place(skb, target) == REFUSED)
				return TC_ACT_SHOT;
			verdict = redirect_to_driver(skb, target, iface->redirect_pair);
			if (verdict != NOT_REDIRECTED)
				return verdict;
		}
		skb->priority = link_class(skb, iface, target, DIR_UP);
		count_for_driver(skb, iface);
	}
	return pass_on(skb, now, iface);
}

SEC("classifier/ingress")
int on_ingress(struct __sk_buff *skb)
{
	struct settings *now = current_settings();
	struct packet p = {};
	struct iface *iface;
	bool capped;
	int verdict;

	if (!now)
		return CONTINUE;
	iface = iface_of(skb);
	if (!iface)
		return CONTINUE;
	if (is_returning(skb, now, iface->slot_link)) {
		mark_container(skb, now, iface);
		return CONTINUE;
	}
	/* The egress program of lo handles its packets. */
	capped = is_returning(skb, now, iface->slot_down) || iface->flags & IFACE_LOOPBACK;
	if (!capped && !is_returning(skb, now, iface->slot_container_up)) {
		verdict = redirect_container_packet(skb, now, iface, DIR_UP);
		if (verdict != NOT_REDIRECTED)
			return verdict;
	}
	if (!capped)
		mark_container(skb, now, iface);
	if (capped && !(iface->flags & IFACE_MANAGED_DOWN))
		return CONTINUE;
	find_receiver(skb, now, iface, &p);
	if (p.state && !capped) {
		verdict = redirect_to_cap(skb, now, iface, &p);
		if (verdict != NOT_REDIRECTED)
			return verdict;
	}
	if (iface->flags & IFACE_MANAGED_DOWN) {
		__u32 target = p.target, class;

		if (!target && now->containers)
			target = receiving_container(skb, iface->flags);
		class = link_class(skb, iface, target, DIR_DOWN);
		if (iface->flags & IFACE_NO_MAC && !add_mac_header(skb))
			return TC_ACT_SHOT;
		return redirect_to_stage(skb, iface->link_stage, class, iface->slot_link);
	}
	return CONTINUE;
}

/* The far end of a stage: redirects a packet to its original destination. */
SEC("classifier/stage")
int on_stage_exit(struct __sk_buff *skb)
{
	__u16 slot = skb->tc_index;
	struct slot *to = bpf_map_lookup_elem(&slots, &slot);
	struct settings *now = current_settings();
	bool leaves;

	if (!now || !to || to->stage == STAGE_HANDLED || to->stage == STAGE_FROM_CONTAINER)
		return TC_ACT_SHOT;	/* not from netnice, or the interface is gone */
	count_exit(skb);
	skb->cb[0] = now->key[0];
	skb->cb[1] = now->key[1];
	leaves = to->stage == STAGE_CAP_UP || to->stage == STAGE_CONTAINER_DOWN ||
		 (to->stage == STAGE_CAP_DOWN && to->ifindex == LOOPBACK);
	return bpf_redirect(to->ifindex, leaves ? 0 : BPF_F_INGRESS);
}

#endif
