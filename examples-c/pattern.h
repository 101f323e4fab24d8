/* Bytes that anybody can make again from a key: what pages hold, and what lies around them. */
#ifndef PATTERN_H
#define PATTERN_H

#include <stddef.h>
#include <stdint.h>

/** The next number of a random sequence (splitmix64). */
uint64_t random_next(uint64_t *state);

/** The key of one page: slot `slot` of the request's list, in one layer. */
uint64_t page_key(uint64_t seed, uint32_t layer, uint64_t slot);

/** The key of what a layer holds before anything is written to it. */
uint64_t background_key(uint64_t seed, uint32_t layer);

/** Writes bytes `offset` to `offset + len` of the endless text that `key` stands for. */
void pattern_fill(uint64_t key, uint64_t offset, uint8_t *bytes, size_t len);

/** How many of these bytes are not what `pattern_fill` wrote; stores the index of the first in `first`. */
size_t pattern_wrong(uint64_t key, uint64_t offset, const uint8_t *bytes, size_t len, size_t *first);

#endif
