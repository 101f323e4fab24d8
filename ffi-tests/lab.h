/*
 * Tests between the two hosts of tools/lab.sh: a member of the team enters a host,
 * and one that uses no Weft moves the links.
 */
#ifndef WEFT_TEST_LAB_H
#define WEFT_TEST_LAB_H

#include "harness.h"

enum side { LEFT, RIGHT };

/* From now on this process is on that host. Before any thread is started. */
void lab_enter(enum side side);
/* All rails of this host. */
weft_endpoint *lab_endpoint(void);

/* A link of both hosts: no carrier, and back. */
void link_down(int rail);
void link_up(int rail);
/* What a host sends over a rail gets lost, and the link looks well; and back. */
void link_loses(int rail, enum side from);
void link_heals(int rail, enum side from);

#endif
