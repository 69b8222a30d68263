/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Sends payloads of another protocol by a raw socket of the kernel, and prints the
 * length of the first payload that comes back unchanged. Before each payload it
 * sends one that does not begin with a `p`, and fails if that comes back. Usage:
 *     peer ip PROTOCOL REMOTE LENGTH
 *     peer ether NUMBER INTERFACE MAC LENGTH
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    unsigned char sent[2000], got[2100];
    struct sockaddr_storage to;
    socklen_t to_length;
    size_t length, i;
    int fd, tries, header = 0;

    memset(&to, 0, sizeof to);
    if (argc == 5 && strcmp(argv[1], "ip") == 0) {
        struct sockaddr_in *four = (struct sockaddr_in *)&to;
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)&to;

        if (inet_pton(AF_INET, argv[3], &four->sin_addr) == 1) {
            four->sin_family = AF_INET;
            to_length = sizeof *four;
            header = 20; /* a raw socket of IPv4 receives the header too */
        } else if (inet_pton(AF_INET6, argv[3], &six->sin6_addr) == 1) {
            six->sin6_family = AF_INET6;
            to_length = sizeof *six;
        } else {
            return 2;
        }
        fd = socket(to.ss_family, SOCK_RAW, atoi(argv[2]));
        length = (size_t)atoi(argv[4]);
    } else if (argc == 6 && strcmp(argv[1], "ether") == 0) {
        struct sockaddr_ll *station = (struct sockaddr_ll *)&to;
        unsigned int mac[6];

        if (sscanf(argv[4], "%x:%x:%x:%x:%x:%x", mac, mac + 1, mac + 2, mac + 3, mac + 4,
                   mac + 5) != 6)
            return 2;
        station->sll_family = AF_PACKET;
        station->sll_protocol = htons((unsigned short)strtoul(argv[2], NULL, 0));
        station->sll_ifindex = (int)if_nametoindex(argv[3]);
        station->sll_halen = 6;
        for (i = 0; i < 6; i++)
            station->sll_addr[i] = (unsigned char)mac[i];
        to_length = sizeof *station;
        fd = socket(AF_PACKET, SOCK_DGRAM, station->sll_protocol);
        length = (size_t)atoi(argv[5]);
    } else {
        return 2;
    }
    if (fd < 0)
        fail("socket");
    for (i = 0; i < length; i++)
        sent[i] = (unsigned char)(i * 7 + 'p');
    for (tries = 0; tries < 600; tries++) {
        struct pollfd one = {0, POLLIN, 0};
        ssize_t received;

        sent[0] = 'x';
        if (sendto(fd, sent, length, 0, (struct sockaddr *)&to, to_length) < 0)
            fail("sendto");
        sent[0] = 'p';
        if (sendto(fd, sent, length, 0, (struct sockaddr *)&to, to_length) < 0)
            fail("sendto");
        one.fd = fd;
        if (poll(&one, 1, 100) <= 0)
            continue;
        received = recv(fd, got, sizeof got, 0);
        if (received < header)
            fail("recv");
        if (got[header] == 'x') {
            fprintf(stderr, "a payload came back that does not match the pattern\n");
            return 1;
        }
        if ((size_t)(received - header) != length || memcmp(got + header, sent, length) != 0) {
            fprintf(stderr, "another payload came back, of %d bytes\n", (int)received - header);
            return 1;
        }
        printf("%d\n", (int)length);
        return 0;
    }
    fprintf(stderr, "no payload came back\n");
    return 1;
}
