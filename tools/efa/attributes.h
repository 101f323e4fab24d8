/* An ioctl of libibverbs: its attributes, read from the program's memory and answered there. */
#ifndef EFA_ATTRIBUTES_H
#define EFA_ATTRIBUTES_H
#include "client.h"
#include <rdma/rdma_user_ioctl_cmds.h>

enum { MAX_ATTRIBUTES = 64 };
struct call {
    struct owner *client;
    uint64_t at; /* of the header, in the program */
    unsigned object, method, count;
    struct ib_uverbs_attr attributes[MAX_ATTRIBUTES];
    /* A descriptor that the program gets, and where the shim writes its number there. */
    int descriptor;
    uint64_t patch;
    uint32_t patch_len;
};

int call_read(struct call *, struct owner *, uint64_t at); /* 0 or an errno */
struct ib_uverbs_attr *call_attribute(struct call *, int id);
uint64_t call_number(struct call *, int id);                     /* 0 if it is not there */
int call_in(struct call *, int id, void *to, size_t len);        /* zeroes what the program did not give */
int call_out(struct call *, int id, const void *from, size_t len); /* as much as the program has room for, nothing if it did not ask */
uint64_t call_slot(struct call *, int id);                       /* where an attribute's own value is, in the program */
int call_out_handle(struct call *, int id, uint32_t handle);
#endif
