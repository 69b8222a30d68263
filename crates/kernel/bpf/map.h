/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Declares a map. */
#ifndef NETNICE_MAP_H
#define NETNICE_MAP_H

#define MAP(kind, entries, k, v, bits, name) \
	struct { \
		__uint(type, kind); \
		__uint(max_entries, entries); \
		__type(key, k); \
		__type(value, v); \
		__uint(map_flags, bits); \
	} name SEC(".maps")

#endif
