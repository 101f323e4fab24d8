/*
 * Tests between the two or three hosts of tools/lab.sh: a member of the team enters a host, and one that uses no Weft
 * moves the links.
 */
#ifndef WEFT_TEST_LAB_H
#define WEFT_TEST_LAB_H

#include "harness.h"

enum side { LEFT, RIGHT, THIRD };

/* From now on this process is on that host. Call before any thread is started. */
void lab_enter(enum side side);
/* All rails of this host. */
weft_endpoint *lab_endpoint(void);

/* A link of both hosts of two loses its carrier, and gets it back. */
void link_down(int rail);
void link_up(int rail);
/* Frames that a host sends over a rail are lost, while the link looks up; and the reverse. */
void link_loses(int rail, enum side from);
void link_heals(int rail, enum side from);

/* The same for one host only: the others do not see it. */
void rail_is(int rail, enum side whose, bool up);
/* The rate of what a host sends over a rail, as "10mbit". */
void rail_rate(int rail, enum side whose, const char *rate);
/* Larger packets that a host sends over a rail are lost. */
void rail_carries(int rail, enum side whose, int bytes);

#endif
