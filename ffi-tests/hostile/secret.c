/* The shared secret: an endpoint that has it becomes a peer, one without it is rejected with a reason, and the secret
   is never sent. */
#include "harness.h"

static const char RIGHT[] = "a secret of 32 bytes, more or less";
static const char WRONG[] = "a secret of 32 bytes, less or more";

static weft_endpoint_config with_secret(const char *secret)
{
    weft_endpoint_config config = test_config();
    config.secret = secret;
    config.secret_len = secret ? strlen(secret) : 0;
    return config;
}

static struct box *open_knowing(const char *secret)
{
    weft_endpoint_config config = with_secret(secret);
    return box_of(open_with(&config));
}

static uint64_t refused_by(struct box *box)
{
    weft_endpoint_statistics done = {0};
    done.size = sizeof done;
    CHECK_OK(weft_endpoint_info(box->endpoint, NULL, &done));
    return done.handshakes_rejected;
}

static weft_peer connect_to(struct box *from, struct box *to)
{
    char address[8192];
    weft_peer peer;
    size_t len = address_of(to->endpoint, address, sizeof address);
    CHECK_OK(weft_peer_connect(from->endpoint, address, len, NULL, &peer));
    return peer;
}

static void message_goes(struct box *from, weft_peer peer, struct box *to)
{
    CHECK_OK(box_await(from, send_now(from, peer, "hello", 5), patience_ms()).status);
    weft_completion got = box_take(to, WEFT_COMPLETION_MESSAGE, patience_ms());
    CHECK(got.bytes == 5 && memcmp(got.data, "hello", 5) == 0);
    CHECK_OK(weft_message_release(to->endpoint, got.op));
}

/* ---- Endpoints that know it ---- */

static void endpoint_with_the_secret_connects(void)
{
    struct box *a = open_knowing(RIGHT), *b = open_knowing(RIGHT);
    weft_peer b_of_a = connect_to(a, b);
    CHECK_OK(box_take(a, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    weft_completion up = box_take(b, WEFT_COMPLETION_PEER_UP, patience_ms());
    CHECK_OK(up.status);
    message_goes(a, b_of_a, b);
    message_goes(b, up.peer, a);
    CHECK_EQ(refused_by(a) + refused_by(b), 0);
    box_close(a);
    box_close(b);
}

static void both_connect_at_once(void)
{
    struct box *a = open_knowing(RIGHT), *b = open_knowing(RIGHT);
    weft_peer b_of_a = connect_to(a, b), a_of_b = connect_to(b, a);
    CHECK_OK(box_take(a, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(box_take(b, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    message_goes(a, b_of_a, b);
    message_goes(b, a_of_b, a);
    box_close(a);
    box_close(b);
}

static void pages_are_written_with_a_secret(void)
{
    weft_endpoint_config config = with_secret(RIGHT);
    struct duo duo = duo_open_with(MIB, &config);
    fill_random(duo.a_bytes, duo.len, 7);
    struct range_request args = range_args(duo.a_memory, duo.b_of_a, duo.len);
    CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    CHECK_EQ(differs_random(duo.b_bytes, duo.len, 7), -1);
    duo_close(&duo);
}

/* The file is read during the open. */
static void secret_is_copied_at_open(void)
{
    char mine[sizeof RIGHT];
    memcpy(mine, RIGHT, sizeof mine);
    struct box *a = open_knowing(mine), *b = open_knowing(RIGHT);
    memset(mine, 'x', sizeof mine);
    connect_to(a, b);
    CHECK_OK(box_take(a, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    box_close(a);
    box_close(b);
}

static void either_of_two_is_accepted(void)
{
    struct box *old = open_knowing(WRONG);
    weft_endpoint_config config = with_secret(RIGHT);
    config.other_secret = WRONG;
    config.other_secret_len = strlen(WRONG);
    struct box *both = box_of(open_with(&config)), *new = open_knowing(RIGHT);
    connect_to(old, both);
    CHECK_OK(box_take(old, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(box_take(both, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    connect_to(both, new);
    CHECK_OK(box_take(new, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(box_take(both, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    connect_to(old, new);
    CHECK_STATUS(box_take(old, WEFT_COMPLETION_PEER_UP, patience_ms()).status, WEFT_ERR_DENIED);
    box_close(old);
    box_close(both);
    box_close(new);
}

static void put_file(const char *name, const char *first, const char *second)
{
    char beside[64];
    CHECK(snprintf(beside, sizeof beside, "%s.new", name) < (int)sizeof beside);
    FILE *file = fopen(beside, "w");
    CHECK(file != NULL && fprintf(file, "%s\n\n%s\n", first, second) > 0 && fclose(file) == 0);
    CHECK(rename(beside, name) == 0);
}

static void secrets_are_read_from_a_file(void)
{
    char name[] = "/tmp/weft-secret-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && close(fd) == 0);
    weft_endpoint_config config = test_config();
    config.secret = NULL, config.secret_len = 0;
    config.secret_file = name;
    weft_endpoint *endpoint = NULL;
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_create(&config, &endpoint)); /* it is empty */
    put_file(name, WRONG, "");
    struct box *of_file = box_of(open_with(&config));
    CHECK(setenv("WEFT_SECRET_FILE", name, 1) == 0);
    config.secret_file = NULL;
    struct box *of_variable = box_of(open_with(&config)), *knows = open_knowing(RIGHT);
    CHECK(unsetenv("WEFT_SECRET_FILE") == 0);
    connect_to(of_variable, of_file);
    CHECK_OK(box_take(of_variable, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(box_take(of_file, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    connect_to(knows, of_file);
    CHECK_STATUS(box_take(knows, WEFT_COMPLETION_PEER_UP, patience_ms()).status, WEFT_ERR_DENIED);
    put_file(name, RIGHT, WRONG);
    sleep_ms(1100); /* the interval at which it is checked */
    connect_to(knows, of_file);
    CHECK_OK(box_take(knows, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(box_take(of_file, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    config = with_secret(RIGHT);
    config.secret_file = name;
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_create(&config, &endpoint)); /* one of the two */
    CHECK(unlink(name) == 0);
    box_close(of_file);
    box_close(of_variable);
    box_close(knows);
}

/* ---- Endpoints that do not ---- */

static void is_denied(const char *mine, const char *theirs)
{
    struct box *a = open_knowing(mine), *b = open_knowing(theirs);
    uint64_t began = judged_from();
    weft_peer peer = connect_to(a, b);
    weft_completion up = box_take(a, WEFT_COMPLETION_PEER_UP, patience_ms());
    CHECK_STATUS(up.status, WEFT_ERR_DENIED);
    CHECK(up.peer == peer);
    CHECK_WITHIN(began, now_ns(), 5 * SECOND); /* sooner than the connect's timeout */
    for (uint64_t since = now_ns(); refused_by(b) == 0; sleep_ms(1))
        CHECK(now_ns() - since < (uint64_t)patience_ms() * MS);
    box_quiet(b, 200);
    struct send_request message = SEND_REQUEST_INIT;
    message.peer = peer;
    REFUSED(WEFT_ERR_HANDLE, submit_send(a->endpoint, &message, NULL));
    /* Others are served as before. */
    struct box *friend = open_knowing(theirs);
    weft_peer b_of_friend = connect_to(friend, b);
    CHECK_OK(box_take(friend, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(box_take(b, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    message_goes(friend, b_of_friend, b);
    box_close(friend);
    box_close(a);
    box_close(b);
}

static void endpoint_with_another_secret_is_denied(void)
{
    is_denied(WRONG, RIGHT);
}

static void endpoint_without_a_secret_is_denied(void)
{
    if (encrypted())
        skip("who encrypts has a secret");
    is_denied(NULL, RIGHT);
}

static void endpoint_with_a_secret_is_denied_by_one_without(void)
{
    if (encrypted())
        skip("who encrypts has a secret");
    is_denied(RIGHT, NULL);
}

static void denial_reaches_both_when_both_connect(void)
{
    struct box *a = open_knowing(WRONG), *b = open_knowing(RIGHT);
    connect_to(a, b);
    connect_to(b, a);
    CHECK_STATUS(box_take(a, WEFT_COMPLETION_PEER_UP, patience_ms()).status, WEFT_ERR_DENIED);
    CHECK_STATUS(box_take(b, WEFT_COMPLETION_PEER_UP, patience_ms()).status, WEFT_ERR_DENIED);
    box_close(a);
    box_close(b);
}

/* ---- Invalid secrets ---- */

static void invalid_secrets_are_refused(void)
{
    static char long_one[1025];
    weft_endpoint *endpoint = NULL;
    weft_endpoint_config config = with_secret(RIGHT);
    config.secret_len = 0;
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_create(&config, &endpoint));
    config.secret_len = 15;
    REFUSED(WEFT_ERR_LIMIT, weft_endpoint_create(&config, &endpoint));
    CHECK(strstr(weft_last_error(), "secret_len is 15") != NULL);
    CHECK(strstr(weft_last_error(), "a secret of") == NULL);
    config.secret_len = UINT64_MAX;
    REFUSED(WEFT_ERR_LIMIT, weft_endpoint_create(&config, &endpoint));
    config.secret = NULL;
    config.secret_len = 0;
    config.other_secret = RIGHT;
    config.other_secret_len = sizeof RIGHT;
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_create(&config, &endpoint));
    config.other_secret = NULL;
    config.other_secret_len = 0;
    config.secret_len = 32;
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_create(&config, &endpoint));
    fill_random(long_one, sizeof long_one, 3);
    config.secret = long_one;
    config.secret_len = sizeof long_one;
    REFUSED(WEFT_ERR_LIMIT, weft_endpoint_create(&config, &endpoint));
    config.secret_len = 1024;
    CHECK_OK(weft_endpoint_destroy(open_with(&config)));
    memset(long_one, 0, sizeof long_one);
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_create(&config, &endpoint));
    CHECK(endpoint == NULL);
    CHECK_EQ(strcmp(weft_status_name(WEFT_ERR_DENIED), "WEFT_ERR_DENIED"), 0);
    CHECK_EQ(weft_status_category(WEFT_ERR_DENIED), WEFT_CATEGORY_PEER);
}

/* ---- Encryption ---- */

static weft_endpoint_config encrypting(const char *secret)
{
    weft_endpoint_config config = with_secret(secret);
    config.encrypt = 1;
    config.fabric = "tcp";
    config.rails = "lo";
    return config;
}

static weft_peer_properties properties_of(struct box *box, weft_peer peer)
{
    weft_peer_properties peers = {0};
    peers.size = sizeof peers;
    CHECK_OK(weft_peer_info(box->endpoint, peer, &peers));
    return peers;
}

static void encrypting_endpoints_connect(void)
{
    weft_endpoint_config config = encrypting(RIGHT);
    struct box *a = box_of(open_with(&config)), *b = box_of(open_with(&config));
    weft_peer b_of_a = connect_to(a, b);
    CHECK_OK(box_take(a, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    CHECK_OK(box_take(b, WEFT_COMPLETION_PEER_UP, patience_ms()).status);
    message_goes(a, b_of_a, b);
    CHECK(strcmp(properties_of(a, b_of_a).fabric, "tcp-encrypted") == 0);
    box_close(a);
    box_close(b);
}

static char rejected[512];

static void keep_rejected(weft_log_level level, const char *component, const char *message, void *user_data)
{
    (void)level, (void)component, (void)user_data;
    if (strstr(message, "rejected what"))
        snprintf(rejected, sizeof rejected, "%s", message);
}

/* Both sides name it, the accepting one with the address; one connect is one cause, and no flood of attempts. */
static void encrypting_endpoint_with_another_secret_is_denied(void)
{
    weft_endpoint_config mine = encrypting(WRONG), theirs = encrypting(RIGHT);
    CHECK_OK(weft_log_set(WEFT_LOG_WARN, keep_rejected, NULL));
    struct box *a = box_of(open_with(&mine)), *b = box_of(open_with(&theirs));
    weft_peer peer = connect_to(a, b);
    CHECK_STATUS(box_take(a, WEFT_COMPLETION_PEER_UP, patience_ms()).status, WEFT_ERR_DENIED);
    char why[512];
    CHECK_OK(weft_peer_reason(a->endpoint, peer, why, sizeof why, &(size_t){0}));
    if (!strstr(why, "the two sides do not have the same secret"))
        FAIL("%s", why);
    box_quiet(b, 200);
    CHECK(refused_by(b) == 1 || refused_by(b) == 2);
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL));
    if (!strstr(rejected, "a handshake from 127.0.0.1:") || !strstr(rejected, "the two sides do not have the same secret"))
        FAIL("%s", rejected);
    box_close(a);
    box_close(b);
}

/* Neither side falls back to unencrypted traffic, and both log why. */
static void unencrypted_endpoint_is_refused(void)
{
    weft_endpoint_config config = encrypting(RIGHT);
    struct box *a = box_of(open_with(&config));
    config.encrypt = 0;
    struct box *b = box_of(open_with(&config));
    struct box *sides[2][2] = {{a, b}, {b, a}};
    for (int i = 0; i < 2; i++) {
        char address[8192];
        weft_peer peer;
        size_t len = address_of(sides[i][1]->endpoint, address, sizeof address);
        REFUSED(WEFT_ERR_NO_COMMON_FABRIC, weft_peer_connect(sides[i][0]->endpoint, address, len, NULL, &peer));
        CHECK(strstr(weft_last_error(), "tcp-encrypted") != NULL);
        CHECK(strstr(weft_last_error(), i == 0 ? "encrypt is set here and not there" : "encrypt is set there and not here") != NULL);
    }
    box_close(a);
    box_close(b);
}

static void encryption_needs_a_secret_and_tcp(void)
{
    weft_endpoint *endpoint = NULL;
    weft_endpoint_config config = encrypting(RIGHT);
    config.fabric = "host,efa";
    REFUSED(WEFT_ERR_UNSUPPORTED, weft_endpoint_create(&config, &endpoint));
    CHECK(strstr(weft_last_error(), "efa") != NULL);
    config = encrypting(NULL);
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_create(&config, &endpoint));
    CHECK(strstr(weft_last_error(), "secret") != NULL);
    config = encrypting(RIGHT);
    config.encrypt = 2;
    REFUSED(WEFT_ERR_INVALID, weft_endpoint_create(&config, &endpoint));
    config = encrypting(RIGHT);
    config.fabric = NULL;
    struct box *box = box_of(open_with(&config));
    box_close(box);
}

/* ---- Who can read it ---- */

static _Atomic int lines, leaks;

static void look_for_it(weft_log_level level, const char *component, const char *message, void *user_data)
{
    (void)level, (void)component, (void)user_data;
    lines++;
    leaks += strstr(message, "secret of 32") != NULL;
}

static void log_does_not_show_the_secret(void)
{
    CHECK_OK(weft_log_set(WEFT_LOG_TRACE, look_for_it, NULL));
    endpoint_with_the_secret_connects();
    endpoint_with_another_secret_is_denied();
    CHECK_OK(weft_log_set(WEFT_LOG_DEFAULT, NULL, NULL));
    CHECK(lines > 0);
    CHECK_EQ(leaks, 0);
}

int main(int argc, char **argv)
{
    const struct test tests[] = {
        {"endpoint_with_the_secret_connects", "any", endpoint_with_the_secret_connects},
        {"both_connect_at_once", "any", both_connect_at_once},
        {"pages_are_written_with_a_secret", "any", pages_are_written_with_a_secret},
        {"secret_is_copied_at_open", "once", secret_is_copied_at_open},
        {"either_of_two_is_accepted", "any", either_of_two_is_accepted},
        {"secrets_are_read_from_a_file", "any", secrets_are_read_from_a_file},
        {"endpoint_with_another_secret_is_denied", "any timed", endpoint_with_another_secret_is_denied},
        {"endpoint_without_a_secret_is_denied", "any timed", endpoint_without_a_secret_is_denied},
        {"endpoint_with_a_secret_is_denied_by_one_without", "any", endpoint_with_a_secret_is_denied_by_one_without},
        {"denial_reaches_both_when_both_connect", "any", denial_reaches_both_when_both_connect},
        {"invalid_secrets_are_refused", "once", invalid_secrets_are_refused},
        {"encrypting_endpoints_connect", "once", encrypting_endpoints_connect},
        {"encrypting_endpoint_with_another_secret_is_denied", "once", encrypting_endpoint_with_another_secret_is_denied},
        {"unencrypted_endpoint_is_refused", "once", unencrypted_endpoint_is_refused},
        {"encryption_needs_a_secret_and_tcp", "once", encryption_needs_a_secret_and_tcp},
        {"log_does_not_show_the_secret", "once", log_does_not_show_the_secret},
        {NULL, NULL, NULL},
    };
    return run_tests(argc, argv, tests);
}
