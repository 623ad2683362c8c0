// Feature dropout keyed by (seed, row id, column); dgl_gt/ops/dropout.py defines the bits. No mask is stored: forward
// and backward make it again.

#include <algorithm>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

// The same loops for several instruction sets, picked when the library is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define CLONES
#endif

namespace {

constexpr int64_t kColumns = 4;   // share the 64 bits of one key, 16 each
constexpr int64_t kKeys = 16;     // of one block
constexpr uint64_t kMaxGroups = 65536;

inline uint64_t mix64(uint64_t bits) {
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    return bits ^ (bits >> 31);
}

template <typename T>
inline __attribute__((always_inline)) void drop_row(const T* from, T* to, int64_t columns, uint64_t key, uint64_t row, uint64_t threshold, T scale) {
    for (int64_t begin = 0; begin < columns; begin += kKeys * kColumns) {
        uint64_t bits[kKeys];
        uint16_t lanes[kKeys * kColumns];
        for (int64_t i = 0; i < kKeys; ++i) {
            const uint64_t group = uint64_t(begin / kColumns + i);
            bits[i] = mix64(key + (row * kMaxGroups + group + 1) * 0x9E3779B97F4A7C15ull);
        }
        for (int64_t i = 0; i < kKeys; ++i)
            for (int64_t lane = 0; lane < kColumns; ++lane) lanes[i * kColumns + lane] = uint16_t(bits[i] >> (16 * lane));
        const int64_t count = std::min(columns - begin, kKeys * kColumns);
        for (int64_t i = 0; i < count; ++i) to[begin + i] = lanes[i] >= threshold ? from[begin + i] * scale : T(0);
    }
}

CLONES void drop_rows(const float* from, float* to, int64_t first, int64_t last, int64_t columns, const int64_t* ids,
                      uint64_t key, uint64_t threshold, float scale) {
    for (int64_t row = first; row < last; ++row)
        drop_row(from + row * columns, to + row * columns, columns, key, uint64_t(ids ? ids[row] : row), threshold, scale);
}

CLONES void drop_rows(const double* from, double* to, int64_t first, int64_t last, int64_t columns, const int64_t* ids,
                      uint64_t key, uint64_t threshold, double scale) {
    for (int64_t row = first; row < last; ++row)
        drop_row(from + row * columns, to + row * columns, columns, key, uint64_t(ids ? ids[row] : row), threshold, scale);
}

template <typename T>
void run(const void* from, void* to, int64_t rows, int64_t columns, const int64_t* ids, uint64_t seed,
         uint64_t threshold, double scale, int num_threads) {
    constexpr int64_t kRows = 256;
    const uint64_t key = mix64(seed);
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (int64_t first = 0; first < rows; first += kRows)
        drop_rows(static_cast<const T*>(from), static_cast<T*>(to), first, std::min(rows, first + kRows), columns, ids,
                  key, threshold, T(scale));
}

}  // namespace

// from, to: (rows, columns), contiguous, float or double; ids (rows) or null for the row numbers.
EXPORT void dgl_gt_drop(const void* from, void* to, int64_t rows, int64_t columns, const int64_t* ids, uint64_t seed,
                        uint64_t threshold, double scale, int32_t is_double, int32_t num_threads) {
    (is_double ? run<double> : run<float>)(from, to, rows, columns, ids, seed, threshold, scale, num_threads);
}
