/*
 * One process fills pages, and writes them with one call into memory of
 * another that asked for them: at random places, of one buffer or of many. The
 * other checks every byte, those around the pages too.
 *
 *     options.c   the command line
 *     session.c   an endpoint, its peer, its completions, its memory
 *     prefill.c   the side that writes
 *     decode.c    the side that asks and checks
 *     pattern.c   the bytes
 *     common.c    nothing of Weft: TCP, progress, numbers
 */
#include "random_fill.h"

#include <stdio.h>

#include "common.h"

void print_figures(const struct session *session, uint64_t bytes, uint64_t ns) {
    const weft_peer_properties *peer = &session->properties;
    printf("%.6f s, %.2f Gbps, %s, %u %s (%u %s); %s\n", (double)ns / 1e9,
           ns > 0 ? (double)bytes * 8 / (double)ns : 0.0, peer->fabric, peer->local_rails,
           peer->local_rails == 1 ? "rail" : "rails", peer->lanes, peer->lanes == 1 ? "lane" : "lanes",
           peer->reason);
}

int main(int argc, char **argv) {
    struct options options = options_read(argc, argv);
    program_role = options.prefill ? "prefill" : "decode";
    bool verified = options.prefill ? run_prefill(&options) : run_decode(&options);
    return verified ? 0 : 1;
}
