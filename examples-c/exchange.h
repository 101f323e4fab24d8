/*
 * A TCP socket for what two processes must exchange before Weft connects: addresses, descriptors. Any other way works
 * as well. A failure here ends the program.
 */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* * Listens on all addresses, and prints the address on stdout. `port`: "0" for any free one. */
int exchange_listen(const char *port);
int exchange_accept(int listener);
/** Tries for 10 seconds: the other side may start later. */
int exchange_connect(const char *host, const char *port);

/** One blob: 4 bytes of length (big-endian), and that many bytes. */
void exchange_put(int fd, const void *bytes, size_t len);
/** Receives one, and returns its length. */
size_t exchange_get(int fd, void *bytes, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
