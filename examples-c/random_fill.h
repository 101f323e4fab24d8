/* The messages between the two sides of random_fill, and the entry point of each. */
#ifndef RANDOM_FILL_H
#define RANDOM_FILL_H

#include <stdbool.h>
#include <stdint.h>
#include <weft.h>

#include "options.h"
#include "session.h"

bool run_prefill(const struct options *options);
bool run_decode(const struct options *options);

/* Every message begins with its kind. Both hosts must have the same byte order: the kinds reveal it if they do not. */
#define KIND_REQUEST UINT32_C(0x31716572)
#define KIND_REPORT UINT32_C(0x31706572)
#define KIND_VERDICT UINT32_C(0x31726576)

/**
 * Decode to prefill: write these pages. The descriptor of the memory and the
 * list of page indexes (4 bytes each) follow it in messages of their own, as
 * one text cut wherever a message is full: Weft keeps their order.
 */
struct request {
    uint32_t kind;
    uint32_t layers;
    uint64_t id;
    uint64_t seed;
    uint64_t pages;
    uint64_t page_len;
    uint64_t page_stride;
    uint64_t page_offset;
    uint64_t descriptor_len;
};

/* * Prefill to decode: the result of the write, and how long it took. */
struct report {
    uint32_t kind;
    weft_status status;
    uint64_t id;
    uint64_t ns;
};

/* * Decode to prefill: the result of its check. */
struct verdict {
    uint32_t kind;
    uint32_t reserved;
    uint64_t id;
    uint64_t wrong_inside;
    uint64_t wrong_outside;
};

/* * Prints the end of the last line: the rate, and the fabric. */
void print_figures(const struct session *session, uint64_t bytes, uint64_t ns);

#endif
