/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Opens and uses flows to one host (the first argument) as lines of its standard
 * input say, and prints one line for each: the result, or -1 and the name of the
 * error. The second argument is the interface; without it the only managed one.
 *
 *     open PORT           opens a flow to this port of the host
 *     close               closes the flow that was opened last
 *     change CONTRACT     changes the contract of the first flow
 *     fork CONTRACT       the same in a child process
 *     send COUNT          sends so many datagrams on the first flow; prints those sent
 *     mtu MILLISECONDS    waits for a notification of another MTU; prints the MTU
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netnice.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 4

static int program, flows[MOST], count;

static const char *name(int error) {
    switch (error) {
    case ENOTCONN: return "ENOTCONN";
    case ECONNREFUSED: return "ECONNREFUSED";
    case ECONNRESET: return "ECONNRESET";
    case EPERM: return "EPERM";
    default: return strerror(error);
    }
}

static void print(long result) {
    int error = errno;

    if (result < 0)
        printf("-1 %s\n", name(error));
    else
        printf("%ld ok\n", result);
    fflush(stdout);
}

static int open_flow(struct sockaddr_in to, int port) {
    struct netnice_udp udp;

    memset(&udp, 0, sizeof udp);
    to.sin_port = htons((unsigned short)port);
    udp.remote = (struct sockaddr *)&to;
    udp.remote_length = sizeof to;
    udp.contract = "up 10mbit";
    if (count == MOST)
        return -1;
    flows[count] = netnice_open_udp(program, &udp);
    return flows[count] < 0 ? -1 : flows[count++];
}

/* The number of datagrams that were handed to the link. */
static long send_some(int wanted) {
    struct netnice_outcome outcome;
    long sent = 0;
    int k;

    for (k = 0; k < wanted; k++)
        if (netnice_flow_send(flows[0], "datagram", 8, 5000) < 0)
            return -1;
    if (netnice_flow_drain(flows[0], 5000) != 0)
        return -1;
    while (netnice_flow_outcome(flows[0], &outcome) == 1)
        sent += outcome.status == NETNICE_SENT;
    return sent;
}

static long await_mtu(int milliseconds) {
    struct netnice_notification notification;
    struct pollfd readable;
    int ready[MOST];

    readable.fd = netnice_descriptor(program);
    readable.events = POLLIN;
    for (; milliseconds > 0; milliseconds -= 10) {
        if (netnice_arm(program) == 1)
            poll(&readable, 1, 10);
        netnice_poll(program, ready, MOST);
        while (netnice_notification(program, &notification) == 1)
            if (notification.kind == NETNICE_NOTIFICATION_MTU)
                return notification.mtu;
    }
    return 0;
}

static void change_in_child(const char *contract) {
    pid_t child = fork();

    if (child == 0) {
        print(netnice_flow_change(flows[0], contract));
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
    struct sockaddr_in to;
    struct netnice_udp udp;
    char line[256];

    memset(&to, 0, sizeof to);
    memset(&udp, 0, sizeof udp);
    to.sin_family = AF_INET;
    if (argc < 2 || argc > 3 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1)
        return 2;
    program = netnice_attach(argc == 3 ? argv[2] : NULL, MOST,
                             MOST * (unsigned long long)netnice_buffer_bytes(&udp));
    if (program < 0) {
        fprintf(stderr, "%s\n", netnice_error());
        return 1;
    }
    while (fgets(line, sizeof line, stdin) != NULL) {
        char *rest = strchr(line, ' ');

        line[strcspn(line, "\n")] = 0;
        rest = rest == NULL ? line : rest + 1;
        switch (line[0]) {
        case 'o': print(open_flow(to, atoi(rest))); break;
        case 'c':
            if (line[1] == 'l')
                print(netnice_flow_close(flows[--count]));
            else
                print(netnice_flow_change(flows[0], rest));
            break;
        case 'f': change_in_child(rest); break;
        case 's': print(send_some(atoi(rest))); break;
        case 'm': print(await_mtu(atoi(rest))); break;
        default: return 2;
        }
    }
    return 0;
}
