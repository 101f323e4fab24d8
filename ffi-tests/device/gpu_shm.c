/*
 * For comparison: how fast libfabric's shm, built with CUDA, moves pages between GPUs by itself, with one write per
 * page. Two processes, on the first and the last GPU. Prints kB/s.
 */
#include "gpu.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#define PAGE (64 * KIB)
#define PAGES 4000
#define ARENA GIB
#define ROUNDS 6
#define SAMPLES 64

static const size_t windows[] = {1, 16, 64, 256};

/* Checks a call of libfabric. */
#define FI(call) fi_check(#call, (long)(call))

static void fi_check(const char *call, long rc)
{
    if (rc != 0)
        FAIL("%s: libfabric error %ld: %s", call, -rc, fi_strerror((int)-rc));
}

struct port {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    struct fid_mr *mr;
    uint8_t *base;
    fi_addr_t peer;
};

struct place {
    uint64_t base, key;
};

static struct fi_info *find_shm(void)
{
    struct fi_info *hints = fi_allocinfo(), *info = NULL;
    CHECK(hints != NULL);
    hints->fabric_attr->prov_name = strdup("shm");
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA | FI_HMEM;
    hints->mode = FI_CONTEXT;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_HMEM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    FI(fi_getinfo(FI_VERSION(1, 20), NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);
    return info;
}

static void register_arena(struct port *port, int device)
{
    struct iovec iov = {port->base, ARENA};
    struct fi_mr_attr attr = {.mr_iov = &iov, .iov_count = 1, .requested_key = 7, .iface = FI_HMEM_CUDA};
    attr.access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    attr.device.cuda = device;
    /* With this the target's GPU copies; otherwise bytes go through the host. */
    FI(fi_mr_regattr(port->domain, &attr, FI_HMEM_DEVICE_ONLY, &port->mr));
}

static struct port open_port(struct team *team, int device)
{
    struct port port = {.info = find_shm(), .base = device_alloc(device, ARENA)};
    struct fi_cq_attr queue = {.size = 4096, .format = FI_CQ_FORMAT_CONTEXT};
    struct fi_av_attr addresses = {.type = FI_AV_TABLE};
    char mine[256] = "", theirs[256] = "";
    size_t len = sizeof mine;
    port.info->tx_attr->op_flags = 0;
    FI(fi_fabric(port.info->fabric_attr, &port.fabric, NULL));
    FI(fi_domain(port.fabric, port.info, &port.domain, NULL));
    FI(fi_av_open(port.domain, &addresses, &port.av, NULL));
    FI(fi_cq_open(port.domain, &queue, &port.cq, NULL));
    FI(fi_endpoint(port.domain, port.info, &port.ep, NULL));
    FI(fi_ep_bind(port.ep, &port.cq->fid, FI_TRANSMIT | FI_RECV));
    FI(fi_ep_bind(port.ep, &port.av->fid, 0));
    FI(fi_enable(port.ep));
    register_arena(&port, device);
    FI(fi_getname(&port.ep->fid, mine, &len));
    tell(team, 1 - team->rank, mine, len);
    hear(team, 1 - team->rank, NULL, theirs, sizeof theirs);
    CHECK_EQ(fi_av_insert(port.av, theirs, 1, &port.peer, 0, NULL), 1);
    return port;
}

static void close_port(struct port *port)
{
    struct fid *fids[] = {&port->ep->fid, &port->mr->fid, &port->cq->fid,
                          &port->av->fid, &port->domain->fid, &port->fabric->fid};
    for (size_t i = 0; i < COUNT(fids); i++)
        FI(fi_close(fids[i]));
    fi_freeinfo(port->info);
}

static size_t reap(struct port *port)
{
    struct fi_cq_entry done[64];
    ssize_t n = fi_cq_read(port->cq, done, COUNT(done));
    if (n < 0 && n != -FI_EAGAIN)
        FAIL("fi_cq_read: libfabric error %zd", -n);
    return n > 0 ? (size_t)n : 0;
}

/* In ns. */
static uint64_t write_pages(struct port *port, struct place theirs, const uint32_t *from, const uint32_t *to,
                            size_t window)
{
    static struct fi_context contexts[PAGES];
    size_t posted = 0, done = 0;
    uint64_t began = now_ns();
    while (done < PAGES) {
        while (posted < PAGES && posted - done < window) {
            struct iovec iov = {port->base + from[posted] * PAGE, PAGE};
            struct fi_rma_iov at = {theirs.base + to[posted] * PAGE, PAGE, theirs.key};
            void *descriptor = fi_mr_desc(port->mr);
            struct fi_msg_rma message = {&iov, &descriptor, 1, port->peer, &at, 1, &contexts[posted], 0};
            ssize_t rc = fi_writemsg(port->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
            if (rc == -FI_EAGAIN)
                break;
            FI(rc);
            posted++;
        }
        done += reap(port);
    }
    return now_ns() - began;
}

static void sends(struct team *team)
{
    devices_begin("");
    use_device(0);
    struct port port = open_port(team, 0);
    struct place theirs;
    uint32_t *from = random_pages(ARENA / PAGE, PAGES, 1), *to = random_pages(ARENA / PAGE, PAGES, 2);
    uint8_t page[PAGE];
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < SAMPLES; i++) {
        fill_random(page, PAGE, (uint64_t)i);
        device_put(port.base + from[i] * PAGE, page, PAGE);
    }
    hear(team, 1, NULL, &theirs, sizeof theirs);
    for (size_t w = 0; w < COUNT(windows); w++)
        for (int i = 0; i < ROUNDS; i++) {
            uint64_t took = write_pages(&port, theirs, from, to, windows[w]);
            fprintf(stderr, "  libfabric's shm, %zu in flight: %.2f GB/s\n", windows[w],
                    (double)(PAGE * PAGES) / (double)took);
            best = took < best ? took : best;
        }
    atomic_store(&team->board->word[0], 1);
    meet(team, 1, NULL);
    printf("%" PRIu64 "\n", PAGE * PAGES * 1000000 / best);
    close_port(&port);
}

static void receives(struct team *team)
{
    devices_begin("");
    int device = device_count() - 1;
    use_device(device);
    struct port port = open_port(team, device);
    bool is_virtual = port.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    struct place mine = {is_virtual ? (uint64_t)(uintptr_t)port.base : 0, fi_mr_key(port.mr)};
    uint32_t *to = random_pages(ARENA / PAGE, PAGES, 2);
    uint8_t page[PAGE];
    tell(team, 0, &mine, sizeof mine);
    while (atomic_load(&team->board->word[0]) == 0)
        reap(&port);
    for (int i = 0; i < SAMPLES; i++) {
        device_get(page, port.base + to[i] * PAGE, PAGE);
        CHECK_EQ(differs_random(page, PAGE, (uint64_t)i), -1);
    }
    meet(team, 0, NULL);
    close_port(&port);
}

int main(void)
{
    setenv("WEFT_TEST_FABRIC", "shm", 1);
    setenv("WEFT_TEST_DEVICES", "cuda", 1);
    run_pair(sends, receives);
    return 0;
}
