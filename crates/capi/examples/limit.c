/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Runs a command under a limit:  limit BYTES_PER_SECOND COMMAND [ARGUMENT...]
 * Built with:                    cc limit.c $(pkg-config --cflags --libs netnice) -o limit
 */
#include <errno.h>
#include <netnice.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char *end;
    long long value;

    if (argc < 3) {
        fprintf(stderr, "usage: %s BYTES_PER_SECOND COMMAND [ARGUMENT...]\n", argv[0]);
        return 2;
    }
    errno = 0;
    value = strtoll(argv[1], &end, 10);
    if (errno != 0 || end == argv[1] || *end != '\0') {
        fprintf(stderr, "%s: not a number: %s\n", argv[0], argv[1]);
        return 2;
    }
    /* The command runs in this process, so the limit applies to it. */
    if (netnice_set(NETNICE_PROCESS, 0, value) != 0) {
        perror("netnice_set");
        return 1;
    }
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 127;
}
