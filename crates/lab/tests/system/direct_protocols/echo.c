/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Opens a flow of another protocol and returns each payload to its sender. The flow
 * receives payloads that begin with a `p`. Usage:
 *     echo ip PROTOCOL LOCAL [REMOTE]
 *     echo ether NUMBER
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <netnice.h>

static int check(const char *what, long long result) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, netnice_error());
        exit(1);
    }
    return (int)result;
}

static void address(const char *text, struct sockaddr_storage *to) {
    struct sockaddr_in *four = (struct sockaddr_in *)to;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)to;

    memset(to, 0, sizeof *to);
    if (inet_pton(AF_INET, text, &four->sin_addr) == 1)
        four->sin_family = AF_INET;
    else if (inet_pton(AF_INET6, text, &six->sin6_addr) == 1)
        six->sin6_family = AF_INET6;
    else
        exit(2);
}

int main(int argc, char **argv) {
    const struct netnice_term pattern = {0, 0xff, 'p'};
    struct sockaddr_storage local, remote;
    struct netnice_udp udp;
    struct netnice_ip ip;
    struct netnice_ether ether;
    unsigned char bytes[2000];
    int program, flow, has_remote = argc > 4;

    if (argc < 3)
        return 2;
    memset(&udp, 0, sizeof udp);
    memset(&ip, 0, sizeof ip);
    memset(&ether, 0, sizeof ether);
    program = check("netnice_attach",
                    netnice_attach(NULL, 1, (unsigned long long)netnice_buffer_bytes(&udp)));
    if (strcmp(argv[1], "ip") == 0 && argc > 3) {
        address(argv[3], &local);
        ip.local = (struct sockaddr *)&local;
        ip.local_length = sizeof local;
        if (has_remote) {
            address(argv[4], &remote);
            ip.remote = (struct sockaddr *)&remote;
            ip.remote_length = sizeof remote;
        }
        ip.protocol = (unsigned int)strtoul(argv[2], NULL, 0);
        ip.pattern = &pattern;
        ip.terms = 1;
        ip.contract = "up 50mbit";
        flow = check("netnice_open_ip", netnice_open_ip(program, &ip));
    } else {
        ether.number = (unsigned int)strtoul(argv[2], NULL, 0);
        ether.pattern = &pattern;
        ether.terms = 1;
        flow = check("netnice_open_ether", netnice_open_ether(program, &ether));
        has_remote = 0;
    }
    puts("open");
    fflush(stdout);
    for (;;) {
        struct netnice_received from;
        long long length = netnice_flow_recv(flow, bytes, sizeof bytes, &from, -1);

        check("netnice_flow_recv", length);
        if (has_remote)
            length = netnice_flow_send(flow, bytes, (size_t)length, -1);
        else
            length = netnice_flow_send_to(flow, bytes, (size_t)length,
                                          (struct sockaddr *)&from.from, sizeof from.from, -1);
        check("netnice_flow_send", length);
    }
}
