/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Sends datagrams on the direct path to an echo server, or acts as one:
 *     direct [-i IFACE] [-c CONTRACT] [-n COUNT] ADDRESS PORT
 *     direct [-i IFACE] [-c CONTRACT] [-n COUNT] -l OWN-ADDRESS PORT
 * Built with:  cc direct.c $(pkg-config --cflags --libs netnice) -o direct
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netnice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, netnice_error());
    return 1;
}

/* Stores an address of either family and returns its length; 0 if it is invalid. */
static socklen_t end(struct sockaddr_storage *at, const char *address, int port) {
    struct sockaddr_in *four = (struct sockaddr_in *)at;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)at;

    memset(at, 0, sizeof *at);
    if (inet_pton(AF_INET, address, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((unsigned short)port);
        return sizeof *four;
    }
    if (inet_pton(AF_INET6, address, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons((unsigned short)port);
        return sizeof *six;
    }
    return 0;
}

/* Sends each datagram, written in place, and waits for its echo. */
static int ask(int flow, int count) {
    char answer[64];
    int i, back = 0;

    for (i = 0; i < count; i++) {
        struct netnice_buffer packet;
        ssize_t length;

        if (netnice_flow_packet(flow, &packet) != 0)
            return failed("netnice_flow_packet");
        length = sprintf(packet.data, "datagram %d", i);
        if (netnice_flow_queue(flow, &packet, (size_t)length, 0) < 0)
            return failed("netnice_flow_queue");
        if (netnice_flow_flush(flow) != 0)
            return failed("netnice_flow_flush");
        /* The echo of a lost datagram does not arrive. */
        if (netnice_flow_recv(flow, answer, sizeof answer, NULL, 1000) == length)
            back++;
    }
    printf("%d sent, %d came back\n", count, back);
    return back == count ? 0 : 1;
}

/* Sends each received datagram back to its sender. */
static int echo(int flow, int count) {
    char bytes[2048];

    while (count-- > 0) {
        struct netnice_received from;
        ssize_t length = netnice_flow_recv(flow, bytes, sizeof bytes, &from, -1);

        if (length < 0)
            return failed("netnice_flow_recv");
        if (netnice_flow_send_to(flow, bytes, (size_t)length, (struct sockaddr *)&from.from,
                                 sizeof from.from, 1000) < 0)
            return failed("netnice_flow_send_to");
    }
    return netnice_flow_drain(flow, 1000) == 0 ? 0 : failed("netnice_flow_drain");
}

int main(int argc, char **argv) {
    struct netnice_udp udp;
    struct sockaddr_storage at;
    socklen_t length;
    const char *iface = NULL;
    int option, program, flow, status, count = 10, listens = 0;

    memset(&udp, 0, sizeof udp);
    while ((option = getopt(argc, argv, "i:c:n:l")) != -1)
        switch (option) {
        case 'i': iface = optarg; break;
        case 'c': udp.contract = optarg; break;
        case 'n': count = atoi(optarg); break;
        case 'l': listens = 1; break;
        default: return 2;
        }
    if (argc - optind != 2) {
        fprintf(stderr, "usage: %s [-i IFACE] [-c CONTRACT] [-n COUNT] [-l] ADDRESS PORT\n", argv[0]);
        return 2;
    }
    length = end(&at, argv[optind], atoi(argv[optind + 1]));
    if (length == 0) {
        fprintf(stderr, "%s: no address: %s\n", argv[0], argv[optind]);
        return 2;
    }
    if (listens) {
        udp.local = (struct sockaddr *)&at;
        udp.local_length = length;
    } else {
        udp.remote = (struct sockaddr *)&at;
        udp.remote_length = length;
    }
    program = netnice_attach(iface, 1, (unsigned long long)netnice_buffer_bytes(&udp));
    if (program < 0)
        return failed("netnice_attach");
    flow = netnice_open_udp(program, &udp);
    if (flow < 0)
        return failed("netnice_open_udp");
    puts("open");
    fflush(stdout);
    status = listens ? echo(flow, count) : ask(flow, count);
    netnice_detach(program);
    return status;
}
