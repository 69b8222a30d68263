/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Divides processor time among threads:  divide CPU NANOSECONDS...
 * Built with:                            cc divide.c $(pkg-config --cflags --libs netnice) \
 *                                           -lpthread -o divide
 *
 * Reserves CPU (for example 6ms/10ms; `-`: what is reserved already) for this process. Starts a
 * thread for each number, which gets that much of every period, and computes for two seconds. Each
 * prints which part of a processor it had.
 */
#include <errno.h>
#include <netnice.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double seconds(clockid_t clock) {
    struct timespec now;

    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void *compute(void *text) {
    double began, used;

    /* 0 is the calling thread. */
    if (netnice_reserve(0, strtoll(text, NULL, 10)) != 0) {
        fprintf(stderr, "netnice_reserve: %s: %s\n", strerror(errno), netnice_error());
        exit(1);
    }
    began = seconds(CLOCK_MONOTONIC);
    used = seconds(CLOCK_THREAD_CPUTIME_ID);
    while (seconds(CLOCK_MONOTONIC) < began + 2)
        continue;
    used = seconds(CLOCK_THREAD_CPUTIME_ID) - used;
    printf("%s %.4f\n", (const char *)text, used / (seconds(CLOCK_MONOTONIC) - began));
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[8];
    char change[64];
    int i;

    if (argc < 3 || argc > 10) {
        fprintf(stderr, "usage: %s CPU NANOSECONDS... (at most 8)\n", argv[0]);
        return 2;
    }
    snprintf(change, sizeof change, "cpu %s", argv[1]);
    if (strcmp(argv[1], "-") != 0 && netnice_change(change) != 0) {
        fprintf(stderr, "netnice_change: %s: %s\n", strerror(errno), netnice_error());
        return 1;
    }
    for (i = 2; i < argc; i++)
        if (pthread_create(&threads[i - 2], NULL, compute, argv[i]) != 0)
            return 1;
    for (i = 2; i < argc; i++)
        pthread_join(threads[i - 2], NULL);
    return 0;
}
