/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A program that exchanges packets with the driver, written from docs/reference/ring.md alone. It
 * sends numbered packets with one pair and with two pairs alternately on one flow, and expects each
 * packet back.
 *
 *     echoed MEMORY TO_DRIVER TO_PROGRAM OFFSET SLOT PACKETS
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct head { uint32_t count, note; uint64_t stamp; };
struct pair { uint64_t base; uint32_t length, reserved; };
union entry { struct head head; struct pair pair; };

struct ring {
    _Atomic uint32_t *producer, *consumer;
    union entry *entries;
    uint32_t size, next, seen;
};

static unsigned char *file, *region, *area;
static uint32_t slot, chunk_bytes, chunks;
static int to_driver, to_program;
static uint32_t spare[65536], spares;

static void fail(const char *what) {
    fprintf(stderr, "echoed: %s\n", what);
    exit(1);
}

static _Atomic uint32_t *word(unsigned char *at) { return (_Atomic uint32_t *)at; }
static uint32_t number(unsigned at) { return *(uint32_t *)(region + at); }

static struct ring ring(unsigned producer, unsigned consumer, uint64_t entries, uint32_t size) {
    struct ring made = {word(region + producer), word(region + consumer),
                        (union entry *)(region + entries), size, 0, 0};
    return made;
}

/* R10, R11: the number of entries that this end may use. */
static uint32_t room(struct ring *r) {
    r->seen = atomic_load_explicit(r->consumer, memory_order_acquire);
    return r->size - (r->next - r->seen);
}

static uint32_t waiting(struct ring *r) {
    r->seen = atomic_load_explicit(r->producer, memory_order_acquire);
    return r->seen - r->next;
}

static union entry *at(struct ring *r, uint32_t index) { return &r->entries[index & (r->size - 1)]; }

static void put(struct ring *r, const struct pair *pairs, uint32_t count) {
    struct head head = {count, 0, 0};
    at(r, r->next)->head = head;
    for (uint32_t i = 0; i < count; i++)
        at(r, r->next + 1 + i)->pair = pairs[i];
    r->next += 1 + count;
    atomic_store_explicit(r->producer, r->next, memory_order_release);
}

/* R50: the steps after a side moved an index. */
static void moved(void) {
    _Atomic uint64_t *notices = (_Atomic uint64_t *)(file + 0x200) + slot / 64;
    _Atomic uint32_t *sleeps = word(file + 0x40);
    uint64_t bit = 1ull << slot % 64, one = 1;

    atomic_thread_fence(memory_order_seq_cst);
    if (!(atomic_load_explicit(notices, memory_order_relaxed) & bit))
        atomic_fetch_or_explicit(notices, bit, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(sleeps, memory_order_relaxed) &&
        atomic_exchange_explicit(sleeps, 0, memory_order_relaxed) && write(to_driver, &one, 8) != 8)
        fail("cannot notify the driver");
}

/* Section 6: sleeps until there are notices, and takes them. */
static void wait_for_driver(unsigned words) {
    _Atomic uint64_t *notices = (_Atomic uint64_t *)(file + 0x400);
    _Atomic uint32_t *sleeps = word(file + 0x80);
    struct epoll_event event;
    uint64_t any = 0;

    atomic_store_explicit(sleeps, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    for (unsigned i = 0; i < words; i++)
        any |= atomic_load_explicit(&notices[i], memory_order_relaxed);
    if (!any && epoll_wait(to_program, &event, 1, 20000) != 1)
        fail("no notification of the driver within 20 s");
    atomic_store_explicit(sleeps, 0, memory_order_relaxed);
    for (unsigned i = 0; i < words; i++)
        if (atomic_load_explicit(&notices[i], memory_order_relaxed))
            atomic_exchange_explicit(&notices[i], 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

static uint32_t length_of(uint32_t packet, uint32_t part) { return 8 + (packet * 7 + part) % 1000; }

static int submit(struct ring *r, uint32_t packet) {
    struct pair pairs[2] = {{0, 0, 0}, {0, 0, 0}};
    uint32_t count = 1 + packet % 2;

    if (spares < count || room(r) < 1 + count)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        pairs[i].base = (uint64_t)spare[--spares] * chunk_bytes;
        pairs[i].length = length_of(packet, i);
        memset(area + pairs[i].base, (int)packet, pairs[i].length);
    }
    memcpy(area + pairs[0].base, &packet, 4);
    put(r, pairs, count);
    return 1;
}

/* Collects the chunks of records that came back. */
static int reclaim(struct ring *r) {
    int some = 0;
    while (waiting(r)) {
        uint32_t count = at(r, r->next)->head.count;
        if (at(r, r->next)->head.note != 0)
            fail("a packet was not sent");
        for (uint32_t i = 0; i < count; i++)
            spare[spares++] = at(r, r->next + 1 + i)->pair.base / chunk_bytes;
        r->next += 1 + count;
        atomic_store_explicit(r->consumer, r->next, memory_order_release);
        some = 1;
    }
    return some;
}

static int receive(struct ring *r, struct ring *prime, uint32_t *received) {
    int some = 0;
    while (waiting(r)) {
        struct pair pair = at(r, r->next + 1)->pair;
        uint32_t wanted = length_of(*received, 0), seen;
        if (*received % 2)
            wanted += length_of(*received, 1);
        if (at(r, r->next)->head.count != 1 || pair.length != wanted)
            fail("a packet of another length");
        memcpy(&seen, area + pair.base, 4);
        if (seen != *received || area[pair.base + 5] != (unsigned char)*received)
            fail("another packet");
        r->next += 2;
        atomic_store_explicit(r->consumer, r->next, memory_order_release);
        pair.length = chunk_bytes;
        while (room(prime) < 2)
            ;
        put(prime, &pair, 1);
        (*received)++;
        some = 1;
    }
    return some;
}

int main(int argc, char **argv) {
    struct stat stat;
    uint32_t transmit, receive_entries, sent = 0, received = 0, packets;
    unsigned words;

    if (argc != 7)
        fail("six arguments");
    to_driver = atoi(argv[2]);
    to_program = atoi(argv[3]);
    slot = strtoul(argv[5], NULL, 10);
    packets = strtoul(argv[6], NULL, 10);
    if (fstat(atoi(argv[1]), &stat) != 0)
        fail("no memory file");
    file = mmap(NULL, stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[1]), 0);
    if (file == MAP_FAILED || memcmp(file, "netnring", 8) != 0 || *(uint32_t *)(file + 8) != 1)
        fail("not a memory file of version 1");
    words = (*(uint32_t *)(file + 0xc) + 63) / 64;
    region = file + strtoull(argv[4], NULL, 10);
    if (number(0) != 1 || number(4) != slot)
        fail("not an open flow");
    chunk_bytes = number(8);
    chunks = number(0xc);
    transmit = number(0x10);
    receive_entries = number(0x14);
    area = region + *(uint64_t *)(region + 0x18);

    struct ring submits = ring(0x080, 0x180, 0x280, transmit);
    struct ring reclaims = ring(0x1c0, 0x0c0, 0x280 + 16ull * transmit, transmit);
    struct ring primes = ring(0x100, 0x200, 0x280 + 32ull * transmit, receive_entries);
    struct ring delivers =
        ring(0x240, 0x140, 0x280 + 32ull * transmit + 16ull * receive_entries, receive_entries);

    for (uint32_t chunk = 0; chunk < chunks; chunk++)
        spare[spares++] = chunk;
    for (int i = 0; i < 24; i++) {
        struct pair pair = {(uint64_t)spare[--spares] * chunk_bytes, chunk_bytes, 0};
        put(&primes, &pair, 1);
    }
    while (received < packets) {
        int some = reclaim(&reclaims);
        some |= receive(&delivers, &primes, &received);
        while (sent < packets && submit(&submits, sent)) {
            sent++;
            some = 1;
        }
        if (some)
            moved();
        else
            wait_for_driver(words);
    }
    return 0;
}
