/*
 * A disk with faults, for real I/O: a file system of one file (FUSE), which a process of its own serves. What is not flushed
 * is in `cached` alone; `stable` is what a power cut leaves. Needs root.
 */
#ifndef WEFT_TEST_FAULT_DISK_H
#define WEFT_TEST_FAULT_DISK_H

#include "files.h"

#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#define DISK_LEN (4 * MIB)
#define DISK_HELD 256

/* What the disk does wrong, set at any time; shared with its process. */
struct fault_disk {
    _Atomic uint64_t fail_from; /* I/O that ends beyond this byte fails ... */
    _Atomic int fail_errno;     /* ... by this number; 0: none does */
    _Atomic int flush_errno;    /* the next flush fails by this number, and forgets what was to be flushed */
    _Atomic bool shorts;        /* direct I/O moves a part of what it is asked for */
    _Atomic bool hangs;         /* I/O is not answered until this is false */
    _Atomic bool flush_hangs;
    _Atomic uint64_t flushes;
    uint64_t size;
    uint8_t cached[DISK_LEN];
    uint8_t stable[DISK_LEN];
};

static struct fault_disk *disk;
static pid_t disk_pid, disk_test;
static char disk_folder[64];

/* ---- Its process ---- */

static int disk_device;
static char disk_request[MIB + 65536];

static void disk_answer(uint64_t unique, int error, const void *bytes, size_t len)
{
    struct fuse_out_header header = {(uint32_t)(sizeof header + len), -error, unique};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)bytes, len}};
    if (writev(disk_device, parts, 2) < 0 && errno != ENOENT) /* or it was interrupted */
        _exit(0);
}

static struct fuse_attr disk_attributes(uint64_t node)
{
    return (struct fuse_attr){.ino = node, .size = node == 2 ? disk->size : 0, .nlink = 1, .blksize = 4096,
                              .mode = node == 2 ? S_IFREG | 0600 : S_IFDIR | 0700};
}

static void disk_attributes_of(uint64_t unique, uint64_t node)
{
    struct fuse_attr_out out = {.attr = disk_attributes(node)};
    disk_answer(unique, 0, &out, sizeof out);
}

static int disk_fault(uint64_t end)
{
    return end > disk->fail_from ? disk->fail_errno : 0;
}

static uint32_t disk_shortened(uint32_t len, uint32_t flags)
{
    return disk->shorts && flags & O_DIRECT && len >= 8192 ? len / 8192 * 4096 : len;
}

static void disk_serve(const struct fuse_in_header *in)
{
    const void *body = in + 1;
    switch (in->opcode) {
    case FUSE_INIT: {
        struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = MIB, .max_pages = 256,
                                    .max_background = 64, .congestion_threshold = 64, .time_gran = 1,
                                    .flags = FUSE_BIG_WRITES | FUSE_MAX_PAGES | FUSE_ASYNC_READ};
        disk_answer(in->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_LOOKUP: {
        struct fuse_entry_out out = {.nodeid = 2, .attr = disk_attributes(2)};
        disk_answer(in->unique, strcmp(body, "file") == 0 ? 0 : ENOENT, &out, sizeof out);
        return;
    }
    case FUSE_SETATTR: {
        const struct fuse_setattr_in *set = body;
        if (set->valid & FATTR_SIZE) {
            if (set->size < disk->size)
                memset(disk->cached + set->size, 0, disk->size - set->size);
            disk->size = set->size;
        }
        disk_attributes_of(in->unique, in->nodeid);
        return;
    }
    case FUSE_GETATTR:
        disk_attributes_of(in->unique, in->nodeid);
        return;
    case FUSE_OPEN:
    case FUSE_OPENDIR: {
        struct fuse_open_out out = {0};
        disk_answer(in->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_READ: {
        const struct fuse_read_in *read = body;
        uint64_t left = read->offset < disk->size ? disk->size - read->offset : 0;
        uint32_t len = read->size < left ? read->size : (uint32_t)left;
        int error = disk_fault(read->offset + len);
        disk_answer(in->unique, error, disk->cached + read->offset, error ? 0 : disk_shortened(len, read->flags));
        return;
    }
    case FUSE_WRITE: {
        const struct fuse_write_in *write = body;
        struct fuse_write_out out = {.size = disk_shortened(write->size, write->flags)};
        int error = write->offset + out.size > DISK_LEN ? EFBIG : disk_fault(write->offset + write->size);
        if (error == 0) {
            memcpy(disk->cached + write->offset, write + 1, out.size);
            if (write->offset + out.size > disk->size)
                disk->size = write->offset + out.size;
        }
        disk_answer(in->unique, error, &out, error ? 0 : sizeof out);
        return;
    }
    case FUSE_FSYNC: {
        int error = atomic_exchange(&disk->flush_errno, 0);
        atomic_fetch_add(&disk->flushes, 1);
        if (error == 0)
            memcpy(disk->stable, disk->cached, DISK_LEN);
        disk_answer(in->unique, error, NULL, 0);
        return;
    }
    case FUSE_FLUSH:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
        disk_answer(in->unique, 0, NULL, 0);
        return;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return;
    case FUSE_DESTROY:
        _exit(0);
    default:
        disk_answer(in->unique, ENOSYS, NULL, 0);
        return;
    }
}

static bool disk_holds(uint32_t opcode)
{
    return opcode == FUSE_FSYNC ? disk->flush_hangs : (opcode == FUSE_READ || opcode == FUSE_WRITE) && disk->hangs;
}

/* A process that ends waits for its I/O, and is not seen to have ended: the kernel marks it. */
static bool test_is_ending(void)
{
    char name[32], text[512] = "";
    unsigned flags = 4;
    snprintf(name, sizeof name, "/proc/%d/stat", (int)getppid());
    FILE *file = fopen(name, "re");
    if (file != NULL) {
        const char *at = fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
        if (at != NULL)
            sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %u", &flags);
        fclose(file);
    }
    return flags & 4;
}

static void disk_process(void)
{
    static void *held[DISK_HELD];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int turn = 1;; turn++) {
        if (turn % 50 == 0 && test_is_ending())
            _exit(0);
        struct pollfd ready = {disk_device, POLLIN, 0};
        if (poll(&ready, 1, 5) > 0) {
            ssize_t len = read(disk_device, disk_request, sizeof disk_request);
            struct fuse_in_header *in = (void *)disk_request;
            if (len < 0 && errno != EINTR && errno != EAGAIN && errno != ENOENT)
                _exit(0);
            size_t place = 0;
            while (place < DISK_HELD && held[place] != NULL)
                place++;
            if (len > 0 && disk_holds(in->opcode) && place < DISK_HELD)
                held[place] = memcpy(malloc(len), in, len);
            else if (len > 0)
                disk_serve(in);
        }
        for (size_t i = 0; i < DISK_HELD; i++) {
            if (held[i] == NULL || disk_holds(((struct fuse_in_header *)held[i])->opcode))
                continue;
            disk_serve(held[i]);
            free(held[i]);
            held[i] = NULL;
        }
    }
}

/* ---- For the test ---- */

/* What hangs for good ends with the disk. */
static void disk_ends(void)
{
    if (getpid() != disk_test)
        return; /* a child's end */
    if (disk_pid > 0) {
        kill(disk_pid, SIGKILL);
        waitpid(disk_pid, NULL, 0);
    }
    disk_pid = 0;
    umount2(disk_folder, MNT_DETACH);
    rmdir(disk_folder);
}

/* Starts the disk, before anything of Weft; skips where it cannot be. */
static void disk_starts(void)
{
    char options[100];
    strcpy(disk_folder, "/var/tmp/weft-disk-XXXXXX");
    disk = mmap(NULL, sizeof *disk, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(disk != MAP_FAILED && mkdtemp(disk_folder) != NULL);
    disk->size = DISK_LEN;
    disk_device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", disk_device);
    if (disk_device < 0 || unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("weft-disk", disk_folder, "fuse", MS_NOSUID | MS_NODEV, options) != 0) {
        rmdir(disk_folder);
        skip("no disk with faults can be mounted here: %s", strerror(errno));
    }
    disk_test = getpid();
    disk_pid = fork();
    CHECK(disk_pid >= 0);
    if (disk_pid == 0)
        disk_process();
    close(disk_device);
    atexit(disk_ends);
}

static int disk_open(void)
{
    char name[100];
    snprintf(name, sizeof name, "%s/file", disk_folder);
    int fd = open(name, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        FAIL("%s: %s", name, strerror(errno));
    return fd;
}

#endif
