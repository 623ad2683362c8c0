// The arguments of the kernel, and the functions that each instruction set's code gives to the driver.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__GNUC__)
#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#else
#define INLINE inline
#define NOINLINE
#endif

enum Storage : int32_t { kFloat32, kFloat64, kBFloat16, kFloat16 };  // as _STORAGE in __init__.py

// A (rows, H, D) or (rows, H) array. Strides count elements. The last dimension of the former has stride 1, or stride H
// where the heads lie side by side, with a head_stride of 1; see head_minor.h.
struct Array {
    void* data;
    int64_t row_stride, head_stride;
};

// _Problem in __init__.py mirrors it field by field. Pointers that a call does not need are null.
struct Problem {
    // q, k, v, out and their gradients have the storage type. They are (rows, H, D), but with additive scores q and k are
    // (rows, H). lse, grad_lse and stats have the type of sums; bias and its gradient have either type. stats
    // (N_dst, 2, H) is scratch memory of the backward passes.
    Array q, k, v, bias, out, lse, grad_out, grad_lse, stats, grad_q, grad_k, grad_v, grad_bias, grad_edge;
    // With edge features: edge (E, F), which all heads share, and its gradient, with a head_stride of 0; the others are
    // (N_dst, H, F). All have the storage type.
    Array edge, q_edge, out_edge, grad_out_edge, grad_q_edge;
    const int64_t* indptr;
    const void* indices;
    const int64_t *edge_ids, *global_edge_ids;
    const int64_t* rev_indptr;
    const void* rev_dst;
    const int64_t* rev_position;
    const int32_t* kind;  // of each edge, by its id: a row of the bias, which then has num_kinds rows
    // Its gradient is summed in num_tables arrays (num_kinds, H) of the type of sums, which follow one another.
    int64_t num_dst, num_src, num_heads, head_dim, edge_dim, head_offset, num_kinds, num_tables;
    double scale, keep_scale, negative_slope;
    uint64_t seed, drop_threshold;
    int32_t storage, bias_storage, is_int64, is_backward, is_head_minor, is_additive, path, num_threads;
};

template <typename S>
INLINE S* at(const Array& array, int64_t row, int64_t head) {
    return static_cast<S*>(array.data) + row * array.row_stride + head * array.head_stride;
}

INLINE int64_t index_at(const Problem& p, const void* indices, int64_t position) {
    return p.is_int64 ? static_cast<const int64_t*>(indices)[position] : static_cast<const int32_t*>(indices)[position];
}

// One pass over the rows of one side of the graph. A row's edges are summed into a state: all at once or, for a hub, in
// pieces whose states are merged. A state and the scratch memory are buffers of the given sizes, in bytes.
struct Pass {
    void (*part)(const Problem&, int64_t row, int64_t begin, int64_t end, void* scratch, void* state);
    void (*merge)(const Problem&, void* state, const void* other);
    void (*finish)(const Problem&, int64_t row, void* state);
    int64_t scratch_bytes, state_bytes;
};

struct Passes {
    Pass forward, query, key_value;
    void (*stats)(const Problem&, int64_t row);
};

// Keyed dropout of a contiguous (rows, columns) array of the storage type; ids (rows), or null for row numbers.
struct Dropout {
    const void* from;
    void* to;
    int64_t columns;
    const int64_t* ids;
    uint64_t seed, threshold;
    double scale;
    int32_t storage;
};

// Rows of float32 and their packed form; `keys` and `seed` are read to pack rows, not to restore them.
struct Quantise {
    const float* rows;
    uint8_t* packed;
    int64_t columns;
    const int64_t* keys;
    uint64_t seed;
    int32_t bits;  // 8 or 4
};

// One definition for each instruction set, in the file of that name, which includes passes.h.
#define PASSES                                                              \
    Passes passes(const Problem&);                                          \
    void drop_rows(const Dropout&, int64_t first, int64_t last);            \
    void quantise_rows(const Quantise&, int64_t first, int64_t last);       \
    void restore_rows(const Quantise&, float* rows, int64_t first, int64_t last);
namespace portable { PASSES }
namespace avx2 { PASSES }
namespace avx512 { PASSES }
#undef PASSES
