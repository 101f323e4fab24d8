/* For small examples: a failed call ends the program with a message. See errors.c for programs that continue. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <weft.h>

#define CHECK(call) check_call(call, #call)

static inline int32_t check_call(int32_t status, const char *call) {
    if (status >= 0) return status;
    fprintf(stderr, "%s: %s: %s\n", call, weft_status_name(status), weft_last_error());
    exit(1);
}

/* * The next completion of a kind, which must be successful. Earlier ones of other kinds are dropped. */
static inline weft_completion check_next(weft_endpoint *endpoint, weft_completion_kind kind) {
    for (;;) {
        weft_completion done;
        int32_t status = CHECK(weft_queue_poll(weft_endpoint_queue(endpoint), &done, 1, UINT64_C(20000000000)));
        if (status == 1 && done.kind != kind) continue;
        status = status == 1 ? done.status : WEFT_ERR_TIMED_OUT;
        if (status == WEFT_OK) return done;
        fprintf(stderr, "completion: %s: %s\n", weft_status_name(status), weft_status_text(status));
        exit(1);
    }
}

#endif
