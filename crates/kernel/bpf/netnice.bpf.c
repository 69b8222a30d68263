/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * netnice in the kernel: finds the owner of each packet and selects its queue.
 *
 * While only processes and executables are targets and no link is managed, a packet that is sent
 * without a target costs one read of the settings and one of the socket's storage. The cost of a
 * packet with a target does not depend on the number of targets. The programs decide no rate: rates
 * are in HTB's classes.
 *
 * What several paths call is not static: the verifier checks such a function once, with any argument,
 * and a static one again for each state in which it is called, some ten times as many steps. It
 * allows such a function no socket as an argument, and a pointer to a map's entry only if the
 * function allows 0 there.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "maps.h"
#include "dscp.h"
#include "leaf.h"
#include "owner.h"
#include "container.h"
#include "quota.h"
#include "redirect.h"
#include "path.h"
#include "tcp.h"

_Static_assert(sizeof(struct leaf) == 40, "leaf");
_Static_assert(sizeof(struct target) == 152, "target");
_Static_assert(sizeof(struct iface) == 108, "iface");
_Static_assert(sizeof(struct redirect) == 8224, "redirect");
_Static_assert(sizeof(struct path_count) == 16, "path_count");
_Static_assert(sizeof(struct settings) == 48, "settings");
_Static_assert(sizeof(struct window) == 80, "window");
_Static_assert(sizeof(struct group_name) == MAX_GROUP_NAME, "group_name");

char _license[] SEC("license") = "Dual BSD/GPL";
