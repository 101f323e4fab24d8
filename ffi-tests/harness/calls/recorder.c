/* The part of the recorder that is the same for every function; the script appends a wrapper for each. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "weft.h"

enum { SUCCESS = 1, ERROR = 2, ROOM = 4096 };

static _Atomic unsigned char nowhere[ROOM];
static _Atomic unsigned char *noted = nowhere;

/* Shared with all other programs, and with their forks: nothing is lost when one is killed. */
__attribute__((constructor)) static void find_file(void)
{
    const char *path = getenv("WEFT_TEST_CALLS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *map = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED)
        noted = map;
}

weft_category __real_weft_status_category(weft_status status);

static unsigned char how(int32_t status)
{
    if (status >= 0)
        return SUCCESS;
    return __real_weft_status_category(status) == WEFT_CATEGORY_RETRY ? 0 : ERROR;
}

static void note(int function, unsigned char what)
{
    if ((atomic_load_explicit(&noted[function], memory_order_relaxed) & what) != what)
        atomic_fetch_or_explicit(&noted[function], what, memory_order_relaxed);
}
