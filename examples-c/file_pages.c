/* Pages of a cache in a file of a peer: written there when they are cold, and read back when they are wanted. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGES = 16, PAGE = 65536 };

int main(void) {
    weft_endpoint *cache, *store;
    CHECK(weft_endpoint_create(NULL, &cache));
    CHECK(weft_endpoint_create(NULL, &store));

    /* The store: a file with its size and its blocks, since growing while pages come is slow. */
    char name[] = "/var/tmp/weft-pages-XXXXXX";
    int fd = mkstemp(name);
    if (fd < 0 || unlink(name) != 0 || posix_fallocate(fd, 0, PAGES * PAGE) != 0) {
        perror(name);
        return 1;
    }
    weft_memory_range all = {NULL, PAGES * PAGE}; /* from offset 0 on */
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    args.kind = WEFT_MEMORY_FILE;
    args.fd = fd;
    weft_memory *file;
    CHECK(weft_memory_register(store, &all, 1, &args, &file));
    close(fd); /* Weft has opened it again */

    unsigned char address[4096], key[4096];
    size_t address_len, key_len;
    CHECK(weft_endpoint_address(store, address, sizeof address, &address_len));
    CHECK(weft_memory_export(file, key, sizeof key, &key_len));

    /* The cache: its memory, and the store's, which is memory like any other. */
    unsigned char *bytes = malloc(PAGES * PAGE);
    if (bytes == NULL) return 1;
    weft_memory_range range = {bytes, PAGES * PAGE};
    weft_memory *memory;
    weft_peer peer;
    weft_remote_memory *remote;
    CHECK(weft_memory_register(cache, &range, 1, NULL, &memory));
    CHECK(weft_peer_connect(cache, address, address_len, NULL, &peer));
    CHECK(weft_remote_memory_import(cache, peer, key, key_len, &remote));

    uint32_t mine[PAGES], slots[PAGES];
    for (uint32_t i = 0; i < PAGES; i++) {
        memset(bytes + i * PAGE, (int)i + 1, PAGE);
        mine[i] = i;
        slots[i] = PAGES - 1 - i;
    }
    weft_pages pages = WEFT_PAGES_INIT;
    pages.local.pages = mine;
    pages.remote.pages = slots;
    pages.page_count = PAGES;
    pages.layer_count = 1;
    pages.page_len = PAGE;
    CHECK(weft_write_pages(cache, memory, remote, &pages, NULL, NULL));
    check_next(cache, WEFT_COMPLETION_WRITE);
    printf("%d pages are in the file\n", PAGES);

    memset(bytes, 0, PAGES * PAGE); /* their memory was used for something else */
    CHECK(weft_read_pages(cache, memory, remote, &pages, NULL, NULL));
    check_next(cache, WEFT_COMPLETION_READ);
    int wrong = 0;
    for (int i = 0; i < PAGES * PAGE; i++)
        wrong += bytes[i] != i / PAGE + 1;
    printf("%d pages are back, %d bytes wrong\n", PAGES, wrong);

    CHECK(weft_endpoint_destroy(cache));
    CHECK(weft_endpoint_destroy(store));
    free(bytes);
    return wrong != 0;
}
