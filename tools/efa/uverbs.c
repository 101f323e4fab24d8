/* The kernel's half: ioctls of libibverbs and libefa, decoded and done on the model. */
#define _GNU_SOURCE
#include "uverbs.h"
#include "abi.h"
#include "objects.h"
#include <errno.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct traits traits;

enum {
    MAX_SENDS = 4096,     /* documentation: fi_info of a p5 (tx_attr size) */
    MAX_RECEIVES = 32768, /* documentation: fi_info of a p5 (rx_attr size) */
    MAX_CQE = 32768,      /* guess */
    SEND_BUFFERS = 2,     /* interface: a work request has room for two */
    RECEIVE_BUFFERS = 3,  /* guess */
    PAGE = 4096,
};
/* Registrations may have flags that a device may ignore. Interface: IB_UVERBS_ACCESS_OPTIONAL_RANGE. */
#define OPTIONAL_ACCESS 0x3ff00000u

static int outputs(int first, int second) { return first ? first : second; }

/* ---- The device ---- */

static void describe(const struct nic *nic, struct ib_uverbs_query_device_resp *to) {
    *to = (struct ib_uverbs_query_device_resp){
        .max_mr_size = 1ull << 40,       /* guess */
        .page_size_cap = 0xfffffffff000, /* guess: all from 4 KiB */
        .vendor_id = 0x1d0f,             /* interface: Amazon's */
        .vendor_part_id = traits.part,
        .hw_ver = traits.part,
        .max_qp = MAX_QPS,
        .max_qp_wr = MAX_SENDS,
        .max_sge = SEND_BUFFERS,
        .max_sge_rd = 1, /* interface: a read or a write has one range */
        .max_cq = 512,   /* guess */
        .max_cqe = MAX_CQE,
        .max_mr = MAX_MRS,
        .max_pd = 256, /* guess */
        .max_ah = MAX_AHS,
        .phys_port_cnt = 1,
        .max_pkeys = 1,
    };
    memcpy(&to->node_guid, nic->gid + 8, sizeof to->node_guid);
    to->sys_image_guid = to->node_guid;
}

static int get_context(struct call *call) {
    /* Interface: libfabric takes interrupts of completion queues only where there is more than one vector. */
    uint32_t vectors = traits.caps & CAP_NOTIFY ? 8 : 1;
    uint64_t support = 0;
    struct efa_ibv_alloc_ucontext_resp own = {
        .cmds_supp_udata_mask = EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE | EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
        .sub_cqs_per_cq = 1,                 /* interface: what libfabric's own data path accepts */
        .inline_buf_size = INLINE_BYTES,
        .max_llq_size = MAX_SENDS * sizeof(struct wire_request),
        .max_tx_batch = 32, /* guess */
        .min_sq_wr = 16,    /* guess */
    };
    return outputs(call_out(call, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &vectors, sizeof vectors),
                   outputs(call_out(call, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &support, sizeof support),
                           call_out(call, UVERBS_ATTR_UHW_OUT, &own, sizeof own)));
}

static int query_device(struct call *call) {
    struct ib_uverbs_query_device_resp answer;
    describe(call->client->nic, &answer);
    return call_out(call, UVERBS_ATTR_CORE_OUT, &answer, sizeof answer);
}

static int query_device_ex(struct call *call) {
    struct ib_uverbs_ex_query_device_resp answer = {.response_length = sizeof answer};
    struct efa_ibv_ex_query_device_resp own = {
        .max_sq_wr = MAX_SENDS,
        .max_rq_wr = MAX_RECEIVES,
        .max_sq_sge = SEND_BUFFERS,
        .max_rq_sge = RECEIVE_BUFFERS,
        .max_rdma_size = MAX_RDMA,
        .device_caps = traits.caps,
    };
    describe(call->client->nic, &answer.base);
    return outputs(call_out(call, UVERBS_ATTR_CORE_OUT, &answer, sizeof answer), call_out(call, UVERBS_ATTR_UHW_OUT, &own, sizeof own));
}

static int query_port(struct call *call) {
    enum { DOWN = 1, ACTIVE = 4, LINK_UP = 5, MTU_4096 = 5, WIDTH_4X = 2, SPEED_EDR = 32 };
    struct ib_uverbs_query_port_resp_ex answer = {.legacy_resp = {
        .max_msg_sz = MAX_MESSAGE,
        .gid_tbl_len = 1,
        .pkey_tbl_len = 1,
        .state = call->client->nic->port_down ? DOWN : ACTIVE,
        .max_mtu = MTU_4096,
        .active_mtu = MTU_4096,
        .active_width = WIDTH_4X, /* documentation: a NIC of a p5 has 100 Gbps */
        .active_speed = SPEED_EDR,
        .phys_state = LINK_UP,
        .lmc = 1,
    }};
    return call_out(call, UVERBS_ATTR_QUERY_PORT_RESP, &answer, sizeof answer);
}

static struct ib_uverbs_gid_entry gid_of(struct call *call) {
    struct ib_uverbs_gid_entry entry = {.port_num = 1};
    memcpy(entry.gid, call->client->nic->gid, 16);
    return entry;
}

static int query_gid_entry(struct call *call) {
    struct ib_uverbs_gid_entry entry = gid_of(call);
    return call_out(call, UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &entry, sizeof entry);
}

static int query_gid_table(struct call *call) {
    struct ib_uverbs_gid_entry entry = gid_of(call);
    uint64_t count = 1;
    return outputs(call_out(call, UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, &entry, sizeof entry),
                   call_out(call, UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, &count, sizeof count));
}

/* ---- Channels ---- */

static int make_channel(struct call *call, struct channel **channel) {
    *channel = channel_make(call->client, &call->descriptor);
    return *channel ? 0 : EMFILE;
}

static int async_channel(struct call *call) {
    call->patch = call_slot(call, UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE);
    call->patch_len = sizeof(uint64_t);
    return make_channel(call, &call->client->async);
}

static int completion_channel(struct call *call) {
    struct ib_uverbs_attr *answer = call_attribute(call, UVERBS_ATTR_CORE_OUT);
    struct channel *channel;
    if (!answer) return EINVAL;
    call->patch = answer->data;
    call->patch_len = sizeof(uint32_t);
    return make_channel(call, &channel);
}

/* ---- Protection domains, memories, address handles ---- */

static int alloc_pd(struct call *call) {
    uint32_t handle = object_add(call->client, PD, call->client);
    struct ib_uverbs_alloc_pd_resp answer = {handle};
    struct efa_ibv_alloc_pd_resp own = {.pdn = (uint16_t)handle};
    if (!handle) return ENOMEM;
    return outputs(call_out(call, UVERBS_ATTR_CORE_OUT, &answer, sizeof answer), call_out(call, UVERBS_ATTR_UHW_OUT, &own, sizeof own));
}

static int add_memory(struct call *call, struct mr as, void *map, size_t map_len, uint32_t *handle, uint32_t *key) {
    struct mr_object *made = calloc(1, sizeof *made);
    int error = made ? mr_register(call->client->nic, &as, &made->mr) : ENOMEM;
    say(1, "nic %d pid %d registers %llx+%llx access %x: error %d", call->client->nic->index, call->client->pid, (unsigned long long)as.start,
        (unsigned long long)as.len, as.access, error);
    if (error) {
        free(made);
        return error;
    }
    made->map = map;
    made->map_len = map_len;
    *key = made->mr->key;
    *handle = object_add(call->client, MR, made);
    if (*handle) return 0;
    mr_deregister(call->client->nic, made->mr);
    free(made);
    return ENOMEM;
}

static int reg_mr(struct call *call) {
    struct ib_uverbs_reg_mr asked;
    struct ib_uverbs_reg_mr_resp answer = {0};
    int error = call_in(call, UVERBS_ATTR_CORE_IN, &asked, sizeof asked);
    struct mr as = {.owner = call->client,
                    .start = asked.start,
                    .iova = asked.hca_va,
                    .len = asked.length,
                    .access = asked.access_flags & ~OPTIONAL_ACCESS,
                    .pd = asked.pd_handle};
    if (error) return error;
    /* Interface: pages are pinned for what the device may do with them, so they must be there and allow it. */
    if (!client_maps(call->client, as.start, as.len, as.access & ACCESS_LOCAL_WRITE)) return EFAULT;
    error = add_memory(call, as, NULL, 0, &answer.mr_handle, &answer.lkey);
    answer.rkey = answer.lkey;
    return error ? error : call_out(call, UVERBS_ATTR_CORE_OUT, &answer, offsetof(struct ib_uverbs_reg_mr_resp, driver_data));
}

/* Any file of the program's that can be mapped will do: no GPU is here, and udmabuf is not everywhere. */
static int reg_dmabuf(struct call *call) {
    uint64_t offset = call_number(call, UVERBS_ATTR_REG_DMABUF_MR_OFFSET), len = call_number(call, UVERBS_ATTR_REG_DMABUF_MR_LENGTH);
    uint32_t handle = 0, key = 0;
    int process = (int)syscall(SYS_pidfd_open, call->client->pid, 0);
    int theirs = (int)call_number(call, UVERBS_ATTR_REG_DMABUF_MR_FD);
    int file = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, theirs, 0);
    size_t before = offset % PAGE, map_len = before + len;
    uint8_t *map = file < 0 ? MAP_FAILED : mmap(NULL, map_len, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)(offset - before));
    int error = map == MAP_FAILED ? EBADF : 0;
    if (file >= 0) close(file);
    if (process >= 0) close(process);
    if (!error) {
        struct mr as = {.owner = call->client,
                        .mapped = map + before,
                        .start = offset,
                        .iova = call_number(call, UVERBS_ATTR_REG_DMABUF_MR_IOVA),
                        .len = len,
                        .access = (uint32_t)call_number(call, UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS) & ~OPTIONAL_ACCESS,
                        .pd = (uint32_t)call_number(call, UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE)};
        error = add_memory(call, as, map, map_len, &handle, &key);
        if (error) munmap(map, map_len);
    }
    if (error) return error;
    return outputs(call_out_handle(call, UVERBS_ATTR_REG_DMABUF_MR_HANDLE, handle),
                   outputs(call_out(call, UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, &key, sizeof key),
                           call_out(call, UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, &key, sizeof key)));
}

/* Of this host there is no interconnect to speak of: no number is valid. */
static int query_mr(struct call *call) {
    uint16_t none = 0;
    int error = 0;
    for (int id = MR_QUERY_FIRST; id <= MR_QUERY_LAST; id++) error = outputs(error, call_out(call, id, &none, sizeof none));
    return error;
}

static int create_ah(struct call *call) {
    struct ib_uverbs_create_ah asked;
    struct owner *client = call->client;
    int error = call_in(call, UVERBS_ATTR_CORE_IN, &asked, sizeof asked);
    struct ah *ah = error ? NULL : ah_create(client->nic, client, asked.attr.grh.dgid);
    struct ib_uverbs_create_ah_resp answer = {ah ? object_add(client, AH, ah) : 0};
    if (error) return error;
    if (ah && !answer.ah_handle) ah_destroy(ah);
    if (!answer.ah_handle) return ENOMEM;
    struct efa_ibv_create_ah_resp own = {.efa_address_handle = ah->number};
    say(1, "nic %d pid %d has handle %u", client->nic->index, client->pid, ah->number);
    return outputs(call_out(call, UVERBS_ATTR_CORE_OUT, &answer, sizeof answer), call_out(call, UVERBS_ATTR_UHW_OUT, &own, sizeof own));
}

/* ---- Completion queues ---- */

static int create_cq(struct call *call) {
    struct owner *client = call->client;
    struct efa_ibv_create_cq asked;
    struct cq_object *made = calloc(1, sizeof *made);
    uint32_t count = (uint32_t)call_number(call, UVERBS_ATTR_CREATE_CQ_CQE), handle = 0;
    struct ib_uverbs_attr *channel = call_attribute(call, UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL);
    call_in(call, UVERBS_ATTR_UHW_IN, &asked, sizeof asked);
    bool fits = count && !(count & (count - 1)) && (asked.cq_entry_size == 16 || asked.cq_entry_size == 32);
    say(1, "nic %d pid %d makes a completion queue, %u entries of %u bytes", client->nic->index, client->pid, count, asked.cq_entry_size);
    if (!made || !fits || !completion_ring_make(&made->ring, client, count, asked.cq_entry_size)) {
        free(made);
        return fits ? ENOMEM : EINVAL;
    }
    made->cq = (struct cq){.owner = client, .ring = &made->ring, .element = call_number(call, UVERBS_ATTR_CREATE_CQ_USER_HANDLE)};
    made->ring.element = made->cq.element;
    made->ring.channel = channel ? channel_find(client, (int)channel->data_s64) : NULL;
    if (channel && !made->ring.channel) say(0, "pid %d: descriptor %lld is no channel", client->pid, (long long)channel->data_s64);
    if (made->ring.channel) armed_add(&made->ring);
    handle = object_add(client, CQ, made);
    struct efa_ibv_create_cq_resp own = {
        .comp_mask = EFA_CREATE_CQ_RESP_DB_OFF,
        .q_mmap_key = made->ring.entries.at,
        .q_mmap_size = made->ring.entries.len,
        .db_mmap_key = made->ring.doorbell.at,
    };
    return outputs(call_out_handle(call, UVERBS_ATTR_CREATE_CQ_HANDLE, handle),
                   outputs(call_out(call, UVERBS_ATTR_CREATE_CQ_RESP_CQE, &count, sizeof count), call_out(call, UVERBS_ATTR_UHW_OUT, &own, sizeof own)));
}

/* Interface: libibverbs waits until the program has acknowledged all events that are counted here, so only those count
 * that it has read. */
static unsigned events_read(struct channel *channel, uint64_t element, unsigned sent) {
    unsigned unread = channel && sent ? channel_withdraw(channel, element) : 0;
    return sent - (unread < sent ? unread : sent);
}

static int destroy_cq(struct call *call) {
    uint64_t handle = call_number(call, UVERBS_ATTR_DESTROY_CQ_HANDLE);
    struct cq_object *cq = object_find(call->client, CQ, handle);
    if (!cq) return EINVAL;
    struct ib_uverbs_destroy_cq_resp answer = {
        .comp_events_reported = events_read(cq->ring.channel, cq->ring.element, cq->ring.events),
        .async_events_reported = events_read(call->client->async, cq->cq.element, cq->events),
    };
    object_drop(call->client, (uint32_t)handle);
    return call_out(call, UVERBS_ATTR_DESTROY_CQ_RESP, &answer, sizeof answer);
}

/* ---- Queue pairs ---- */

static bool ring_fits(uint32_t bytes, uint32_t entry, uint32_t most) {
    uint32_t count = bytes / entry;
    return count && !(count & (count - 1)) && count <= most;
}

static struct qp_object *make_qp(struct call *call, const struct create_qp_request *asked, const struct qp *as) {
    struct owner *client = call->client;
    struct qp_object *made = calloc(1, sizeof *made);
    struct qp with = *as;
    if (!made) return NULL;
    if (!send_ring_make(&made->sends, client, asked->sq_bytes / sizeof(struct wire_request))) goto no_sends;
    if (!receive_ring_make(&made->receives, client, asked->rq_bytes / sizeof(struct wire_receive))) goto no_receives;
    with.sends = &made->sends;
    with.receives = &made->receives;
    made->qp = qp_create(client->nic, &with);
    if (made->qp) return made;
    ring_give(client, made->receives.entries, made->receives.doorbell);
no_receives:
    ring_give(client, made->sends.entries, made->sends.doorbell);
no_sends:
    free(made);
    return NULL;
}

static int create_qp(struct call *call) {
    struct owner *client = call->client;
    struct create_qp_request asked;
    struct ib_uverbs_qp_cap cap;
    struct cq_object *send_cq = object_find(client, CQ, call_number(call, UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE));
    struct cq_object *receive_cq = object_find(client, CQ, call_number(call, UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE));
    call_in(call, UVERBS_ATTR_UHW_IN, &asked, sizeof asked);
    call_in(call, UVERBS_ATTR_CREATE_QP_CAP, &cap, sizeof cap);
    if (asked.type != EFA_QP_DRIVER_TYPE_SRD) return EOPNOTSUPP;
    if (!ring_fits(asked.sq_bytes, sizeof(struct wire_request), MAX_SENDS) || !ring_fits(asked.rq_bytes, sizeof(struct wire_receive), MAX_RECEIVES))
        return EINVAL;
    struct qp as = {
        .owner = client,
        .pd = (uint32_t)call_number(call, UVERBS_ATTR_CREATE_QP_PD_HANDLE),
        .send_cq = send_cq ? &send_cq->cq : NULL,
        .receive_cq = receive_cq ? &receive_cq->cq : NULL,
        .unsolicited = asked.flags & QP_UNSOLICITED,
        .element = call_number(call, UVERBS_ATTR_CREATE_QP_USER_HANDLE),
    };
    struct qp_object *made = make_qp(call, &asked, &as);
    if (!made) return ENOMEM;
    uint32_t number = made->qp->number;
    say(1, "nic %d pid %d makes queue pair %u, flags %x", client->nic->index, client->pid, number, asked.flags);
    struct efa_ibv_create_qp_resp own = {
        .rq_mmap_key = made->receives.entries.at,
        .rq_mmap_size = made->receives.entries.len,
        .rq_db_mmap_key = made->receives.doorbell.at,
        .sq_db_mmap_key = made->sends.doorbell.at,
        .llq_desc_mmap_key = made->sends.entries.at,
    };
    int error = call_out_handle(call, UVERBS_ATTR_CREATE_QP_HANDLE, object_add(client, QP, made));
    error = outputs(error, call_out(call, UVERBS_ATTR_CREATE_QP_RESP_CAP, &cap, sizeof cap));
    error = outputs(error, call_out(call, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &number, sizeof number));
    return outputs(error, call_out(call, UVERBS_ATTR_UHW_OUT, &own, sizeof own));
}

static int modify_qp(struct call *call) {
    enum { STATE = 1, QKEY = 1 << 6, RNR_RETRY = 1 << 11 }; /* interface: enum ib_qp_attr_mask */
    struct ib_uverbs_modify_qp asked;
    int error = call_in(call, UVERBS_ATTR_CORE_IN, &asked, sizeof asked);
    struct qp_object *qp = object_find(call->client, QP, asked.qp_handle);
    if (error || !qp) return error ? error : EINVAL;
    if (asked.attr_mask & QKEY) qp->qp->qkey = asked.qkey;
    if (asked.attr_mask & RNR_RETRY) qp->qp->not_ready_retries = asked.rnr_retry;
    if (asked.attr_mask & STATE) {
        qp_set_state(qp->qp, asked.qp_state);
        if (asked.qp_state == QP_RESET) {
            send_ring_reset(&qp->sends);
            receive_ring_reset(&qp->receives);
        }
    }
    return 0;
}

static int query_qp(struct call *call) {
    struct ib_uverbs_query_qp asked;
    int error = call_in(call, UVERBS_ATTR_CORE_IN, &asked, sizeof asked);
    struct qp_object *qp = object_find(call->client, QP, asked.qp_handle);
    if (error || !qp) return error ? error : EINVAL;
    struct ib_uverbs_query_qp_resp answer = {
        .max_send_wr = qp->sends.count,
        .max_recv_wr = qp->receives.count,
        .max_send_sge = SEND_BUFFERS,
        .max_recv_sge = RECEIVE_BUFFERS,
        .max_inline_data = INLINE_BYTES,
        .qkey = qp->qp->qkey,
        .qp_state = (uint8_t)qp->qp->state,
        .cur_qp_state = (uint8_t)qp->qp->state,
        .port_num = 1,
        .rnr_retry = qp->qp->not_ready_retries,
    };
    return call_out(call, UVERBS_ATTR_CORE_OUT, &answer, sizeof answer);
}

static int destroy_qp(struct call *call) {
    uint64_t handle = call_number(call, UVERBS_ATTR_DESTROY_QP_HANDLE);
    struct qp_object *qp = object_find(call->client, QP, handle);
    if (!qp) return EINVAL;
    struct ib_uverbs_destroy_qp_resp answer = {.events_reported = events_read(call->client->async, qp->qp->element, qp->events)};
    object_drop(call->client, (uint32_t)handle);
    return call_out(call, UVERBS_ATTR_DESTROY_QP_RESP, &answer, sizeof answer);
}

/* ---- Which is which ---- */

static int destroy(struct call *call, enum kind kind) {
    uint64_t handle = call_number(call, 0);
    if (!object_find(call->client, kind, handle)) return EINVAL;
    object_drop(call->client, (uint32_t)handle);
    return 0;
}

/* Commands of the older interface, inside an ioctl. libibverbs tries one without anything in it: interface, ENOSPC. */
static int invoke_write(struct call *call) {
    uint32_t command = (uint32_t)call_number(call, UVERBS_ATTR_WRITE_CMD);
    if (!call_attribute(call, UVERBS_ATTR_CORE_IN) && !call_attribute(call, UVERBS_ATTR_CORE_OUT)) return ENOSPC;
    switch (command) {
    case IB_USER_VERBS_CMD_QUERY_DEVICE: return query_device(call);
    case IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_QUERY_DEVICE: return query_device_ex(call);
    case IB_USER_VERBS_CMD_ALLOC_PD: return alloc_pd(call);
    case IB_USER_VERBS_CMD_REG_MR: return reg_mr(call);
    case IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL: return completion_channel(call);
    case IB_USER_VERBS_CMD_MODIFY_QP: return modify_qp(call);
    case IB_USER_VERBS_CMD_QUERY_QP: return query_qp(call);
    case IB_USER_VERBS_CMD_CREATE_AH: return create_ah(call);
    }
    say(0, "pid %d: command %x is not known", call->client->pid, command);
    return EOPNOTSUPP;
}

int uverbs_do(struct call *call) {
    if (call->client->gone) return EIO; /* interface: of a device that has gone */
    switch (call->object << 16 | call->method) {
    case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_INVOKE_WRITE: return invoke_write(call);
    case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_GET_CONTEXT: return get_context(call);
    case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_QUERY_PORT: return query_port(call);
    case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_QUERY_GID_ENTRY: return query_gid_entry(call);
    case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_QUERY_GID_TABLE: return query_gid_table(call);
    case UVERBS_OBJECT_ASYNC_EVENT << 16 | UVERBS_METHOD_ASYNC_EVENT_ALLOC: return async_channel(call);
    case UVERBS_OBJECT_PD << 16 | UVERBS_METHOD_PD_DESTROY: return destroy(call, PD);
    case UVERBS_OBJECT_MR << 16 | UVERBS_METHOD_MR_DESTROY: return destroy(call, MR);
    case UVERBS_OBJECT_MR << 16 | UVERBS_METHOD_REG_DMABUF_MR: return reg_dmabuf(call);
    case UVERBS_OBJECT_MR << 16 | MR_QUERY_METHOD: return query_mr(call);
    case UVERBS_OBJECT_AH << 16 | UVERBS_METHOD_AH_DESTROY: return destroy(call, AH);
    case UVERBS_OBJECT_CQ << 16 | UVERBS_METHOD_CQ_CREATE: return create_cq(call);
    case UVERBS_OBJECT_CQ << 16 | UVERBS_METHOD_CQ_DESTROY: return destroy_cq(call);
    case UVERBS_OBJECT_QP << 16 | UVERBS_METHOD_QP_CREATE: return create_qp(call);
    case UVERBS_OBJECT_QP << 16 | UVERBS_METHOD_QP_DESTROY: return destroy_qp(call);
    }
    say(0, "pid %d: object %u has no method %x", call->client->pid, call->object, call->method);
    return EPROTONOSUPPORT;
}
