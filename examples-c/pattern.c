#include "pattern.h"

#include <string.h>

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t random_next(uint64_t *state) {
    *state += GOLDEN;
    return mix(*state);
}

uint64_t page_key(uint64_t seed, uint32_t layer, uint64_t slot) {
    return mix(mix(seed + layer) + (slot + 1) * GOLDEN);
}

uint64_t background_key(uint64_t seed, uint32_t layer) {
    return mix(~mix(seed + layer));
}

void pattern_fill(uint64_t key, uint64_t offset, uint8_t *bytes, size_t len) {
    uint64_t index = offset / 8;
    size_t skip = offset % 8, at = 0;
    while (at < len) {
        uint64_t word = mix(key + index++ * GOLDEN);
        size_t n = 8 - skip < len - at ? 8 - skip : len - at;
        if (n == 8) memcpy(bytes + at, &word, 8); /* one store, unlike the general case */
        else memcpy(bytes + at, (const uint8_t *)&word + skip, n);
        at += n;
        skip = 0;
    }
}

size_t pattern_wrong(uint64_t key, uint64_t offset, const uint8_t *bytes, size_t len, size_t *first) {
    uint8_t right[4096];
    size_t wrong = 0;
    for (size_t at = 0; at < len; at += sizeof right) {
        size_t n = len - at < sizeof right ? len - at : sizeof right;
        pattern_fill(key, offset + at, right, n);
        if (memcmp(right, bytes + at, n) == 0) continue;
        for (size_t i = 0; i < n; i++) {
            if (right[i] == bytes[at + i]) continue;
            if (wrong++ == 0) *first = at + i;
        }
    }
    return wrong;
}
