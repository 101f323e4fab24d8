/* Bytes that both sides can derive from a key: the contents of pages, and of the memory around them. */
#ifndef PATTERN_H
#define PATTERN_H

#include <stddef.h>
#include <stdint.h>

/** The next number of a random sequence (splitmix64). */
uint64_t random_next(uint64_t *state);

/** The key of one page: slot `slot` of the request's list, in one layer. */
uint64_t page_key(uint64_t seed, uint32_t layer, uint64_t slot);

/* * The key of a layer's contents before anything is written to it. */
uint64_t background_key(uint64_t seed, uint32_t layer);

/* * Writes bytes `offset` to `offset + len` of the endless text of `key`. */
void pattern_fill(uint64_t key, uint64_t offset, uint8_t *bytes, size_t len);

/* * How many of these bytes differ from `pattern_fill`'s; stores the index of the first in `first`. */
size_t pattern_wrong(uint64_t key, uint64_t offset, const uint8_t *bytes, size_t len, size_t *first);

#endif
