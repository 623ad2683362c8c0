// What the compiled loops share. Nothing here depends on Python or numpy.
#pragma once

#include <cstdint>

#if defined(__GNUC__)
#define EXPORT extern "C" __attribute__((visibility("default")))
#else
#define EXPORT extern "C"
#endif

// Which parts a node is in: one bit each, (N, ceil(K / 64)).
struct Copies {
    uint64_t* bits;
    int64_t words;

    Copies(uint64_t* bits, int64_t parts) : bits(bits), words((parts + 63) / 64) {}
    bool has(int64_t node, int64_t part) const { return bits[node * words + part / 64] >> (part % 64) & 1; }
    void add(int64_t node, int64_t part) { bits[node * words + part / 64] |= uint64_t(1) << (part % 64); }
    void remove(int64_t node, int64_t part) { bits[node * words + part / 64] &= ~(uint64_t(1) << (part % 64)); }
};
