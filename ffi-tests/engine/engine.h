/*
 * One engine of random operations with one ledger, played over several worlds. It knows only weft.h.
 *
 *     engine.h    the ledger's rules and all that the parts share
 *     plan.c      what a seed stands for: the world, its settings, the faults of a simulated one
 *     content.c   which bytes an operation moves, and whether they are where they should be
 *     play.c      what is submitted: any kind of operation, and its terms
 *     wrong.c     calls that must be refused, and with which status
 *     links.c     connections: handshakes, memory that is given back, fences, the end of a connection
 *     grants.c    where memory is reached under grants alone: how they are made and revoked
 *     ledger.c    what is polled, compared with what was submitted
 *     host.c      the life of one host: opens, polls, submits, leaves
 *     faults.c    what happens to links and hosts: a row of its table for each kind of fault
 *     attackers.c a process that attacks a host from outside
 *     worlds.c    the worlds: two hosts in one process (wall clock or virtual time), three processes, three namespaces
 *     scenarios.c the tests of virtual time whose faults a table names
 *     report.c    the sums at the end: a table, the figures that must be zero, JSON
 *     stalls.c    what the machine did not give a process
 *
 * The rules, each with the figure that counts what breaks it:
 *
 *  1. Every accepted operation completes exactly once, also when its endpoint is shut down in between; only a killed
 *     process takes completions with it. (missing_completions; stray_completions: a second one, or one of nothing)
 *  2. No later than its deadline and 0.2 s, stalls of the machine subtracted; with TIMED_OUT no earlier. (late, oddities)
 *  3. A write that is done, or whose notification has come, has put all its bytes where they belong; so has a read that
 *     is done, a page that a counter counts, a message. (wrong_bytes)
 *  4. Nothing but those bytes changes. After a completion local memory stays as it is; target memory after a completion
 *     that says OK, after a notification, and whatever became of the write after a fence, after the memory was
 *     deregistered, after the revoke of its grant, and after the PEER_DOWN. All that is not under way is filled with a guard. (ghost_writes)
 *  5. The notification of an operation that is OK, or its message, has arrived; messages arrive in the order of their
 *     calls. A counter and a word lie between what completed OK and what was asked for; when all has come to rest, every
 *     count that was promised is there. (lost_notifications)
 *  6. No notification and no message arrives twice, no ticket of a word is given twice. (doubled_notifications)
 *     No notification, no count and no change of a word comes after the revoke of its grant. (revoked_notifications,
 *     revoked_counts)
 *  7. No operation fails needlessly: both ends lived, a pair of rails was up throughout, the deadline was ample, nobody
 *     cancelled, disconnected or gave the memory back. (needless_errors)
 *  8. A completion's fields are those that weft.h names; after a peer's PEER_DOWN nothing of it comes, and all operations
 *     with it have completed before; a call is refused only for a reason, with a message, and wrong arguments always are.
 *     (oddities)
 *
 * Each ordered pair of hosts has a way: slots at both ends, which the first host (the owner) uses for one operation at a
 * time. All memory is visible to all hosts, so an owner looks at the target's bytes in the moment of a completion.
 */
#ifndef WEFT_TEST_ENGINE_H
#define WEFT_TEST_ENGINE_H

#include "lab.h"

#define HOSTS 3
#define RAILS 4
#define LAYERS 4 /* ranges of a slot */
#define SLOTS_MAX 32
#define PIECES_MAX 256
#define PAGES_MAX 64
#define WORDS 16 /* of each way: the first gives tickets, the others have one user at a time */
#define TICKETS 65536
#define GRANTS 4 /* of each way at once */
#define USES_MAX 3 /* of prepared geometry at once */
#define LINKS_MAX 64
#define OPERATIONS_MAX 1000000
#define LIVES_MAX 1024
#define STALLS_MAX 8192
#define SPANS_MAX 8192
#define NOTES_MAX 64
#define QUEUE_DEPTH 16 /* of the second queue */
#define MESSAGES (4 * MIB)
#define GRACE (patiently(200) * MS)
#define AMPLE (patiently(10) * SECOND)
#define STUCK_NS (4 * SECOND) /* longer than a NIC whose lanes cannot be closed has a read that ended early */
#define NOBODY 0xff
#define FENCE_UNDER_WAY (UINT64_C(1) << 63) /* beside SLOTS_MAX of them */

enum kind { RANGE, PAGES, LIST, KEPT, SEND, ATOMIC, EXPECT, FENCE, REVOKE, KINDS };

/* ---- What is shared: a book of everything, and the memory that moves ---- */

/* The part of an operation that concerns one peer. */
struct part {
    uint8_t slot;            /* NOBODY: none */
    _Atomic uint8_t arrived; /* how often its notification or message was polled at the peer */
    bool done;
    weft_status status;
    uint32_t life, version; /* of the peer, and of its memory */
    uint64_t token, done_ns; /* of the connection */
    uint64_t entry;         /* the first of a list */
    uint64_t grant;         /* its number; 0: under none */
    weft_peer peer;
};

struct operation {
    _Atomic bool accepted;
    uint8_t kind, host, targets, word, grant; /* targets: a bit for each; grant: which of the way's */
    uint8_t uses, ended; /* of prepared geometry: how often it is used, and a bit for each use that ended */
    bool list;           /* entries, not pages */
    bool read, notify, each_peer, second, ample, will_cancel, canceled;
    uint32_t flags; /* WEFT_CLASS_LATENCY and WEFT_COUNT_PAGES */
    uint32_t life, counts;
    uint64_t seed, shape, transfers[USES_MAX], submit_ns, timeout_ns;
    uint64_t old, fresh; /* what its word was, and becomes; the value that it waits for */
    struct part part[HOSTS];
};

/* The state of a slot; none of these: it contains the guard, and is free. */
enum { BUSY = 1, DONE = 2, TAKEN = 4, FAILED = 8, FENCED = 16, REVOKED = 32, STUCK = 64 };

struct slot {
    _Atomic uint32_t state;
    uint32_t operation;
    uint64_t since_ns; /* when it became free, or will have been held */
    uint64_t sum;      /* of its target's bytes, when its grant was revoked */
};

/* A grant that a way's target made. */
struct grant {
    _Atomic uint64_t number; /* unique; 0: there is none */
    _Atomic uint64_t ending; /* the last one whose revoke has begun */
    weft_grant_token token;
    uint64_t ended;          /* the last whose revoke is complete */
    uint64_t again_ns;       /* from this time on the next grant may be made */
    uint64_t counted, words[WORDS]; /* `watched`: what must not change until then */
    weft_peer link;          /* the owner that may use it */
    bool revoking, watched;
};

struct way {
    _Atomic uint64_t ready;   /* the token of the connection for which the target is ready */
    _Atomic uint32_t version; /* of the target's memory */
    _Atomic uint64_t left_ns; /* when the owner last disconnected */
    _Atomic uint64_t counter;
    _Atomic uint64_t counts_asked, counts_ok, counts_sure, adds_asked, adds_ok; /* sure: certain at the completion */
    uint64_t seen;         /* what the counter was when it was last read */
    uint64_t words[WORDS]; /* as they should be */
    uint8_t word_state[WORDS]; /* as for slots: BUSY, or FAILED, after which its value is unknown */
    uint8_t tickets[TICKETS / 8];
    struct slot slots[SLOTS_MAX];
    struct grant grants[GRANTS];
    uint64_t grants_count;
};

enum end { RUNNING, KILLED, LEFT_WELL, CRASHED };

struct life {
    uint64_t begin_ns, end_ns;
    enum end how;
    _Atomic uint32_t connects;
};

/* A period in which something was faulty. */
struct span {
    uint64_t from_ns, to_ns; /* 0: it lasts */
    int host, rail;          /* rail -1: the process itself is stopped; -2: it disconnected; -3: it gave memory back */
};

struct host {
    _Atomic uint64_t card; /* odd while the address is written */
    uint64_t incarnation;
    uint32_t address_len;
    char address[4096];
    uint32_t lives_count;
    struct life lives[LIVES_MAX];
    _Atomic int disconnect_from, renew_for; /* 1 + a host */
    _Atomic bool leave;                     /* as soon as possible */
    _Atomic uint64_t beat_ns;
    _Atomic uint32_t stalls_count;
    struct stall {
        uint64_t from_ns, to_ns;
    } stalls[STALLS_MAX];
};

enum world { THREADS = 1, VIRTUAL = 2, PROCESSES = 4, NAMESPACES = 8 };

/* The parameters that a seed determines. */
struct plan {
    uint64_t seed;
    enum world world;
    int hosts, rails;
    char fabric[160], sim_faults[4096];
    const char *nics;
    bool spared; /* one pair of rails is up throughout, despite the simulated faults */
    uint32_t layer, slots, most, operations; /* most: outstanding at once, of each host */
    uint32_t rate, rest_ms, fault_ms; /* operations per second to each host; how long slots stay unused; time between faults */
    uint64_t length_ns;
    uint32_t idle, workers;
    bool granted; /* memory is reached under grants alone */
    uint32_t files; /* a bit for each host: what others reach there lies in a file */
    bool open_lanes; /* they cannot be closed (docs/failures.md): a rail takes its peers along, and reads that ended early may land */
    bool manual, abrupt; /* ends while operations are under way */
    uint32_t kinds, flags; /* if there are any: only these kinds, only writes with these flags */
    int only;              /* 1 + the one host that submits; 0: all */
};

struct book {
    struct plan plan;
    uint64_t begin_ns;
    _Atomic uint64_t clock_ns; /* of virtual time */
    _Atomic bool quiet, over;
    _Atomic uint32_t operations_count, faults_count;
    struct host hosts[HOSTS];
    struct way ways[HOSTS][HOSTS]; /* owner, target */
    _Atomic uint32_t spans_count;
    struct span spans[SPANS_MAX];
    _Atomic uint64_t verified, late, wrong, ghosts, revoked, revoked_counts, lost, doubled, stray, odd, slow, needless, refused;
    _Atomic uint64_t pass_ns; /* the longest of a worker, in its thread's own time */
    _Atomic uint64_t jump_ns; /* the longest step of that clock in a thread that only reads it */
    _Atomic uint64_t driver_ns; /* the longest call of one into a driver, which does not count there */
    _Atomic uint32_t notes_count;
    char notes[NOTES_MAX][480];
    struct operation operations[OPERATIONS_MAX];
};

extern struct book *book;
extern uint8_t *memories[HOSTS];
extern int files[HOSTS]; /* which hold what others reach, if the plan has them */

void book_make(const struct plan *plan);
void book_end(void);
uint32_t book_operations(void);
/* A line for the report: what went wrong, and when. Also counts it. */
void finding(_Atomic uint64_t *count, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The world's time: a real clock, or virtual. */
uint64_t world_ns(void);
uint64_t book_ms(void); /* since the run began */
struct span *span_begin(int host, int rail);
uint32_t below(uint64_t *random, uint32_t limit);

/* ---- Bytes: content.c ---- */

enum end_of { LOCAL, REMOTE };

/* The bytes of a slot: their addresses at the owner and at the target; pieces of one source have the same content. */
struct piece {
    uint32_t at[2], len, content;
};

/* All pieces, and what they are derived from. */
struct shape {
    uint32_t page, pages, layers, count, raises;
    uint64_t bytes;
    struct layout {
        uint32_t first_layer, step, stride, layer_stride, offset;
        bool listed;
        uint32_t list[PAGES_MAX];
    } side[2];
    struct piece pieces[PIECES_MAX];
};

/* Determined by the operation's seed, for every caller. */
void shape_of(const struct operation *op, int target, struct shape *shape);
uint64_t counts_of(const struct operation *op, const struct shape *shape);
uint64_t slot_len(void);
uint64_t memory_len(void);
uint64_t reached_len(void); /* what others reach, and where it begins; then come words */
uint8_t *slot_at(int owner, int target, enum end_of end, uint32_t slot);
_Atomic uint64_t *word_at(int owner, int target, uint32_t word);
/* Writes the operation's bytes into one end of its slot. */
void put_content(const struct operation *op, int target, enum end_of end);
/* Checks the bytes, and the guard around them; reports a mismatch. */
bool check_content(const struct operation *op, int target, enum end_of end);
void put_guard(int owner, int target, enum end_of end, uint32_t slot);
/* Only the operation's own bytes. */
void put_guard_back(const struct operation *op, int target, enum end_of end);
/* Checks that an unused slot has not changed. */
void check_guard(int owner, int target, enum end_of end, uint32_t slot);
const char *text_of(const struct operation *op);

/* ---- One host: what its parts share ---- */

/* A peer that is or was up. */
struct link {
    weft_peer peer;
    int host; /* -1: a peer that we do not know */
    uint32_t life, version;
    bool up, greeted, prepared;
    uint64_t token, their_token, begin_ns;
    weft_remote_memory *remote, *old[8]; /* old: of earlier versions, still used for a while */
    uint64_t heard; /* 1 + the operation of its last message */
    weft_op hello;
    uint64_t fencing; /* slots that a fence is under way for, if one is */
    uint64_t fence_at_ns, revoke_at_ns, sending;
    uint32_t open; /* operations whose completions go to the endpoint's own queue */
};

struct kept {
    weft_prepared *handle;
    struct operation operation; /* the owner of the geometry */
};

struct self {
    int me;
    uint32_t life;
    weft_endpoint *endpoint;
    weft_queue *second;
    weft_memory *local[2], *exported[HOSTS]; /* the same bytes twice; the memory that each other host may write to */
    weft_memory *going; /* while it is deregistered: for which way, and the result */
    int going_of;
    weft_status went;
    uint64_t random;
    struct link links[LINKS_MAX];
    uint32_t links_count;
    struct link *to[HOSTS]; /* the one that is in use */
    bool connecting[HOSTS];
    uint64_t connect_at_ns[HOSTS], submit_at_ns[HOSTS], wrong_at_ns;
    struct {
        uint64_t at_ns;
        uint32_t operation;
    } cancels[64];
    struct {
        uint64_t at_ns;
        weft_op message;
    } held[16];
    struct kept kept[HOSTS][SLOTS_MAX];
    uint32_t open, queued; /* operations; places of the second queue */
    bool rail_down[64];
    uint32_t rail_downs[64];
    struct {
        uint64_t at_ns;
        int32_t error;
    } rail_moves[64][2]; /* the last of each rail: up, down */
};

extern _Thread_local struct self *self;

uint32_t draw(uint32_t below);

/* host.c */
void host_begin(struct self *party, int me, uint32_t life);
/* Polls for up to `wait_ns`; returns how many completions arrived. */
int32_t host_poll(uint64_t wait_ns);
/* Polls, connects and submits. */
int32_t host_step(uint64_t wait_ns);
void host_check(void);
void host_leave(void);
bool host_wants_to_leave(void);
void log_lines(void);
/* A call that waits for other hosts: where one thread plays all of them, they continue meanwhile. */
void call_blocking(void (*call)(void));
extern void (*play_others)(void);

/* links.c: who is connected. */
void links_step(void);
void link_is_up(const weft_completion *c);
void link_is_down(const weft_completion *c);
struct link *link_of(weft_peer peer);
bool is_ready(int host); /* the way to a host is open */
void hello_arrives(struct link *link, const weft_completion *c);
void hello_is_sent(const weft_completion *c);
bool is_ending(const struct link *link);
/* Compares what peers have counted and added here with the book; `rested`: nothing is in flight. */
void check_counts(int owner, bool rested);
void check_guards(void);
void register_all(void);
void release_kept(int host);

/* play.c: what is submitted. */
void play_step(void);
struct operation *new_operation(enum kind kind);
void count_open(const struct operation *op);
/* Fences the slots in which operations of a peer failed. */
bool fence_link(struct link *link);
uint32_t range_of(int other, uint32_t slot);
uint64_t start_of(uint32_t range);
struct pages_request pages_args(const struct operation *op, int target, struct shape *shape);
void *mark_of(const struct operation *op);
uint64_t message_len(const struct operation *op); /* the code behind the note */

/* grants.c */
/* Chooses one of the target's grants for an operation, if it may need one and one exists. */
bool take_grant(struct operation *op, int target);
/* Whether the operation names a grant that its target has begun to revoke. */
bool may_be_revoked(const struct operation *op, int target);
/* The token for the operation that is being submitted. */
extern _Thread_local weft_grant_token grant_of;
void make_grants(const struct link *link);
void end_watch(struct way *way);
void revoke_grants(int owner);
void revoke_is_done(const struct operation *op, int owner, const weft_completion *c);
void grants_step(struct link *link);

/* wrong.c */
void play_wrong(int target);

/* ledger.c: what is polled. */
void take(const weft_completion *c, bool second);
void release_message(weft_op message);

/* stalls.c */
void stalls_watch(void);
/* How much of this time this process, or one of its threads, was ready to run but did not. */
uint64_t stalled(uint64_t from_ns, uint64_t to_ns);

/* A message: its kind, and its operation. */
struct note {
    uint64_t magic, what, life, version;
};
#define HELLO UINT64_C(0x6f6c6c6568)
#define OPERATION UINT64_C(0x6e6f6974)

/* ---- All of them ---- */

/* plan.c */
struct plan plan_of(enum world world, const char *fabric, uint64_t seed);

/* faults.c: the faults that are due now; the end of those that still last. Processes are handled there, too. */
void faults_step(void);
void faults_end(void);
void hosts_begin(void);
bool hosts_watch(void); /* whether all have left */
void life_begins(int host);
void life_ends(int host, enum end how);

/* worlds.c: two hosts in one thread. Plays for this long of its time, or until everything is played; returns false if
 * something went wrong. */
extern struct self parties[HOSTS];
void world_open(const struct plan *plan);
void world_play(uint64_t ns);
bool world_close(void);

/* attackers.c: a process that attacks a host's endpoints, until it is killed. */
pid_t attackers_begin(int host, uint64_t random);

/* scenarios.c: tests in virtual time with known faults. */
extern const struct test scenarios[];

/* Sums up: a table if `print`, JSON into a file if one is given. False if something went wrong. */
bool report(bool print, const char *json);

#endif
