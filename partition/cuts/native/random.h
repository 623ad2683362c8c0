// The random numbers of the compiled loops.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace dgl_gt {

// xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016). Unlike the
// distributions of <random>, it gives the same numbers with every compiler.
class Xorshift64Star {
   public:
    explicit Xorshift64Star(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15u + MULTIPLIER) {}

    uint64_t next() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return state * MULTIPLIER;
    }
    int64_t below(int64_t bound) { return int64_t(next() % uint64_t(bound)); }
    double uniform() { return double(next() >> 11) / 9007199254740992.0; }  // in [0, 1)

    void shuffle(std::vector<int64_t>& values) {
        for (int64_t i = int64_t(values.size()) - 1; i > 0; --i) std::swap(values[i], values[below(i + 1)]);
    }

   private:
    static constexpr uint64_t MULTIPLIER = 0x2545F4914F6CDD1Du;
    uint64_t state;
};

// The number of `value` in a lot with this salt: `mixed` of partition/distributed/job.py (SplitMix64's finaliser).
inline uint64_t mixed(uint64_t value, uint64_t salt) {
    uint64_t x = value + (salt % (uint64_t(1) << 32) + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

}  // namespace dgl_gt
