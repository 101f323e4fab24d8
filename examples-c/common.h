/* What a small network program needs besides Weft: clock, messages, a progress line, TCP. */
#ifndef COMMON_H
#define COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NS_PER_S UINT64_C(1000000000)

/** Nanoseconds of CLOCK_MONOTONIC. */
uint64_t now_ns(void);

/** The name that starts every line on stderr. Set it first. */
extern const char *program_role;

/** Prints "role: message" on stderr, below the progress line. Returns false, for `return complain(...)`. */
bool complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Room for 2^64 - 1 with its commas. */
struct number {
    char text[32];
};

/** 65536000 as "65,536,000". */
struct number with_commas(uint64_t value);

/* The progress of one phase on stderr: one line that is rewritten on a terminal, an occasional line elsewhere. `total`
 * is in bytes; 0 means unknown, and the line shows the time instead. */
void progress_begin(const char *what, uint64_t total);

/* * Cheap enough for every page. True a few times per second, when there was something to show. */
bool progress_at(uint64_t done);

/* * Ends the phase, and prints how long it took. */
void progress_end(void);

/* * Opens a listening socket and prints its address on stderr ("port" may be 0). -1 after complaining. */
int tcp_listen(const char *host, const char *port);

/* * Waits for one connection, without a limit. -1 after complaining. */
int tcp_accept(int listener);

/* * Connects, and retries until the time has passed: the other side may start later. -1 after complaining. */
int tcp_connect(const char *host, const char *port, uint64_t timeout_ns);

/**
 * Sends `mine` and receives `theirs`, each as 4 bytes of length (big-endian)
 * and that many bytes. False after complaining.
 */
bool tcp_swap(int fd, const void *mine, size_t mine_len, void *theirs, size_t capacity, size_t *theirs_len,
              uint64_t timeout_ns);

#endif
