/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Submits datagrams with a forged source address, as many as the driver takes. The
 * driver refuses each of them. Usage: violator ADDRESS PORT
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <netnice.h>

static int check(const char *what, int result) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, netnice_error());
        exit(1);
    }
    return result;
}

int main(int argc, char **argv) {
    struct sockaddr_in remote;
    struct netnice_udp udp;
    struct netnice_flow_info info;
    struct netnice_outcome outcome;
    const struct timespec pause = {0, 200000};
    int program, flow, seen = 0;

    memset(&remote, 0, sizeof remote);
    memset(&udp, 0, sizeof udp);
    if (argc != 3 || inet_pton(AF_INET, argv[1], &remote.sin_addr) != 1)
        return 2;
    remote.sin_family = AF_INET;
    remote.sin_port = htons((unsigned short)atoi(argv[2]));
    udp.remote = (struct sockaddr *)&remote;
    udp.remote_length = sizeof remote;
    program = check("netnice_attach",
                    netnice_attach(NULL, 1, (unsigned long long)netnice_buffer_bytes(&udp)));
    flow = check("netnice_open_udp", netnice_open_udp(program, &udp));
    check("netnice_flow_info", netnice_flow_info(flow, &info));
    for (;;) {
        struct netnice_buffer buffer;

        while (check("netnice_flow_outcome", netnice_flow_outcome(flow, &outcome)) == 1)
            if (outcome.status == NETNICE_FORBIDDEN && !seen++) {
                puts("refused");
                fflush(stdout);
            }
        if (netnice_flow_packet(flow, &buffer) < 0) {
            nanosleep(&pause, NULL);
            continue;
        }
        if (netnice_flow_queue(flow, &buffer, info.longest, 0) < 0)
            continue;
        /* The IPv4 header is 28 bytes before the payload, its source address ends 13
         * bytes before it. */
        ((unsigned char *)buffer.data)[-13] ^= 1;
        netnice_flow_flush(flow);
    }
}
