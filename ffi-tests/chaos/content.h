/* Which bytes an operation moves, what is in them, and whether they are as they should be. */
#ifndef WEFT_CHAOS_CONTENT_H
#define WEFT_CHAOS_CONTENT_H

#include "book.h"

#define PIECES_MAX 64

/* Bytes of a slot: where they are in the owner's, and in the target's. */
struct piece {
    uint32_t local, remote, len;
};

/* All of them, and the page lists that they come from. */
struct shape {
    uint32_t page, pages, layers, local_layer, remote_layer;
    uint32_t local_pages[PIECES_MAX], remote_pages[PIECES_MAX];
    uint32_t count;
    uint64_t bytes;
    struct piece pieces[PIECES_MAX];
};

enum end_of { LOCAL, REMOTE };

/* The same whoever asks: it follows from the operation's seed. */
void shape_of(const struct operation *op, int target, struct shape *shape);
uint8_t *slot_at(int owner, int target, enum end_of end, uint32_t slot);
/* Index of a slot's first range in its host's memory. */
uint32_t range_of(int other, enum end_of end, uint32_t slot);

/* The operation's bytes into one end of its slot. */
void put_content(const struct operation *op, int target, enum end_of end);
/* Whether they are there, and the guard around them; says what is not. */
bool check_content(const struct operation *op, int target, enum end_of end);
void put_guard(int owner, int target, enum end_of end, uint32_t slot);
/* Only where the operation's bytes are. */
void put_guard_back(const struct operation *op, int target, enum end_of end);
/* Whether a slot that nobody uses is as it was left. */
void check_guard(int owner, int target, enum end_of end, uint32_t slot);
const char *text_of(const struct operation *op);

#endif
