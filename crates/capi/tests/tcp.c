/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Listens with TCP at an address and port (the arguments), and sends back what comes
 * on each connection, with one thread and one descriptor. On every second connection
 * it writes in place, and every fourth gets a flow of its own after its first bytes. Ends when its standard input has a line, and prints how many
 * connections it served, and how many failed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netnice.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64
#define ROOM 65536
#define BUFFERS 64

/* A connection, and what it has read and not written. */
struct echo {
    int number, in_place, promote, has_end;
    size_t from, to;
    char bytes[ROOM];
};

static struct echo *echoes[MOST];
static int accepted, promoted, failed;

static int check(const char *what, long long result) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, netnice_error());
        exit(1);
    }
    return (int)result;
}

static void address(const char *text, int port, struct sockaddr_storage *to) {
    struct sockaddr_in *four = (struct sockaddr_in *)to;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)to;

    memset(to, 0, sizeof *to);
    if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((unsigned short)port);
    } else if (inet_pton(AF_INET6, text, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons((unsigned short)port);
    } else {
        exit(2);
    }
}

static ssize_t write_in_place(int number, const char *bytes, size_t length) {
    struct netnice_buffer buffer;

    if (netnice_tcp_reserve(number, &buffer, 0) != 0)
        return -1;
    length = length < buffer.length ? length : buffer.length;
    memcpy(buffer.data, bytes, length);
    if (netnice_tcp_commit(number, &buffer, length) == 0)
        return (ssize_t)length;
    netnice_tcp_release(number, &buffer);
    return -1;
}

static ssize_t write_parts(int number, const char *bytes, size_t length) {
    struct iovec parts[2];
    size_t half = length / 2;

    parts[0].iov_base = (void *)bytes;
    parts[0].iov_len = half;
    parts[1].iov_base = (void *)(bytes + half);
    parts[1].iov_len = length - half;
    return netnice_tcp_writev(number, parts, 2, 0);
}

static void promote(int number) {
    struct netnice_tcp own;

    memset(&own, 0, sizeof own);
    own.sending = own.receiving = BUFFERS;
    own.contract = "min 1mbit";
    check("netnice_tcp_promote", netnice_tcp_promote(number, &own));
    if (netnice_tcp_promote(number, &own) == 0 || errno != EALREADY)
        exit(1);
    promoted++;
}

/* Sends back until a call would block. Returns 1 at the end of the connection. */
static int serve(struct echo *echo) {
    for (;;) {
        ssize_t done;

        if (echo->from == echo->to) {
            if (echo->has_end)
                return netnice_tcp_finish(echo->number, 0) == 0 || errno != EAGAIN;
            done = netnice_tcp_read(echo->number, echo->bytes, ROOM, 0);
            echo->has_end = done == 0;
            echo->from = 0;
            echo->to = done > 0 ? (size_t)done : 0;
            if (done == 0)
                netnice_tcp_shutdown(echo->number);
        } else {
            const char *rest = echo->bytes + echo->from;
            size_t length = echo->to - echo->from;

            done = echo->in_place ? write_in_place(echo->number, rest, length)
                                  : write_parts(echo->number, rest, length);
            echo->from += done > 0 ? (size_t)done : 0;
        }
        if (done > 0 && echo->promote) {
            echo->promote = 0;
            promote(echo->number);
        }
        if (done < 0 && errno == EAGAIN)
            return 0;
        if (done < 0) {
            fprintf(stderr, "%s\n", netnice_error());
            failed++;
            return 1;
        }
    }
}

static void accept_all(int listener) {
    int number, place;

    while ((number = netnice_tcp_accept(listener, 0)) >= 0) {
        for (place = 0; place < MOST && echoes[place] != NULL; place++)
            ;
        if (place == MOST || (echoes[place] = calloc(1, sizeof(struct echo))) == NULL)
            exit(1);
        echoes[place]->number = number;
        echoes[place]->in_place = accepted % 2;
        echoes[place]->promote = accepted++ % 4 == 0;
        check("netnice_tcp_set", netnice_tcp_set(number, NETNICE_TCP_NO_DELAY, 1));
        check("netnice_tcp_watch", netnice_tcp_watch(number, 1));
    }
    if (errno != EAGAIN)
        check("netnice_tcp_accept", number);
}

static void serve_number(int number) {
    int place;

    for (place = 0; place < MOST; place++)
        if (echoes[place] != NULL && echoes[place]->number == number && serve(echoes[place])) {
            check("netnice_tcp_close", netnice_tcp_close(number));
            free(echoes[place]);
            echoes[place] = NULL;
        }
}

int main(int argc, char **argv) {
    struct sockaddr_storage local;
    struct netnice_tcp tcp, own;
    struct netnice_tcp_event events[16];
    struct pollfd wait[2];
    unsigned long long bytes;
    int program, listener, count, k;

    if (argc != 3)
        return 2;
    memset(&tcp, 0, sizeof tcp);
    address(argv[1], atoi(argv[2]), &local);
    tcp.local = (struct sockaddr *)&local;
    tcp.local_length = sizeof local;
    memset(&own, 0, sizeof own);
    own.sending = own.receiving = BUFFERS;
    bytes = (unsigned long long)(netnice_tcp_bytes(&tcp) + MOST / 4 * netnice_tcp_bytes(&own));
    program = check("netnice_attach", netnice_attach(NULL, 2 + MOST / 4, bytes));
    listener = check("netnice_tcp_listen", netnice_tcp_listen(program, &tcp));
    check("netnice_tcp_watch", netnice_tcp_watch(listener, 1));
    printf("ready\n");
    fflush(stdout);
    memset(wait, 0, sizeof wait);
    wait[0].fd = check("netnice_tcp_descriptor", netnice_tcp_descriptor(program));
    wait[1].fd = 0;
    wait[0].events = wait[1].events = POLLIN;
    for (;;) {
        poll(wait, 2, -1);
        if (wait[1].revents != 0)
            break;
        count = check("netnice_tcp_poll", netnice_tcp_poll(program, events, 16));
        for (k = 0; k < count; k++) {
            if (events[k].number == listener)
                accept_all(listener);
            else
                serve_number(events[k].number);
        }
    }
    printf("%d served, %d promoted, %d failed\n", accepted, promoted, failed);
    check("netnice_detach", netnice_detach(program));
    return 0;
}
