#define _POSIX_C_SOURCE 200809L
#include "exchange.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void must(int good, const char *what) {
    if (!good) perror(what), exit(1);
}

int exchange_listen(const char *port) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    socklen_t len = sizeof here;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0, "socket");
    must(bind(fd, (struct sockaddr *)&here, len) == 0 && listen(fd, 64) == 0, port);
    must(getsockname(fd, (struct sockaddr *)&here, &len) == 0, "getsockname");
    printf("listening on port %d\n", ntohs(here.sin_port));
    fflush(stdout);
    return fd;
}

int exchange_accept(int listener) {
    int fd = accept(listener, NULL, NULL);
    must(fd >= 0, "accept");
    return fd;
}

int exchange_connect(const char *host, const char *port) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(host, port, &hints, &found);
    if (error != 0) fprintf(stderr, "%s:%s: %s\n", host, port, gai_strerror(error)), exit(1);
    for (int tries = 0; tries < 100; tries++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        must(fd >= 0, "socket");
        if (connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
            freeaddrinfo(found);
            return fd;
        }
        close(fd);
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    perror(host), exit(1);
}

static void put_all(int fd, const void *bytes, size_t len) {
    for (const char *at = bytes; len > 0;) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        must(n > 0, "send");
        at += n, len -= (size_t)n;
    }
}

static void get_all(int fd, void *bytes, size_t len) {
    for (char *at = bytes; len > 0;) {
        ssize_t n = recv(fd, at, len, 0);
        if (n == 0) fprintf(stderr, "the other side has gone\n"), exit(1);
        must(n > 0, "recv");
        at += n, len -= (size_t)n;
    }
}

void exchange_put(int fd, const void *bytes, size_t len) {
    uint32_t size = htonl((uint32_t)len);
    put_all(fd, &size, sizeof size);
    put_all(fd, bytes, len);
}

size_t exchange_get(int fd, void *bytes, size_t capacity) {
    uint32_t size;
    get_all(fd, &size, sizeof size);
    if (ntohl(size) > capacity) fprintf(stderr, "%u bytes are too many\n", (unsigned)ntohl(size)), exit(1);
    get_all(fd, bytes, ntohl(size));
    return ntohl(size);
}
