/*
 * What the processes of a chaos run share: the memory that moves, and a record of every
 * operation, slot and fault, so that nothing is forgotten when a process is killed.
 *
 * Each ordered pair of hosts has a way: slots at both ends, which the first host (its
 * owner) uses one operation at a time. Whatever is not under way is filled with a guard
 * that nobody may touch. All memory is visible to all, so an owner can look at the
 * target's bytes in the moment of a completion.
 */
#ifndef WEFT_CHAOS_BOOK_H
#define WEFT_CHAOS_BOOK_H

#include "lab.h"

#define HOSTS 3
#define RAILS 4
#define LAYERS 4 /* ranges of a slot */
#define LAYER (64 * KIB)
#define SLOT (LAYERS * LAYER)
#define SLOTS 32
#define AREA (SLOTS * SLOT)
#define WORDS (2 * HOSTS * AREA) /* where a host's atomic words are, one for each owner */
#define MEMORY (WORDS + 4096)
#define WORD_RANGE (2 * HOSTS * SLOTS * LAYERS)
#define OPERATIONS_MAX 1000000
#define LIVES_MAX 1024
#define STALLS_MAX 8192
#define SPANS_MAX 8192
#define NOTES_MAX 64
#define GRACE (200 * MS)
#define NOBODY 0xff

enum kind { RANGE, PAGES, LIST, KEPT, SEND, ATOMIC, EXPECT, FENCE, KINDS };

/* What an operation has to do with one peer. */
struct part {
    uint8_t slot; /* NOBODY: none */
    _Atomic uint8_t arrived; /* how often its notification or message was polled there */
    bool done;
    weft_status status;
    uint32_t life; /* of the peer */
    uint64_t token, done_ns; /* of the connection */
};

struct operation {
    _Atomic bool accepted;
    uint8_t kind, host, targets; /* targets: a bit for each */
    bool read, notify, each_peer, ample, will_cancel;
    uint32_t flags; /* WEFT_CLASS_LATENCY and WEFT_COUNT_PAGES */
    uint32_t life, counts; /* how often it raises the peer's counter */
    uint64_t seed, transfer, submit_ns, timeout_ns, late_ns;
    struct part part[HOSTS];
};

/* States of a slot; none: the guard is in it, and it may be used. */
enum { BUSY = 1, DONE = 2, TAKEN = 4, FAILED = 8, FENCED = 16 };

struct slot {
    _Atomic uint32_t state;
    uint32_t operation;
    uint64_t since_ns; /* when it became free */
};

struct way {
    _Atomic uint64_t ready; /* the token of the connection that the target is ready for */
    _Atomic uint64_t counter;
    _Atomic uint64_t counts_asked, counts_ok, adds_asked, adds_ok;
    struct slot slots[SLOTS];
};

enum end { RUNNING, KILLED, LEFT_WELL, CRASHED };

struct life {
    uint64_t begin_ns, end_ns;
    enum end how;
    _Atomic uint32_t connects, answers;
};

/* A time in which something was not as it should be. */
struct span {
    uint64_t from_ns, to_ns; /* 0: it lasts */
    int host, rail;          /* rail -1: the process itself is stopped; -2: it disconnected */
};

struct host {
    _Atomic uint64_t card; /* odd while the address is written */
    uint64_t incarnation;
    uint32_t address_len;
    char address[4096];
    uint32_t lives_count;
    struct life lives[LIVES_MAX];
    _Atomic int disconnect_from; /* 1 + a host */
    _Atomic bool leave;          /* as soon as possible */
    _Atomic uint64_t beat_ns, loops;
    _Atomic uint32_t stalls_count;
    struct {
        uint64_t from_ns, to_ns;
    } stalls[STALLS_MAX];
};

struct book {
    uint64_t seed, begin_ns;
    _Atomic bool quiet, over, no_reads;
    _Atomic uint32_t operations_count;
    struct host hosts[HOSTS];
    struct way ways[HOSTS][HOSTS]; /* owner, target */
    _Atomic uint32_t spans_count;
    struct span spans[SPANS_MAX];
    _Atomic uint64_t verified, late, wrong, ghosts, lost, doubled, extra, odd, slow;
    _Atomic uint32_t notes_count;
    char notes[NOTES_MAX][480];
    struct operation operations[OPERATIONS_MAX];
};

extern struct book *book;
extern uint8_t *memories[HOSTS];

void book_make(uint64_t seed);
/* A line for the report: what went wrong, and when. Counts it, too. */
void finding(_Atomic uint64_t *count, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Since the run began. */
uint64_t book_ms(void);
struct span *span_begin(int host, int rail);

/* The life of one host: a process that enters it and ends when it is told to. */
void host_live(int me, uint32_t life) __attribute__((noreturn));
/* Plays the faults until `until_ns`, and keeps the hosts alive. */
void faults_play(uint64_t seed, uint64_t until_ns);
/* All is well from now on: every link up, every host running. */
void faults_end(void);
uint32_t faults_count(void);
void hosts_begin(void);
/* Whether all have left. */
bool hosts_watch(void);
/* Sums up: a table, JSON into a file if there is one. False if something was not right. */
bool report(const char *json, double minutes);

#endif
