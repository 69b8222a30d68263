/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * libnetnice: what a process, a process group or a user may send and receive.
 * In the manner of getpriority(2) and setpriority(2); see netnice_set(3).
 */
#ifndef NETNICE_H
#define NETNICE_H

#include <sys/types.h> /* id_t */

#ifdef __cplusplus
extern "C" {
#endif

/* Values of `which`; they are those of PRIO_PROCESS, PRIO_PGRP and PRIO_USER. */
#define NETNICE_PROCESS 0
#define NETNICE_PGRP 1
#define NETNICE_USER 2

/* No limit. */
#define NETNICE_UNLIMITED 0

/* The netnice value in bytes per second, 0 where there is no limit; -1 on
 * failure, with errno set. `who` 0 is the caller. */
long long netnice_get(int which, id_t who);

/* Sets the netnice value in bytes per second, 0 for no limit. Returns 0, or -1
 * with errno set. `who` 0 is the caller. */
int netnice_set(int which, id_t who, long long value);

#ifdef __cplusplus
}
#endif

#endif /* NETNICE_H */
