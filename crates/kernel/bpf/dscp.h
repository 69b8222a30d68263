/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Writes the code point of a target (RFC 2474) into the packets that the target sends. The bits of
 * ECN, the lower two of the same octet, stay as they are.
 */
#ifndef NETNICE_DSCP_H
#define NETNICE_DSCP_H

#define ECN_BITS 0x03		/* of the IPv4 field tos */
#define ECN_AND_LABEL 0x3f	/* of the second octet of an IPv6 header: ECN and the flow label's start */

/* Sets the code point of an IPv4 packet, and corrects the header's checksum. Only the 16 bits that
 * contain the code point change. */
static __always_inline void set_dscp_v4(struct __sk_buff *skb, __u32 l3, __u8 dscp)
{
	union {
		__u8 octets[2];	/* version and header length, tos */
		__u16 word;
	} old, new;

	if (bpf_skb_load_bytes(skb, l3, &old, sizeof(old)))
		return;
	new = old;
	new.octets[1] = dscp << 2 | (old.octets[1] & ECN_BITS);
	if (new.word == old.word || bpf_skb_store_bytes(skb, l3, &new, sizeof(new), 0))
		return;
	bpf_l3_csum_replace(skb, l3 + offsetof(struct iphdr, check), old.word, new.word, sizeof(new.word));
}

/* Sets the code point of an IPv6 packet. No checksum contains it. Its upper four bits are in the
 * first octet after the version, the lower two in the second. */
static __always_inline void set_dscp_v6(struct __sk_buff *skb, __u32 l3, __u8 dscp)
{
	union {
		__u8 octets[2];
		__u16 word;
	} old, new;

	if (bpf_skb_load_bytes(skb, l3, &old, sizeof(old)))
		return;
	new.octets[0] = (old.octets[0] & 0xf0) | dscp >> 2;
	new.octets[1] = (dscp & 0x03) << 6 | (old.octets[1] & ECN_AND_LABEL);
	if (new.word != old.word)
		bpf_skb_store_bytes(skb, l3, &new, sizeof(new), BPF_F_RECOMPUTE_CSUM);
}

/* Gives a packet that a target sends the target's code point, if it has one. Packets of lo keep
 * theirs: they leave the host by no cable. */
__noinline int set_dscp(struct __sk_buff *skb, __u32 flags, __u32 dscp)
{
	__u32 l3 = flags & IFACE_NO_MAC ? 0 : ETH_HLEN;

	if (!(dscp & DSCP_SET) || flags & IFACE_LOOPBACK)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		set_dscp_v4(skb, l3, dscp & (DSCP_SET - 1));
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		set_dscp_v6(skb, l3, dscp & (DSCP_SET - 1));
	return 0;
}

#endif
