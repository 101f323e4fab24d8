/* The command line of random_fill. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct options {
    bool prefill; /* else decode */
    const char *host;
    const char *port;

    const char *fabric;     /* NULL: Weft chooses */
    const char *rail_names; /* NULL: all */
    uint32_t rails;         /* 0: one for each NIC */
    uint32_t workers;       /* 0: one */
    bool manual;
    uint64_t timeout_ns;

    /* The decode side's request. */
    uint64_t pages;
    uint64_t page_len;
    uint64_t total_pages;
    uint64_t page_stride;
    uint64_t page_offset;
    uint32_t layers;
    bool adjacent;
    uint64_t seed;
};

/* * Reads the command line. Ends the program with status 2 and a message if it is invalid, with 0 after --help. */
struct options options_read(int argc, char **argv);

#endif
