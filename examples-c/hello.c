/* Two endpoints in one process: one writes a text into memory of the other. */
#include <stdio.h>
#include <stdlib.h>
#include <weft.h>

static void check(weft_status status) {
    if (status == WEFT_OK) return;
    fprintf(stderr, "%s: %s\n", weft_status_name(status), weft_last_error());
    exit(1);
}

static void wait_for(weft_endpoint *endpoint, weft_completion_kind kind) {
    weft_completion done = {0};
    while (done.kind != kind) { /* PEER_UP comes first; a failure of any kind ends the program */
        int32_t n = weft_wait(endpoint, &done, 1, UINT64_C(10000000000));
        check(n > 0 ? done.status : n < 0 ? n : WEFT_ERR_TIMED_OUT);
    }
}

int main(void) {
    weft_endpoint *here, *there; /* with every NIC of this machine */
    check(weft_endpoint_open(NULL, &here));
    check(weft_endpoint_open(NULL, &there));

    char text[] = "Hello from the other endpoint.", page[sizeof text] = "";
    weft_memory_range source = {text, sizeof text}, target = {page, sizeof page};
    weft_memory *mine, *theirs;
    check(weft_memory_register(here, &source, 1, NULL, &mine));
    check(weft_memory_register(there, &target, 1, NULL, &theirs));

    unsigned char address[4096], descriptor[4096]; /* these two travel by any means */
    size_t address_len, descriptor_len;
    check(weft_endpoint_address(there, address, sizeof address, &address_len));
    check(weft_memory_export(theirs, descriptor, sizeof descriptor, &descriptor_len));

    weft_peer peer;
    weft_remote_memory *remote;
    check(weft_peer_connect(here, address, address_len, NULL, &peer));
    check(weft_remote_memory_import(here, peer, descriptor, descriptor_len, &remote));

    weft_range_args write = WEFT_RANGE_ARGS_INIT;
    write.local = mine, write.remote = remote, write.len = sizeof text;
    write.flags = WEFT_NOTIFY, write.notify = 1;
    check(weft_write(here, &write, NULL));
    wait_for(here, WEFT_COMPLETION_WRITE);         /* every byte is there */
    wait_for(there, WEFT_COMPLETION_NOTIFICATION); /* and the target knows */
    puts(page);
    check(weft_endpoint_close(here));
    check(weft_endpoint_close(there));
}
