/*
 * Programs that are not Weft listen where a peer should be, under the name of its NIC, or send and receive one byte per
 * second.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>

#include "harness.h"

#define LEN (64 * KIB)
#define HELLO 48
#define WELCOME 16

static uint32_t crc32_of(const uint8_t *bytes, size_t len)
{
    uint32_t sum = UINT32_MAX;
    for (size_t i = 0; i < len; i++) {
        sum ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? 0xEDB88320 : 0);
    }
    return ~sum;
}

/* The offset of the port of a tcp rail over loopback in an address; the rail's name follows the 16 bytes. */
static uint8_t *place_in(uint8_t *address, size_t len)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (size_t i = 0; i + sizeof at + 16 <= len; i++) {
        at.sin_port = ((struct sockaddr_in){0}).sin_port;
        memcpy(&at.sin_port, address + i + offsetof(struct sockaddr_in, sin_port), sizeof at.sin_port);
        if (memcmp(address + i, &at, sizeof at) == 0)
            return address + i;
    }
    FAIL("%s", "no address of loopback in it");
}

/* A listener: how slow it is, and what it received. */
struct listener {
    int fd;
    bool slow;
    _Atomic size_t heard;
    uint8_t bytes[MIB];
};

static void *listens(void *arg)
{
    static const uint8_t welcome[WELCOME] = {7};
    struct listener *listener = arg;
    for (;;) {
        int fd = accept(listener->fd, NULL, NULL);
        size_t sent = 0, heard = 0;
        for (ssize_t got; listener->heard < sizeof listener->bytes;) {
            got = recv(fd, listener->bytes + listener->heard, listener->slow ? 1 : sizeof listener->bytes - listener->heard, 0);
            if (got <= 0)
                break;
            listener->heard += (size_t)got;
            heard += (size_t)got;
            if (sent < WELCOME && (listener->slow || heard >= HELLO)) {
                size_t part = listener->slow ? 1 : WELCOME;
                if (send(fd, welcome + sent, part, MSG_NOSIGNAL) < 0)
                    break;
                sent += part;
            }
            if (listener->slow)
                sleep_ms(1000);
        }
        close(fd);
    }
    return NULL;
}

/* The address of `endpoint` with another port, where the attacker listens. */
static size_t with_another_listener(weft_endpoint *endpoint, struct listener *listener, uint8_t *address, size_t most)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t at_len = sizeof at;
    pthread_t thread;
    listener->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(bind(listener->fd, (struct sockaddr *)&at, sizeof at), 0);
    CHECK_EQ(listen(listener->fd, 16), 0);
    CHECK_EQ(getsockname(listener->fd, (struct sockaddr *)&at, &at_len), 0);
    CHECK_EQ(pthread_create(&thread, NULL, listens, listener), 0);
    CHECK_EQ(pthread_detach(thread), 0);
    size_t len = address_of(endpoint, (char *)address, most);
    memcpy(place_in(address, len), &at, sizeof at);
    uint32_t sum = crc32_of(address, len - sizeof sum);
    memcpy(address + len - sizeof sum, &sum, sizeof sum); /* little-endian, as this machine */
    return len;
}

static weft_remote_memory *memory_of(struct duo *duo, struct box *box, weft_peer peer)
{
    char blob[8192];
    weft_remote_memory *memory;
    size_t len = descriptor_of(duo->b_memory, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(box->endpoint, peer, blob, len, &memory));
    return memory;
}

/* It does not become a peer, whether it connects before or after the endpoint whose name it uses. */
static void claimed_name_gets_no_write(void)
{
    static struct listener other;
    uint8_t forged[8192], address[8192];
    struct duo duo = duo_open(LEN);
    size_t forged_len = with_another_listener(duo.b->endpoint, &other, forged, sizeof forged);
    size_t len = address_of(duo.b->endpoint, (char *)address, sizeof address);
    fill_random(duo.a_bytes, LEN, 5);
    for (int before = 0; before < 2; before++) {
        struct box *box = box_of(open_endpoint());
        weft_memory *memory = register_one(box->endpoint, duo.a_bytes, LEN);
        weft_op_options args = WEFT_OP_OPTIONS_INIT;
        weft_peer peer, same;
        if (before) {
            args.timeout_ns = SECOND;
            CHECK_OK(weft_peer_connect(box->endpoint, forged, forged_len, &args, &peer));
            CHECK(box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms()).status != WEFT_OK);
            CHECK(encrypted() || other.heard > HELLO);
        }
        CHECK_OK(weft_peer_connect(box->endpoint, address, len, NULL, &peer));
        CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
        if (!before && weft_peer_connect(box->endpoint, forged, forged_len, NULL, &same) == WEFT_OK)
            CHECK(same == peer);
        struct range_request range = range_args(memory, memory_of(&duo, box, peer), LEN);
        for (int i = 0; i < 50; i++) {
            memset(duo.b_bytes, 0, LEN);
            CHECK_OK(box_await(box, write_now(box, &range), patience_ms()).status);
            CHECK_EQ(differs_random(duo.b_bytes, LEN, 5), -1);
        }
        box_close(box);
    }
    CHECK(memmem(other.bytes, other.heard, duo.a_bytes, 64) == NULL);
    CHECK(memmem(other.bytes, other.heard, duo.a_bytes + LEN - 64, 64) == NULL);
    duo_close(&duo);
}

/* Writes that end within this many ms. */
static uint64_t writes_in(struct duo *duo, uint64_t ms)
{
    struct range_request range = range_args(duo->a_memory, duo->b_of_a, LEN);
    uint64_t count = 0;
    for (uint64_t until = now_ns() + ms * MS; now_ns() < until; count++)
        CHECK_OK(box_await(duo->a, write_now(duo->a, &range), patience_ms()).status);
    return count;
}

/* One connection that we dial, one that dials us: each sends and receives one byte per second. */
static void byte_per_second_connection_delays_no_peer(void)
{
    static struct listener slow = {.slow = true};
    uint8_t forged[8192];
    struct sockaddr_in at;
    struct duo duo = duo_open(LEN);
    size_t len = with_another_listener(duo.b->endpoint, &slow, forged, sizeof forged);
    uint64_t alone = writes_in(&duo, 1000);
    struct box *asks = box_of(open_endpoint());
    weft_peer peer;
    CHECK_OK(weft_peer_connect(asks->endpoint, forged, len, NULL, &peer));
    char true_address[8192];
    uint8_t hello[HELLO] = "WEFT-TCP\3";
    uint8_t *place = place_in((uint8_t *)true_address, address_of(duo.b->endpoint, true_address, sizeof true_address));
    memcpy(&at, place, sizeof at);
    memcpy(hello + 16, place + sizeof at, 16);
    memset(hello + 32, 9, 16);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    /* The best second counts: others may have had the processors in the rest, but these bytes come in each. */
    uint64_t best = 0;
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(send(fd, hello + i, 1, MSG_NOSIGNAL), 1);
        uint64_t beside = writes_in(&duo, 1000);
        best = beside > best ? beside : best;
    }
    printf("%" PRIu64 " writes in a second alone, %" PRIu64 " beside them\n", alone, best);
    CHECK(best > alone / 8);
    CHECK(slow.heard > 0);
    close(fd);
    box_close(asks);
    duo_close(&duo);
}

static const struct test tests[] = {
    {"claimed_name_gets_no_write", "tcp,tcp-encrypted", claimed_name_gets_no_write},
    {"byte_per_second_connection_delays_no_peer", "tcp,tcp-encrypted", byte_per_second_connection_delays_no_peer},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
