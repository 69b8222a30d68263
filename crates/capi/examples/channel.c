/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A camera and a recorder on two hosts. The camera sends images as messages, each by a
 * deadline; the recorder receives them, and exits when the channel ends:
 *   channel [-n COUNT] [-s BYTES] [-d DEADLINE] [-u SLICE_US/PERIOD_US] NAME@HOST
 *   channel -l [-n COUNT] [-u SLICE_US/PERIOD_US] NAME
 * The sizes, times and bounds go to standard output. The camera sends COUNT images of
 * up to BYTES bytes, 50 in a second; the recorder exits with 1 if COUNT images did not
 * arrive. -u reserves processor time, without which the deadline is no promise. Each host
 * on the way runs netniced and netnice-peer: docs/manual/between-hosts.md.
 * Built with:  cc channel.c $(pkg-config --cflags --libs netnice) -o channel
 */
#include <errno.h>
#include <netnice_channel.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RATE 50

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, netnice_error());
    return 1;
}

/* Prints the hosts of a channel with their bounds. */
static int print_hops(int channel) {
    struct netnice_hop hops[16];
    int count = netnice_channel_hops(channel, hops, 16), k;

    if (count < 0)
        return failed("netnice_channel_hops");
    for (k = 0; k < count && k < 16; k++)
        printf("%s keeps a message for at most %.3f ms\n", hops[k].host,
               (double)hops[k].bound / 1e6);
    puts("open");
    fflush(stdout);
    return 0;
}

/* The bytes of an image: image I has the byte I everywhere. */
static size_t image(unsigned char *bytes, size_t most, int number) {
    size_t length = most - most / 4 * (size_t)(number % 4);

    memset(bytes, number % 256, length);
    return length;
}

static int send_images(int network, const char *to, const char *deadline, size_t most, int count) {
    struct netnice_channel camera;
    struct netnice_refusal refusal;
    struct netnice_channel_info info;
    struct netnice_departure departure;
    char contract[160];
    unsigned char *bytes;
    long long least = 0;
    int channel, i, seen = 0;

    memset(&camera, 0, sizeof camera);
    snprintf(contract, sizeof contract, "channel mmax=%zuB,rmax=%d/s,bmax=2,deadline=%s", most,
             RATE, deadline);
    camera.contract = contract;
    channel = netnice_channel_open(network, to, &camera, &refusal);
    if (channel < 0 && errno == ENOSPC)
        fprintf(stderr, "%s: a deadline of %.3f ms would be granted\n", refusal.host,
                (double)refusal.best_deadline / 1e6);
    if (channel < 0)
        return failed("netnice_channel_open");
    if (print_hops(channel) != 0)
        return 1;
    if ((bytes = malloc(most)) == NULL)
        return 1;
    for (i = 0; i < count; i++) {
        size_t length = image(bytes, most, i);

        /* A message beyond 50 in a second waits for its time. */
        if (netnice_channel_send(channel, bytes, length, -1) < 0)
            return failed("netnice_channel_send");
    }
    free(bytes);
    if (netnice_channel_drain(channel, 10000) != 0)
        return failed("netnice_channel_drain");
    while (netnice_channel_departure(channel, &departure) == 1) {
        long long laxity = (long long)(departure.deadline - departure.left);

        if (departure.left != 0 && (seen++ == 0 || laxity < least))
            least = laxity;
    }
    if (netnice_channel_info(channel, &info) != 0)
        return failed("netnice_channel_info");
    /* The last images arrive, too. */
    if (netnice_channel_finish(channel, 10000) != 0)
        return failed("netnice_channel_finish");
    printf("%llu sent, %llu late here; the nearest left %.3f ms before its deadline here\n",
           info.messages, info.late, (double)least / 1e6);
    return 0;
}

/* Sleeps until something has happened on a channel. */
static int sleep_until_ready(int channel) {
    struct pollfd one;
    int may_sleep = netnice_channel_arm(channel);

    if (may_sleep < 0)
        return failed("netnice_channel_arm");
    one.fd = netnice_channel_descriptor(channel);
    one.events = POLLIN;
    if (may_sleep)
        poll(&one, 1, -1);
    return netnice_channel_disarm(channel) == 0 ? 0 : failed("netnice_channel_disarm");
}

static int receive_images(int network, const char *name, int count) {
    struct netnice_service service;
    struct netnice_channel_message message;
    size_t room = 256, all = 0;
    unsigned char *bytes = malloc(room);
    char host[256];
    int number, channel, received = 0, wrong = 0;

    memset(&service, 0, sizeof service);
    number = netnice_channel_listen(network, name, &service);
    if (number < 0)
        return failed("netnice_channel_listen");
    if (netnice_channel_host(number, host, sizeof host) < 0)
        return failed("netnice_channel_host");
    printf("%s@%s\n", name, host);
    fflush(stdout);
    if ((channel = netnice_channel_accept(number, -1)) < 0)
        return failed("netnice_channel_accept");
    if (print_hops(channel) != 0)
        return 1;
    while (bytes != NULL) {
        ssize_t length = netnice_channel_receive(channel, bytes, room, &message, 0);

        if (length >= 0) {
            if (length > 0 && (bytes[0] != message.number % 256 ||
                               memcmp(bytes, bytes + 1, (size_t)length - 1) != 0))
                wrong++;
            received++;
            all += (size_t)length;
        } else if (errno == EMSGSIZE) {
            /* The next call takes the same message. */
            room = message.whole;
            free(bytes);
            bytes = malloc(room);
        } else if (errno != EAGAIN) {
            break;
        } else if (sleep_until_ready(channel) != 0) {
            return 1;
        }
    }
    if (bytes == NULL || errno != EPIPE)
        return failed("netnice_channel_receive");
    printf("%d received, %d wrong, %zu bytes; %s\n", received, wrong, all, netnice_error());
    free(bytes);
    netnice_channel_close(channel);
    netnice_channel_close(number);
    return received == count && wrong == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    struct netnice_network ends;
    const char *deadline = "60ms";
    unsigned long long slice, period;
    size_t most = 40000;
    int option, network, status, count = 100, listens = 0;

    memset(&ends, 0, sizeof ends);
    while ((option = getopt(argc, argv, "n:s:d:u:l")) != -1)
        switch (option) {
        case 'n': count = atoi(optarg); break;
        case 's': most = (size_t)strtoul(optarg, NULL, 10); break;
        case 'd': deadline = optarg; break;
        case 'u':
            if (sscanf(optarg, "%llu/%llu", &slice, &period) != 2)
                return 2;
            ends.slice = 1000 * slice;
            ends.period = 1000 * period;
            break;
        case 'l': listens = 1; break;
        default: return 2;
        }
    if (argc - optind != 1 || most == 0) {
        fprintf(stderr,
                "usage: %s [-l] [-n COUNT] [-s BYTES] [-d DEADLINE] [-u SLICE_US/PERIOD_US] "
                "NAME[@HOST]\n",
                argv[0]);
        return 2;
    }
    network = netnice_channel_connect(&ends);
    if (network < 0)
        return failed("netnice_channel_connect");
    status = listens ? receive_images(network, argv[optind], count)
                     : send_images(network, argv[optind], deadline, most, count);
    netnice_channel_close(network);
    return status;
}
