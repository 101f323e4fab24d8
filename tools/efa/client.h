/* A program that has opened a device: its memory, the file that it maps rings and doorbells from, its descriptors. */
#ifndef EFA_CLIENT_H
#define EFA_CLIENT_H
#include "model.h"
#include <stdio.h>
#include <sys/types.h>

/* A part of the device's file, for a ring or a doorbell. */
struct block {
    size_t at, len;
};

/* What events are sent over: the program reads `theirs`, whose copy here takes back what was not read. */
struct channel {
    struct channel *next;
    int ours, theirs;
    uint64_t inode; /* which descriptor of the program it is */
};

struct object;
struct owner {
    struct owner *next;
    struct nic *nic;
    int socket, file;
    pid_t pid;
    bool gone; /* the device was reset: nothing works any longer but closing it */
    FILE *maps; /* what it has mapped, as the kernel says; opened once it is asked for */
    uint8_t *base;
    size_t used;
    struct block *free_blocks;
    size_t free_count;
    struct object *objects;
    uint32_t object_count;
    struct channel *channels, *async;
};

extern int log_level;
void say(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct owner *client_open(struct nic *, int socket);
void client_close(struct owner *); /* its objects are gone already */
int client_send(struct owner *, const void *reply, size_t len, int descriptor);

enum access client_load(struct owner *, uint64_t at, void *to, size_t len);
enum access client_store(struct owner *, uint64_t at, const void *from, size_t len);
bool client_maps(struct owner *, uint64_t at, uint64_t len, bool writable); /* whether the program has memory there */

bool block_take(struct owner *, size_t len, struct block *); /* zeroed */
void block_give(struct owner *, struct block);

struct channel *channel_make(struct owner *, int *theirs); /* the descriptor that the program gets */
struct channel *channel_find(struct owner *, int descriptor); /* by its number in the program */
void channel_close(struct owner *, struct channel *);
bool channel_send(struct channel *, const void *event, size_t len);
/* Takes back the events about an element that were not read; how many. Each event begins with its element. */
unsigned channel_withdraw(struct channel *, uint64_t element);
#endif
