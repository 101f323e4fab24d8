/* A program that has opened a device: its memory, the file that it maps rings and doorbells from, its descriptors. */
#define _GNU_SOURCE
#include "client.h"
#include "wire.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, MAX_EVENT = 64 };
#define FILE_BYTES (1ul << 30) /* sparse: what no queue uses takes no memory */

struct owner *client_open(struct nic *nic, int socket) {
    struct ucred who;
    socklen_t len = sizeof who;
    struct reply hello = {0};
    struct owner *client = calloc(1, sizeof *client);
    if (!client || getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &len)) goto no_client;
    client->nic = nic;
    client->socket = socket;
    client->pid = who.pid;
    client->used = PAGE; /* offset 0 names nothing */
    client->file = memfd_create("efa", MFD_CLOEXEC);
    if (client->file < 0 || ftruncate(client->file, FILE_BYTES)) goto no_file;
    client->base = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, client->file, 0);
    if (client->base == MAP_FAILED) goto no_file;
    if (!client_send(client, &hello, sizeof hello, client->file)) return client;
    munmap(client->base, FILE_BYTES);
no_file:
    if (client->file >= 0) close(client->file);
no_client:
    free(client);
    return NULL;
}

void client_close(struct owner *client) {
    while (client->channels) channel_close(client, client->channels);
    munmap(client->base, FILE_BYTES);
    close(client->file);
    close(client->socket);
    if (client->maps) fclose(client->maps);
    free(client->free_blocks);
    free(client);
}

int client_send(struct owner *client, const void *reply, size_t len, int descriptor) {
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {(void *)reply, len};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (descriptor >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    }
    return sendmsg(client->socket, &message, MSG_NOSIGNAL) == (ssize_t)len ? 0 : -1;
}

/* ---- Its memory ---- */

static enum access outcome(ssize_t moved, size_t len) {
    if (moved == (ssize_t)len) return ACCESS_OK;
    return moved < 0 && errno == ESRCH ? ACCESS_GONE : ACCESS_FAULT;
}

enum access client_load(struct owner *client, uint64_t at, void *to, size_t len) {
    struct iovec here = {to, len}, there = {(void *)(uintptr_t)at, len};
    return outcome(process_vm_readv(client->pid, &here, 1, &there, 1, 0), len);
}

enum access client_store(struct owner *client, uint64_t at, const void *from, size_t len) {
    struct iovec here = {(void *)from, len}, there = {(void *)(uintptr_t)at, len};
    return outcome(process_vm_writev(client->pid, &here, 1, &there, 1, 0), len);
}

/* Interface (linux/fs.h since Linux 6.11): one mapping, without all that are before it. */
struct mapping_query {
    uint64_t size, flags, address, start, end, rights, page_size, offset, inode;
    uint32_t device[2], name_size, build_id_size;
    uint64_t name, build_id;
};
#define QUERY_MAPPING _IOWR('f', 17, struct mapping_query)
enum { READABLE = 1, WRITABLE = 2 };

/* The mapping at an address: its end and rights. Older kernels have only the text of all. */
static bool mapping_at(FILE *maps, uint64_t at, uint64_t *end, unsigned *rights) {
    struct mapping_query query = {.size = sizeof query, .address = at};
    char line[512], letters[5];
    if (!ioctl(fileno(maps), QUERY_MAPPING, &query)) {
        *end = query.end;
        *rights = (unsigned)query.rights;
        return true;
    }
    if (errno != ENOTTY) return false;
    rewind(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long long from, to;
        if (sscanf(line, "%llx-%llx %4s", &from, &to, letters) != 3 || to <= at) continue;
        *end = to;
        *rights = (letters[0] == 'r' ? READABLE : 0) | (letters[1] == 'w' ? WRITABLE : 0);
        return from <= at;
    }
    return false;
}

bool client_maps(struct owner *client, uint64_t at, uint64_t len, bool writable) {
    unsigned needs = READABLE | (writable ? WRITABLE : 0), rights;
    uint64_t end = at + len;
    if (!client->maps) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/maps", client->pid);
        client->maps = fopen(path, "re");
    }
    while (client->maps && at < end)
        if (!mapping_at(client->maps, at, &at, &rights) || (rights & needs) != needs) return false;
    return client->maps;
}

/* ---- Its file ---- */

bool block_take(struct owner *client, size_t len, struct block *block) {
    len = (len + PAGE - 1) & ~(size_t)(PAGE - 1);
    for (size_t i = 0; i < client->free_count; i++) {
        if (client->free_blocks[i].len != len) continue;
        *block = client->free_blocks[i];
        client->free_blocks[i] = client->free_blocks[--client->free_count];
        memset(client->base + block->at, 0, len);
        return true;
    }
    if (len > FILE_BYTES - client->used) return false;
    *block = (struct block){client->used, len};
    client->used += len;
    return true;
}

void block_give(struct owner *client, struct block block) {
    struct block *more = reallocarray(client->free_blocks, client->free_count + 1, sizeof *more);
    if (!more) return; /* it is lost until the program closes the device */
    client->free_blocks = more;
    more[client->free_count++] = block;
}

/* ---- Its channels ---- */

struct channel *channel_make(struct owner *client, int *theirs) {
    int pair[2];
    struct stat status;
    struct channel *channel = calloc(1, sizeof *channel);
    if (!channel || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
        free(channel);
        return NULL;
    }
    *theirs = pair[1];
    channel->ours = pair[0];
    channel->theirs = dup(pair[1]);
    channel->inode = fstat(pair[1], &status) ? 0 : status.st_ino;
    channel->next = client->channels;
    client->channels = channel;
    return channel;
}

struct channel *channel_find(struct owner *client, int descriptor) {
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", client->pid, descriptor);
    ssize_t len = readlink(path, target, sizeof target - 1);
    target[len > 0 ? len : 0] = 0;
    uint64_t inode = !strncmp(target, "socket:[", 8) ? strtoull(target + 8, NULL, 10) : 0;
    for (struct channel *at = client->channels; inode && at; at = at->next)
        if (at->inode == inode) return at;
    return NULL;
}

void channel_close(struct owner *client, struct channel *channel) {
    for (struct channel **at = &client->channels; *at; at = &(*at)->next) {
        if (*at != channel) continue;
        *at = channel->next;
        break;
    }
    if (client->async == channel) client->async = NULL;
    close(channel->ours);
    close(channel->theirs);
    free(channel);
}

bool channel_send(struct channel *channel, const void *event, size_t len) {
    return send(channel->ours, event, len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len;
}

unsigned channel_withdraw(struct channel *channel, uint64_t element) {
    char kept[256][MAX_EVENT];
    size_t lens[256], count = 0;
    unsigned taken = 0;
    while (count < 256) {
        ssize_t len = recv(channel->theirs, kept[count], MAX_EVENT, MSG_DONTWAIT);
        if (len < (ssize_t)sizeof element) break;
        lens[count] = (size_t)len;
        if (memcmp(kept[count], &element, sizeof element)) count++;
        else taken++;
    }
    for (size_t i = 0; i < count; i++) channel_send(channel, kept[i], lens[i]);
    return taken;
}
