/*
 * Weft moves memory between processes over every NIC of a machine, and tells
 * the caller, by polling, when the bytes have arrived.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * How it goes (errors left out):
 *
 *     weft_endpoint_config cfg = WEFT_ENDPOINT_CONFIG_INIT;
 *     weft_endpoint *ep;
 *     weft_endpoint_create(&cfg, &ep);
 *
 *     weft_memory *kv;                               // 80 layers, one handle
 *     weft_memory_register(ep, layers, 80, NULL, &kv);
 *
 *     weft_peer decode;                              // its address came by any means
 *     weft_peer_connect(ep, address, address_len, NULL, &decode);
 *     weft_remote_memory *theirs;                    // so did its descriptor
 *     weft_remote_memory_import(ep, decode, descriptor, descriptor_len, &theirs);
 *
 *     weft_pages pages = WEFT_PAGES_INIT;            // 1000 pages of each layer
 *     pages.page_count = 1000;  pages.page_len = 65536;  pages.layer_count = 80;
 *     pages.local.pages  = mine;   pages.local.range_step  = 1;
 *     pages.remote.pages = yours;  pages.remote.range_step = 1;
 *     weft_op_options options = WEFT_OP_OPTIONS_INIT;
 *     options.flags = WEFT_NOTIFY;  options.notify = request_id;
 *     options.user_data = request;
 *     weft_write_pages(ep, kv, theirs, &pages, &options, NULL);
 *
 *     weft_completion done[64];
 *     int32_t n = weft_queue_poll(weft_endpoint_queue(ep), done, 64, 0);
 *     for (int32_t i = 0; i < n; i++) finish(&done[i]);
 *
 * What it promises:
 *
 *   1. Every accepted operation ends in exactly one completion, by its deadline
 *      plus a small grace. (With manual progress: while somebody polls. A list
 *      with WEFT_COMPLETE_EACH_PEER: in one for each of its peers.)
 *   2. A completion with WEFT_OK means done: every byte is visible at the target
 *      and none of it arrives later; so it is with a notification, at the target.
 *   3. No byte is lost or doubled; a notification arrives once.
 *   4. Any input is answered with a status and a message.
 *
 * Rules that hold for every function:
 *
 *   - Handles and ids are checked: NULL, a stale one, one of another kind or of
 *     another endpoint gives WEFT_ERR_HANDLE. A handle is a number that is no
 *     address, though its type is a pointer: it cannot be followed.
 *   - All functions may be called from any thread at any time, signal handlers
 *     excepted; in a forked child they return WEFT_ERR_FORKED.
 *   - A call that fails has started nothing, and weft_last_error() says why.
 *   - Structs begin with their own size: start from their _INIT macro (or zero
 *     them and set `size`), so that programs keep working with later libraries.
 *     In a struct with a `size`, reserved fields must be 0.
 *   - len, offset, stride are bytes; *_ns are nanoseconds.
 */
#ifndef WEFT_H
#define WEFT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define WEFT_MUST_USE __attribute__((warn_unused_result))
#define WEFT_API __attribute__((visibility("default")))
#else
#define WEFT_MUST_USE
#define WEFT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Which library this is ---- */

/**
 * Version of this header: major, minor, patch. The C macros and
 * `weft_version` agree when a program runs with the library it was
 * compiled for.
 */
#define WEFT_VERSION_MAJOR 0

#define WEFT_VERSION_MINOR 1

#define WEFT_VERSION_PATCH 0

/**
 * The version of the library that is loaded:
 * `major << 16 | minor << 8 | patch`. Any thread, never blocks, cannot fail.
 * Since 0.1.
 */
WEFT_API uint32_t weft_version(void);

/* ---- Statuses as C sees them, and the last message of a thread ---- */

/**
 * What a call, or a completion, has to say: `WEFT_OK` (0) or one of the
 * negative `WEFT_ERR_*`. Their numbers never change and are never reused; a
 * newer library may return ones that this header does not name:
 * `weft_status_name` and `weft_status_category` still answer for them.
 */
typedef int32_t weft_status;

/** What a caller can do about a status. */
typedef int32_t weft_category;

/** Success. */
#define WEFT_OK 0

/**
 * No room at the moment (transfers, completions, or bytes of messages in
 * flight), or nothing there yet. Poll, then try again.
 */
#define WEFT_ERR_AGAIN -1

/**
 * The object is in use: operations on it are outstanding, or the fabric still
 * holds its memory. Poll until they have completed, then try again.
 */
#define WEFT_ERR_BUSY -2

/** The deadline passed. */
#define WEFT_ERR_TIMED_OUT -20

/**
 * Ended by `weft_op_cancel`, `weft_peer_disconnect`, or the shutdown of
 * the own endpoint.
 */
#define WEFT_ERR_CANCELED -21

/** The peer died or cannot be reached any more. */
#define WEFT_ERR_PEER_LOST -22

/**
 * The address or descriptor is of an endpoint that no longer exists; another
 * process may live at its place now.
 */
#define WEFT_ERR_PEER_GONE -23

/** The peer disconnected or shut its endpoint down. */
#define WEFT_ERR_PEER_CLOSED -24

/** Nobody answered at the address within the connect timeout. */
#define WEFT_ERR_UNREACHABLE -25

/** The two libraries speak no common wire version; the message names both. */
#define WEFT_ERR_VERSION -26

/** The two endpoints have no fabric in common; the message names both sides'. */
#define WEFT_ERR_NO_COMMON_FABRIC -27

/** The remote memory was deregistered by its owner. */
#define WEFT_ERR_MEMORY_GONE -28

/** The target refused the access (wrong key, or not the allowed direction). */
#define WEFT_ERR_REMOTE_ACCESS -29

/**
 * The two sides do not have the same `secret` (see `weft_endpoint_config`), or
 * only one of them has one.
 */
#define WEFT_ERR_DENIED -30

/**
 * The peer breaks the rules of Weft's protocol, or asks for more than a bound
 * allows: it was dropped. The log says what it did.
 */
#define WEFT_ERR_PROTOCOL -31

/**
 * A rail failed, others go on, and what this operation had on it cannot be done
 * again safely: pages that raise a counter each may have raised it already, or
 * a notification may have arrived. (All other operations go on without a word.)
 * Also the status of a `WEFT_COMPLETION_RAIL_DOWN`.
 */
#define WEFT_ERR_RAIL_LOST -32

/**
 * The grant that the operation names was revoked by its owner, or does not cover what the
 * operation reaches. Bytes may have arrived before.
 */
#define WEFT_ERR_REVOKED -33

/** An argument is wrong; the message says which and why. */
#define WEFT_ERR_INVALID -40

/**
 * The handle or id is NULL, stale, already closed, of another kind, or
 * belongs to another endpoint.
 */
#define WEFT_ERR_HANDLE -41

/** An access lies outside the memory. */
#define WEFT_ERR_RANGE -42

/** This fabric, build or library version cannot do that. */
#define WEFT_ERR_UNSUPPORTED -43

/** A documented limit is exceeded. */
#define WEFT_ERR_LIMIT -44

/** An address or descriptor is damaged, truncated, or not one at all. */
#define WEFT_ERR_FORMAT -45

/** The caller's buffer is too small; the length it needs was stored. */
#define WEFT_ERR_TOO_SMALL -46

/** The endpoint is shut down. */
#define WEFT_ERR_CLOSED -47

/** The process forked after the object was made: only the parent can use it. */
#define WEFT_ERR_FORKED -48

/** libfabric.so.1 could not be loaded. */
#define WEFT_ERR_NO_LIBFABRIC -70

/** No rail could be opened, or fewer than `min_rails`. */
#define WEFT_ERR_NO_RAILS -71

/** libfabric reported an error; see the message or `provider_errno`. */
#define WEFT_ERR_FABRIC -72

/**
 * Out of memory, of registrations, or of another resource of the system. Calls say so
 * whose memory grows with what the caller passes: depths, counts of pages, entries and
 * ranges, bytes of messages and descriptors; nothing was started then. Where a process
 * lacks the few KiB that everything else takes, it ends by abort().
 */
#define WEFT_ERR_NO_MEMORY -73

/** A system call failed. */
#define WEFT_ERR_SYSTEM -74

/** A defect of Weft. The endpoint answers every later call with this, too. */
#define WEFT_ERR_INTERNAL -90

#define WEFT_CATEGORY_OK 0

/** Try again after polling. */
#define WEFT_CATEGORY_RETRY 1

/** The other side, or the way to it: reconnect, or use another peer. */
#define WEFT_CATEGORY_PEER 2

/** The call is wrong: mend the program. */
#define WEFT_CATEGORY_USAGE 3

/** The machine: install, free or configure something. */
#define WEFT_CATEGORY_SYSTEM 4

/** A defect of Weft: report it. */
#define WEFT_CATEGORY_INTERNAL 5

/**
 * The name of a status, as "WEFT_ERR_TIMED_OUT"; "WEFT_ERR_UNKNOWN" for a
 * negative number that this library does not know. A positive number is a count,
 * as `weft_queue_poll` returns it: "WEFT_OK". Static: never free it. Any thread.
 * Since 0.1.
 */
WEFT_API const char *weft_status_name(weft_status status);

/**
 * One sentence on what a status means, or that it is a count. Static: never free
 * it. Any thread. Since 0.1.
 */
WEFT_API const char *weft_status_text(weft_status status);

/**
 * The `WEFT_CATEGORY_*` of a status; for negative numbers that this library does
 * not know, `WEFT_CATEGORY_INTERNAL`, for counts `WEFT_CATEGORY_OK`. Any thread.
 * Since 0.1.
 */
WEFT_API weft_category weft_status_category(weft_status status);

/**
 * The message of the last failed call of *this thread*: what was wrong, with
 * the values, and what to do about it. Never NULL; "" before the first
 * failure. A call that succeeds leaves it alone. The pointer is the same for as long as
 * the thread lives, and the next call of this thread that fails writes another text
 * there, of at most 1,023 bytes: copy it to keep it. Completions carry their own
 * status instead, since whoever polls may be another thread. Since 0.1.
 */
WEFT_API const char *weft_last_error(void);

/* ---- The log ---- */

/** How much is logged: `WEFT_LOG_*`. Each level has the lines of those before it. */
typedef uint32_t weft_log_level;

/**
 * Receives one line of the log: its level (`WEFT_LOG_ERROR` to
 * `WEFT_LOG_TRACE`), the part of the library that it is of ("endpoint", "rail",
 * "transfer", ...) and the text, without a newline. Both strings are valid during
 * the call only. `user_data`: as given to `weft_log_set`.
 *
 * It may be called by any thread of Weft and any that calls Weft, by several at
 * once, and while they move data: be quick, and do not wait for another thread
 * that calls Weft. It must not call Weft, and must not end by an exception or
 * longjmp.
 */
typedef void (*weft_log_callback)(weft_log_level level,
                                  const char *component,
                                  const char *message,
                                  void *user_data);

/**
 * As the environment variable WEFT_LOG says (error, warn, info, debug or trace);
 * without it, warnings.
 */
#define WEFT_LOG_DEFAULT 0

/** What stops an endpoint. */
#define WEFT_LOG_ERROR 1

/**
 * What an operator should know: a NIC that is left out, a peer that cannot be
 * reached, a peer that is lost, with its address and the cause.
 */
#define WEFT_LOG_WARN 2

/** Operations that failed because a fabric reported an error, with its text. */
#define WEFT_LOG_INFO 3

/** Choices of rails and fabrics, and every operation that failed. */
#define WEFT_LOG_DEBUG 4

/** Calls that set up and take down, too: connects, registrations, imports, shutdowns. */
#define WEFT_LOG_TRACE 5

/**
 * Says how much is logged in this process, by all of its endpoints, and where to.
 *
 * `level`: `WEFT_LOG_*`. `callback`: receives every line up to that level,
 * instead of stderr; NULL: stderr. `user_data`: passed on to it, and the
 * caller's to keep until the callback has been replaced. `weft_log_set(0, NULL,
 * NULL)` is how it was at first.
 *
 * Any thread, at any time, also before the first open. Blocks while another
 * thread is in the old callback: when it has returned, that one is not called
 * any more. Errors: `WEFT_ERR_INVALID` (no such level), `WEFT_ERR_BUSY` (called
 * by a log callback), `WEFT_ERR_UNSUPPORTED` (Weft is part of a Rust program that
 * has a logger). Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_log_set(weft_log_level level,
                         weft_log_callback callback,
                         void *user_data);

/* ---- The machine: what is near what ---- */

/**
 * Writes what this machine looks like, and which rails an endpoint with all
 * defaults would open here now, as JSON (UTF-8, no NUL at its end).
 *
 * It is read from sysfs and procfs, below the folder that the environment
 * variable WEFT_SYSFS_ROOT names (it has sys/ and proc/ in it; to look at
 * another machine's tree), or of this machine. What a container or a file that
 * is missing hides is left out, and no error. libfabric and CUDA are not needed.
 * An endpoint that opens looks at the same tree.
 *
 * An object with:
 *
 *     format        1; raised if a field changes its meaning. New ones may come.
 *     sysfs_root    the folder that stands for /, as text
 *     cpus          CPUs that are online, as "0-47,96-143"
 *     affinity      CPUs that the calling thread may use
 *     nodes         NUMA nodes; [] if the machine does not tell. Each has
 *       node          its number
 *       cpus          its CPUs that are online
 *       usable_cpus   those of them that the calling thread may use
 *       distances     to each of `nodes`, in their order; 10 is itself
 *       near_nics     PCI addresses of the NICs nearest to it
 *     devices       all PCI functions. Each has
 *       address       as "0000:53:00.0"
 *       kind          "bridge", "gpu" (accelerators, too), "nic", "nvme",
 *                     "display" (a console's) or "other"
 *       name          what drivers call it ("eth0 mlx5_0", "nvme0", a GPU's
 *                     model), else vendor and device number
 *       vendor, device  PCI ids, as "0x10de"
 *       root          its root complex, as "pci0000:44"; null if not known
 *       parent        the bridge above it, or `root`; null if not known
 *       node          its NUMA node; -1 if not known
 *       link_speed    as "32.0 GT/s PCIe"; null if not known
 *       link_width    lanes; null if not known
 *                     and GPUs, NICs and NVMe drives have
 *       near_cpus     CPUs nearest to it
 *       near_nics     (GPU, NVMe) addresses of the NICs nearest to it
 *       nic_distance  how near: "switch" (below the same PCI switch), "root" (the
 *                     same root complex), "node" (the same NUMA node; also where
 *                     a node is not known) or "far"; absent if there is none
 *       near_gpus, gpu_distance  (NIC) the same of GPUs
 *       usable        (GPU) false if CUDA_VISIBLE_DEVICES or the container
 *                     keeps an NVIDIA GPU from this process
 *       interfaces    (NIC) its names in `interfaces`
 *     interfaces    what the kernel calls NICs, virtual ones, too. Each has
 *       name          as "eth0" or "mlx5_0"
 *       type          "net" or "rdma"
 *       pci           address of its PCI function; null if it has none
 *       up            false if it says that it cannot carry traffic
 *       speed_mbps    megabits a second; null if not known
 *     rails_source  "libfabric", or "sysfs": no rail needs libfabric, or it is
 *                   not there; or guessed, because of WEFT_SYSFS_ROOT
 *     rails_why     why these rails, in a sentence
 *     rails         rails that would be opened by default. Each has
 *       fabric, name  as in `weft_rail_properties`
 *       pci, node     place of the NIC; null and -1 if not known
 *       worker        index in `workers`
 *     workers       worker threads that would drive them. Each has
 *       node          the NUMA node that all of its rails are on, or -1
 *       cpus          where its thread would run
 *       pinned        whether it would be kept there
 *       rails         indexes in `rails`
 *
 * `buffer`, `capacity`: where to, and its size in bytes; NULL and 0 ask for
 * the length only. `len`: receives the length of the text. It may grow between
 * two calls, as when a NIC appears.
 *
 * Any thread. Blocks for 10 ms to some seconds (libfabric looks at the
 * hardware). Where there are RDMA devices, variables of the environment that begin
 * with FI_ may be set and unset again while libfabric starts, as by
 * `weft_endpoint_create`: no other thread should change or read the environment then.
 * Errors: `WEFT_ERR_TOO_SMALL` (`len` is stored, nothing is
 * written), `WEFT_ERR_INVALID`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_topology(char *buffer,
                          size_t capacity,
                          size_t *len);

/* ---- Endpoint objects ---- */

/** Worker threads drive the rails (the default). */
#define WEFT_PROGRESS_THREADS 0

/**
 * No thread is started: `weft_queue_poll` drives the rails in the
 * caller's thread. A program that does not poll makes no progress, and its
 * peers see their transfers time out.
 */
#define WEFT_PROGRESS_MANUAL 1

/**
 * Spin for 0.3 ms, then sleep until a rail or a caller has something to do (the
 * default): an idle endpoint costs no core, and a transfer that comes after a
 * pause waits for a wake-up.
 */
#define WEFT_IDLE_ADAPTIVE 0

/** Never sleep: the shortest latency, for a core each. */
#define WEFT_IDLE_SPIN 1

/** Sleep at once, for machines whose cores are all needed. */
#define WEFT_IDLE_SLEEP 2

/** As `liveness_ns`: no peer is lost for its silence. */
#define WEFT_LIVENESS_OFF UINT64_MAX

/**
 * An endpoint: the rails that a process opened, the worker threads that drive
 * them, and an address that others connect to. A process usually has one for
 * each GPU or rank. Opaque; made by `weft_endpoint_create`.
 */
typedef struct weft_endpoint weft_endpoint;

/**
 * How to open an endpoint. Start from `WEFT_ENDPOINT_CONFIG_INIT`; zero (NULL)
 * in a field means its default.
 */
typedef struct weft_endpoint_config {
    /** `sizeof(weft_endpoint_config)`. */
    uint32_t size;
    /** None defined yet: 0. */
    uint32_t flags;
    /**
     * Which fabrics to open, separated by commas: "host", "efa", "verbs",
     * "tcp", "shm", or a libfabric provider's exact name ("tcp;ofi_rxm"). A
     * named fabric is never replaced by another. "host" is Weft's own, between
     * processes of one user and group on one host (and in one network namespace); "tcp"
     * is Weft's own, over plain sockets. Both need no libfabric. "tcp" and
     * "tcp;ofi_rxm" do not reach each other. NULL: "host", and the best network
     * fabric that this machine has, if any: EFA, verbs or tcp; "shm" is used only when named.
     * "sim", simulated NICs for tests, is only in a library that was built for
     * tests (`make lib-simulated`). It is never opened unless named, and not
     * beside others than its own kind; its NICs reach other endpoints of this
     * process only. Parameters may follow
     * ("sim:like=efa:rails=4:gbps=100:delay_us=10:clock=virtual"), and an error
     * lists all of them.
     */
    const char *fabric;
    /**
     * Which NICs to use, by the name of their domain or network interface:
     * patterns separated by commas, "*" matches any text, a leading "!" leaves
     * out ("eth*,!eth3"). NULL: the environment variable WEFT_RAILS if it is
     * set. The patterns apply to every fabric; shm's only NIC is called "shm",
     * that of host "host", which only "!host" leaves out. So tcp over loopback
     * alone, also between processes of one host, is fabric "tcp" with rails "lo".
     *
     * Without patterns that name NICs, those near what this process may use. They are
     * taken from all that no "!" leaves out, but loopback (unless nothing else is there), link-local
     * addresses and the bridges of container engines:
     *
     *   1. If CUDA_VISIBLE_DEVICES, or its container, leaves the process some
     *      but not all of the machine's NVIDIA GPUs: for each of these GPUs the
     *      NICs nearest to it.
     *   2. Else, if the calling thread's affinity mask has CPUs of some but not
     *      all NUMA nodes: for each of these nodes the NICs nearest to it.
     *   3. Else all.
     *
     * Nearest means, in this order: below the same PCI switch, at the same root
     * complex, on the same NUMA node, on the nearest other node. A NIC whose
     * place is not known (a virtual one, say) is near everything. GPUs are
     * numbered in the order of their PCI addresses (as CUDA does with
     * CUDA_DEVICE_ORDER=PCI_BUS_ID, or where all are of one model); a UUID counts
     * where NVIDIA's driver tells it in /proc. `weft_topology` shows the outcome.
     */
    const char *rails;
    /**
     * Number of rails to open, 1 to 64. More than there are NICs: the NICs are
     * opened several times, in turn. 0: one for each NIC. A rail of "host"
     * beside those of a network is not counted, here and in `min_rails`.
     */
    uint32_t rail_count;
    /**
     * With fewer rails than this the open fails with `WEFT_ERR_NO_RAILS`,
     * 0 to 64. 0: one is enough.
     */
    uint32_t min_rails;
    /**
     * Connections between a NIC of tcp and one of a peer, 1 to 16: the NIC becomes as many
     * rails, and workers as many as there are CPUs for (`workers`). One connection is
     * driven by one CPU, and some networks limit each. Both sides should have equally many:
     * a peer with fewer shares each of its rails among several of ours. 0: one for each 20
     * Gbit/s of the line, at most 8, and at most a quarter of the CPUs that the calling
     * thread may use, shared by the NICs; four where the line's rate is not known. So on
     * few CPUs it is 1, and it is 1 with manual progress, with `tcp_ports` (each takes a
     * port) and over loopback. Not used with `rail_count`, which says how many rails there are.
     */
    uint32_t tcp_streams;
    /** `WEFT_PROGRESS_THREADS` or `WEFT_PROGRESS_MANUAL`. */
    uint32_t progress;
    /**
     * Number of worker threads, 1 to 64; never more than rails. 0: one for up to
     * four rails of a NUMA node, but fewer than the CPUs that the calling thread
     * may use (and at least one). Where there are several nodes, a worker's
     * thread stays on those CPUs of its rails' nodes that the calling thread may
     * use (if there are any). Ignored with manual progress, where no thread's
     * affinity changes.
     */
    uint32_t workers;
    /**
     * Transfers, sends and atomics that can be outstanding at once, 1 to 1,048,576.
     * 0: 16,384.
     */
    uint32_t max_transfers;
    /**
     * Completions that a queue holds, 16 to 1,048,576; an accepted operation
     * has its place reserved. 0: 16,384.
     */
    uint32_t queue_depth;
    /** Peers at once, 1 to 65,536. 0: 4,096. */
    uint32_t max_peers;
    /** Counters at once, 1 to 1,048,576. 0: 65,536. */
    uint32_t max_counters;
    /**
     * What worker threads do without work: `WEFT_IDLE_*`. With manual progress
     * it is what a waiting `weft_queue_poll` does: `WEFT_IDLE_SPIN` never sleeps, and the others
     * do after a while.
     */
    uint32_t idle;
    /**
     * Deadline of operations that name none, in nanoseconds, up to 24 hours.
     * 0: 30 seconds.
     */
    uint64_t timeout_ns;
    /**
     * Time that a connect may take, in nanoseconds, up to 24 hours.
     * 0: 10 seconds.
     */
    uint64_t connect_timeout_ns;
    /**
     * Bytes of messages (`weft_send`) that may wait for one peer, and that one
     * peer may have waiting here unreleased, 1 MiB to 1 GiB. 0: 16 MiB.
     */
    uint64_t message_bytes;
    /**
     * A secret that all endpoints have which may talk to each other: 16 to 1,024
     * bytes, best 32 random ones (`head -c 32 /dev/urandom`); both sides must have
     * the same. It is read during the open and not kept as such, and appears in no
     * message and no log. NULL (and `secret_len` 0): none, and everybody who knows
     * the address may connect.
     *
     * When two endpoints connect, each proves to the other that it knows the secret,
     * without showing it. A handshake that does not is refused and counted
     * (`strangers_refused` of `weft_endpoint_statistics`), and the connect ends with
     * `WEFT_ERR_DENIED`. So does one between an endpoint that has a secret and one
     * that has none. From the secret and random numbers of both sides follows a key
     * for each lane, by which every control frame is authenticated (HMAC-SHA256):
     * messages, notifications, counters by frame, imports, closing. A frame of a
     * sender that does not know the secret, a changed frame and a replayed one are
     * dropped and counted.
     *
     * It encrypts nothing: `encrypt` does. The fabric's own writes and reads are guarded
     * by nothing but the keys of the memory, which travel in descriptors: on a network
     * where others can read or forge packets, the bytes of transfers are not protected
     * without it. See docs/security.md.
     *
     * Refused: a length out of range (`WEFT_ERR_LIMIT`); only one of `secret` and
     * `secret_len` set, or a secret all of whose bytes are the same, as of a buffer
     * that was never filled in (`WEFT_ERR_INVALID`).
     */
    const void *secret;
    /** Bytes of `secret`. */
    uint64_t secret_len;
    /**
     * A peer of which nothing is heard for so long is lost, with or without
     * operations under way: nanoseconds, 1 second to 24 hours. 0: 120 seconds;
     * `WEFT_LIVENESS_OFF`: never, and a host that is cut off while nothing is under
     * way stays a peer.
     *
     * Whoever lives is heard: an endpoint says something to each peer every second
     * (with manual progress: while it is polled), and what is delivered to a peer
     * counts, too. After a third of the time it is also asked for a word. So a process
     * that is stopped, starved or does not poll for a minute is not lost by default;
     * allow as much as the peers may need. Time in which this process does not run,
     * or (manual progress) does not poll, does not count.
     *
     * Over tcp, a connection whose path drops everything ends after the same time, by the
     * system's own limits (TCP_USER_TIMEOUT and keep-alive): its operations continue on
     * other rails. With `WEFT_LIVENESS_OFF` the system's defaults hold (some 15 minutes).
     */
    uint64_t liveness_ns;
    /**
     * Another secret that proves a peer as well as `secret`, of as many bytes: while
     * one is replaced by another. `secret` is the one that this endpoint proves when
     * it connects; a proof by either is accepted, and answered by the same. To replace a secret, give first all
     * endpoints the old one as `secret` and the new one here, then all of them the
     * two exchanged, then the new one alone. NULL (and `other_secret_len` 0): none.
     */
    const void *other_secret;
    /** Bytes of `other_secret`. */
    uint64_t other_secret_len;
    /**
     * A file with one or two secrets, one per line, in the place of `secret` (the
     * first line) and `other_secret`; not with them (`WEFT_ERR_INVALID`). Empty lines
     * and white space around a secret are skipped, so encode random bytes as text
     * (`head -c 32 /dev/urandom | base64`). NULL, and no `secret`: the file that
     * the environment variable `WEFT_SECRET_FILE` names, if it is set.
     *
     * The file is read during the open (`WEFT_ERR_INVALID` if it cannot be used), and
     * again when it has changed: endpoints look when a handshake begins or arrives,
     * at most once a second, so secrets can be replaced under load. Replace
     * the file by renaming a new one over it, on a local file system: a worker reads
     * it. A file that cannot be used changes nothing, and the log says so. Peers that
     * are up stay up; each new or returning lane proves a secret that holds then.
     */
    const char *secret_file;
    /**
     * 1: everything that goes over a network is encrypted and authenticated, bytes of
     * transfers and control frames alike. It needs a secret, and a fabric that can:
     * "tcp", which is chosen then if `fabric` is NULL; one that cannot is refused
     * (`WEFT_ERR_UNSUPPORTED`). Both sides must ask for it: an endpoint that encrypts
     * and one that does not have no network fabric in common, and the connect says
     * so. `weft_peer_info` names the fabric "tcp-encrypted". 0: not encrypted.
     *
     * Each connection has keys of its own (Noise, `NNpsk0_25519_AESGCM_SHA256`), so who
     * learns the secret later cannot read what was recorded before. "host" is not
     * encrypted: what it moves does not leave the machine. See docs/security.md.
     */
    uint32_t encrypt;
    /**
     * The class that everything over tcp is marked with for the network (DSCP, RFC 2474):
     * 1 to 63, as 46 for expedited forwarding; more is `WEFT_ERR_LIMIT`. 0: as the system
     * has it. It is the endpoint's, since one connection carries all of a lane, whatever
     * the class of a transfer; give transfers of another class an endpoint of their own.
     */
    uint32_t tcp_dscp;
    /**
     * The ports on which tcp listens, as "7000" or "7000-7099" (1 to 65535, both ends
     * included), for firewalls and for networks that translate addresses. Each rail of
     * tcp takes one, and no two the same: the next one that is free. A rail for which
     * none is left does not come up, and the message names the range (`min_rails`). Other
     * text is `WEFT_ERR_INVALID`. Best outside of the ports that the system gives to
     * connections (net.ipv4.ip_local_port_range). NULL: the system picks ports.
     */
    const char *tcp_ports;
    /**
     * The address at which peers reach the rails of tcp, where that is not the one of
     * their interface: behind what translates addresses. It takes the interface's place
     * in `weft_endpoint_address`, for all rails of tcp, so they must be found there by their
     * ports. An IPv4 or IPv6 address, as "203.0.113.7" or "2001:db8::7": its ports are
     * those that rails listen on. Or one with a port, as "203.0.113.7:30000" or
     * "[2001:db8::7]:30000": the first of `tcp_ports` is found at that port, the second
     * at the next, and so on. Names are not looked up; other text, a port without
     * `tcp_ports`, or ports that would end above 65535 are `WEFT_ERR_INVALID`. NULL: the
     * interface's address.
     *
     * Processes of one host use "host" with each other and do not need it. Others
     * behind the same translator reach this endpoint only if it lets them back in.
     */
    const char *tcp_address;
} weft_endpoint_config;

#define WEFT_ENDPOINT_CONFIG_INIT {sizeof(weft_endpoint_config), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/**
 * Opens an endpoint: loads libfabric where that is needed, opens the rails, starts the workers.
 *
 * libfabric is `libfabric.so.1`, or the file that the environment variable
 * WEFT_LIBFABRIC names. WEFT_LOG (error, warn, info, debug or trace) writes to
 * stderr what the library does; by default warnings. `weft_log_set` has them go
 * elsewhere.
 *
 * `config`: NULL for all defaults. `endpoint`: receives the handle; the caller
 * owns it and gives it back with `weft_endpoint_destroy`. Nothing is left open
 * on failure.
 *
 * Any thread. Blocks for some ms ("host", "tcp") to some seconds (libfabric looks
 * at the hardware). The process's signal handlers, signal mask, affinity and
 * environment are as before when it returns. "host" and "tcp" never touch libfabric
 * or the environment, and so does the default where there is no RDMA device. Other
 * fabrics put settings for libfabric into the environment while they open: other
 * threads should not use getenv or setenv then. What libfabric reads so when it
 * starts stays in force for its other users in the process (docs/tuning.md).
 *
 * Errors: `WEFT_ERR_NO_LIBFABRIC`; `WEFT_ERR_NO_RAILS` (the message lists what
 * was found); `WEFT_ERR_INVALID`; `WEFT_ERR_LIMIT`; `WEFT_ERR_UNSUPPORTED`
 * (a config from a newer version, or an unknown fabric); `WEFT_ERR_FABRIC`;
 * `WEFT_ERR_NO_MEMORY`; `WEFT_ERR_SYSTEM`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_endpoint_create(const weft_endpoint_config *config,
                                 weft_endpoint **endpoint);

/**
 * Writes the address that peers pass to `weft_peer_connect`. It is a blob of
 * some hundred bytes that may travel by any means: a socket, a file, a
 * key-value store. It holds for as long as the endpoint is open.
 *
 * `buffer`, `capacity`: where to, and its size in bytes; NULL and 0 ask for
 * the length only (`WEFT_OK`). `len`: receives the length of the address.
 *
 * Any thread; does not block. Errors: `WEFT_ERR_TOO_SMALL` (`len` is stored,
 * nothing is written), `WEFT_ERR_INVALID`, `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_endpoint_address(const weft_endpoint *endpoint,
                                  void *buffer,
                                  size_t capacity,
                                  size_t *len);

/**
 * Ends all work of an endpoint: refuses new operations, lets the running ones
 * go on for `drain_timeout_ns`, then cancels the rest, tells the peers
 * (they see `WEFT_ERR_PEER_CLOSED` at once), closes the rails and stops the
 * workers. When it has returned `WEFT_OK`, no NIC and no thread touches the
 * caller's memory any more, and every operation has left its completion to be
 * polled (each peer its PEER_DOWN, too): poll until `WEFT_ERR_CLOSED`. Memory
 * can be deregistered and messages released until the close. (With manual
 * progress keep polling until the peers have deregistered, too: they ask those
 * that imported their memory, and wait up to 2 s for the answer.)
 *
 * `drain_timeout_ns`: nanoseconds, 0 to cancel at once.
 *
 * Any thread, also while others poll, submit and wait: those submissions get
 * `WEFT_ERR_CLOSED`. Blocks for the drain time and some milliseconds; for up to 1.2 s
 * more while a peer does not answer (stopped, or cut off). Calling
 * it again is harmless. Errors: `WEFT_ERR_TIMED_OUT` (a provider does not
 * return: the endpoint and the memory must be kept), `WEFT_ERR_HANDLE`.
 * Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_endpoint_shutdown(weft_endpoint *endpoint,
                                   uint64_t drain_timeout_ns);

/**
 * Gives an endpoint back, after shutting it down (with no drain time) if that
 * was not done. Completions not polled yet, messages not released, memory and
 * remote memory of this endpoint are gone with it.
 *
 * `endpoint`: NULL is fine; the handle is invalid afterwards.
 * Any thread. Errors: `WEFT_ERR_BUSY` (operations are outstanding: shut down
 * first, or poll until they have completed; the handle stays valid),
 * `WEFT_ERR_TIMED_OUT` as with shutdown, `WEFT_ERR_HANDLE` (closed before).
 * Since 0.1.
 */
WEFT_API WEFT_MUST_USE weft_status weft_endpoint_destroy(weft_endpoint *endpoint);

/* ---- Operations: their ids, and the options that all of them take ---- */

/**
 * Flag of transfers: when the last byte has arrived, the peer gets a
 * `WEFT_COMPLETION_NOTIFICATION` with that `notify`, exactly once. The
 * transfer's own completion then also says that the notification arrived.
 */
#define WEFT_NOTIFY 1

/**
 * Flag of transfers and atomics: the operation is of the latency class. What it has to
 * post goes before what other transfers have, and a little of it past a full window: for
 * small transfers that a caller waits for. Without it, transfers are of the bulk
 * class and share the rails alike. (Atomics always go first.)
 */
#define WEFT_CLASS_LATENCY 2

/**
 * Flag of writes that name a `counter`: it is raised by 1 for each page (of
 * each layer), when that page's bytes have arrived, and not again after the last
 * one (so not at all without pages). A `weft_write` is one page. Such a page goes in one piece over one
 * rail, up to 1 GiB (or the fabric's longest message, if that is less:
 * `WEFT_ERR_LIMIT`). Reads: `WEFT_ERR_UNSUPPORTED`. Over verbs and libfabric's tcp,
 * the counter is raised by the number of pages when the last one has arrived (libfabric would
 * crash the target if the sender died in the middle of a page that it counts by itself, or take
 * the page's arrival for a message).
 *
 * Each such page takes an entry of the target's completion queue. On NICs whose queue can
 * run over (EFA's), a rail has no more than 16 to 2,048 of them on their way to a
 * rail of the peer and waits until the peer has taken them: while a peer with
 * manual progress does not poll, the rest waits, up to its deadline; transfers that count no
 * pages go past.
 */
#define WEFT_COUNT_PAGES 4

/**
 * Flag of lists and prepared lists: one completion for each peer instead of
 * one for all.
 */
#define WEFT_COMPLETE_EACH_PEER 8

/** Largest data of a notification, in bytes. */
#define WEFT_NOTIFY_DATA_MAX 256

/**
 * A completion queue beside the endpoint's own, so that threads need not share
 * one. Opaque; made by `weft_queue_create`.
 */
typedef struct weft_queue weft_queue;

/**
 * A word that starts an operation, or that an operation sets when it has ended.
 * Opaque; made by `weft_watch_create`.
 */
typedef struct weft_watch weft_watch;

/**
 * A submitted operation, as an id that is not used again within 2^42 operations:
 * 50 days of one each microsecond. 0 is never an operation.
 */
typedef uint64_t weft_op;

/**
 * A counter of an endpoint: a number that the owner sends to its peers, by a
 * message or in any other way, and that they name in operations that raise it.
 * 0 is no counter.
 *
 * The high half is the owner's (so that a peer cannot raise another endpoint's
 * counter by mistake), the low half a place below `max_counters` and that place's
 * generation. The generation ensures that late increments to a destroyed counter are
 * discarded: it has 16 bits, or with more than 65,536 counters as many of 32 as the
 * place leaves (12 at 1,048,576). So an id comes again after its place was used 65,535
 * (4,095) times more; places rest before they are used again. Every connected peer
 * that knows or guesses an id can raise it.
 */
typedef uint64_t weft_counter;

/**
 * What names a grant: 16 bytes that nobody can guess, and that no other grant has. The owner sends
 * them to the peer with its request; the peer names them in the options of its operations.
 */
typedef struct weft_grant_token {
    uint8_t bytes[16];
} weft_grant_token;

/**
 * The options of an operation. NULL in their place: defaults. Start from
 * `WEFT_OP_OPTIONS_INIT`. An option that an operation does not have is refused
 * (`WEFT_ERR_INVALID`, flags `WEFT_ERR_UNSUPPORTED`): all have `timeout_ns`, `user_data`
 * and `queue`; transfers all but what their functions except; connects no `queue`;
 * `weft_counter_expect` `done_watch`.
 */
typedef struct weft_op_options {
    /** `sizeof(weft_op_options)`. */
    uint32_t size;
    /**
     * `WEFT_NOTIFY`, `WEFT_CLASS_LATENCY`, `WEFT_COUNT_PAGES` and
     * `WEFT_COMPLETE_EACH_PEER` added up; 0: none.
     */
    uint32_t flags;
    /**
     * Nanoseconds from now to the deadline, up to 24 hours. 0: the endpoint's
     * `timeout_ns` (of a connect: its `connect_timeout_ns`).
     */
    uint64_t timeout_ns;
    /** Returned in the completion. */
    void *user_data;
    /** The queue that gets the completion. NULL: the endpoint's own. */
    const weft_queue *queue;
    /** With `WEFT_NOTIFY`: the notification's value; else 0. */
    uint64_t notify;
    /** With `WEFT_NOTIFY`: the notification's data, copied by the call; NULL for none. */
    const void *notify_data;
    /** Bytes of `notify_data`, up to `WEFT_NOTIFY_DATA_MAX`. */
    uint32_t notify_data_len;
    /** 0. */
    uint32_t reserved;
    /**
     * A counter of the peer to raise: by 1, exactly once, after the last byte, also
     * when there are no bytes (the transfer's own completion then also says that it
     * was raised), or with `WEFT_COUNT_PAGES` by 1 for each page. 0: none. One that
     * is not the peer's is `WEFT_ERR_HANDLE`; increments to one that the peer has
     * destroyed are discarded, which the transfer does not learn. Not of lists, whose
     * entries name counters.
     */
    weft_counter counter;
    /**
     * The transfer starts when this watch has reached `start_value` (its deadline
     * counts from the call all the same); see `weft_watch_create`. NULL: at once.
     */
    const weft_watch *start_watch;
    uint64_t start_value;
    /**
     * Set to `done_value` when the operation has ended, whatever its status, just before
     * its completion. NULL: none.
     */
    const weft_watch *done_watch;
    uint64_t done_value;
    /**
     * Of transfers: the grant of the peer that it is under; all bytes 0: none. What the grant
     * does not cover, or no more, ends with `WEFT_ERR_REVOKED`.
     */
    weft_grant_token grant;
} weft_op_options;

#define WEFT_OP_OPTIONS_INIT {sizeof(weft_op_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {{0}}}

/**
 * Ends a transfer, a send, an atomic or a wait for counters early: its completion
 * comes with `WEFT_ERR_CANCELED`, unless it has completed already. Bytes may have
 * arrived; the peer may have been notified, and its counter raised, or may be yet: who waits
 * for a total counts such a transfer with those of which it cannot be sure. Of a transfer it comes when its NICs have given back what is under way (as
 * after a deadline, and mostly at once; after 80 ms lanes are cut for it, where that
 * can be): nothing touches the local memory any more. On the target, bytes may arrive
 * until a `weft_peer_fence` there.
 *
 * Any thread; does not block. Errors: `WEFT_ERR_HANDLE` (not an operation of
 * this endpoint, or completed already: normal when the two race). Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_op_cancel(weft_endpoint *endpoint,
                           weft_op op);

/* ---- Peers: connecting, disconnecting, and what is known of them ---- */

/** In `capabilities` of a peer: it does `weft_fetch_add` and `weft_compare_swap`. */
#define WEFT_CAPABILITY_ATOMICS 1

/**
 * A remote endpoint, as an id that is checked: one that is stale or of another
 * endpoint is answered with `WEFT_ERR_HANDLE`. 0 is never a peer.
 */
typedef uint64_t weft_peer;

/** What is known of a peer. Filled by `weft_peer_info`. */
typedef struct weft_peer_properties {
    /** `sizeof(weft_peer_properties)`, set by the caller. */
    uint32_t size;
    /** 1 when the peer is up, else 0. */
    uint32_t up;
    /**
     * Lanes that are up: pairs of one of our rails and one of theirs, each
     * proven by an answer over it. A connect makes as many as the side with more
     * rails has, so that every rail has one (rails of one network together where
     * that is so); more come when memory of some rails needs them.
     */
    uint32_t lanes;
    /** Rails of ours, and of theirs, that have a lane. */
    uint32_t local_rails;
    uint32_t remote_rails;
    /**
     * What the peer does beside transfers and messages: `WEFT_CAPABILITY_*` added
     * up. 0 until it is up.
     */
    uint32_t capabilities;
    /** The peer's incarnation, as in its `weft_endpoint_properties`. */
    uint64_t incarnation;
    /** The fabric that serves this peer, as "tcp"; "" until it is up. */
    char fabric[64];
    /** Why this fabric, in a sentence; of better ones, why they do not serve. */
    char reason[256];
} weft_peer_properties;

#define WEFT_PEER_PROPERTIES_INIT {sizeof(weft_peer_properties), 0, 0, 0, 0, 0, 0, {0}, {0}}

/**
 * Starts to connect to the endpoint that wrote `address`. The call is answered
 * by exactly one `WEFT_COMPLETION_PEER_UP` in the endpoint's own queue, whose
 * status tells how it went: `WEFT_OK`, `WEFT_ERR_UNREACHABLE` (no answer by
 * the timeout, or refused), `WEFT_ERR_PEER_GONE` (another endpoint lives
 * there now), `WEFT_ERR_VERSION`, `WEFT_ERR_DENIED` (the two do not have the same
 * `secret`). The other side gets a
 * `WEFT_COMPLETION_PEER_UP`, too, with `accepted` 1: it needs to do nothing to
 * accept. A peer that was up ends in exactly one `WEFT_COMPLETION_PEER_DOWN`. Once
 * that was polled, nothing of the peer lands here: no byte, message or count, also
 * when the peer was only stopped and goes on. (Over efa and shm, which
 * cannot close one peer's lanes, its writes may land until the memory is deregistered.)
 * That a peer died is told by its fabric when something is sent to it (every
 * second, at least): over tcp within half a second while operations are under
 * way, and else within some 2 seconds; later, if a program that the peer had started
 * inherited its sockets (libfabric's are not closed by exec). A peer that only stopped,
 * or whose host is cut off, is lost after `liveness_ns` of `weft_endpoint_config`;
 * operations with it end at their deadlines.
 *
 * The fabrics that both sides have are tried best first: the next one when the
 * better ones have failed, or when none of their lanes has come up for a while
 * (0.3 s for `host`, 1.5 s for others, and at most a quarter of the timeout). The
 * best that came up serves the peer until it ends, and `weft_peer_info` says which
 * that is. `WEFT_ERR_UNREACHABLE` comes at once when all have failed.
 *
 * Up means: every lane that the connect makes was proven by an answer over it,
 * and is warm.
 *
 * `address`, `address_len`: from `weft_endpoint_address`; not needed after the
 * call. `options`: `timeout_ns` and
 * `user_data`; NULL for defaults. `peer`: receives the id. It can be used at
 * once: operations wait until the peer is up. Two endpoints that connect to
 * each other at once become one peer, and connecting to an endpoint that is a
 * peer already gives the same id, answered by one more PEER_UP.
 *
 * Where both sides connect, each polls its own PEER_UP (`accepted` 0, its
 * `user_data`), and may poll one with `accepted` 1 of the same peer before it: wait
 * for the one with `accepted` 0. Who connected to you: compare `incarnation` of
 * `weft_peer_properties` with one sent beside the address, or have it send a
 * message first.
 *
 * Any thread; does not block. Errors: `WEFT_ERR_FORMAT`,
 * `WEFT_ERR_NO_COMMON_FABRIC`, `WEFT_ERR_VERSION`, `WEFT_ERR_INVALID` (also
 * one's own address), `WEFT_ERR_LIMIT` (`max_peers`), `WEFT_ERR_AGAIN` (the
 * queue is full), `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_peer_connect(weft_endpoint *endpoint,
                              const void *address,
                              size_t address_len,
                              const weft_op_options *options,
                              weft_peer *peer);

/**
 * Ends the connection with a peer. Its outstanding operations end with
 * `WEFT_ERR_CANCELED` at once. Both sides then drain what is in flight, and a
 * `WEFT_COMPLETION_PEER_DOWN` with `WEFT_OK` follows, after which none of the
 * peer's writes lands here any more; until then the id stays valid. The peer
 * gets a PEER_DOWN with `WEFT_ERR_PEER_CLOSED`. A peer that does not answer is
 * not waited for longer than 3 seconds, and then that cannot be promised.
 * Remote memory of that peer stays to be released.
 *
 * Any thread; does not block. Errors: `WEFT_ERR_HANDLE`, `WEFT_ERR_CLOSED`.
 * Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_peer_disconnect(weft_endpoint *endpoint,
                                 weft_peer peer);

/**
 * Fills in what is known of a peer, until its PEER_DOWN has been polled.
 * `properties->size` must be set.
 * Any thread; does not block. Errors: `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_peer_info(const weft_endpoint *endpoint,
                           weft_peer peer,
                           weft_peer_properties *properties);

/* ---- Memory of this process, and memory of peers ---- */

/** Peers may write to this memory. */
#define WEFT_ACCESS_REMOTE_WRITE 1

/** Peers may read from this memory. */
#define WEFT_ACCESS_REMOTE_READ 2

/**
 * Only this process uses it, as source or destination of its own transfers;
 * it has no descriptor. Not to be added to the others.
 */
#define WEFT_ACCESS_LOCAL 4

/**
 * Peers reach it under grants alone (`weft_grant_create`), with the access that is added to
 * this, or both. Not of a device's memory.
 */
#define WEFT_ACCESS_GRANTED 8

/** Whatever it is: found out from the pointers, if the program has loaded CUDA. */
#define WEFT_MEMORY_ANY 0

/**
 * Memory that the CPU reads and writes: ordinary, pinned by CUDA, or managed by it
 * (then the CPU does the copying, and pages come and go as it touches them).
 */
#define WEFT_MEMORY_HOST 1

/**
 * Memory of a CUDA device: of cudaMalloc, cudaMallocAsync, the virtual memory API,
 * or managed.
 */
#define WEFT_MEMORY_CUDA 2

/** As `numa_node` of `weft_memory_alloc`: wherever suits the endpoint's rails. */
#define WEFT_NUMA_ANY -1

/**
 * One or many ranges of this process's memory, registered with the rails.
 * Opaque; made by `weft_memory_register`.
 */
typedef struct weft_memory weft_memory;

/**
 * Memory of a peer, known by its descriptor. Opaque; made by
 * `weft_remote_memory_import`.
 */
typedef struct weft_remote_memory weft_remote_memory;

/** A range of memory. */
typedef struct weft_memory_range {
    /** First byte. */
    void *address;
    /** Bytes, 1 to 2^47. */
    uint64_t len;
} weft_memory_range;

/** How to register. Start from `WEFT_MEMORY_ARGS_INIT`. */
typedef struct weft_memory_args {
    /** `sizeof(weft_memory_args)`. */
    uint32_t size;
    /** `WEFT_ACCESS_*`. 0: remote write and remote read. */
    uint32_t access;
    /**
     * The rails that should know the memory: bit i stands for rail i of
     * `weft_rail_info` on this endpoint; take them by `fabric`, `name` and
     * `numa_node`, for `host` is a rail, too, and memory that peers on this host
     * should reach over it needs its bit. Only these rails carry transfers of the
     * memory, so that it can keep to those near it. The descriptor says which they
     * are: an importer need not know, and its own memory's rails are another
     * matter. 0: all; of a GPU's memory, of each fabric those nearest to the GPU, where
     * the machine shows what is near (`weft_memory_info` says which). Where no lane joins a rail that knows
     * the local memory with one that knows the remote, the first transfer (of a
     * byte or more) has lanes made, and waits for them, over tcp some tens of
     * milliseconds; its completion says `WEFT_ERR_NO_RAILS`
     * if the fabric that serves the peer has no such rails, and
     * `WEFT_ERR_UNREACHABLE` if they do not reach each other.
     */
    uint64_t rails;
    /** What it is: `WEFT_MEMORY_*`. All ranges are of one kind, and on one device. */
    uint32_t kind;
    /** 0. */
    uint32_t reserved;
} weft_memory_args;

#define WEFT_MEMORY_ARGS_INIT {sizeof(weft_memory_args), 0, 0, 0, 0}

/**
 * Allocates memory that is ready for transfers: all there, zeroed, on huge
 * pages where the system has them, and such that processes of this host can
 * read it straight from where it is. Any memory can be registered; from this,
 * writes to peers on this host go about 1.5 times as fast.
 *
 * `endpoint`: an open one. `len`: bytes, 1 to 2^47; it is rounded up to whole
 * pages (2 MiB from there on). `numa_node`: the NUMA node that the memory should
 * be on, 0 to 63; if that node has no room, the memory lies on another.
 * `WEFT_NUMA_ANY`: the node of most of the endpoint's rails, if that is known, else
 * where the system puts it. `address`: receives the first byte. The caller owns the memory, registers it or parts of it like
 * any other, and gives it back with `weft_memory_free`, for which any open
 * endpoint of the process will do; it outlives the endpoint.
 *
 * A peer on this host that is written to from here may read all of the
 * allocation, whatever part is registered; it can never write to it. A forked
 * child shares the memory with its parent.
 *
 * Any thread. Blocks while the system provides the pages. Errors:
 * `WEFT_ERR_NO_MEMORY`, `WEFT_ERR_LIMIT`, `WEFT_ERR_INVALID`,
 * `WEFT_ERR_SYSTEM`, `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_memory_alloc(weft_endpoint *endpoint,
                              uint64_t len,
                              int32_t numa_node,
                              void **address);

/**
 * Gives memory back that `weft_memory_alloc` made.
 *
 * `endpoint`: an endpoint of this process that is not closed, whichever made
 * it. `address`: as it was received; NULL is fine. Any thread; does not block.
 * Errors: `WEFT_ERR_BUSY` (registered, wholly or in part, by an endpoint that
 * is not shut down: the memory stays), `WEFT_ERR_INVALID` (no such address, or
 * freed already), `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_memory_free(weft_endpoint *endpoint,
                             void *address);

/**
 * Registers memory, so that transfers can use it and peers can reach it.
 *
 * `ranges`, `count`: 1 to 65,536 ranges that stay allocated until
 * `weft_memory_deregister` has returned `WEFT_OK`; the array itself is not
 * needed after the call. They keep their order: layer 5 of a KV cache is range
 * 5. `args`: NULL for defaults. `memory`: receives the handle; the caller owns
 * it and gives it back with `weft_memory_deregister`.
 *
 * All of it must be readable; writable, too, where peers may write. Read-only
 * memory (weights mapped from a file) is registered with
 * `WEFT_ACCESS_REMOTE_READ` or `WEFT_ACCESS_LOCAL`, and cannot be the
 * destination of a `weft_read`. Its protection must not be lowered until it is
 * deregistered. Memory that is unmapped before it is deregistered can crash this
 * process, also when a peer writes to it: that is not checked.
 *
 * Memory of a GPU is registered in the same way, and moves by the same calls; see
 * `weft_memory_info`. It needs no context that is current in the calling thread. It
 * must be of the device's primary context (as all memory of the CUDA runtime is),
 * or of none. Freed before it is deregistered, it ends transfers with
 * `WEFT_ERR_MEMORY_GONE`, as far as CUDA knows that it was freed; over libfabric's
 * shm it can crash this process, as unmapped memory does.
 *
 * Any thread. Blocks while the NICs learn the memory's pages, which takes up
 * to seconds for many gigabytes: register before traffic. Errors:
 * `WEFT_ERR_INVALID` (also memory that is not there, or that this process may
 * not use so, or not where `kind` and `device` say), `WEFT_ERR_UNSUPPORTED`
 * (no CUDA driver, memory of another context, or rails of libfabric's shm alone
 * if that was built without CUDA), `WEFT_ERR_LIMIT`, `WEFT_ERR_FABRIC`,
 * `WEFT_ERR_NO_MEMORY` (the NIC or the limit of locked memory is exhausted),
 * `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_memory_register(weft_endpoint *endpoint,
                                 const weft_memory_range *ranges,
                                 size_t count,
                                 const weft_memory_args *args,
                                 weft_memory **memory);

/**
 * Writes the descriptor that a peer passes to `weft_remote_memory_import`: a
 * blob that may travel by any means, a `weft_send` for example. Its size grows
 * with ranges x rails (8 bytes each, and 16 for each range). Whoever has it
 * can reach the memory: treat it as a key.
 *
 * `buffer`, `capacity`, `len`: as in `weft_endpoint_address`; NULL and 0 ask for
 * the length only (`WEFT_OK`).
 * Any thread; does not block. Errors: `WEFT_ERR_TOO_SMALL`,
 * `WEFT_ERR_INVALID` (registered with `WEFT_ACCESS_LOCAL`),
 * `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_memory_export(const weft_memory *memory,
                               void *buffer,
                               size_t capacity,
                               size_t *len);

/**
 * Takes memory back from the NICs. Peers that imported it are told, and their
 * later transfers to it end with `WEFT_ERR_MEMORY_GONE`; the call waits until
 * each has answered that it uses it no more, or has ended. When it has
 * returned `WEFT_OK`, no late write lands and the memory can be freed.
 *
 * `memory`: NULL is fine; the handle is invalid after `WEFT_OK`.
 * Any thread. Blocks for a round trip to the slowest importer; one that does
 * not answer within 2 seconds is disconnected (`WEFT_COMPLETION_PEER_DOWN`
 * with `WEFT_ERR_PEER_LOST`). With manual progress it drives the rails itself;
 * keep polling until the peers have deregistered, too. Other operations go on
 * meanwhile, however many ranges there are.
 *
 * Errors: `WEFT_ERR_BUSY` (own transfers use it, or another thread deregisters
 * it: poll and try again), `WEFT_ERR_FABRIC` (a NIC keeps a part of it),
 * `WEFT_ERR_TIMED_OUT` (a provider does not return), `WEFT_ERR_HANDLE`. The
 * handle stays valid with the first three. After the second and third nothing can use
 * the memory any more, and NICs may still know it: do not free it. The next call goes
 * on with what is left; `weft_endpoint_shutdown` takes it back, too. Since 0.1.
 */
WEFT_API WEFT_MUST_USE weft_status weft_memory_deregister(weft_memory *memory);

/**
 * Makes a peer's memory usable as the remote side of transfers.
 *
 * `peer`: whose memory it is; it may still be connecting.
 * `descriptor`, `descriptor_len`: from the peer's `weft_memory_export`; not
 * needed after the call. `remote`: receives the handle; the caller owns it and
 * gives it back with `weft_remote_memory_release`.
 *
 * The owner is asked in the background whether the memory still exists;
 * transfers may be submitted at once and wait for the answer, ending with
 * `WEFT_ERR_MEMORY_GONE` if it does not.
 *
 * Any thread; does not block. Errors: `WEFT_ERR_FORMAT`; `WEFT_ERR_PEER_GONE`
 * (the descriptor is of another incarnation than the peer, which was
 * restarted for example); `WEFT_ERR_MEMORY_GONE` (known to be deregistered);
 * `WEFT_ERR_HANDLE`, `WEFT_ERR_CLOSED`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_remote_memory_import(weft_endpoint *endpoint,
                                      weft_peer peer,
                                      const void *descriptor,
                                      size_t descriptor_len,
                                      weft_remote_memory **remote);

/**
 * Gives a remote memory back. `remote`: NULL is fine; the handle is invalid
 * after `WEFT_OK`. Any thread; does not block. Errors: `WEFT_ERR_BUSY`
 * (transfers, atomics or prepared geometries use it: the handle stays valid),
 * `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_remote_memory_release(weft_remote_memory *remote);

/* ---- Memory of GPUs ---- */

/**
 * NICs reach the memory by themselves: the host's, or a GPU's over rails whose provider says
 * so (FI_HMEM: efa, verbs and shm, in a libfabric that was built with CUDA), if the program has loaded CUDA
 * before the endpoint is opened. (This was tried with simulated NICs, and with shm between GPUs.)
 */
#define WEFT_WAY_DIRECT 1

/**
 * Its bytes go through host buffers of Weft's, which it gathers them into and
 * scatters them from, pages of a bundle by one launch; copies and the wire go on at
 * the same time. 16 MiB of pinned memory for each lane with such transfers.
 */
#define WEFT_WAY_STAGED 2

/**
 * Between this and peers' memory on this host that is on a GPU, too, and that other
 * processes can open, a GPU copies, all pages of a run by one launch, where the two GPUs
 * reach each other: the target's GPU what is written, the initiator's what is read. (All
 * else is staged.)
 */
#define WEFT_WAY_SHARED 4

/**
 * Beside `WEFT_WAY_DIRECT`: NICs know the memory by a DMA-BUF that CUDA made of it, which is tried
 * first with efa and verbs, from libfabric 1.20 on. Without this bit it is known by its address, and the
 * provider finds out the rest. (Tried with simulated NICs alone.)
 */
#define WEFT_WAY_DMABUF 8

/** What a memory is. Filled by `weft_memory_info`. */
typedef struct weft_memory_properties {
    /** `sizeof(weft_memory_properties)`. */
    uint32_t size;
    /** `WEFT_MEMORY_HOST` or `WEFT_MEMORY_CUDA`. */
    uint32_t kind;
    /** The CUDA device, as CUDA counts those that this process sees; -1: host memory. */
    int32_t device;
    /** How its bytes move: `WEFT_WAY_*`. */
    uint32_t ways;
    /** Of all ranges. */
    uint64_t bytes;
    /** The rails that know it, as in `weft_memory_args`. */
    uint64_t rails;
    uint64_t ranges;
} weft_memory_properties;

#define WEFT_MEMORY_PROPERTIES_INIT {sizeof(weft_memory_properties), 0, 0, 0, 0, 0, 0}

/**
 * Fills in what a memory is, and how its bytes move. `properties->size` must be
 * set. Any thread; does not block. Errors: `WEFT_ERR_INVALID`, `WEFT_ERR_HANDLE`.
 * Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_memory_info(const weft_memory *memory,
                             weft_memory_properties *properties);

/**
 * Makes a word of 8 bytes, 0, that orders transfers with the streams of GPUs, without
 * a CPU that waits for either.
 *
 * A transfer that names it as `start_watch` starts when the word has reached
 * `start_value`: written by a stream (cuStreamWriteValue64 at `word`), by a kernel's
 * store followed by __threadfence_system, or by the program. All that the stream did
 * before is then moved. "Reached" is (int64_t)(*word - value) >= 0, as
 * CU_STREAM_WAIT_VALUE_GEQ has it. While transfers wait, a worker looks without rest.
 *
 * A transfer that names it as `done_watch` sets it to `done_value` when it has ended, and so
 * does a wait for counters (`weft_counter_expect`: what peers have written here is there);
 * a stream waits for that with cuStreamWaitValue64, and what follows in the stream
 * sees the bytes that were moved. It is set also when the transfer fails, so that no
 * stream hangs: the completion says which. The first transfer between two memories
 * has CUDA make streams and the like, which CUDA may put off while a stream of the same
 * device waits: let one transfer end before the first that a stream waits for.
 *
 * `watch`: receives the handle; the caller owns it and gives it back with
 * `weft_watch_destroy`. `word`: receives where the word is, for the CPU and for all GPUs
 * if this process uses CUDA (load it first), else for the CPU. Any thread; blocks for
 * as long as CUDA takes. Errors: `WEFT_ERR_INVALID`, `WEFT_ERR_NO_MEMORY`,
 * `WEFT_ERR_SYSTEM`, `WEFT_ERR_LIMIT`, `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_watch_create(weft_endpoint *endpoint,
                              weft_watch **watch,
                              uint64_t **word);

/**
 * Gives a watch back. `watch`: NULL is fine; the handle and the word are invalid after
 * `WEFT_OK`. No stream may wait for it any more. Any thread; does not block. Errors:
 * `WEFT_ERR_BUSY` (transfers that are not over name it), `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API WEFT_MUST_USE weft_status weft_watch_destroy(weft_watch *watch);

/* ---- Completions, and the queues that hand them out ---- */

/** What a completion tells of. */
typedef int32_t weft_completion_kind;

/**
 * What polling hands out: always 128 bytes. Fields that a kind does not name
 * are 0, but for `rail` and `entry`, whose "none" is all ones.
 *
 * In the endpoint's own queue, a peer's PEER_UP comes before anything else of
 * that peer, and nothing of it comes after its PEER_DOWN, also where another
 * thread cancels at that moment. (A list over several peers without
 * `WEFT_COMPLETE_EACH_PEER` goes on to the others, and its one completion may name
 * a peer that has ended.) Data of messages stays valid after that, until it is
 * released.
 */
typedef struct weft_completion {
    weft_completion_kind kind;
    /** `WEFT_OK`, or how it failed. */
    weft_status status;
    /**
     * The operation's id; for a message or notification with data, the id to
     * release it with.
     */
    weft_op op;
    /** As given at submission or connect. */
    void *user_data;
    /** The other side; 0 of a wait for counters. (Of lists, see `weft_write_list`.) */
    weft_peer peer;
    /** NOTIFICATION: the `notify` of the transfer that it tells of. */
    uint64_t notify;
    /**
     * WRITE, READ, SEND: bytes moved, all or (failed) 0. MESSAGE,
     * NOTIFICATION: bytes of `data`.
     */
    uint64_t bytes;
    /** MESSAGE, NOTIFICATION: the data, until it is released. */
    const void *data;
    /**
     * The provider's error number behind a failure, as in libfabric's
     * fi_errno.h; 0 if there is none. The log says more: at `WEFT_LOG_INFO` a line
     * for each such operation, with its id, peer, rail and the provider's text, and
     * at `WEFT_LOG_DEBUG` one for every operation that failed.
     */
    int32_t provider_errno;
    /** The rail that failed, or 0xffffffff. */
    uint32_t rail;
    /**
     * WRITE, READ of a list that failed: the first entry of what failed; else all
     * ones.
     */
    uint64_t entry;
    /**
     * When it was submitted, when its first byte was posted to a NIC, and when
     * it was done: nanoseconds of CLOCK_MONOTONIC. 0 if it never happened.
     */
    uint64_t submit_ns;
    uint64_t first_post_ns;
    uint64_t done_ns;
    /** ATOMIC: what the word was before. */
    uint64_t previous;
    /** PEER_UP: 1 if the peer connected to us; 0 if it answers our own connect. */
    uint32_t accepted;
    uint32_t reserved[5];
} weft_completion;

/** A `weft_write`, `weft_write_pages`, `weft_write_list` or `weft_write_prepared` ended. */
#define WEFT_COMPLETION_WRITE 1

/** A `weft_read`, `weft_read_pages`, `weft_read_list` or `weft_read_prepared` ended. */
#define WEFT_COMPLETION_READ 2

/** A `weft_send` ended. */
#define WEFT_COMPLETION_SEND 3

/** A message of a peer arrived: `data`, `bytes`; to be released. */
#define WEFT_COMPLETION_MESSAGE 4

/**
 * A notification of a peer arrived: `notify`, and `data` and `bytes` if it has
 * data; to be released. All bytes of its transfer arrived before it.
 */
#define WEFT_COMPLETION_NOTIFICATION 5

/** A connect ended, or a peer connected to us (`accepted` 1). */
#define WEFT_COMPLETION_PEER_UP 6

/**
 * A peer that was up is no more: `WEFT_OK` (we disconnected),
 * `WEFT_ERR_PEER_CLOSED`, `WEFT_ERR_PEER_LOST`. All operations with it have
 * completed; its id is stale from now on.
 */
#define WEFT_COMPLETION_PEER_DOWN 7

/** A `weft_counter_expect` ended. */
#define WEFT_COMPLETION_COUNTER 8

/** A `weft_fetch_add` or `weft_compare_swap` ended: `previous`. */
#define WEFT_COMPLETION_ATOMIC 9

/**
 * A rail of this endpoint (`rail`) has lost its way to a peer that other
 * rails still reach, and has reached no peer for 0.3 s: `status` is `WEFT_ERR_RAIL_LOST`. What it
 * carried goes over the others; nothing is to be done. `provider_errno` says why.
 */
#define WEFT_COMPLETION_RAIL_DOWN 10

/** A rail that was down (`rail`) reaches a peer again, and is used. */
#define WEFT_COMPLETION_RAIL_UP 11

/** A `weft_peer_fence` ended. */
#define WEFT_COMPLETION_FENCE 12

/**
 * The endpoint's own queue, in which everything completes that names no other,
 * and which messages, notifications and events of peers and rails come to.
 *
 * It belongs to the endpoint, lives as long, and is not given back. Any thread;
 * does not block. NULL if the handle is not one of an open endpoint
 * (`weft_last_error` says why). Since 0.1.
 */
WEFT_API WEFT_MUST_USE weft_queue *weft_endpoint_queue(const weft_endpoint *endpoint);

/**
 * Makes a further completion queue. `depth`: completions it holds, 16 to
 * 1,048,576; 0: the endpoint's `queue_depth`. `queue`: receives the handle;
 * the caller owns it and gives it back with `weft_queue_destroy`. Operations
 * that name it complete there; messages, notifications and peer events go to
 * the endpoint's own queue.
 *
 * Any thread; does not block. Errors: `WEFT_ERR_LIMIT`, `WEFT_ERR_NO_MEMORY`,
 * `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_queue_create(weft_endpoint *endpoint,
                              uint32_t depth,
                              weft_queue **queue);

/**
 * Takes up to `max` completions from a queue, in the order in which they were
 * published, and waits up to `timeout_ns` for the first of them: 0 does not
 * block, UINT64_MAX waits for ever. With manual progress this drives the rails.
 *
 * Returns how many were stored, 0 to `max` (a count, not a status; 0: the time
 * passed), or a negative `weft_status`: `WEFT_ERR_CLOSED` once the endpoint is
 * shut down and the queue is empty, `WEFT_ERR_INVALID`, `WEFT_ERR_HANDLE`. Any
 * thread; several may poll one queue. Since 0.1.
 */
WEFT_API
int32_t weft_queue_poll(weft_queue *queue,
                        weft_completion *completions,
                        uint32_t max,
                        uint64_t timeout_ns);

/**
 * Arms the event fd of a queue: the next completion makes it readable (POLLIN),
 * once. For epoll, poll(2), asyncio: poll until 0, arm, and sleep only if arming
 * returned `WEFT_OK`.
 *
 * `fd`: receives the event fd, the same for as long as the queue lives, also with
 * `WEFT_ERR_AGAIN`; NULL if it is known already. It belongs to the queue: do not
 * read, write or close it. It stays readable until the next arm; edge-triggered
 * epoll is fine, too.
 *
 * Returns `WEFT_OK` (armed, the queue is empty) or `WEFT_ERR_AGAIN` (there are
 * completions already: poll first). Any thread; does not block. Errors:
 * `WEFT_ERR_CLOSED` once the endpoint is shut down and the queue is empty;
 * `WEFT_ERR_UNSUPPORTED` with manual progress, where nothing happens while the
 * caller sleeps; `WEFT_ERR_INVALID`, `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API WEFT_MUST_USE weft_status weft_queue_arm(weft_queue *queue, int32_t *fd);

/**
 * Gives a queue back. `queue`: NULL is fine; the handle is invalid after
 * `WEFT_OK`. Errors: `WEFT_ERR_BUSY` (operations that name it are outstanding,
 * or completions were not polled), `WEFT_ERR_INVALID` (an endpoint's own queue),
 * `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API WEFT_MUST_USE weft_status weft_queue_destroy(weft_queue *queue);

/* ---- Counters: raised by what peers write, expected and read here ---- */

/**
 * Makes a counter, of value 0. It is raised by transfers of peers that name it, and
 * lives until it is destroyed or the endpoint is closed.
 *
 * `counter`: receives the id. Any thread; does not block. Errors: `WEFT_ERR_LIMIT`
 * (`max_counters` exist), `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`, `WEFT_ERR_INVALID`.
 * Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_counter_create(weft_endpoint *endpoint,
                                weft_counter *counter);

/**
 * Reads a counter. All bytes that it counts are visible to whoever has read it. It
 * stays at 2^48 - 1 when it gets there.
 *
 * With manual progress it changes only while somebody polls. Any thread, at any
 * time; does not block. Errors: `WEFT_ERR_HANDLE` (another endpoint's, or
 * destroyed), `WEFT_ERR_INVALID`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_counter_read(weft_endpoint *endpoint,
                              weft_counter counter,
                              uint64_t *value);

/**
 * Waits for counters: ends in exactly one `WEFT_COMPLETION_COUNTER`, with `WEFT_OK`
 * when every one has reached its value (also if it had before), and all bytes that
 * they count are visible then; with `WEFT_ERR_TIMED_OUT`, or with
 * `WEFT_ERR_CANCELED` (`weft_op_cancel`, or one of them was destroyed). Any
 * number may wait for one counter, and none of them uses it up.
 *
 * Weft does not know who is to raise a counter: if that peer dies, this ends at
 * its deadline. Cancel it on PEER_DOWN. Counters only grow: expect totals (round k
 * of N peers: k x (N - 1)).
 *
 * `counters`: `count` counters of this endpoint, 1 to 65,536; one may be listed more
 * than once. `values`: what each is to reach, 0 to 2^48 - 1. Both are copied by the
 * call. `options`: NULL for defaults; its `done_watch` lets a stream wait for counters.
 * `op`: receives the id; NULL if it is not wanted. It is one of
 * `max_transfers`. Any thread; does not block. Errors: `WEFT_ERR_HANDLE` (a counter
 * of another endpoint, or destroyed), `WEFT_ERR_LIMIT`, `WEFT_ERR_INVALID`,
 * `WEFT_ERR_UNSUPPORTED`, `WEFT_ERR_AGAIN` (`max_transfers` or `queue_depth` are in
 * use: poll), `WEFT_ERR_CLOSED`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_counter_expect(weft_endpoint *endpoint,
                                const weft_counter *counters,
                                const uint64_t *values,
                                uint32_t count,
                                const weft_op_options *options,
                                weft_op *op);

/**
 * Gives a counter back; 0 is fine. Who waits for a value that it has not reached gets
 * `WEFT_ERR_CANCELED`; what is on its way to it counts for nobody. Any thread; does not
 * block. Errors: `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API weft_status weft_counter_destroy(weft_endpoint *endpoint, weft_counter counter);

/* ---- Transfers: writes and reads of ranges and pages ---- */

/** Where the pages of a transfer lie on one side. */
typedef struct weft_page_side {
    /** `page_count` page indexes, copied by the call. NULL: 0, 1, 2, ... */
    const uint32_t *pages;
    /** Bytes from one page to the next. 0: `page_len`. */
    uint64_t page_stride;
    /** Bytes from the start of the range to page 0 of layer 0. */
    uint64_t offset;
    /** Bytes from one layer to the next, within a range. */
    uint64_t layer_stride;
    /** The range of layer 0. */
    uint32_t first_range;
    /**
     * Ranges from one layer to the next. With 0, and a `layer_stride` of 0, all
     * layers lie at the same place: fine where they are read from, but several
     * layers are not written to one place (`WEFT_ERR_INVALID`).
     */
    uint32_t range_step;
} weft_page_side;

/**
 * The geometry of pages x layers, of both sides. Start from `WEFT_PAGES_INIT`.
 *
 * Page `i` of layer `l` occupies, on each side,
 *
 *     range   first_range + l * range_step
 *     offset  offset + pages[i] * page_stride + l * layer_stride
 *     len     page_len
 *
 * so that layers can be ranges of their own (`range_step` 1), lie behind each
 * other in one range (`range_step` 0 and a `layer_stride`), and a page can be
 * a part of the other side's page (stride and offset). Nothing is moved but
 * these bytes. Pages may repeat; if destinations overlap, which bytes win is
 * not defined.
 */
typedef struct weft_pages {
    /** `sizeof(weft_pages)`. */
    uint32_t size;
    /** Layers, up to 65,536. 0: 1. */
    uint32_t layer_count;
    /** Bytes of a page: 1 to 2^47; 0 only with a `page_count` of 0. */
    uint64_t page_len;
    /**
     * Pages in each layer, up to 2^32 - 1. 0 moves nothing and completes (and
     * notifies) all the same.
     */
    uint64_t page_count;
    weft_page_side local;
    weft_page_side remote;
} weft_pages;

#define WEFT_PAGES_INIT {sizeof(weft_pages), 0, 0, 0, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}}

/**
 * Writes one range of local memory into remote memory.
 *
 * Ends in exactly one `WEFT_COMPLETION_WRITE`. `WEFT_OK` means that every byte
 * is visible at the target, and that none of this transfer arrives later.
 * Until the completion the local bytes must not change. Operations have no
 * order among each other.
 *
 * A `len` of 0 still needs both memories; entries of lists do not.
 *
 * After any other status, the notification may have arrived and the counter may have
 * been raised, each once, or may yet. Bytes may have arrived, too, and may still, until the target
 * has a `weft_peer_fence` of this peer, has polled its PEER_DOWN or has
 * deregistered the memory. The local memory is left alone: such a completion waits
 * until the NICs have given back what they had. Only where one does not within
 * 160 ms, and its lane cannot be closed alone, does the completion come all the
 * same: then local memory may still be read (by a read: written to) until
 * PEER_DOWN of the peer or until `weft_memory_deregister` has returned `WEFT_OK`
 * here. See docs/failures.md.
 *
 * `local`: the source of a write, the destination of a read. `remote`: the other one.
 * `local_offset`, `remote_offset`: bytes from the memory's start; the ranges of a memory
 * of several count as if one lay behind the other, and the bytes must lie in one range.
 * `len`: bytes to move; 0 moves nothing and completes (and notifies) all the same.
 * `options`: NULL for defaults. `op`: receives the id; NULL if it is not wanted.
 *
 * Any thread; does not block. Errors: `WEFT_ERR_RANGE`, `WEFT_ERR_INVALID`,
 * `WEFT_ERR_REMOTE_ACCESS` (registered without this direction),
 * `WEFT_ERR_UNSUPPORTED`, `WEFT_ERR_LIMIT`, `WEFT_ERR_AGAIN` (`max_transfers` or `queue_depth` are in
 * use: poll), `WEFT_ERR_MEMORY_GONE`, `WEFT_ERR_PEER_LOST`,
 * `WEFT_ERR_PEER_CLOSED`, `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_write(weft_endpoint *endpoint,
                       const weft_memory *local,
                       uint64_t local_offset,
                       const weft_remote_memory *remote,
                       uint64_t remote_offset,
                       uint64_t len,
                       const weft_op_options *options,
                       weft_op *op);

/**
 * Reads one range of remote memory into local memory. As `weft_write`, in the
 * other direction: `WEFT_COMPLETION_READ` with `WEFT_OK` means that every byte
 * is in local memory. A notification goes to the peer, after the last byte
 * was read. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_read(weft_endpoint *endpoint,
                      const weft_memory *local,
                      uint64_t local_offset,
                      const weft_remote_memory *remote,
                      uint64_t remote_offset,
                      uint64_t len,
                      const weft_op_options *options,
                      weft_op *op);

/**
 * Writes pages of local memory into pages of remote memory; otherwise as
 * `weft_write`. The cost of the call grows with `page_count` (the indexes are
 * checked and copied), not with layers or bytes. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_write_pages(weft_endpoint *endpoint,
                             const weft_memory *local,
                             const weft_remote_memory *remote,
                             const weft_pages *pages,
                             const weft_op_options *options,
                             weft_op *op);

/**
 * Reads pages of remote memory into pages of local memory; otherwise as
 * `weft_read` and `weft_write_pages`. Over tcp each page that has no neighbour in
 * the lists is a request of its own, which takes about 10 us: where pages are small
 * and many, let the peer write them. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_read_pages(weft_endpoint *endpoint,
                            const weft_memory *local,
                            const weft_remote_memory *remote,
                            const weft_pages *pages,
                            const weft_op_options *options,
                            weft_op *op);

/* ---- Lists: writes and reads between many memories and many peers ---- */

/** Most entries of a list. */
#define WEFT_LIST_ENTRIES_MAX 1048576

/**
 * One entry of a list: bytes between one local and one remote range.
 *
 * With a `len` of 0 it moves nothing and needs no memories, only a peer: that
 * is how a list notifies a peer that gets no bytes, or raises its counter. (A
 * barrier is a list of such entries, one for each peer. It has no order with
 * transfers before it: have their completions, or count them at the receiver,
 * first.)
 */
typedef struct weft_list_entry {
    /**
     * The local memory: source of a write, destination of a read. NULL only
     * with a `len` of 0.
     */
    const weft_memory *local;
    /**
     * The remote memory: destination of a write, source of a read. NULL only
     * with a `len` of 0.
     */
    const weft_remote_memory *remote;
    /** The peer. 0: the one that `remote` is of; anything else must be that one. */
    weft_peer peer;
    /** Index of the range in each memory. */
    uint32_t local_range;
    uint32_t remote_range;
    /** Bytes from the start of that range. */
    uint64_t local_offset;
    uint64_t remote_offset;
    /** Bytes to move. 0 moves nothing; ranges and offsets do not count then. */
    uint64_t len;
    /**
     * A counter of the peer (see `weft_counter_create`), raised by 1 when the
     * bytes of this entry have arrived, or (an empty entry, a read) when all bytes
     * of the list for this peer have; 0: none. Then `len` is at most 1 GiB.
     */
    weft_counter counter;
} weft_list_entry;

/**
 * Writes the entries of a list, between any memories of this endpoint and of
 * any of its peers; otherwise as `weft_write`.
 *
 * Every entry is checked before any starts: if the call fails, nothing was
 * moved, and `weft_last_error()` names the entry, counted from 0. Entries have
 * no order among each other; where destinations overlap, which bytes win is
 * not defined.
 *
 * Ends in exactly one `WEFT_COMPLETION_WRITE`, when all peers have everything
 * or have failed; a peer that fails does not stop what goes to the others.
 * `bytes` is the sum of all entries. `peer` is the list's only peer, or 0 if it
 * has several. After a failure, `status` is that of the peer that failed first,
 * `peer` is this peer, and `entry` is the first of its entries: any of that
 * peer's may have failed, too. (With `WEFT_ERR_MEMORY_GONE` it is the first
 * entry of the memory that is gone.)
 *
 * With `WEFT_COMPLETE_EACH_PEER` there is one completion for each peer instead,
 * with its `peer` and the bytes of its entries; all have the same `op`
 * and `user_data`. `weft_op_cancel` cancels what goes to all peers.
 *
 * A list over N peers takes N + 1 of `max_transfers` (of one peer: 1), and one
 * place in the queue for each completion. The rails that know the memories are
 * those that know all of one peer's entries (`weft_memory_args.rails`): without
 * a common one it ends with `WEFT_ERR_NO_RAILS`.
 *
 * `entries`: `count` of them, 1 to `WEFT_LIST_ENTRIES_MAX`, copied by the call, whose
 * cost grows with `count`. `options`: NULL for defaults; with `WEFT_NOTIFY` every peer of
 * the list gets one notification, after its own last byte; `start_watch` starts all of
 * it, and `done_watch` is set when all of it has ended. `op`: receives the id; NULL
 * if it is not wanted.
 *
 * Any thread; does not block. Errors: those of `weft_write`;
 * `WEFT_ERR_INVALID` also for a `count` of 0 and for an entry whose `peer` and
 * `remote` differ; `WEFT_ERR_LIMIT` also for a list that takes more than there
 * are of `max_transfers` or places in its queue. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_write_list(weft_endpoint *endpoint,
                            const weft_list_entry *entries,
                            uint64_t count,
                            const weft_op_options *options,
                            weft_op *op);

/**
 * Reads the entries of a list; otherwise as `weft_read` and `weft_write_list`:
 * `WEFT_COMPLETION_READ`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_read_list(weft_endpoint *endpoint,
                           const weft_list_entry *entries,
                           uint64_t count,
                           const weft_op_options *options,
                           weft_op *op);

/* ---- Prepared transfers: a geometry, checked and copied once, used any number of times ---- */

/**
 * The geometry of a transfer, checked. Opaque; made by `weft_pages_prepare` and
 * `weft_list_prepare`.
 */
typedef struct weft_prepared weft_prepared;

/**
 * Checks pages as `weft_write_pages` does, and keeps a copy of them, for any
 * number of transfers in either direction.
 *
 * `flags`: `WEFT_CLASS_LATENCY` cuts large pages finer (the options of a transfer say
 * anew of which class it is); `WEFT_COUNT_PAGES` keeps each page in one post: only such
 * pages can be counted. 0: neither.
 *
 * `prepared`: receives the handle; the caller owns it and gives it back with
 * `weft_prepared_destroy`. `pages` and its lists are not needed after the call. The
 * memories are in use until then: giving them back says `WEFT_ERR_BUSY`. It takes
 * 4 bytes for each page index.
 *
 * Any thread; does not block. Errors: as `weft_write_pages`, but for the access
 * that the memories were registered with, which is checked when it is used.
 * Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_pages_prepare(weft_endpoint *endpoint,
                               const weft_memory *local,
                               const weft_remote_memory *remote,
                               const weft_pages *pages,
                               uint32_t flags,
                               weft_prepared **prepared);

/**
 * As `weft_pages_prepare`, for a list: checks it as `weft_write_list` does, and
 * keeps a copy, of about 72 bytes for each entry. `flags`: 0 or `WEFT_CLASS_LATENCY`.
 * Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_list_prepare(weft_endpoint *endpoint,
                              const weft_list_entry *entries,
                              uint64_t count,
                              uint32_t flags,
                              weft_prepared **prepared);

/**
 * Writes what was prepared, as `weft_write_pages` or `weft_write_list`. Any number
 * of transfers may use it at the same time.
 *
 * The cost of the call does not grow with pages, layers or entries, only (of a
 * list) with remote memories and peers.
 *
 * `options`: NULL for defaults; `WEFT_COUNT_PAGES` only of pages that were prepared with
 * it, `WEFT_COMPLETE_EACH_PEER` of lists. `op`: receives the id; NULL if it is not
 * wanted.
 *
 * Any thread; does not block. Errors: `WEFT_ERR_REMOTE_ACCESS` (registered
 * without this direction), `WEFT_ERR_INVALID`, `WEFT_ERR_LIMIT`,
 * `WEFT_ERR_UNSUPPORTED`, `WEFT_ERR_AGAIN` (`max_transfers` or `queue_depth`
 * are in use: poll), `WEFT_ERR_MEMORY_GONE`, `WEFT_ERR_PEER_LOST` and
 * `WEFT_ERR_PEER_CLOSED` (for good: release it), `WEFT_ERR_CLOSED`,
 * `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_write_prepared(weft_endpoint *endpoint,
                                const weft_prepared *prepared,
                                const weft_op_options *options,
                                weft_op *op);

/**
 * Reads what was prepared, as `weft_read_pages` or `weft_read_list`; otherwise as
 * `weft_write_prepared`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_read_prepared(weft_endpoint *endpoint,
                               const weft_prepared *prepared,
                               const weft_op_options *options,
                               weft_op *op);

/**
 * Gives a prepared geometry back. Transfers that use it go on; its memories stay in
 * use until the last of them has ended. `prepared`: NULL is fine; the handle is
 * invalid after `WEFT_OK`. Any thread; does not block. Errors:
 * `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API weft_status weft_prepared_destroy(weft_prepared *prepared);

/* ---- Fences: nothing that a peer has accepted so far can change memory here afterwards ---- */

/**
 * Waits until no operation that the peer had accepted before it saw the fence can change
 * local memory, notify or raise counters here, whatever its outcome: operations that
 * were canceled, failed or passed their deadlines are covered like those that succeeded.
 *
 * Call it before memory is used again that writes of the peer may still reach: your own
 * request timed out, its user hung up, or the peer says that a write did not succeed. Nothing
 * is needed after a notification of the write, after the peer's PEER_DOWN (but over efa and
 * shm, which cannot close a lane), or after `weft_memory_deregister` of the memory.
 *
 * Ends in exactly one `WEFT_COMPLETION_FENCE`. With `WEFT_OK` it is so, and every
 * notification of those operations is in the queue already. Any other status promises
 * nothing. The fence ends no operation: the peer's transfers that were accepted before it
 * end first, by their own deadlines at the latest (to end them early, have the peer cancel
 * them), so give the fence a deadline that is longer, or fall back to
 * `weft_peer_disconnect` and its PEER_DOWN. What the peer accepts later is not waited for.
 * Up to 64 fences of one peer may be under way. docs/pages-back.md has the whole of it.
 *
 * `peer`: it may still be connecting. `options`: NULL for defaults. `op`:
 * receives the id; NULL if it is not wanted.
 * Any thread; does not block. Errors: `WEFT_ERR_AGAIN`, `WEFT_ERR_INVALID`,
 * `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. In the completion also
 * `WEFT_ERR_TIMED_OUT` (operations of the peer have not ended, or it does not poll), `WEFT_ERR_LIMIT`
 * (64), `WEFT_ERR_PEER_LOST`, `WEFT_ERR_PEER_CLOSED`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_peer_fence(weft_endpoint *endpoint,
                            weft_peer peer,
                            const weft_op_options *options,
                            weft_op *op);

/* ---- Grants: what a peer may reach of a memory, until its owner takes it back ---- */

/** What is granted. Start from `WEFT_GRANT_ARGS_INIT`. */
typedef struct weft_grant_args {
    /** `sizeof(weft_grant_args)`. */
    uint32_t size;
    /** `WEFT_ACCESS_REMOTE_WRITE` and `WEFT_ACCESS_REMOTE_READ` added up. 0: what the memory has. */
    uint32_t access;
    /** Which pages: as the peer's `remote` side has them. NULL: the whole memory. */
    const weft_page_side *pages;
    /**
     * With `pages`, as in `weft_pages`: bytes of each, how many each layer has, and how many layers;
     * up to 1,048,576 pages in all.
     */
    uint64_t page_len;
    uint64_t page_count;
    uint32_t layer_count;
    /** 0. */
    uint32_t reserved;
} weft_grant_args;

#define WEFT_GRANT_ARGS_INIT {sizeof(weft_grant_args), 0, 0, 0, 0, 0, 0}

/**
 * Lets a peer reach a memory, or some pages of it, until `weft_grant_revoke`. Nothing is sent:
 * tell the peer the token, in a message or by any other way. The peer names it in the
 * options of its transfers, and reaches nothing by it but what is granted; no other
 * peer can use it. The peer imports the memory once, whatever grants there are.
 *
 * A memory that is registered with `WEFT_ACCESS_GRANTED` is reached under grants alone:
 * what this page promises holds for those against any peer. Others can be reached without a
 * grant, too, by a peer that lies. The memory stays in use until its grants are revoked.
 *
 * `memory`: of host memory. `peer`: it may still be connecting. `args`: NULL: the
 * whole memory. `token`: receives the token.
 * Any thread; does not block. Errors: `WEFT_ERR_INVALID`, `WEFT_ERR_RANGE`,
 * `WEFT_ERR_LIMIT`, `WEFT_ERR_UNSUPPORTED` (memory of a device), `WEFT_ERR_CLOSED`,
 * `WEFT_ERR_HANDLE`, `WEFT_ERR_NO_MEMORY`. Since 0.2.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_grant_create(const weft_memory *memory,
                              weft_peer peer,
                              const weft_grant_args *args,
                              weft_grant_token *token);

/**
 * Takes a grant back. When its completion (`WEFT_COMPLETION_FENCE`) says `WEFT_OK`, no byte, notification or
 * count of an operation under the grant can arrive any more, and the memory can be used for
 * something else at once. What the peer has under it ends there with `WEFT_ERR_REVOKED`;
 * its other operations go on.
 *
 * Over host and tcp that takes no answer of the peer: it may be stopped, dead or
 * lie. Over the other fabrics, the peer is asked to come to rest, and the completion comes
 * with its answer, or when it has ended (right before its PEER_DOWN): a peer that lies
 * there can still write. After `WEFT_ERR_TIMED_OUT` call it again: the grant stays as it is.
 *
 * `token`: of a grant of this endpoint. `options`: NULL for defaults. `op`: receives
 * the id; NULL if it is not wanted.
 * Any thread; does not block. Errors: `WEFT_ERR_HANDLE` (no such grant, or one that was revoked
 * before), `WEFT_ERR_AGAIN`, `WEFT_ERR_INVALID`, `WEFT_ERR_CLOSED`. In the completion also
 * `WEFT_ERR_TIMED_OUT`, `WEFT_ERR_CANCELED`. Since 0.2.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_grant_revoke(weft_endpoint *endpoint,
                              const weft_grant_token *token,
                              const weft_op_options *options,
                              weft_op *op);

/* ---- Messages: small control data, in order ---- */

/** Largest message, in bytes. */
#define WEFT_MESSAGE_MAX 1048576

/**
 * Sends a message, for requests, descriptors and the like. Messages of one
 * peer arrive in the order of their calls, each exactly once, as
 * `WEFT_COMPLETION_MESSAGE` in the peer's own endpoint queue; they have no
 * order with transfers.
 *
 * Ends in exactly one `WEFT_COMPLETION_SEND`: `WEFT_OK` means that the message
 * is in the peer's queue. Any number may be in flight, up to `message_bytes`
 * and `max_transfers`; a peer that does not poll or release its messages holds
 * back its senders, and nothing is dropped. After any status but `WEFT_OK` the
 * message may have arrived, or may still; later ones arrive all the same.
 *
 * `peer`: it may still be connecting. `data`: the message, copied by the call, of `len`
 * bytes, 0 to `WEFT_MESSAGE_MAX`. `options`: NULL for defaults. `op`: receives the
 * id; NULL if it is not wanted.
 * Any thread; does not block. Errors: `WEFT_ERR_AGAIN`, `WEFT_ERR_LIMIT`,
 * `WEFT_ERR_INVALID`, `WEFT_ERR_PEER_LOST`, `WEFT_ERR_PEER_CLOSED`,
 * `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE` (also a peer that has ended). Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_send(weft_endpoint *endpoint,
                      weft_peer peer,
                      const void *data,
                      uint64_t len,
                      const weft_op_options *options,
                      weft_op *op);

/**
 * Gives back the data of a `WEFT_COMPLETION_MESSAGE` or
 * `WEFT_COMPLETION_NOTIFICATION`, named by the completion's `op`. Its
 * `data` is valid until then. 0 is fine: there was no data (a message of 0
 * bytes, or a notification without data). Data of notifications that is not
 * released counts in no limit.
 *
 * Any thread; does not block. Errors: `WEFT_ERR_HANDLE` (released already, or
 * not a message of this endpoint). Since 0.1.
 */
WEFT_API weft_status weft_message_release(weft_endpoint *endpoint, weft_op message);

/* ---- Atomics: single words of peers' memory, changed by many at once ---- */

/**
 * Adds `operand` to a word of remote memory (around 2^64), and tells what it
 * was before.
 *
 * The word is 8 bytes in the owner's byte order. The owner's Weft does it, with
 * its CPU and sequentially consistent: it is atomic with what all peers ask for,
 * over whatever fabric, and with what the owner's own program does by atomic
 * instructions (`_Atomic uint64_t`, `std::atomic`), but not with writes of peers
 * to the same bytes. (The owner itself uses `std::atomic_ref` or the `__atomic`
 * builtins; reading a word is an addition of 0, and who polls one should back
 * off.) With manual progress it is done while the owner polls.
 *
 * Ends in exactly one `WEFT_COMPLETION_ATOMIC`, whose `previous` is the word as it
 * was before. `WEFT_OK` means that it was done, once. After
 * `WEFT_ERR_TIMED_OUT`, `WEFT_ERR_CANCELED`, `WEFT_ERR_PEER_LOST` or
 * `WEFT_ERR_PEER_CLOSED` it may have been done (once) or not, or may still be,
 * until `weft_memory_deregister` has returned `WEFT_OK` or PEER_DOWN of this peer
 * was polled at the owner; after `WEFT_ERR_MEMORY_GONE` it may have been done.
 * After any other status it was not. Until the owner has answered, what was
 * canceled or timed out still counts in `max_transfers` and uses the remote
 * memory.
 *
 * There is no order with other operations, atomics included: submit what must
 * come later when this has completed.
 *
 * A ticket is one `weft_fetch_add` of 1. A lock on a word that begins as 0:
 *
 *     take   do weft_compare_swap(ep, remote, offset, 0, my_id, ...)   // not 0
 *            until a completion has previous 0, pausing longer each time
 *     use    what it guards, and wait for the completions
 *     give   weft_compare_swap(ep, remote, offset, my_id, 0, ...)
 *
 * A holder that dies keeps it: who guards against that writes into `my_id` who
 * holds it, and takes it from the dead.
 *
 * Costs a message there and one back: for coordination, not for data.
 *
 * `remote`: the memory that the word is in, registered by its owner with
 * `WEFT_ACCESS_REMOTE_WRITE` and `WEFT_ACCESS_REMOTE_READ`. `offset`: bytes from the
 * memory's start to the word, as in `weft_write`; the word's *address* at the owner must
 * be a multiple of 8. `operand`: what is added. `options`: NULL for defaults.
 * `op`: receives the id, for `weft_op_cancel`; NULL if it is not wanted.
 *
 * Any thread; does not block. Errors: `WEFT_ERR_UNSUPPORTED` (the peer does no
 * atomics: see `weft_peer_properties`), `WEFT_ERR_REMOTE_ACCESS` (registered
 * without one of the accesses), `WEFT_ERR_RANGE`, `WEFT_ERR_INVALID` (not aligned),
 * `WEFT_ERR_LIMIT`, `WEFT_ERR_AGAIN` (`max_transfers` or `queue_depth` are in use:
 * poll), `WEFT_ERR_MEMORY_GONE`, `WEFT_ERR_PEER_LOST`, `WEFT_ERR_PEER_CLOSED`,
 * `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_fetch_add(weft_endpoint *endpoint,
                           const weft_remote_memory *remote,
                           uint64_t offset,
                           uint64_t operand,
                           const weft_op_options *options,
                           weft_op *op);

/**
 * Replaces a word of remote memory by `desired` if it is `expected`; otherwise
 * as `weft_fetch_add`. It did if the completion's `previous` is `expected`: that is
 * what the word was. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_compare_swap(weft_endpoint *endpoint,
                              const weft_remote_memory *remote,
                              uint64_t offset,
                              uint64_t expected,
                              uint64_t desired,
                              const weft_op_options *options,
                              weft_op *op);

/* ---- What an endpoint and its rails are, and what they have done ---- */

/** Places of `completions` in `weft_endpoint_statistics`. */
#define WEFT_STATISTICS_STATUSES 96

/** Places of `latency` in `weft_endpoint_statistics`. */
#define WEFT_STATISTICS_BUCKETS 40

/** What an endpoint has. Filled by `weft_endpoint_info`. */
typedef struct weft_endpoint_properties {
    /** `sizeof(weft_endpoint_properties)`, set by the caller. */
    uint32_t size;
    /** Rails that are open. */
    uint32_t rails;
    /** Worker threads; 0 with manual progress. */
    uint32_t workers;
    /** Connected peers. */
    uint32_t peers;
    /** Random, and different for every endpoint that was ever opened. */
    uint64_t incarnation;
    /**
     * Version and path of libfabric, as "1.17 /usr/lib/.../libfabric.so.1"; ""
     * where it was not needed ("host" and "tcp" alone), or is not there.
     */
    char libfabric[256];
} weft_endpoint_properties;

#define WEFT_ENDPOINT_PROPERTIES_INIT {sizeof(weft_endpoint_properties), 0, 0, 0, 0, {0}}

/**
 * What an endpoint has done since it was opened. Filled by
 * `weft_endpoint_info`. All but `peers` and `active` only grow (an operation that
 * is refused while its peer ends may count for a moment). An operation counts
 * before its completion can be polled; a list counts as often as it has completions.
 */
typedef struct weft_endpoint_statistics {
    /** `sizeof(weft_endpoint_statistics)`, set by the caller. */
    uint32_t size;
    /** Peers that are connected now. */
    uint32_t peers;
    /** Operations that are outstanding now. */
    uint64_t active;
    /**
     * Operations that were accepted: writes, reads, sends, atomics,
     * `weft_counter_expect`s and `weft_peer_fence`s. A list counts once for each completion that it has:
     * with `WEFT_COMPLETE_EACH_PEER` once for each peer.
     */
    uint64_t writes;
    uint64_t reads;
    uint64_t sends;
    uint64_t atomics;
    uint64_t expects;
    uint64_t fences;
    /** Bytes of those that ended with `WEFT_OK`. */
    uint64_t bytes_written;
    uint64_t bytes_read;
    uint64_t bytes_sent;
    /**
     * Sends that ended with `WEFT_OK`, and notifications that arrived with
     * transfers, of a list one for each peer.
     */
    uint64_t messages_sent;
    uint64_t notifications_sent;
    /** Messages of peers that came into the endpoint's queue, and their bytes. */
    uint64_t messages_received;
    uint64_t bytes_received;
    /** Notifications of peers that came into the endpoint's queue. */
    uint64_t notifications_received;
    /**
     * Frames that were dropped because they made no sense: of a program that is
     * not Weft, or of peers that have ended.
     */
    uint64_t frames_dropped;
    /**
     * Operations that have ended, by their status: `completions[-status]`, so
     * [0] counts `WEFT_OK`, [20] `WEFT_ERR_TIMED_OUT`. With `active`, they add up
     * to `writes`, `reads`, `sends`, `atomics`, `expects` and `fences`.
     */
    uint64_t completions[WEFT_STATISTICS_STATUSES];
    /**
     * How long writes and reads that ended with `WEFT_OK` took from submission to
     * completion, as a histogram: [i] counts those of 2^i ns up to but not including
     * 2^(i + 1) ns; [0] also those of 0 ns, the last all longer ones.
     */
    uint64_t latency[WEFT_STATISTICS_BUCKETS];
    /** Nanoseconds that all of these took together. */
    uint64_t latency_sum_ns;
    /**
     * Handshakes that were rejected: meant for another endpoint, of another wire
     * version, without proof of the `secret`, or from more unauthenticated endpoints at
     * once than are admitted (256, and at most half of `max_peers`); and those that
     * began one and did not go on in time. Over tcp also connections that name no NIC
     * of this endpoint, or prove no secret to encrypt by.
     */
    uint64_t strangers_refused;
    /**
     * The longest pass of a worker thread, of what it does at one go before it looks at
     * deadlines again, in nanoseconds of its thread's own time; 0: none has taken 0.5 ms,
     * or progress is manual. Without calls into drivers that take long by themselves
     * (registering memory, opening other processes' device memory).
     */
    uint64_t pass_longest_ns;
    /** The longest of these calls, in nanoseconds. */
    uint64_t driver_call_longest_ns;
} weft_endpoint_statistics;

#define WEFT_ENDPOINT_STATISTICS_INIT {sizeof(weft_endpoint_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, 0, 0, 0, 0}

/** What a rail is. Filled by `weft_rail_info`. */
typedef struct weft_rail_properties {
    /** `sizeof(weft_rail_properties)`, set by the caller. */
    uint32_t size;
    /** The worker that drives it, from 0. */
    uint32_t worker;
    /** "host", "tcp", or the libfabric provider, as "verbs;ofi_rxm". */
    char fabric[64];
    /** The NIC: the network interface, or libfabric's domain, as "eth0" or "rdmap16s27-rdm". */
    char name[64];
    /** The NIC's address in readable form, as "10.0.0.7:4711"; "" if it has none. */
    char address[128];
    /** The NUMA node that the NIC is on; -1 if that is not known. */
    int32_t numa_node;
    /**
     * The NIC's PCI address, as "0000:53:00.0"; "" if it has none or that is not
     * known.
     */
    char pci[32];
} weft_rail_properties;

#define WEFT_RAIL_PROPERTIES_INIT {sizeof(weft_rail_properties), 0, {0}, {0}, {0}, 0, {0}}

/**
 * What a rail has done since it was opened. Filled by `weft_rail_info`. It is
 * about this endpoint's own writes and reads: what peers write here or read from
 * here counts at the peer.
 *
 * Counters only grow, and count before the operation's completion can be polled.
 * What says "now" is how it was when the rail's worker last looked, up to some
 * milliseconds ago (with manual progress: when somebody polled last).
 */
typedef struct weft_rail_statistics {
    /** `sizeof(weft_rail_statistics)`, set by the caller. */
    uint32_t size;
    /** 1 while it is open, 0 once the endpoint has shut down. */
    uint32_t up;
    /**
     * Rails of peers that it reaches now, and of these the ones that have bytes in
     * flight and have not taken any for 20 ms.
     */
    uint32_t lanes;
    uint32_t lanes_stalled;
    /**
     * Bytes that it has carried: delivered, or (of device memory that goes through
     * the host) written to the peer's staging memory.
     */
    uint64_t bytes_written;
    uint64_t bytes_read;
    /** Slices of these: pages, or pieces of large ones. */
    uint64_t slices_written;
    uint64_t slices_read;
    /** The posts that carried them. */
    uint64_t posts;
    /**
     * Posts for which the NIC, or the peer's connection, had no room (EAGAIN);
     * each was tried again later.
     */
    uint64_t posts_refused;
    /** Posts and receives that failed. */
    uint64_t errors;
    /** What was sent again because nobody answered: greetings of peers. */
    uint64_t retries;
    /** Control frames: greetings, messages, notifications, acknowledgements. */
    uint64_t frames_sent;
    uint64_t frames_received;
    /** Bytes and posts that are in flight now. */
    uint64_t inflight_bytes;
    uint64_t inflight_posts;
    /**
     * Bytes per second that were delivered of late while there was something to
     * carry, by its fastest lane; 0: not measured yet.
     */
    uint64_t bytes_per_s;
    /**
     * The shortest time from a post to its delivery that its lanes have seen, in
     * nanoseconds; 0: not measured yet.
     */
    uint64_t round_trip_ns;
} weft_rail_statistics;

#define WEFT_RAIL_STATISTICS_INIT {sizeof(weft_rail_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/**
 * Fills in what an endpoint is, and what it has done.
 *
 * `properties`, `statistics`: NULL for what is not wanted, but not both; `size`
 * of each is set by the caller. The figures are not of one moment: others work
 * meanwhile.
 *
 * Any thread; does not block. Errors: `WEFT_ERR_INVALID`, `WEFT_ERR_HANDLE`.
 * Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_endpoint_info(const weft_endpoint *endpoint,
                               weft_endpoint_properties *properties,
                               weft_endpoint_statistics *statistics);

/**
 * Fills in what rail `index` is, and what it has done: from 0 to `rails - 1` of
 * `weft_endpoint_properties`.
 *
 * `properties`, `statistics`: as in `weft_endpoint_info`. Any thread; does not
 * block. Errors: `WEFT_ERR_RANGE` (no such rail), `WEFT_ERR_INVALID`,
 * `WEFT_ERR_HANDLE`. Since 0.1.
 */
WEFT_API
WEFT_MUST_USE
weft_status weft_rail_info(const weft_endpoint *endpoint,
                           uint32_t index,
                           weft_rail_properties *properties,
                           weft_rail_statistics *statistics);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* WEFT_H */
