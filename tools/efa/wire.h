/* What the shim in a program and the emulator send each other, over one socket for each opened device. The emulator sends
 * a first reply with the device's file. */
#ifndef EFA_WIRE_H
#define EFA_WIRE_H
#include <stdint.h>

/* An ioctl: where its argument is, in the program's memory. */
struct request {
    uint64_t argument;
};

/* Its end. A descriptor that comes with it gets a number only in the program; the shim writes it to `patch`. */
struct reply {
    int32_t error;
    uint32_t patch_len;
    uint64_t patch;
};
#endif
