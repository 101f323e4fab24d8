/* What the kernel's driver and libefa have agreed on since Linux 6.1, whose rdma/efa-abi.h is the oldest that this is
 * built with. Source: interface (efa-abi.h of later kernels). */
#ifndef EFA_ABI_NEWER_H
#define EFA_ABI_NEWER_H
#include <rdma/efa-abi.h>
#include <stdint.h>

enum { CAP_READ = 1, CAP_NOT_READY_RETRY = 2, CAP_NOTIFY = 4, CAP_SGID = 8, CAP_WRITE = 32, CAP_UNSOLICITED = 64 };

/* efa_ibv_create_qp, longer. */
struct create_qp_request {
    uint32_t comp_mask, rq_bytes, sq_bytes, type;
    uint16_t flags;
    uint8_t service_level, reserved[5];
};
enum { QP_UNSOLICITED = 1 };

/* A method of the driver's own: over which interconnect a memory is reached. Its attributes: a handle, then four numbers. */
enum { MR_QUERY_METHOD = 0x1000, MR_QUERY_FIRST = 0x1001, MR_QUERY_LAST = 0x1004 };
#endif
