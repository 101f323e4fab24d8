/* Two endpoints in one process: one writes a text into memory of the other. */
#include <stdio.h>
#include <stdlib.h>
#include <weft.h>
#define CHECK(call) check(call, #call, NULL)
static void check(int32_t status, const char *what, const char *why) {
    const char *name = weft_status_name(status);
    if (status < 0) fprintf(stderr, "%s: %s: %s\n", what, name, why ? why : weft_last_error()), exit(1);
}
static void wait_for(weft_endpoint *endpoint, weft_completion_kind kind) {
    for (weft_completion done = {0}; done.kind != kind;) { /* PEER_UP comes first */
        int32_t count = weft_wait(endpoint, &done, 1, UINT64_C(10000000000));
        CHECK(count);
        int32_t status = count ? done.status : WEFT_ERR_TIMED_OUT;
        check(status, "completion", weft_status_text(status)); /* weft_last_error is of calls */
    }
}
int main(void) {
    weft_endpoint *here, *there; /* with every NIC of this machine */
    CHECK(weft_endpoint_open(NULL, &here)), CHECK(weft_endpoint_open(NULL, &there));
    char text[] = "Hello from the other endpoint.", page[sizeof text] = "";
    weft_memory_range source = {text, sizeof text}, target = {page, sizeof page};
    weft_memory *mine, *theirs;
    CHECK(weft_memory_register(here, &source, 1, NULL, &mine));
    CHECK(weft_memory_register(there, &target, 1, NULL, &theirs));
    unsigned char address[4096], descriptor[4096]; /* these two travel by any means */
    size_t address_len, descriptor_len;
    CHECK(weft_endpoint_address(there, address, sizeof address, &address_len));
    CHECK(weft_memory_export(theirs, descriptor, sizeof descriptor, &descriptor_len));
    weft_peer peer;
    weft_remote_memory *remote;
    CHECK(weft_peer_connect(here, address, address_len, NULL, &peer));
    CHECK(weft_remote_memory_import(here, peer, descriptor, descriptor_len, &remote));
    weft_op_options options = WEFT_OP_OPTIONS_INIT;
    options.flags = WEFT_NOTIFY;
    CHECK(weft_write(here, mine, 0, remote, 0, sizeof text, &options, NULL));
    wait_for(here, WEFT_COMPLETION_WRITE);         /* every byte is there */
    wait_for(there, WEFT_COMPLETION_NOTIFICATION); /* and the target knows */
    printf("%s (Weft %s)\n", page, weft_version_string());
    CHECK(weft_endpoint_close(here)), CHECK(weft_endpoint_close(there));
}
