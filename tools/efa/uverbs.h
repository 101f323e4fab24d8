/* The kernel's half: ioctls of libibverbs and libefa, decoded and done on the model. */
#ifndef EFA_UVERBS_H
#define EFA_UVERBS_H
#include "attributes.h"

/* What the devices say of themselves. */
struct traits {
    uint32_t part; /* of the PCI device */
    uint32_t caps;
};
extern struct traits traits;

int uverbs_do(struct call *); /* 0 or an errno */
#endif
