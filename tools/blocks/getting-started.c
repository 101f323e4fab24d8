/* One endpoint plays both processes: it writes pages into its own memory. */
#include <stdlib.h>
#include <string.h>
#define DONE 1
static weft_status finished = DONE;
static uint64_t used;
static void finish(void *request, weft_status status) { (void)request, finished = status; }
static void use_pages(uint64_t request) { used = request; }
static void forget(weft_peer peer) { (void)peer; }

int main(void) {
    enum { PAGES = 1000, PAGE = 65536 };
    uint64_t len = UINT64_C(2) * PAGES * PAGE;
    unsigned char *bytes = malloc(len);
    uint32_t mine[PAGES], yours[PAGES];
    void *request = NULL;
    for (uint32_t page = 0; page < PAGES; page++) {
        mine[page] = page, yours[page] = 2 * PAGES - 1 - page;
        memset(bytes + (uint64_t)page * PAGE, (int)(page % 251) + 1, PAGE);
    }
    BLOCKS
    for (uint64_t page = 0; page < PAGES; page++)
        if (memcmp(bytes + page * PAGE, bytes + (2 * PAGES - 1 - page) * PAGE, PAGE) != 0)
            return 1;
    return 0;
}
