/*
 * Device memory for tests: on a GPU with WEFT_TEST_DEVICES=cuda, else on a fake device, whose memory is mapped without
 * access rights and accessed through /proc/self/mem.
 */
#ifndef WEFT_TEST_GPU_H
#define WEFT_TEST_GPU_H

#include "harness.h"

#include <dlfcn.h>

#ifdef __SANITIZE_THREAD__ /* which keeps most addresses for itself */
#define FAKE_BASE UINT64_C(0x590000000000)
#else
#define FAKE_BASE UINT64_C(0x2a0000000000)
#endif
#define FAKE_EACH (64 * GIB)

static void *cuda_library;

/* NICs do not reach device memory: its bytes go in frames. Set it before `devices_begin`. */
static bool unreached;

static inline bool on_cuda(void)
{
    const char *which = getenv("WEFT_TEST_DEVICES");
    return which != NULL && strcmp(which, "cuda") == 0;
}

/* A function of CUDA's driver that must return 0. */
#define CU(name, ...) cu_check(#name, ((int (*)())(uintptr_t)cu_find(#name))(__VA_ARGS__))

static inline void *cu_find(const char *name)
{
    void *found = cuda_library ? dlsym(cuda_library, name) : NULL;
    if (found == NULL)
        FAIL("CUDA's driver has no %s", name);
    return found;
}

static inline void cu_check(const char *name, int result)
{
    if (result != 0)
        FAIL("%s: CUDA error %d", name, result);
}

static inline int device_count(void)
{
    int count = 2;
    if (on_cuda())
        CU(cuDeviceGetCount, &count);
    return count;
}

/* Chooses the devices; `options` are those of the fake, as ":late=3". Call before any function of Weft. Simulated NICs
 * access their memory directly (":hmem"), unless `options` are given. */
static inline void devices_begin(const char *options)
{
    bool reached = strstr(fabric(), "sim") == fabric() && options[0] == 0 && !unreached;
    char choice[96];
    if (on_cuda()) {
        cuda_library = dlopen("libcuda.so.1", RTLD_NOW);
        if (cuda_library == NULL)
            skip("no CUDA driver here");
        CU(cuInit, 0);
        if (options[0] != 0)
            skip("what only a fake device does");
        return;
    }
    snprintf(choice, sizeof choice, "fake:at=%" PRIu64 "%s%s", FAKE_BASE, options, reached ? ":hmem" : "");
    CHECK_EQ(setenv("WEFT_DEVICES", choice, 1), 0);
}

/* Makes a device current in the calling thread. */
static inline void use_device(int device)
{
    int handle;
    void *context;
    if (!on_cuda())
        return;
    CU(cuDeviceGet, &handle, device);
    CU(cuDevicePrimaryCtxRetain, &context, handle);
    CU(cuCtxSetCurrent, context);
}

static inline int own_memory(void)
{
    static _Atomic int fd = -1;
    int none = -1;
    if (fd < 0) {
        int opened = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
        CHECK(opened >= 0);
        if (!atomic_compare_exchange_strong(&fd, &none, opened))
            close(opened);
    }
    return fd;
}

/* Allocates zeroed memory of a device. */
static inline uint8_t *device_alloc(int device, uint64_t len)
{
    static _Atomic uint64_t used[2];
    if (on_cuda()) {
        unsigned long long address = 0;
        use_device(device);
        CU(cuMemAlloc_v2, &address, (size_t)len);
        CU(cuMemsetD8_v2, address, 0, (size_t)len);
        CU(cuCtxSynchronize, 0);
        return (uint8_t *)(uintptr_t)address;
    }
    uint64_t at = atomic_fetch_add(&used[device], (len + 8191) / 4096 * 4096);
    void *address = (void *)(uintptr_t)(FAKE_BASE + (uint64_t)device * FAKE_EACH + at);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    CHECK(mmap(address, len, PROT_NONE, flags, -1, 0) == address);
    return address;
}

static inline void device_free(uint8_t *address, uint64_t len)
{
    if (on_cuda())
        CU(cuMemFree_v2, (unsigned long long)(uintptr_t)address);
    else
        CHECK_EQ(munmap(address, len), 0);
}

static inline void device_put(uint8_t *to, const uint8_t *from, uint64_t len)
{
    if (on_cuda()) {
        CU(cuMemcpyHtoD_v2, (unsigned long long)(uintptr_t)to, from, (size_t)len);
        CU(cuCtxSynchronize, 0);
        return;
    }
    CHECK_EQ(pwrite(own_memory(), from, len, (off_t)(uintptr_t)to), (ssize_t)len);
}

static inline void device_get(uint8_t *to, const uint8_t *from, uint64_t len)
{
    if (on_cuda())
        CU(cuMemcpyDtoH_v2, to, (unsigned long long)(uintptr_t)from, (size_t)len);
    else
        CHECK_EQ(pread(own_memory(), to, len, (off_t)(uintptr_t)from), (ssize_t)len);
}

typedef unsigned long long address;

struct place {
    int type; /* 1: a device */
    int id;
};

/* CUDA memory of the virtual memory API: parts of this length side by side. `handles`: 1: made to be passed to other
 * processes as files. */
static inline uint8_t *device_map(int device, uint64_t len, uint64_t part, int handles)
{
    struct {
        int type; /* 1: pinned */
        int handles;
        struct place place;
        void *of_windows;
        uint8_t flags[8];
    } what = {1, handles, {1, device}, NULL, {0}};
    struct {
        struct place place;
        int flags; /* 3: to be read and written */
    } access = {{1, device}, 3};
    address at = 0;
    use_device(device);
    CU(cuMemAddressReserve, &at, (size_t)len, (size_t)0, (address)0, (address)0);
    for (uint64_t done = 0; done < len; done += part) {
        address handle;
        CU(cuMemCreate, &handle, (size_t)part, &what, (address)0);
        CU(cuMemMap, at + done, (size_t)part, (size_t)0, handle, (address)0);
        CU(cuMemRelease, handle);
    }
    CU(cuMemSetAccess, at, (size_t)len, &access, (size_t)1);
    return (uint8_t *)(uintptr_t)at;
}

/* Chooses this many of the first `fits` pages, in a random order, each once. */
static inline uint32_t *random_pages(uint64_t fits, uint64_t count, uint64_t seed)
{
    uint32_t *list = malloc(fits * sizeof *list);
    CHECK(list != NULL && fits >= count);
    for (uint64_t i = 0; i < fits; i++)
        list[i] = (uint32_t)i;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t k = i + next_random(&seed) % (fits - i);
        uint32_t page = list[i];
        list[i] = list[k];
        list[k] = page;
    }
    return list;
}

#endif
