#define _POSIX_C_SOURCE 200809L

#include "common.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ---- Clock, messages, numbers ---- */

const char *program_role = "weft";

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static void clear_line(void);

bool complain(const char *format, ...) {
    va_list args;
    va_start(args, format);
    clear_line();
    fprintf(stderr, "%s: ", program_role);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return false;
}

struct number with_commas(uint64_t value) {
    char digits[24];
    int count = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    struct number out;
    char *to = out.text;
    for (int i = 0; i < count; i++) {
        if (i > 0 && (count - i) % 3 == 0) *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return out;
}

/* ---- The progress line ---- */

static struct {
    const char *what;
    uint64_t total, done;
    uint64_t begin_ns, next_ns;
    unsigned shown;
    bool terminal, line_is_open;
} progress;

static void clear_line(void) {
    if (progress.line_is_open) fputs("\r\033[K", stderr);
    progress.line_is_open = false;
}

void progress_begin(const char *what, uint64_t total) {
    progress.terminal = isatty(STDERR_FILENO) == 1;
    progress.what = what;
    progress.total = total;
    progress.done = 0;
    progress.shown = 0;
    progress.begin_ns = now_ns();
    progress.next_ns = progress.begin_ns + NS_PER_S / 10;
}

static double elapsed_s(uint64_t now) {
    return (double)(now - progress.begin_ns) / 1e9;
}

static void show(uint64_t now) {
    double s = elapsed_s(now);
    if (progress.terminal) fputs("\r\033[K", stderr);
    fprintf(stderr, "%s: %s ", program_role, progress.what);
    if (progress.total > 0) {
        fprintf(stderr, "%3.0f %%, %.2f GB/s", 100.0 * (double)progress.done / (double)progress.total,
                (double)progress.done / s / 1e9);
    } else {
        fprintf(stderr, "%c %.1f s", "|/-\\"[progress.shown % 4], s);
    }
    if (!progress.terminal) fputc('\n', stderr);
    fflush(stderr);
    progress.line_is_open = progress.terminal;
}

bool progress_at(uint64_t done) {
    uint64_t now = now_ns();
    progress.done = done;
    if (now < progress.next_ns) return false;
    progress.next_ns = now + NS_PER_S / 10;
    /* A log file gets a line every five seconds, not ten every second. */
    if (progress.terminal || progress.shown % 50 == 49) show(now);
    progress.shown++;
    return true;
}

void progress_end(void) {
    double s = elapsed_s(now_ns());
    clear_line();
    if (progress.total > 0) {
        fprintf(stderr, "%s: %s: %s bytes in %.3f s\n", program_role, progress.what,
                with_commas(progress.total).text, s);
    } else {
        fprintf(stderr, "%s: %s: %.3f s\n", program_role, progress.what, s);
    }
}

/* ---- TCP ---- */

static struct addrinfo *resolve(const char *host, const char *port, int flags) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags}, *found;
    int error = getaddrinfo(*host ? host : NULL, port, &hints, &found);
    if (error == 0) return found;
    complain("%s:%s: %s", host, port, gai_strerror(error));
    return NULL;
}

static void say_where(int listener) {
    struct sockaddr_storage name;
    socklen_t len = sizeof name;
    char host[1025], port[32]; /* NI_MAXHOST and NI_MAXSERV, which strict C11 hides */
    if (getsockname(listener, (struct sockaddr *)&name, &len) != 0) return;
    if (getnameinfo((struct sockaddr *)&name, len, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) return;
    const char *form = strchr(host, ':') ? "%s: listening on [%s]:%s\n" : "%s: listening on %s:%s\n";
    fprintf(stderr, form, program_role, host, port);
}

int tcp_listen(const char *host, const char *port) {
    struct addrinfo *where = resolve(host, port, AI_PASSIVE);
    if (!where) return -1;
    int one = 1, fd = socket(where->ai_family, where->ai_socktype, where->ai_protocol);
    bool listening = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                     bind(fd, where->ai_addr, where->ai_addrlen) == 0 && listen(fd, 1) == 0;
    freeaddrinfo(where);
    if (listening) {
        say_where(fd);
        return fd;
    }
    complain("cannot listen on %s:%s: %s", host, port, strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}

int tcp_accept(int listener) {
    progress_begin("waiting for a decode side", 0);
    for (;;) {
        struct pollfd wanted = {.fd = listener, .events = POLLIN};
        int ready = poll(&wanted, 1, 100);
        if (ready > 0) break;
        if (ready < 0 && errno != EINTR) {
            complain("poll: %s", strerror(errno));
            return -1;
        }
        progress_at(0);
    }
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) complain("accept: %s", strerror(errno));
    return fd;
}

/** Waits until `fd` is ready, at most until `deadline`. False with errno set. */
static bool ready_by(int fd, short events, uint64_t deadline) {
    for (;;) {
        uint64_t now = now_ns();
        struct pollfd wanted = {.fd = fd, .events = events};
        int ready = poll(&wanted, 1, 100);
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) return false;
        if (now >= deadline) {
            errno = ETIMEDOUT;
            return false;
        }
        progress_at(0);
    }
}

/** One attempt on one address. The socket is left non-blocking, as the rest of this file expects. */
static int try_connect(const struct addrinfo *where, uint64_t deadline) {
    int fd = socket(where->ai_family, where->ai_socktype, where->ai_protocol);
    if (fd < 0) return -1;
    int error = 0;
    socklen_t len = sizeof error;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (connect(fd, where->ai_addr, where->ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS) {
        error = 0;
        if (!ready_by(fd, POLLOUT, deadline)) error = errno;
        else getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    }
    if (error == 0) return fd;
    close(fd);
    errno = error;
    return -1;
}

int tcp_connect(const char *host, const char *port, uint64_t timeout_ns) {
    struct addrinfo *found = resolve(host, port, 0);
    if (!found) return -1;
    uint64_t deadline = now_ns() + timeout_ns;
    int fd = -1;
    progress_begin("connecting to the prefill side", 0);
    while (fd < 0) {
        for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) fd = try_connect(a, deadline);
        if (fd >= 0 || now_ns() >= deadline) break;
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        progress_at(0);
    }
    if (fd < 0) complain("cannot connect to %s:%s: %s", host, port, strerror(errno));
    freeaddrinfo(found);
    return fd;
}

/** Moves all of `len` bytes in one direction, by `deadline`. */
static bool move_all(int fd, void *data, size_t len, bool out, uint64_t deadline) {
    for (size_t at = 0; at < len;) {
        if (!ready_by(fd, out ? POLLOUT : POLLIN, deadline)) return false;
        ssize_t n = out ? send(fd, (char *)data + at, len - at, MSG_NOSIGNAL)
                        : recv(fd, (char *)data + at, len - at, 0);
        if (n > 0) at += (size_t)n;
        if (n == 0) errno = ECONNRESET;
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
    }
    return true;
}

bool tcp_swap(int fd, const void *mine, size_t mine_len, void *theirs, size_t capacity, size_t *theirs_len,
              uint64_t timeout_ns) {
    uint64_t deadline = now_ns() + timeout_ns;
    uint32_t out = htonl((uint32_t)mine_len), in;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    bool ok = move_all(fd, &out, sizeof out, true, deadline) &&
              move_all(fd, (void *)(uintptr_t)mine, mine_len, true, deadline) &&
              move_all(fd, &in, sizeof in, false, deadline);
    if (ok && ntohl(in) > capacity) return complain("%u bytes cannot be a Weft address", (unsigned)ntohl(in));
    if (ok) *theirs_len = ntohl(in);
    ok = ok && move_all(fd, theirs, *theirs_len, false, deadline);
    return ok || complain("swapping addresses: %s", strerror(errno));
}
