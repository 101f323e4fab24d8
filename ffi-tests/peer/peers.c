/* Peers that come and go, die, stop, and come back. */
#include "harness.h"

/* ---- No endpoint at the address ---- */

/* Connects, and expects that no peer is found within the timeout. */
static void finds_nobody(struct box *box, const void *address, size_t len)
{
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    struct send_request message = SEND_REQUEST_INIT;
    weft_peer peer = 0;
    weft_op sent = 0;
    int mark;
    args.timeout_ns = SECOND;
    args.user_data = &mark;
    uint64_t began = judged_from();
    CHECK_OK(weft_peer_connect(box->endpoint, address, len, &args, &peer));
    message.peer = peer;
    message.data = "anybody?";
    message.len = 8;
    /* Waits for the peer; if that was refused at once, it has ended. */
    weft_status status = submit_send(box->endpoint, &message, &sent);
    CHECK_ONE_OF(status, WEFT_OK, WEFT_ERR_PEER_LOST, WEFT_ERR_PEER_CLOSED);
    weft_completion up = box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms());
    CHECK_WITHIN(began + args.timeout_ns, up.done_ns, LATE_MOST);
    CHECK_ONE_OF(up.status, WEFT_ERR_UNREACHABLE, WEFT_ERR_PEER_GONE);
    CHECK(up.peer == peer && up.user_data == &mark);
    if (status == WEFT_OK) {
        weft_completion c = box_await(box, sent, patience_ms());
        CHECK_WITHIN(began + args.timeout_ns, c.done_ns, LATE_MOST);
        CHECK(c.status != WEFT_OK);
        CHECK_EQ(c.bytes, 0);
    }
    box_quiet(box, 300); /* no PEER_DOWN: it was never up */
    status = submit_send(box->endpoint, &message, NULL);
    CHECK_ONE_OF(status, WEFT_ERR_HANDLE, WEFT_ERR_PEER_LOST, WEFT_ERR_PEER_CLOSED);
}

static void closes_and_reports(struct team *team)
{
    char address[4096];
    weft_endpoint *endpoint = open_endpoint();
    size_t len = address_of(endpoint, address, sizeof address);
    CHECK_OK(weft_endpoint_destroy(endpoint));
    tell(team, 0, address, len);
    meet(team, 0, NULL);
}

static void dies_after_a_report(struct team *team)
{
    char address[4096];
    weft_endpoint *endpoint = open_endpoint();
    tell(team, 0, address, address_of(endpoint, address, sizeof address));
    _exit(0);
}

static void calls_the_dead(struct team *team)
{
    char address[4096];
    struct box *box = box_of(open_endpoint());
    size_t len = hear(team, 1, NULL, address, sizeof address);
    sleep_ms(300);
    finds_nobody(box, address, len);
    finds_nobody(box, address, len); /* and again */
    box_close(box);
}

static void calls_the_closed(struct team *team)
{
    calls_the_dead(team);
    meet(team, 1, NULL);
}

static void closed_endpoint_is_unreachable(void)
{
    run_pair(calls_the_closed, closes_and_reports);
}

static void dead_process_is_unreachable(void)
{
    run_pair(calls_the_dead, dies_after_a_report);
}

/* Engines move memory within a process by the same calls. */
static void endpoint_is_its_own_peer(void)
{
    const uint64_t half = MIB;
    char address[4096], descriptor[4096];
    struct box *box = box_of(open_endpoint());
    size_t len = address_of(box->endpoint, address, sizeof address), descriptor_len;
    uint8_t *bytes = map_bytes(2 * half);
    weft_memory *memory = register_one(box->endpoint, bytes, 2 * half);
    weft_counter counter;
    CHECK_OK(weft_counter_create(box->endpoint, &counter));
    descriptor_len = descriptor_of(memory, descriptor, sizeof descriptor);
    for (uint64_t life = 0; life < 3; life++) {
        weft_peer ourselves = 0;
        weft_remote_memory *remote;
        weft_op id;
        CHECK_OK(weft_peer_connect(box->endpoint, address, len, NULL, &ourselves));
        weft_completion c = box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms());
        CHECK_OK(c.status);
        CHECK(c.peer == ourselves && !c.accepted);
        CHECK_OK(weft_remote_memory_import(box->endpoint, ourselves, descriptor, descriptor_len, &remote));
        /* One direction by a write, the other by a read. */
        struct range_request args = range_args(memory, remote, half);
        args.remote_offset = half;
        args.options.flags = WEFT_NOTIFY;
        args.options.notify = life + 1;
        args.options.counter = counter;
        fill_random(bytes, half, life);
        CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
        c = box_take(box, WEFT_COMPLETION_NOTIFICATION, patience_ms());
        CHECK(c.peer == ourselves && c.notify == life + 1);
        CHECK_EQ(differs_random(bytes + half, half, life), -1);
        memset(bytes, 0, half);
        args.options = range_args(memory, remote, half).options;
        CHECK_OK(submit_read(box->endpoint, &args, &id));
        CHECK_OK(box_await(box, id, patience_ms()).status);
        CHECK_EQ(differs_random(bytes, half, life), -1);
        CHECK_OK(box_await(box, send_now(box, ourselves, &life, sizeof life), patience_ms()).status);
        c = box_take(box, WEFT_COMPLETION_MESSAGE, patience_ms());
        CHECK(c.peer == ourselves && c.bytes == sizeof life && memcmp(c.data, &life, sizeof life) == 0);
        CHECK_OK(weft_message_release(box->endpoint, c.op));
        struct atomic_request add = ATOMIC_REQUEST_INIT;
        add.remote = remote;
        add.operand = 1;
        memset(bytes, 0, 8);
        CHECK_OK(submit_fetch_add(box->endpoint, &add, &id));
        CHECK_OK(box_await(box, id, patience_ms()).status);
        CHECK_EQ(bytes[0], 1);
        struct fence_request fence = FENCE_REQUEST_INIT;
        fence.peer = ourselves;
        CHECK_OK(submit_fence(box->endpoint, &fence, &id));
        CHECK_OK(box_await(box, id, patience_ms()).status);
        uint64_t counted;
        CHECK_OK(weft_counter_read(box->endpoint, counter, &counted));
        CHECK_EQ(counted, life + 1);
        CHECK_OK(weft_peer_disconnect(box->endpoint, ourselves));
        c = box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms());
        CHECK(c.peer == ourselves && c.status == WEFT_OK);
        CHECK_OK(weft_remote_memory_release(remote));
    }
    CHECK_OK(weft_counter_destroy(box->endpoint, counter));
    CHECK_OK(weft_memory_deregister(memory));
    box_close(box);
}

/* A connect to a peer that is ending gets how it ends: nothing is up. */
static void connect_to_an_ending_peer_does_not_come_up(void)
{
    char address[4096];
    weft_endpoint_config config = test_config();
    config.progress = WEFT_PROGRESS_MANUAL; /* so that nothing ends between the calls */
    struct box *box = box_of(open_with(&config));
    size_t len = address_of(box->endpoint, address, sizeof address);
    weft_peer first = 0, second = 0;
    CHECK_OK(weft_peer_connect(box->endpoint, address, len, NULL, &first));
    CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(weft_peer_disconnect(box->endpoint, first));
    CHECK_OK(weft_peer_connect(box->endpoint, address, len, NULL, &second));
    CHECK(second == first);
    CHECK_STATUS(box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms()).status, WEFT_ERR_CANCELED);
    CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status);
    CHECK_OK(weft_peer_connect(box->endpoint, address, len, NULL, &second));
    CHECK(second != first);
    CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    box_close(box);
}

/* ---- The peer returns ---- */

static void restarts(struct team *team)
{
    uint8_t *bytes = map_bytes(4096);
    char address[4096];
    memset(bytes, 0x33, 4096);
    for (int life = 0; life < 2; life++) {
        struct box *box = box_of(open_endpoint());
        tell(team, 0, address, address_of(box->endpoint, address, sizeof address));
        weft_memory *memory = register_one(box->endpoint, bytes, 4096);
        give_memory(team, 0, memory);
        meet(team, 0, box);
        box_close(box);
    }
    for (size_t i = 0; i < 4096; i++)
        CHECK(bytes[i] == 0x33);
}

static void meets_the_restarted(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    char address[2][4096], descriptor[2][4096];
    size_t address_len[2], descriptor_len[2];
    weft_peer peer[2];
    weft_remote_memory *remote = NULL;
    for (int life = 0; life < 2; life++) {
        address_len[life] = hear(team, 1, box, address[life], sizeof address[life]);
        descriptor_len[life] = hear(team, 1, box, descriptor[life], sizeof descriptor[life]);
        if (life == 1)
            finds_nobody(box, address[0], address_len[0]);
        CHECK_OK(weft_peer_connect(box->endpoint, address[life], address_len[life], NULL,
                                   &peer[life]));
        CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
        if (life == 1) {
            CHECK(peer[0] != peer[1]);
            REFUSED(WEFT_ERR_PEER_GONE,
                    weft_remote_memory_import(box->endpoint, peer[1], descriptor[0],
                                              descriptor_len[0], &remote));
            REFUSED(WEFT_ERR_HANDLE,
                    weft_remote_memory_import(box->endpoint, peer[0], descriptor[0],
                                              descriptor_len[0], &remote));
        }
        CHECK_OK(weft_remote_memory_import(box->endpoint, peer[life], descriptor[life],
                                           descriptor_len[life], &remote));
        meet(team, 1, box);
        CHECK_STATUS(box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status,
                     WEFT_ERR_PEER_CLOSED);
        /* Operations that name the old peer are answered. */
        uint8_t byte = 1;
        weft_memory *mine = register_one(box->endpoint, &byte, 1);
        struct range_request args = range_args(mine, remote, 1);
        weft_op id;
        weft_status status = submit_write(box->endpoint, &args, &id);
        if (status == WEFT_OK)
            status = box_await(box, id, patience_ms()).status;
        CHECK_ONE_OF(status, WEFT_ERR_PEER_CLOSED, WEFT_ERR_PEER_GONE, WEFT_ERR_PEER_LOST,
                     WEFT_ERR_HANDLE);
        CHECK_OK(weft_memory_deregister(mine));
        CHECK_OK(weft_remote_memory_release(remote));
    }
    box_close(box);
}

static void restarted_endpoint_is_a_new_peer(void)
{
    run_pair(meets_the_restarted, restarts);
}

static void comes_and_goes(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    char address[4096];
    weft_peer peer, last = 0;
    size_t len = hear(team, 1, box, address, sizeof address);
    int fds = 0, threads = 0;
    for (int i = 0; i < 103; i++) {
        if (i == 3) {
            fds = open_fds();
            threads = running_threads();
        }
        CHECK_OK(weft_peer_connect(box->endpoint, address, len, NULL, &peer));
        CHECK(peer != last);
        CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
        CHECK_OK(box_await(box, send_now(box, peer, &i, sizeof i), patience_ms()).status);
        CHECK_OK(weft_peer_disconnect(box->endpoint, peer));
        weft_completion down = box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms());
        CHECK_OK(down.status);
        CHECK(down.peer == peer);
        CHECK_STATUS(weft_peer_disconnect(box->endpoint, peer), WEFT_ERR_HANDLE);
        last = peer;
        meet(team, 1, box);
    }
    for (uint64_t until = now_ns() + patience_ms() * MS; open_fds() > fds + 4; sleep_ms(20))
        if (now_ns() > until)
            FAIL("%d descriptors were open after 3 rounds, %d after 103", fds, open_fds());
    if (!team_is_threads()) /* the other side has some of them */
        CHECK_EQ(running_threads(), threads);
    box_close(box);
}

static void is_visited(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    char address[4096];
    tell(team, 0, address, address_of(box->endpoint, address, sizeof address));
    int fds = 0;
    for (int i = 0; i < 103; i++) {
        if (i == 3)
            fds = open_fds();
        weft_completion up = box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms());
        CHECK_OK(up.status);
        CHECK_EQ(up.accepted, 1);
        weft_completion got = box_take(box, WEFT_COMPLETION_MESSAGE, patience_ms());
        CHECK(got.bytes == sizeof i && memcmp(got.data, &i, sizeof i) == 0);
        CHECK(got.peer == up.peer);
        CHECK_OK(weft_message_release(box->endpoint, got.op));
        weft_completion down = box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms());
        CHECK_STATUS(down.status, WEFT_ERR_PEER_CLOSED);
        CHECK(down.peer == up.peer);
        meet(team, 0, box);
    }
    for (uint64_t until = now_ns() + patience_ms() * MS; open_fds() > fds + 4; sleep_ms(20))
        if (now_ns() > until)
            FAIL("%d descriptors were open after 3 rounds, %d after 103", fds, open_fds());
    box_close(box);
}

static void repeated_connects_and_disconnects_work(void)
{
    run_pair(comes_and_goes, is_visited);
}

/* ---- Both connect at once, and again ---- */

static void connects_at_once(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    char mine[4096], theirs[4096];
    int other = 1 - team->rank, mark;
    tell(team, other, mine, address_of(box->endpoint, mine, sizeof mine));
    size_t len = hear(team, other, box, theirs, sizeof theirs);
    for (int round = 0; round < 20; round++) {
        weft_op_options args = WEFT_OP_OPTIONS_INIT;
        weft_peer peer;
        args.user_data = &mark;
        meet(team, other, box);
        if (round % 4 == 3) /* one side somewhat later */
            usleep((useconds_t)(team->rank * round * 20));
        CHECK_OK(weft_peer_connect(box->endpoint, theirs, len, &args, &peer));
        /* One answer to our connect; one more if theirs arrived first. */
        int asked = 0, accepted = 0;
        uint64_t until = now_ns() + patience_ms() * MS;
        while (!asked) {
            weft_completion up;
            CHECK(now_ns() < until);
            box_pump(box, 10);
            while (box_try(box, WEFT_COMPLETION_PEER_UP, &up)) {
                CHECK_OK(up.status);
                CHECK(up.peer == peer);
                if (up.user_data == &mark)
                    asked++;
                else
                    accepted++;
            }
        }
        send_now(box, peer, &round, sizeof round);
        weft_completion got = box_take(box, WEFT_COMPLETION_MESSAGE, patience_ms());
        CHECK(got.peer == peer && got.bytes == sizeof round);
        CHECK(memcmp(got.data, &round, sizeof round) == 0);
        CHECK_OK(weft_message_release(box->endpoint, got.op));
        CHECK_OK(box_take(box, WEFT_COMPLETION_SEND, patience_ms()).status);
        weft_endpoint_properties p = WEFT_ENDPOINT_PROPERTIES_INIT;
        CHECK_OK(weft_endpoint_info(box->endpoint, &p, NULL));
        CHECK_EQ(p.peers, 1);
        meet(team, other, box);
        weft_completion up;
        while (box_try(box, WEFT_COMPLETION_PEER_UP, &up)) {
            CHECK(up.user_data != &mark && up.peer == peer);
            accepted++;
        }
        CHECK(asked == 1 && accepted <= 1);
        box_quiet(box, 50);
        meet(team, other, box);
        if (team->rank == round % 2)
            CHECK_OK(weft_peer_disconnect(box->endpoint, peer));
        weft_completion down = box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms());
        CHECK_STATUS(down.status, team->rank == round % 2 ? WEFT_OK : WEFT_ERR_PEER_CLOSED);
        CHECK(down.peer == peer);
        box_quiet(box, 20);
    }
    box_close(box);
}

static void both_connect_at_once(void)
{
    run_pair(connects_at_once, connects_at_once);
}

static void connecting_again_gives_the_same_peer(void)
{
    struct duo duo = duo_open(4096);
    char address[4096];
    int mark;
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    weft_peer peer = 0;
    size_t len = address_of(duo.b->endpoint, address, sizeof address);
    args.user_data = &mark;
    CHECK_OK(weft_peer_connect(duo.a->endpoint, address, len, &args, &peer));
    CHECK(peer == duo.a_to_b);
    weft_completion up = box_take(duo.a, WEFT_COMPLETION_PEER_UP, patience_ms());
    CHECK_OK(up.status);
    CHECK(up.peer == peer && up.user_data == &mark);
    box_quiet(duo.a, 50);
    /* From the accepting side, too. */
    len = address_of(duo.a->endpoint, address, sizeof address);
    CHECK_OK(weft_peer_connect(duo.b->endpoint, address, len, NULL, &peer));
    CHECK(peer == duo.b_to_a);
    CHECK_OK(box_take(duo.b, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    box_quiet(duo.a, 50);
    box_quiet(duo.b, 50);
    duo_close(&duo);
}

static void peers_beyond_the_limit_are_refused(void)
{
    weft_endpoint_config config = test_config();
    config.max_peers = 1;
    struct box *small = box_of(open_with(&config));
    struct box *b = box_of(open_endpoint()), *c = box_of(open_endpoint());
    char address[4096];
    weft_peer peer;
    weft_op_options args = WEFT_OP_OPTIONS_INIT;
    size_t len = address_of(b->endpoint, address, sizeof address);
    CHECK_OK(weft_peer_connect(small->endpoint, address, len, NULL, &peer));
    CHECK_OK(box_take(small, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    len = address_of(c->endpoint, address, sizeof address);
    REFUSED(WEFT_ERR_LIMIT, weft_peer_connect(small->endpoint, address, len, NULL, &peer));
    /* A third endpoint cannot connect either, and gets the reason. */
    len = address_of(small->endpoint, address, sizeof address);
    args.timeout_ns = SECOND;
    CHECK_OK(weft_peer_connect(c->endpoint, address, len, &args, &peer));
    CHECK_STATUS(box_take(c, WEFT_COMPLETION_PEER_UP, patience_ms()).status, WEFT_ERR_UNREACHABLE);
    box_quiet(small, 50);
    box_close(small);
    box_close(b);
    box_close(c);
}

/* ---- Disconnecting with operations in flight ---- */

#define PENDING 100

static void disconnects(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 1, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(MIB), MIB);
    weft_remote_memory *theirs = take_memory(team, 1, box, peer);
    meet(team, 1, box);
    for (size_t i = 0; i < PENDING; i++) {
        struct range_request args = range_args(memory, theirs, MIB);
        CHECK_OK(submit_write(box->endpoint, &args, NULL));
    }
    CHECK_OK(weft_peer_disconnect(box->endpoint, peer));
    tell(team, 1, "", 1);
    /* PEER_DOWN arrives when all operations with the peer have completed. */
    size_t completed = 0, canceled = 0;
    uint64_t until = now_ns() + patience_ms() * MS;
    weft_completion c;
    for (bool down = false; !down;) {
        CHECK(now_ns() < until);
        box_pump(box, 10);
        for (size_t i = 0; i < box->count; i++) {
            c = box->items[i];
            CHECK(!down);
            if (c.kind == WEFT_COMPLETION_PEER_DOWN) {
                CHECK_OK(c.status);
                CHECK(c.peer == peer);
                down = true;
                continue;
            }
            CHECK_EQ(c.kind, WEFT_COMPLETION_WRITE);
            canceled += CHECK_ONE_OF(c.status, WEFT_ERR_CANCELED, WEFT_OK) != WEFT_OK;
            completed++;
        }
        box->count = 0;
    }
    CHECK_EQ(completed, PENDING);
    CHECK(canceled > 0);
    box_quiet(box, 100);
    /* The fabric may take a while to return operations in flight. */
    weft_status busy;
    while ((busy = weft_memory_deregister(memory)) == WEFT_ERR_BUSY && now_ns() < until)
        sleep_ms(1);
    CHECK_OK(busy);
    CHECK_OK(weft_remote_memory_release(theirs));
    REFUSED(WEFT_ERR_HANDLE, weft_peer_disconnect(box->endpoint, peer));
    meet(team, 1, NULL);
    box_close(box);
}

static void is_left(struct team *team)
{
    weft_endpoint_config config = test_config();
    config.progress = WEFT_PROGRESS_MANUAL; /* so that writes wait while it sleeps */
    struct box *box = box_of(open_with(&config));
    weft_peer peer = join(team, 0, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(MIB), MIB);
    give_memory(team, 0, memory);
    meet(team, 0, box);
    hear(team, 0, NULL, &(char){0}, 1); /* sleeps meanwhile */
    weft_completion down = box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms());
    CHECK_STATUS(down.status, WEFT_ERR_PEER_CLOSED);
    CHECK(down.peer == peer);
    meet(team, 0, box);
    box_quiet(box, 100);
    CHECK_OK(weft_memory_deregister(memory));
    box_close(box);
}

static void disconnect_ends_operations(void)
{
    run_pair(disconnects, is_left);
}

/* ---- Death during a transfer ---- */

#define KILLED_WRITES 400

static size_t killed_at = 60;

/* Writes to 1, which is killed, and to 2, which must not be affected. */
static void outlives(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_memory *memory = register_one(box->endpoint, map_bytes(MIB), MIB);
    weft_peer peer[3] = {0};
    weft_remote_memory *theirs[3] = {0};
    for (int r = 1; r <= 2; r++) {
        peer[r] = join(team, r, box);
        theirs[r] = take_memory(team, r, box, peer[r]);
    }
    weft_op ids[KILLED_WRITES] = {0};
    int seen[KILLED_WRITES] = {0};
    size_t accepted = 0, completed = 0;
    uint64_t timeout = 5 * SECOND;
    judged_from();
    for (size_t i = 0; i < KILLED_WRITES; i++) {
        int to = 1 + (int)(i % 2);
        struct range_request args = range_args(memory, theirs[to], MIB);
        args.options.user_data = (void *)(uintptr_t)(i + 1);
        args.options.timeout_ns = to == 1 ? timeout : patience_ms() * MS;
        args.options.flags = i % 4 < 2 ? WEFT_NOTIFY : 0;
        weft_status status = submit_write(box->endpoint, &args, &ids[i]);
        if (to == 2)
            CHECK_OK(status);
        else
            CHECK_ONE_OF(status, WEFT_OK, WEFT_ERR_PEER_LOST, WEFT_ERR_PEER_CLOSED,
                         WEFT_ERR_HANDLE);
        accepted += status == WEFT_OK;
        if (i == killed_at)
            kill_member(team, 1);
    }
    uint64_t until = now_ns() + 2 * patience_ms() * MS;
    size_t down = 0;
    while (completed < accepted) {
        if (now_ns() > until)
            FAIL("%zu of %zu writes did not complete", accepted - completed, accepted);
        box_pump(box, 10);
        for (size_t k = 0; k < box->count; k++) {
            weft_completion c = box->items[k];
            if (c.kind == WEFT_COMPLETION_PEER_DOWN) {
                CHECK(c.peer == peer[1]);
                CHECK_STATUS(c.status, WEFT_ERR_PEER_LOST);
                down++;
                continue;
            }
            size_t i = (size_t)(uintptr_t)c.user_data - 1;
            CHECK(i < KILLED_WRITES && c.op == ids[i]);
            seen[i]++;
            completed++;
            if (i % 2 == 1)
                CHECK_OK(c.status);
            else
                CHECK_ONE_OF(c.status, WEFT_OK, WEFT_ERR_PEER_LOST, WEFT_ERR_TIMED_OUT);
            if (i % 2 == 0)
                CHECK_WITHIN(c.submit_ns + timeout, c.done_ns, LATE_MOST);
        }
        box->count = 0;
    }
    for (size_t i = 0; i < KILLED_WRITES; i++)
        CHECK(seen[i] <= 1);
    if (!down)
        CHECK_STATUS(box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status,
                     WEFT_ERR_PEER_LOST);
    CHECK(down <= 1);
    box_quiet(box, 300);
    CHECK_OK(weft_remote_memory_release(theirs[1]));
    meet(team, 2, box);
    CHECK_OK(weft_memory_deregister(memory));
    box_close(box);
}

static void waits_to_be_killed(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    give_memory(team, 0, register_one(box->endpoint, map_bytes(MIB), MIB));
    for (;;)
        box_pump(box, 100);
}

static void survives_as_a_target(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    join(team, 0, box);
    give_memory(team, 0, register_one(box->endpoint, map_bytes(MIB), MIB));
    meet(team, 0, box);
    box_close(box);
}

static void killed_peer(void)
{
    const role roles[] = {outlives, waits_to_be_killed, survives_as_a_target};
    run_team(3, roles);
}

static void peer_killed_twenty_times_is_lost_each_time(void)
{
    for (killed_at = 5; killed_at <= 195; killed_at += 10)
        killed_peer();
}

/* The writer dies: its target gets PEER_DOWN and can free its memory. */
static void target_of_the_killed(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    uint8_t *bytes = map_bytes(16 * MIB);
    join(team, 1, box);
    weft_memory *memory = register_one(box->endpoint, bytes, 16 * MIB);
    give_memory(team, 1, memory);
    meet(team, 1, box);
    sleep_ms(100);
    kill_member(team, 1);
    CHECK_STATUS(box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status,
                 WEFT_ERR_PEER_LOST);
    uint64_t began = judged_from();
    CHECK_OK(weft_memory_deregister(memory));
    CHECK_WITHIN(began, now_ns(), 3 * SECOND);
    memset(bytes, 0x11, 16 * MIB);
    sleep_ms(300);
    for (size_t i = 0; i < 16 * MIB; i++)
        if (bytes[i] != 0x11)
            FAIL("a dead peer's write landed at %zu", i);
    box_close(box);
}

static void writes_until_killed(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 0, box);
    weft_memory *memory = register_one(box->endpoint, map_bytes(16 * MIB), 16 * MIB);
    weft_remote_memory *theirs = take_memory(team, 0, box, peer);
    meet(team, 0, box);
    for (;;) {
        struct range_request args = range_args(memory, theirs, 16 * MIB);
        if (submit_write(box->endpoint, &args, NULL) != WEFT_OK)
            sched_yield();
        box_pump(box, 0);
        box->count = 0;
    }
}

static void killed_writer_ends_and_memory_can_be_freed(void)
{
    run_pair(target_of_the_killed, writes_until_killed);
}

/* ---- Memory that its owner has deregistered ---- */

static void gives_gone_memory(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    uint8_t *bytes = map_bytes(4096);
    char descriptor[4096];
    join(team, 1, box);
    weft_memory *memory = register_one(box->endpoint, bytes, 4096);
    size_t len = descriptor_of(memory, descriptor, sizeof descriptor);
    CHECK_OK(weft_memory_deregister(memory));
    tell(team, 1, descriptor, len);
    meet(team, 1, box);
    for (size_t i = 0; i < 4096; i++)
        CHECK(bytes[i] == 0);
    box_close(box);
}

static void uses_gone_memory(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 0, box);
    uint8_t *bytes = map_bytes(4096);
    char descriptor[4096];
    weft_memory *memory = register_one(box->endpoint, bytes, 4096);
    memset(bytes, 1, 4096);
    size_t len = hear(team, 0, box, descriptor, sizeof descriptor);
    for (int i = 0; i < 4; i++) {
        weft_remote_memory *remote = NULL;
        weft_status status =
            weft_remote_memory_import(box->endpoint, peer, descriptor, len, &remote);
        if (status != WEFT_OK) {
            CHECK_STATUS(status, WEFT_ERR_MEMORY_GONE);
            continue;
        }
        struct range_request args = range_args(memory, remote, 4096);
        weft_op id;
        if (i >= 2)
            sleep_ms(100);
        status = i % 2 ? submit_read(box->endpoint, &args, &id) : submit_write(box->endpoint, &args, &id);
        if (status == WEFT_OK)
            status = box_await(box, id, patience_ms()).status;
        CHECK_STATUS(status, WEFT_ERR_MEMORY_GONE);
        CHECK_OK(weft_remote_memory_release(remote));
    }
    meet(team, 0, box);
    box_close(box);
}

static void memory_deregistered_before_import(void)
{
    run_pair(gives_gone_memory, uses_gone_memory);
}

static void takes_memory_back(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    uint8_t *bytes = map_bytes(4 * MIB);
    join(team, 1, box);
    for (int round = 0; round < 10; round++) {
        weft_memory *memory = register_one(box->endpoint, bytes, 4 * MIB);
        give_memory(team, 1, memory);
        meet(team, 1, box);
        sleep_ms(20);
        CHECK_OK(weft_memory_deregister(memory)); /* while writes come in */
        memset(bytes, round, 4 * MIB);
        meet(team, 1, box);
        sleep_ms(30);
        for (size_t i = 0; i < 4 * MIB; i++)
            if (bytes[i] != round)
                FAIL("a late write landed at %zu", i);
        CHECK_STATUS(weft_memory_deregister(memory), WEFT_ERR_HANDLE);
    }
    meet(team, 1, box);
    box_close(box);
}

static void writes_to_what_goes(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 0, box);
    uint8_t *bytes = map_bytes(4 * MIB);
    weft_memory *memory = register_one(box->endpoint, bytes, 4 * MIB);
    memset(bytes, 0xee, 4 * MIB);
    for (int round = 0; round < 10; round++) {
        weft_remote_memory *theirs = take_memory(team, 0, box, peer);
        meet(team, 0, box);
        size_t good = 0, outstanding = 0;
        bool gone = false;
        uint64_t until = now_ns() + patience_ms() * MS;
        while (!gone || outstanding > 0) {
            CHECK(now_ns() < until);
            struct range_request args = range_args(memory, theirs, 4 * MIB);
            if (!gone && outstanding < 8) {
                weft_status status = submit_write(box->endpoint, &args, NULL);
                if (status == WEFT_OK)
                    outstanding++;
                else {
                    CHECK_STATUS(status, WEFT_ERR_MEMORY_GONE);
                    gone = true;
                }
            }
            box_pump(box, 1);
            weft_completion c;
            while (box_try(box, WEFT_COMPLETION_WRITE, &c)) {
                outstanding--;
                if (CHECK_ONE_OF(c.status, WEFT_OK, WEFT_ERR_MEMORY_GONE) == WEFT_OK)
                    good++;
                else
                    gone = true;
            }
        }
        meet(team, 0, box);
        /* Gone permanently. */
        struct range_request args = range_args(memory, theirs, 8);
        weft_op id;
        weft_status status = submit_write(box->endpoint, &args, &id);
        if (status == WEFT_OK)
            status = box_await(box, id, patience_ms()).status;
        CHECK_STATUS(status, WEFT_ERR_MEMORY_GONE);
        CHECK_OK(weft_remote_memory_release(theirs));
    }
    meet(team, 0, box);
    box_quiet(box, 50);
    box_close(box);
}

static void memory_deregistered_under_load(void)
{
    run_pair(takes_memory_back, writes_to_what_goes);
}

/* A stopped importer delays deregistration by 2 s, and is disconnected. */
static void deregisters_beside_the_stopped(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_memory *memory = register_one(box->endpoint, map_bytes(4096), 4096);
    join(team, 1, box);
    give_memory(team, 1, memory);
    meet(team, 1, box);
    pid_t pid = pid_of(team, 1);
    stop_process(pid);
    uint64_t began = judged_from();
    weft_status status = weft_memory_deregister(memory);
    uint64_t ended = now_ns();
    CHECK(kill(pid, SIGCONT) == 0);
    CHECK_OK(status);
    CHECK(ended - began >= 1500 * MS);
    CHECK_WITHIN(began + 2 * SECOND, ended, 4 * SECOND);
    CHECK_STATUS(box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status, WEFT_ERR_PEER_LOST);
    meet(team, 1, NULL);
    box_close(box);
}

static void imports_and_is_stopped(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    weft_peer peer = join(team, 0, box);
    weft_memory *mine = register_one(box->endpoint, map_bytes(4096), 4096);
    weft_remote_memory *theirs = take_memory(team, 0, box, peer);
    struct range_request args = range_args(mine, theirs, 4096);
    CHECK_OK(box_await(box, write_now(box, &args), patience_ms()).status);
    meet(team, 0, box);
    CHECK_ONE_OF(box_take(box, WEFT_COMPLETION_PEER_DOWN, patience_ms()).status,
                 WEFT_ERR_PEER_LOST, WEFT_ERR_PEER_CLOSED);
    meet(team, 0, NULL);
    box_close(box);
}

static void stopped_importer_delays_deregister_and_is_disconnected(void)
{
    run_pair(deregisters_beside_the_stopped, imports_and_is_stopped);
}

/* ---- Every call about a peer before it is up ---- */

static void asks_at_once(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    char address[8192], descriptor[8192];
    weft_peer peer;
    weft_remote_memory *theirs;
    uint8_t *bytes = map_bytes(4096);
    fill_random(bytes, 4096, 5);
    weft_memory *mine = register_one(box->endpoint, bytes, 4096);
    size_t address_len = hear(team, 1, box, address, sizeof address);
    size_t len = hear(team, 1, box, descriptor, sizeof descriptor);
    CHECK_OK(weft_peer_connect(box->endpoint, address, address_len, NULL, &peer));
    CHECK_OK(weft_remote_memory_import(box->endpoint, peer, descriptor, len, &theirs));
    struct range_request args = range_args(mine, theirs, 4096);
    weft_op written = write_now(box, &args);
    weft_op sent = send_now(box, peer, "at once", 7);
    CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(box_await(box, written, patience_ms()).status);
    CHECK_OK(box_await(box, sent, patience_ms()).status);
    meet(team, 1, box);
    CHECK_OK(weft_remote_memory_release(theirs));
    box_close(box);
}

static void is_asked_at_once(struct team *team)
{
    struct box *box = box_of(open_endpoint());
    char address[8192];
    uint8_t *bytes = map_bytes(4096);
    weft_memory *memory = register_one(box->endpoint, bytes, 4096);
    tell(team, 0, address, address_of(box->endpoint, address, sizeof address));
    give_memory(team, 0, memory);
    CHECK_OK(box_take(box, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_EQ(box_take(box, WEFT_COMPLETION_MESSAGE, patience_ms()).bytes, 7);
    meet(team, 0, box);
    CHECK_EQ(differs_random(bytes, 4096, 5), -1);
    box_close(box);
}

static void operations_before_the_peer_is_up(void)
{
    for (int round = 0; round < 6; round++) /* chance determines which side is ready first */
        run_pair(asks_at_once, is_asked_at_once);
}

/* ---- Late ends ---- */

enum { CANCELERS = 6, CANCELED_EACH = 32, PARTINGS = 20 };

struct canceler {
    weft_endpoint *endpoint;
    weft_op sends[CANCELED_EACH];
    atomic_bool *go;
    pthread_t thread;
};

static void *cancels(void *argument)
{
    struct canceler *canceler = argument;
    while (!*canceler->go)
        sched_yield();
    for (int i = 0; i < CANCELED_EACH; i++)
        CHECK_ONE_OF(weft_op_cancel(canceler->endpoint, canceler->sends[i]), WEFT_OK, WEFT_ERR_HANDLE);
    return NULL;
}

/* Sends that stay outstanding, as the peer does not poll: each thread has some to cancel. */
static void begin_cancelers(struct canceler *all, weft_endpoint *own, weft_peer peer, atomic_bool *go)
{
    struct send_request args = SEND_REQUEST_INIT;
    args.peer = peer;
    args.data = "outstanding";
    args.len = 11;
    for (int i = 0; i < CANCELERS; i++) {
        all[i] = (struct canceler){.endpoint = own, .go = go};
        for (int n = 0; n < CANCELED_EACH; n++)
            CHECK_OK(submit_send(own, &args, &all[i].sends[n]));
        CHECK_EQ(pthread_create(&all[i].thread, NULL, cancels, &all[i]), 0);
    }
}

/* A peer ends while other threads complete operations with it. */
static void peer_down_follows_all_canceled_operations(void)
{
    weft_endpoint_config config = test_config();
    struct canceler all[CANCELERS];
    char blob[4096];
    weft_completion c, ignored[16];
    config.progress = WEFT_PROGRESS_MANUAL;
    for (int round = 0; round < PARTINGS; round++) {
        weft_endpoint *own = open_endpoint(), *other = open_with(&config);
        struct box *box = box_of(own);
        weft_peer peer;
        atomic_bool go = false;
        size_t n = address_of(other, blob, sizeof blob);
        CHECK_OK(weft_peer_connect(own, blob, n, NULL, &peer));
        while (!box_try(box, WEFT_COMPLETION_PEER_UP, &c)) {
            CHECK(weft_queue_poll(weft_endpoint_queue(other), ignored, 16, 0) >= 0);
            box_pump(box, 0);
        }
        begin_cancelers(all, own, peer, &go);
        go = true;
        CHECK_OK(weft_peer_disconnect(own, peer));
        uint64_t end = now_ns() + patience_ms() * MS;
        for (int seen = 0;;) {
            CHECK(now_ns() < end);
            CHECK(weft_queue_poll(weft_endpoint_queue(other), ignored, 16, 0) >= 0);
            if (weft_queue_poll(weft_endpoint_queue(own), &c, 1, 0) == 0)
                continue;
            if (c.kind == WEFT_COMPLETION_PEER_DOWN) {
                CHECK_EQ(seen, CANCELERS * CANCELED_EACH);
                break;
            }
            CHECK_EQ(c.kind, WEFT_COMPLETION_SEND);
            seen++;
        }
        for (int i = 0; i < CANCELERS; i++)
            CHECK_EQ(pthread_join(all[i].thread, NULL), 0);
        CHECK_OK(weft_endpoint_destroy(other));
        box_close(box);
    }
}

/* ---- A side that leaves after its last message ---- */

#define WORDS 32

struct words {
    struct box *box;
    weft_peer peer;
    _Atomic uint64_t *mine; /* the other side's words, and ours from the second page on */
    struct range_request args;
};

static struct words open_words(struct team *team)
{
    weft_endpoint_config config = test_config();
    int with = !team->rank;
    config.progress = WEFT_PROGRESS_MANUAL;
    struct words words = {.box = box_of(open_with(&config))};
    words.peer = join(team, with, words.box);
    words.mine = (_Atomic uint64_t *)map_bytes(8192);
    weft_memory *memory = register_one(words.box->endpoint, (void *)words.mine, 8192);
    if (team->rank)
        give_memory(team, with, memory);
    weft_remote_memory *theirs = take_memory(team, with, words.box, words.peer);
    if (!team->rank)
        give_memory(team, with, memory);
    words.args = range_args(memory, theirs, sizeof(uint64_t));
    words.args.local_offset = 4096;
    meet(team, with, words.box);
    return words;
}

static weft_op throw_word(struct words *words, uint64_t word)
{
    words->mine[512] = word;
    return write_now(words->box, &words->args);
}

static void catch_word(struct words *words, uint64_t word)
{
    for (uint64_t until = now_ns() + patience_ms() * MS; *words->mine != word; box_pump(words->box, 0))
        CHECK(now_ns() < until);
}

static void throws_first(struct team *team)
{
    for (int round = 0; round < 10; round++) {
        struct words words = open_words(team);
        for (uint64_t word = 1; word < WORDS; word++) {
            weft_op id = throw_word(&words, word);
            catch_word(&words, word);
            CHECK_OK(box_await(words.box, id, patience_ms()).status);
        }
        CHECK_OK(box_await(words.box, throw_word(&words, WORDS), patience_ms()).status);
        box_take(words.box, WEFT_COMPLETION_PEER_DOWN, patience_ms());
        box_close(words.box);
    }
}

static void leaves_with_the_last(struct team *team)
{
    for (int round = 0; round < 10; round++) {
        struct words words = open_words(team);
        for (uint64_t word = 1; word < WORDS; word++) {
            catch_word(&words, word);
            throw_word(&words, word);
        }
        catch_word(&words, WORDS);
        CHECK_OK(weft_endpoint_destroy(words.box->endpoint));
    }
}

static void operations_that_arrived_before_a_close_succeed(void)
{
    run_pair(throws_first, leaves_with_the_last);
}

static const struct test tests[] = {
    {"closed_endpoint_is_unreachable", "any timed", closed_endpoint_is_unreachable},
    {"dead_process_is_unreachable", "tcp,host timed", dead_process_is_unreachable},
    {"endpoint_is_its_own_peer", "any", endpoint_is_its_own_peer},
    {"connect_to_an_ending_peer_does_not_come_up", "any", connect_to_an_ending_peer_does_not_come_up},
    {"restarted_endpoint_is_a_new_peer", "any wide timed", restarted_endpoint_is_a_new_peer},
    {"repeated_connects_and_disconnects_work", "any", repeated_connects_and_disconnects_work},
    {"both_connect_at_once", "any", both_connect_at_once},
    {"connecting_again_gives_the_same_peer", "once", connecting_again_gives_the_same_peer},
    {"peers_beyond_the_limit_are_refused", "once", peers_beyond_the_limit_are_refused},
    {"disconnect_ends_operations", "any", disconnect_ends_operations},
    {"killed_peer", "tcp,host timed", killed_peer},
    {"peer_killed_twenty_times_is_lost_each_time", "host", peer_killed_twenty_times_is_lost_each_time},
    {"killed_writer_ends_and_memory_can_be_freed", "tcp,host timed", killed_writer_ends_and_memory_can_be_freed},
    {"memory_deregistered_before_import", "any", memory_deregistered_before_import},
    {"memory_deregistered_under_load", "any", memory_deregistered_under_load},
    {"stopped_importer_delays_deregister_and_is_disconnected", "tcp,host timed", stopped_importer_delays_deregister_and_is_disconnected},
    {"operations_before_the_peer_is_up", "any", operations_before_the_peer_is_up},
    {"operations_that_arrived_before_a_close_succeed", "tcp,tcp-encrypted", operations_that_arrived_before_a_close_succeed},
    {"peer_down_follows_all_canceled_operations", "any", peer_down_follows_all_canceled_operations},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, tests);
}
