/*
 * Time that the machine takes from the test: a heartbeat of 10 ms that comes late (the process is stopped, or starved
 * as a whole), and threads that waited for a processor, by the kernel's count (Weft's threads are busier than a
 * heartbeat, and wait longer).
 */
#include "engine.h"

#include <dirent.h>

#define BEAT (10 * MS)
#define LATE (10 * MS)
#define THREADS_MAX 64

static struct thread {
    int fd;
    uint64_t waited_ns;
} threads[THREADS_MAX];
static int known[THREADS_MAX], count, here; /* whose stalls these are */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Call with the lock held. */
static void note(uint64_t from_ns, uint64_t to_ns)
{
    struct host *host = &book->hosts[here];
    uint32_t at = host->stalls_count % STALLS_MAX;
    host->stalls[at].from_ns = from_ns;
    host->stalls[at].to_ns = to_ns;
    host->stalls_count++;
}

/* How long a thread has waited for a processor in total. */
static uint64_t waited_of(int fd)
{
    char text[96] = "";
    unsigned long long ran, waited = 0;
    if (pread(fd, text, sizeof text - 1, 0) <= 0 || sscanf(text, "%llu %llu", &ran, &waited) != 2)
        return 0;
    return waited;
}

static void know(int id)
{
    char path[64];
    for (int i = 0; i < count; i++)
        if (known[i] == id)
            return;
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", id);
    int fd = count < THREADS_MAX ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    known[count] = id;
    threads[count++] = (struct thread){fd, waited_of(fd)};
}

static void find_threads(void)
{
    DIR *dir = opendir("/proc/self/task");
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;)
        if (atoi(entry->d_name) > 0)
            know(atoi(entry->d_name));
    if (dir)
        closedir(dir);
}

static void look_at_threads(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++) {
        uint64_t waited = waited_of(threads[i].fd), now = now_ns();
        /* Short waits add up: a busy machine has only these. */
        if (waited > threads[i].waited_ns + LATE) {
            note(now - (waited - threads[i].waited_ns), now);
            threads[i].waited_ns = waited;
        }
    }
    pthread_mutex_unlock(&lock);
}

static uint64_t computed_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* When the machine's host takes a processor away, the kernel counts that as the running thread's time: a worker's
 * longest pass may include that much. */
static void look_at_clock(void)
{
    for (uint64_t begin_ns = computed_ns(), before = begin_ns, now; before < begin_ns + MS / 2; before = now) {
        now = computed_ns();
        if (now - before > book->jump_ns)
            book->jump_ns = now - before;
    }
}

static void *beat(void *unused)
{
    struct host *host = &book->hosts[here];
    (void)unused;
    host->beat_ns = now_ns();
    for (uint32_t i = 0;; i++) {
        struct timespec t = {0, BEAT};
        uint64_t now;
        nanosleep(&t, NULL);
        pthread_mutex_lock(&lock);
        /* The gap is measured from beat to beat: the process may also be stopped outside its sleep. */
        now = now_ns();
        if (now > host->beat_ns + BEAT + LATE)
            note(host->beat_ns + BEAT, now);
        host->beat_ns = now;
        if (i % 50 == 0)
            find_threads();
        pthread_mutex_unlock(&lock);
        look_at_threads();
        look_at_clock();
    }
    return NULL;
}

void stalls_watch(void)
{
    pthread_t thread;
    here = self->me;
    CHECK(pthread_create(&thread, NULL, beat, NULL) == 0);
}

static int by_begin(const void *a, const void *b)
{
    uint64_t x = ((const struct stall *)a)->from_ns, y = ((const struct stall *)b)->from_ns;
    return x < y ? -1 : x > y;
}

/* They overlap: time that several of them cover counts once. The thread that polls calls this for each late completion,
 * and with manual progress it is the one that drives the endpoint: what this takes makes the next ones later. */
uint64_t stalled(uint64_t from_ns, uint64_t to_ns)
{
    static _Thread_local struct stall found[STALLS_MAX / 2 + 1];
    const struct host *host = &book->hosts[here];
    uint64_t sum = 0, counted_ns = from_ns, beat_ns = host->beat_ns + BEAT + LATE;
    look_at_threads();
    uint32_t last = host->stalls_count, first = last > STALLS_MAX / 2 ? last - STALLS_MAX / 2 : 0, n = 0;
    for (uint32_t i = first; i < last; i++)
        if (host->stalls[i % STALLS_MAX].to_ns > from_ns && host->stalls[i % STALLS_MAX].from_ns < to_ns)
            found[n++] = host->stalls[i % STALLS_MAX];
    if (beat_ns < to_ns) /* no beat has noted that yet */
        found[n++] = (struct stall){beat_ns, to_ns};
    qsort(found, n, sizeof *found, by_begin);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t begin_ns = found[i].from_ns > counted_ns ? found[i].from_ns : counted_ns;
        uint64_t end_ns = found[i].to_ns < to_ns ? found[i].to_ns : to_ns;
        if (end_ns > begin_ns) {
            sum += end_ns - begin_ns;
            counted_ns = end_ns;
        }
    }
    return sum;
}
