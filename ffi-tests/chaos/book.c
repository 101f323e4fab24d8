#include "book.h"

struct book *book;
uint8_t *memories[HOSTS];

static void *shared(size_t len)
{
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        FAIL("cannot map %zu bytes: %s", len, strerror(errno));
    return p;
}

void book_make(uint64_t seed)
{
    book = shared(sizeof *book);
    book->seed = seed;
    book->begin_ns = now_ns();
    for (int h = 0; h < HOSTS; h++)
        memories[h] = shared(MEMORY);
}

uint64_t book_ms(void)
{
    return (now_ns() - book->begin_ns) / MS;
}

void finding(_Atomic uint64_t *count, const char *format, ...)
{
    uint32_t at = atomic_fetch_add(&book->notes_count, 1);
    atomic_fetch_add(count, 1);
    if (at >= NOTES_MAX)
        return;
    char *note = book->notes[at];
    int used = snprintf(note, sizeof book->notes[at], "%" PRIu64 " ms: ", book_ms());
    va_list args;
    va_start(args, format);
    vsnprintf(note + used, sizeof book->notes[at] - (size_t)used, format, args);
    va_end(args);
}

struct span *span_begin(int host, int rail)
{
    uint32_t at = atomic_fetch_add(&book->spans_count, 1);
    CHECK(at < SPANS_MAX);
    struct span *span = &book->spans[at];
    span->host = host;
    span->rail = rail;
    span->from_ns = now_ns();
    return span;
}
