/*
 * Tests between the hosts of tools/lab.sh, two or three: a member of the team enters a host,
 * and one that uses no Weft moves the links.
 */
#ifndef WEFT_TEST_LAB_H
#define WEFT_TEST_LAB_H

#include "harness.h"

enum side { LEFT, RIGHT, THIRD };

/* From now on this process is on that host. Before any thread is started. */
void lab_enter(enum side side);
/* All rails of this host. */
weft_endpoint *lab_endpoint(void);

/* A link of both hosts of two: no carrier, and back. */
void link_down(int rail);
void link_up(int rail);
/* What a host sends over a rail gets lost, and the link looks well; and back. */
void link_loses(int rail, enum side from);
void link_heals(int rail, enum side from);

/* The same of one host alone: the others do not see it. */
void rail_is(int rail, enum side of, bool up);
/* What a host sends over a rail: as "10mbit". */
void rail_rate(int rail, enum side of, const char *rate);

#endif
