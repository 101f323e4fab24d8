/*
 * Which rails register device memory: on a made-up machine whose two GPUs are placed where the fake devices are, with
 * simulated NICs.
 */
#include "gpu.h"

#include <ctype.h>
#include <ftw.h>
#include <sys/stat.h>

#define LEN (2 * MIB)
#define RAILS 4

/* ---- The machine, as sysfs shows it ---- */

static char root[64];

static int remove_one(const char *path, const struct stat *is, int kind, struct FTW *at)
{
    (void)is, (void)kind, (void)at;
    return remove(path);
}

static void remove_machine(void)
{
    nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void make_folders(char *path)
{
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        CHECK(mkdir(path, 0755) == 0 || errno == EEXIST);
        *slash = '/';
    }
}

static void add_file(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    make_folders(path);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0);
    CHECK_EQ(fclose(file), 0);
}

static void add_link(const char *from, const char *to)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, from);
    make_folders(path);
    CHECK_EQ(symlink(to, path), 0);
}

/* Adds a PCI function below a switch. Each switch has its own root complex and NUMA node. */
static void add_function(int branch, const char *address, const char *class, char *folder, size_t size)
{
    char link[128], to[160], node[8];
    snprintf(folder, size, "sys/devices/pci%04x:00/%04x:00:00.0/%s", branch, branch, address);
    snprintf(node, sizeof node, "%d\n", branch % 2);
    add_file(folder, "class", class);
    add_file(folder, "vendor", "0x10de\n");
    add_file(folder, "device", "0x2330\n");
    add_file(folder, "numa_node", node);
    snprintf(link, sizeof link, "sys/bus/pci/devices/%s", address);
    snprintf(to, sizeof to, "../../../../%s", folder);
    add_link(link, to);
}

/* The place of a device: fake devices are where no machine has any. */
static void place_of(int device, char *place, int size)
{
    if (on_cuda())
        CU(cuDeviceGetPCIBusId, place, size, device);
    else
        snprintf(place, (size_t)size, "fa4e:%02x:00.0", device + 1);
    for (char *at = place; *at; at++)
        *at = (char)tolower(*at);
}

/* Two switches, each with a GPU and two NICs; with fewer than 4 `nics`, the last is missing. */
static void machine_begins(int nics)
{
    char folder[128], address[24], link[64], to[192];
    strcpy(root, "/tmp/weft-machine-XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    atexit(remove_machine);
    add_file("sys/devices/system/node/node0", "cpulist", "0-63\n");
    add_file("sys/devices/system/node/node1", "cpulist", "64-127\n");
    if (device_count() < 2)
        skip("there is one device");
    for (int gpu = 0; gpu < 2; gpu++) {
        place_of(gpu, address, sizeof address);
        add_function(gpu, address, "0x030200\n", folder, sizeof folder);
    }
    for (int nic = 0; nic < nics; nic++) {
        snprintf(address, sizeof address, "fa4e:%02x:00.0", nic + 17);
        add_function(nic / 2, address, "0x020000\n", folder, sizeof folder);
        snprintf(to, sizeof to, "../../../%s/net/sim%d", folder, nic);
        snprintf(link, sizeof link, "sys/class/net/sim%d", nic);
        add_link(link, to);
    }
    CHECK_EQ(setenv("WEFT_SYSFS_ROOT", root, 1), 0);
    unsetenv("CUDA_VISIBLE_DEVICES");
}

/* ---- Memory ---- */

static weft_endpoint_config config_of_rails(void)
{
    static char name[64];
    weft_endpoint_config config = test_config();
    snprintf(name, sizeof name, "%s:rails=%d", fabric(), RAILS);
    config.fabric = name;
    return config;
}

static weft_memory *registered(struct box *box, void *at, uint64_t rails)
{
    weft_memory_range range = {at, LEN};
    weft_memory_args args = WEFT_MEMORY_ARGS_INIT;
    weft_memory *memory;
    args.rails = rails;
    CHECK_OK(weft_memory_register(box->endpoint, &range, 1, &args, &memory));
    return memory;
}

static uint64_t rails_of(weft_memory *memory)
{
    weft_memory_properties is = {.size = sizeof is};
    CHECK_OK(weft_memory_info(memory, &is));
    return is.rails;
}

static void check_rails(struct box *box, void *at, uint64_t asked, uint64_t expected)
{
    weft_memory *memory = registered(box, at, asked);
    CHECK_EQ(rails_of(memory), expected);
    CHECK_OK(weft_memory_deregister(memory));
}

static void rails_near_the_device_know_it(void)
{
    devices_begin("");
    machine_begins(RAILS);
    weft_endpoint_config config = config_of_rails();
    struct box *box = box_of(open_with(&config));
    check_rails(box, device_alloc(0, LEN), 0, 3);
    check_rails(box, device_alloc(1, LEN), 0, 12);
    check_rails(box, map_bytes(LEN), 0, 15);
    /* The caller's choice takes precedence. */
    check_rails(box, device_alloc(0, LEN), 8, 8);
    check_rails(box, device_alloc(0, LEN), 15, 15);
    box_close(box);
}

/* A NIC without a known place is near everything. */
static void unplaced_rails_register_device_memory(void)
{
    devices_begin("");
    machine_begins(RAILS - 1);
    weft_endpoint_config config = config_of_rails();
    struct box *box = box_of(open_with(&config));
    check_rails(box, device_alloc(0, LEN), 0, 3 | 8);
    check_rails(box, device_alloc(1, LEN), 0, 4 | 8);
    box_close(box);
}

static void unplaced_device_uses_all_rails(void)
{
    devices_begin("");
    machine_begins(0);
    remove_machine();
    CHECK_EQ(mkdir(root, 0755), 0);
    weft_endpoint_config config = config_of_rails();
    struct box *box = box_of(open_with(&config));
    check_rails(box, device_alloc(0, LEN), 0, 15);
    box_close(box);
}

/* ---- Bytes ---- */

/* What each rail wrote and read, without earlier traffic between the endpoints. */
static void moved(struct box *box, uint64_t bytes[RAILS])
{
    for (uint32_t i = 0; i < RAILS; i++) {
        weft_rail_statistics rail = WEFT_RAIL_STATISTICS_INIT;
        CHECK_OK(weft_rail_info(box->endpoint, i, NULL, &rail));
        bytes[i] = rail.bytes_written + rail.bytes_read;
    }
}

static void check_equal(uint8_t *at, uint64_t seed)
{
    uint8_t *got = malloc(LEN);
    CHECK(got != NULL);
    device_get(got, at, LEN);
    CHECK_EQ(differs_random(got, LEN, seed), -1);
    free(got);
}

static void put(uint8_t *at, uint64_t seed)
{
    uint8_t *bytes = malloc(LEN);
    CHECK(bytes != NULL);
    fill_random(bytes, LEN, seed);
    device_put(at, bytes, LEN);
    free(bytes);
}

/* From the first GPU's memory to the second's: no lane joins their rails before. */
static void bytes_go_by_near_rails(const char *options)
{
    devices_begin(options);
    machine_begins(RAILS);
    weft_endpoint_config config = config_of_rails();
    struct duo duo = duo_open_with(4096, &config);
    uint8_t *a = device_alloc(0, LEN), *b = device_alloc(1, LEN);
    weft_memory *mine = registered(duo.a, a, 0), *theirs = registered(duo.b, b, 0);
    char blob[16384];
    weft_remote_memory *remote;
    size_t n = descriptor_of(theirs, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, n, &remote));
    struct range_request args = range_args(mine, remote, LEN);
    for (uint64_t read = 0; read < 2; read++) {
        uint64_t of_a[2][RAILS], of_b[2][RAILS];
        weft_op id;
        put(a, 1 + read);
        put(b, 3 + read);
        moved(duo.a, of_a[0]);
        moved(duo.b, of_b[0]);
        CHECK_OK((read ? submit_read : submit_write)(duo.a->endpoint, &args, &id));
        CHECK_OK(box_await(duo.a, id, 4 * patience_ms()).status);
        check_equal(read ? a : b, read ? 3 + read : 1 + read);
        moved(duo.a, of_a[1]);
        moved(duo.b, of_b[1]);
        uint64_t near = 0, far = 0;
        for (int i = 0; i < RAILS; i++) {
            *(i < 2 ? &near : &far) += of_a[1][i] - of_a[0][i];
            *(i < 2 ? &far : &near) += of_b[1][i] - of_b[0][i];
        }
        CHECK(near >= LEN);
        CHECK(far < LEN / 16); /* the peers' own reports */
    }
    CHECK_OK(weft_remote_memory_release(remote));
    CHECK_OK(weft_memory_deregister(mine));
    CHECK_OK(weft_memory_deregister(theirs));
    duo_close(&duo);
}

/* Transfers that only these rails can carry end by their deadline, and work again when the rails are back; others carry
   the rest. */
static void failed_near_rails_end_their_transfers(void)
{
    devices_begin(":hmem");
    machine_begins(RAILS);
    char faults[128];
    snprintf(faults, sizeof faults, "port%d+0 rail0 down; port%d+0 rail1 down; port%d+0 * up", 2 * RAILS, 2 * RAILS,
             3 * RAILS);
    CHECK_EQ(setenv("WEFT_SIM_FAULTS", faults, 1), 0);
    weft_endpoint_config config = config_of_rails();
    struct duo duo = duo_open_with(LEN, &config);
    uint8_t *a = device_alloc(0, LEN), *b = device_alloc(0, LEN);
    weft_memory *mine = registered(duo.a, a, 0), *theirs = registered(duo.b, b, 0);
    char blob[16384];
    weft_remote_memory *remote;
    size_t n = descriptor_of(theirs, blob, sizeof blob);
    CHECK_OK(weft_remote_memory_import(duo.a->endpoint, duo.a_to_b, blob, n, &remote));
    struct range_request args = range_args(mine, remote, LEN), others = range_args(duo.a_memory, duo.b_of_a, LEN);
    put(a, 0);
    CHECK_OK(box_await(duo.a, write_now(duo.a, &args), patience_ms()).status);
    check_equal(b, 0);
    CHECK_OK(weft_endpoint_destroy(open_with(&config)));
    args.options.timeout_ns = 300 * MS;
    judged_from();
    for (uint64_t failed = 0; failed < 3; failed++) {
        weft_completion c = box_await(duo.a, write_now(duo.a, &args), patience_ms());
        CHECK_ONE_OF(c.status, WEFT_ERR_TIMED_OUT, WEFT_ERR_UNREACHABLE, WEFT_ERR_NO_RAILS, WEFT_ERR_RAIL_LOST);
        CHECK_WITHIN(c.submit_ns + 300 * MS, c.done_ns, LATE_MOST);
        CHECK_OK(box_await(duo.a, write_now(duo.a, &others), patience_ms()).status);
    }
    CHECK_OK(weft_endpoint_destroy(open_with(&config)));
    uint64_t until = now_ns() + 2 * patience_ms() * MS;
    for (weft_status status = WEFT_ERR_TIMED_OUT; status != WEFT_OK; sleep_ms(20)) {
        CHECK(now_ns() < until);
        put(a, 1);
        status = box_await(duo.a, write_now(duo.a, &args), patience_ms()).status;
    }
    check_equal(b, 1);
    CHECK_OK(weft_remote_memory_release(remote));
    CHECK_OK(weft_memory_deregister(mine));
    CHECK_OK(weft_memory_deregister(theirs));
    duo_close(&duo);
}

static void bytes_of_nics_that_reach_it(void)
{
    bytes_go_by_near_rails(":hmem:dmabuf");
}

#define SIMULATED "sim:like=efa-direct,sim:like=verbs"

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"rails_near_the_device_know_it", SIMULATED, rails_near_the_device_know_it},
        {"unplaced_rails_register_device_memory", "sim:like=verbs", unplaced_rails_register_device_memory},
        {"unplaced_device_uses_all_rails", "sim:like=verbs", unplaced_device_uses_all_rails},
        {"bytes_of_nics_that_reach_it", SIMULATED, bytes_of_nics_that_reach_it},
        {"failed_near_rails_end_their_transfers", "sim:like=efa-direct,sim:like=verbs timed", failed_near_rails_end_their_transfers},
        {0},
    };
    return run_tests(argc, argv, tests);
}
