/*
 * A TCP socket over which two processes tell each other what Weft needs to know first: addresses, descriptors. Any
 * other way will do. What fails here ends the program.
 */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Listens on all addresses, and says on stdout where. `port`: "0" for any that is free. */
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
