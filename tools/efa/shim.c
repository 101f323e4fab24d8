/* The shim: in a program that it is preloaded into, /dev/infiniband/uverbsN is a device of the emulator whose folder is in
 * EFA_EMULATOR. Everything else is libc's. The device's file is one that can be mapped, so mmap needs no help. */
#define _GNU_SOURCE
#include "wire.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#define FOLDER "/dev/infiniband/"
#define DEVICE FOLDER "uverbs"
enum { MAX_DESCRIPTORS = 65536, MAJOR = 231, FIRST_MINOR = 192 /* interface: of uverbs devices */ };

/* What is open; socket 0: none of ours. */
static struct {
    int socket, number;
    pid_t pid;
} devices[MAX_DESCRIPTORS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void take(void) { pthread_mutex_lock(&lock); }
static void give(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void prepare(void) {
    /* The emulator reads and writes this program's memory, as the kernel and a NIC would. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    pthread_atfork(take, give, give);
}

static int ours(int fd) { return fd >= 0 && fd < MAX_DESCRIPTORS && devices[fd].socket; }
static int is_device(const char *path) { return path && !strncmp(path, DEVICE, strlen(DEVICE)); }

static int place(const char *path, struct sockaddr_un *address) {
    const char *folder = getenv("EFA_EMULATOR");
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    return !folder || (size_t)snprintf(address->sun_path, sizeof address->sun_path, "%s/%s", folder, path + strlen(FOLDER)) >= sizeof address->sun_path;
}

static int receive(int socket, struct reply *reply, int *descriptor) {
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {reply, sizeof *reply};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t len;
    do len = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (len < 0 && errno == EINTR);
    *descriptor = -1;
    if (len != (ssize_t)sizeof *reply) return -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header) memcpy(descriptor, CMSG_DATA(header), sizeof *descriptor);
    return 0;
}

static int open_device(const char *path) {
    struct sockaddr_un address;
    struct reply hello;
    int fd = -1, made = place(path, &address) ? -1 : socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (made >= 0 && !connect(made, (struct sockaddr *)&address, sizeof address) && !receive(made, &hello, &fd) && fd >= 0 && fd < MAX_DESCRIPTORS) {
        devices[fd].number = atoi(path + strlen(DEVICE));
        devices[fd].pid = getpid();
        devices[fd].socket = made;
        return fd;
    }
    if (made >= 0) close(made);
    errno = ENODEV;
    return -1;
}

static int open_any(const char *path, int flags, va_list more) {
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
    return is_device(path) ? open_device(path) : openat(AT_FDCWD, path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int fd = open_any(path, flags, more);
    va_end(more);
    return fd;
}

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int fd = open_any(path, flags | O_LARGEFILE, more);
    va_end(more);
    return fd;
}

/* The kernel's RDMA devices are not the emulator's: without this family, libibverbs looks for devices in sysfs. */
int socket(int domain, int type, int protocol) {
    if (domain != AF_NETLINK || protocol != NETLINK_RDMA) return (int)syscall(SYS_socket, domain, type, protocol);
    errno = EPROTONOSUPPORT;
    return -1;
}

static void describe(struct stat *to, int number) {
    memset(to, 0, sizeof *to);
    to->st_mode = S_IFCHR | 0666;
    to->st_rdev = makedev(MAJOR, FIRST_MINOR + (unsigned)number);
}

static int missing(const char *path) {
    struct sockaddr_un address;
    if (!place(path, &address) && !syscall(SYS_faccessat, AT_FDCWD, address.sun_path, F_OK)) return 0;
    errno = ENOENT;
    return -1;
}

int access(const char *path, int how) {
    return is_device(path) ? missing(path) : (int)syscall(SYS_faccessat, AT_FDCWD, path, how);
}

int stat(const char *restrict path, struct stat *restrict to) {
    if (!is_device(path)) return fstatat(AT_FDCWD, path, to, 0);
    if (missing(path)) return -1;
    describe(to, atoi(path + strlen(DEVICE)));
    return 0;
}

int fstat(int fd, struct stat *to) {
    if (!ours(fd)) return fstatat(fd, "", to, AT_EMPTY_PATH);
    describe(to, devices[fd].number);
    return 0;
}

/* The names that programs of a glibc before 2.33 know these by. */
int __xstat(int version, const char *path, struct stat *to) {
    (void)version;
    return stat(path, to);
}

int __fxstat(int version, int fd, struct stat *to) {
    (void)version;
    return fstat(fd, to);
}

int close(int fd) {
    if (ours(fd)) {
        int socket = devices[fd].socket;
        devices[fd].socket = 0;
        syscall(SYS_close, socket);
    }
    return (int)syscall(SYS_close, fd);
}

int ioctl(int fd, unsigned long what, ...) {
    va_list more;
    va_start(more, what);
    void *argument = va_arg(more, void *);
    va_end(more);
    if (!ours(fd)) return (int)syscall(SYS_ioctl, fd, what, argument);
    struct request request = {(uintptr_t)argument};
    struct reply reply;
    int descriptor;
    /* The emulator knows the process that has opened it; a child has memory of its own. */
    if (devices[fd].pid != getpid()) {
        errno = EIO;
        return -1;
    }
    take();
    int failed = send(devices[fd].socket, &request, sizeof request, MSG_NOSIGNAL) != sizeof request || receive(devices[fd].socket, &reply, &descriptor);
    give();
    if (failed) {
        errno = EIO;
        return -1;
    }
    if (descriptor >= 0) {
        uint64_t value = (uint64_t)descriptor;
        memcpy((void *)(uintptr_t)reply.patch, &value, reply.patch_len);
    }
    if (!reply.error) return 0;
    errno = reply.error;
    return -1;
}

/* Interface: Linux 5.12 and later copy pinned pages when a process forks, and say so by netlink, where no device is to be
 * seen here. EFA_EMULATOR_FORK=0 is an older one. */
int ibv_is_fork_initialized(void) {
    enum { UNNEEDED = 2 };
    static int (*real)(void);
    const char *older = getenv("EFA_EMULATOR_FORK");
    if (!older || *older != '0') return UNNEEDED;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "ibv_is_fork_initialized");
    return real ? real() : 0;
}
