/* The layouts that an EFA device shares with its drivers in user space: work requests, receive descriptors, completions.
 * Source: interface (efa_io_defs.h and efa_io_regs.h, which rdma-core's libefa and the kernel's driver both have), unless
 * a line says otherwise. */
#ifndef EFA_HARDWARE_H
#define EFA_HARDWARE_H
#include <stdint.h>

enum { OP_SEND, OP_READ, OP_WRITE };
enum { INLINE_BYTES = 32 };

struct wire_buffer {
    uint32_t len, lkey, low, high;
};

/* A work request in the send ring. A phase bit flips with each turn of the ring, and starts with 0. */
struct wire_request {
    uint16_t id;
    uint8_t control1, control2;
    uint16_t qpn;
    uint16_t length; /* of a send: inline bytes, or the number of buffers */
    uint32_t immediate;
    uint16_t ah, reserved;
    uint32_t qkey;
    uint8_t reserved2[12];
    union {
        struct wire_buffer buffers[2];
        uint8_t bytes[INLINE_BYTES];
        struct {
            struct wire_buffer remote, local;
        } rdma;
    };
};
enum { CONTROL1_OP = 15, CONTROL1_IMMEDIATE = 1 << 4, CONTROL1_INLINE = 1 << 5, CONTROL2_PHASE = 1 };

/* One buffer of a receive; the last one of it has LAST in its key. */
struct wire_receive {
    uint32_t low, high;
    uint16_t id, len;
    uint32_t lkey;
};
enum { RECEIVE_KEY = 0xffffff };
#define RECEIVE_LAST 0x80000000u

/* A completion. Its phase bit flips with each turn of the ring, and starts with 1. Entries have 16 bytes, or 32: then a
 * receive whose sender has no address handle here has the sender's GID, and a write's length its upper half. */
struct wire_completion {
    uint16_t id;
    uint8_t status, flags;
    uint16_t qpn, len, ah, source_qpn;
    uint32_t immediate;
    union {
        uint16_t len_high;
        uint8_t gid[16];
    };
};
enum { FLAG_PHASE = 1, FLAG_SENT = 1 << 1, FLAG_RECEIVED = 2 << 1, FLAG_IMMEDIATE = 1 << 3, FLAG_OP_SHIFT = 4, FLAG_UNSOLICITED = 1 << 7 };

/* The doorbell of a completion queue: how many were consumed (15:0), and whether the next one is to be reported. */
#define DOORBELL_ARM 0x80000000u

enum status {
    STATUS_OK,
    STATUS_FLUSHED,
    STATUS_QP_INTERNAL,
    STATUS_UNSUPPORTED_OP,
    STATUS_INVALID_AH,
    STATUS_INVALID_LKEY,
    STATUS_BAD_LENGTH,
    STATUS_REMOTE_BAD_ADDRESS, /* the key is not registered, or the range is not inside its memory */
    STATUS_REMOTE_ABORT,
    STATUS_REMOTE_BAD_QPN,
    STATUS_REMOTE_NOT_READY,
    STATUS_REMOTE_BAD_LENGTH,
    STATUS_REMOTE_BAD_STATUS,
    STATUS_UNRESPONSIVE, /* the remote has answered before */
    STATUS_UNKNOWN_PEER, /* the remote has no address handle of this NIC */
    STATUS_UNREACHABLE,
};

_Static_assert(sizeof(struct wire_request) == 64, "a work request");
_Static_assert(sizeof(struct wire_receive) == 16, "a receive");
_Static_assert(sizeof(struct wire_completion) == 32, "a completion");
#endif
