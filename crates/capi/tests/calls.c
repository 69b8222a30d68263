/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Makes the calls that its arguments name, and prints the result and errno of each:
 *     calls [get WHICH WHO | set WHICH WHO VALUE]...
 */
#include <errno.h>
#include <netnice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>


static const char *name(int number) {
    switch (number) {
    case 0: return "ok";
    case EINVAL: return "EINVAL";
    case ESRCH: return "ESRCH";
    case EPERM: return "EPERM";
    case ENOSPC: return "ENOSPC";
    case ECONNREFUSED: return "ECONNREFUSED";
    default: return strerror(number);
    }
}

int main(int argc, char **argv) {
    int i = 1;

    if ((int)NETNICE_PROCESS != (int)PRIO_PROCESS || (int)NETNICE_PGRP != (int)PRIO_PGRP ||
        (int)NETNICE_USER != (int)PRIO_USER)
        return 3;
    while (i < argc) {
        long long result;
        int which, set = strcmp(argv[i], "set") == 0;
        id_t who;

        if (i + (set ? 3 : 2) >= argc)
            return 2;
        which = atoi(argv[i + 1]);
        who = (id_t)strtoul(argv[i + 2], NULL, 10);
        errno = 0;
        if (set)
            result = netnice_set(which, who, strtoll(argv[i + 3], NULL, 10));
        else
            result = netnice_get(which, who);
        printf("%lld %s\n", result, name(errno));
        fflush(stdout);
        i += set ? 4 : 3;
    }
    return 0;
}
