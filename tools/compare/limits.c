/* What the comparison's engines cannot pass: one thread's memcpy of random pages, and plain sockets that carry them.
 *     limits memcpy PAGE COUNT                        GB/s
 *     limits receive PAGE COUNT ADDRESS...            one connection for each address, accepted there
 *     limits send PAGE COUNT ADDRESS...               GB/s
 * Sockets carry random pages to random places with writev and readv of many pages, a process for each connection. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 7117, BATCH = 64, ROUNDS = 8, MOST = 64 };

static size_t page, count;
static unsigned char *memory;
static uint32_t *picked;

static _Noreturn void die(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Twice as many pages as are moved, and which of them, in random order. */
static void make(unsigned seed) {
    memory = mmap(NULL, 2 * page * count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    picked = malloc(2 * count * sizeof *picked);
    if (memory == MAP_FAILED || picked == NULL)
        die("memory");
    memset(memory, (int)seed, 2 * page * count);
    srandom(seed);
    for (size_t i = 0; i < 2 * count; i++)
        picked[i] = (uint32_t)i;
    for (size_t i = 2 * count - 1; i > 0; i--) {
        size_t j = (size_t)random() % (i + 1);
        uint32_t other = picked[j];
        picked[j] = picked[i];
        picked[i] = other;
    }
}

static void copies(void) {
    double best = 0;
    make(1);
    unsigned char *from = memory;
    uint32_t *pages = picked;
    make(2);
    for (int round = 0; round < ROUNDS; round++) {
        double began = now();
        for (size_t i = 0; i < count; i++)
            memcpy(memory + picked[i] * page, from + pages[i] * page, page);
        double rate = (double)(page * count) / (now() - began) / 1e9;
        best = rate > best ? rate : best;
    }
    printf("%.3f\n", best);
}

/* All pages from `first` on, every `step`th, one call for many. */
static void carry(int fd, size_t first, size_t step, ssize_t (*call)(int, const struct iovec *, int)) {
    struct iovec parts[BATCH];
    for (size_t i = first; i < count;) {
        int used = 0;
        for (; used < BATCH && i < count; i += step)
            parts[used++] = (struct iovec){memory + picked[i] * page, page};
        for (struct iovec *part = parts; used > 0;) {
            ssize_t moved = call(fd, part, used);
            if (moved <= 0)
                die("the connection");
            while (used > 0 && (size_t)moved >= part->iov_len) {
                moved -= (ssize_t)part->iov_len;
                part++, used--;
            }
            if (used > 0) {
                part->iov_base = (char *)part->iov_base + moved;
                part->iov_len -= (size_t)moved;
            }
        }
    }
}

/* One connection: the receiver says when it has everything. */
static void connection(int sends, const char *address, size_t first, size_t step) {
    char all = 0;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (inet_pton(AF_INET, address, &at.sin_addr) != 1)
        die(address);
    if (sends) {
        for (int tries = 0; connect(fd, (struct sockaddr *)&at, sizeof at) != 0; tries++) {
            if (tries == 200)
                die("connect");
            usleep(20000);
        }
    } else {
        if (bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, 1) != 0)
            die("listen");
        int accepted = accept(fd, NULL, NULL);
        if (accepted < 0)
            die("accept");
        close(fd);
        fd = accepted;
    }
    for (int round = 0; round < ROUNDS; round++) {
        carry(fd, first, step, sends ? writev : readv);
        if ((sends ? read(fd, &all, 1) : write(fd, &all, 1)) != 1)
            die("the end");
    }
}

int main(int argc, char **argv) {
    if (argc < 4 || argc > 4 + MOST)
        return fprintf(stderr, "limits memcpy|send|receive PAGE COUNT [ADDRESS...]\n"), 2;
    page = strtoull(argv[2], NULL, 10), count = strtoull(argv[3], NULL, 10);
    if (page == 0 || count == 0)
        return 2;
    if (strcmp(argv[1], "memcpy") == 0)
        return copies(), 0;
    int sends = strcmp(argv[1], "send") == 0, status = 0, failed = 0;
    make(1);
    usleep(sends ? 300000 : 0); /* the other side's memory is there, too */
    double began = now();
    for (int i = 4; i < argc; i++)
        if (fork() == 0) {
            connection(sends, argv[i], (size_t)i - 4, (size_t)argc - 4);
            _exit(0);
        }
    while (wait(&status) > 0)
        failed |= status != 0;
    if (sends && !failed)
        printf("%.3f\n", (double)(page * count) * ROUNDS / (now() - began) / 1e9);
    return failed;
}
