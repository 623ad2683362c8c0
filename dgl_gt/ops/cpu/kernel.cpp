// Sparse attention over the edges of a graph, forward and backward.
//
// Forward: online softmax over a row's in-edges (Milakov and Gimelshein 2018, arXiv 1805.02867). Backward: the weights
// are computed again from the log-sum-exp (FlashAttention, Dao et al. 2022, arXiv 2205.14135), in one pass over
// in-edges for dQ and dbias and one over out-edges for dK and dV. One thread writes each output row, and every sum has a
// fixed order, so there are no atomics, and the bits are the same with any number of threads. Nothing depends on Python,
// torch or numpy. This file spreads rows over threads. The arithmetic is in edges.h, rows.h, head_minor.h and additive.h,
// and that of feature dropout and of packed rows in dropout.h and quantise.h.

#include <algorithm>
#include <cstdint>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "problem.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int64_t kChunkEdges = 1024;  // a thread takes ranges of rows with about this many edges
constexpr int64_t kPieceEdges = 4096;  // a row with more edges is cut into pieces of this many, each a task

// Returns the first row before which `share` of all edges and rows lie. Rows count, too: an empty row is also work.
int64_t boundary(const int64_t* indptr, int64_t rows, double share) {
    const int64_t goal = int64_t(share * double(indptr[rows] + rows));
    int64_t low = 0, high = rows;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (indptr[middle] + middle < goal) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Runs work(range, begin, end) over ranges of rows with about equal numbers of edges, `most` of them or fewer.
template <typename Work>
void over_rows(const int64_t* indptr, int64_t rows, int num_threads, int64_t most, Work work) {
    const int64_t chunks = std::min(most, std::max<int64_t>(1, (indptr[rows] + rows) / kChunkEdges));
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t begin = chunk == 0 ? 0 : boundary(indptr, rows, double(chunk) / chunks);
        const int64_t end = chunk + 1 == chunks ? rows : boundary(indptr, rows, double(chunk + 1) / chunks);
        work(chunk, begin, end);
    }
}

// A buffer that begins at a cache line.
struct Buffer {
    std::vector<char> bytes;
    explicit Buffer(int64_t size) : bytes(size + 64) {}
    char* data() { return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(bytes.data()) + 63) & ~uintptr_t(63)); }
};

struct Piece {
    int64_t row, begin, end;
};

// The problem of one of several ranges, which adds to its own table of gradients, where there are tables.
Problem with_table(const Problem& p, int64_t range) {
    Problem own = p;
    const int64_t bytes = p.storage == kFloat64 ? 8 : 4;
    if (p.num_tables) own.grad_bias.data = static_cast<char*>(p.grad_bias.data) + range * p.num_kinds * p.num_heads * bytes;
    return own;
}

// Adds the tables of all ranges to the first.
template <typename T>
void add_tables(const Problem& p) {
    T* first = static_cast<T*>(p.grad_bias.data);
    const int64_t numbers = p.num_kinds * p.num_heads;
    for (int64_t i = numbers; i < p.num_tables * numbers; ++i) first[i % numbers] += first[i];
}

void run_pass(const Problem& p, const Pass& pass, const int64_t* indptr, int64_t rows, int64_t tables = 0) {
    const int64_t state_bytes = (pass.state_bytes + 63) & ~int64_t(63);
    const int64_t scratch_bytes = (pass.scratch_bytes + 63) & ~int64_t(63);
    std::vector<Piece> pieces;
    for (int64_t row = 0; row < rows; ++row)
        if (indptr[row + 1] - indptr[row] > kPieceEdges)
            for (int64_t begin = indptr[row]; begin < indptr[row + 1]; begin += kPieceEdges)
                pieces.push_back({row, begin, std::min(begin + kPieceEdges, indptr[row + 1])});
    const int64_t count = pieces.size(), ranges = tables ? std::min(tables, count) : count;
    Buffer states(count * state_bytes);
#pragma omp parallel num_threads(p.num_threads)
    {
        Buffer scratch(scratch_bytes);
#pragma omp for schedule(dynamic, 1)
        for (int64_t range = 0; range < ranges; ++range) {
            const Problem own = with_table(p, range);
            for (int64_t i = range * count / ranges; i < (range + 1) * count / ranges; ++i)
                pass.part(own, pieces[i].row, pieces[i].begin, pieces[i].end, scratch.data(), states.data() + i * state_bytes);
        }
    }
    for (size_t i = 0; i < pieces.size();) {
        char* state = states.data() + i * state_bytes;
        const int64_t row = pieces[i].row;
        for (++i; i < pieces.size() && pieces[i].row == row; ++i)
            pass.merge(p, state, states.data() + i * state_bytes);
        pass.finish(p, row, state);
    }
    over_rows(indptr, rows, p.num_threads, tables ? tables : rows + 1, [&](int64_t range, int64_t begin, int64_t end) {
        const Problem own = with_table(p, range);
        Buffer buffer(scratch_bytes + state_bytes);
        char *scratch = buffer.data(), *state = scratch + scratch_bytes;
        for (int64_t row = begin; row < end; ++row) {
            if (indptr[row + 1] - indptr[row] > kPieceEdges) continue;
            pass.part(own, row, indptr[row], indptr[row + 1], scratch, state);
            pass.finish(p, row, state);
        }
    });
}

int best_path() {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return 2;
    if (has_avx2) return 1;
#endif
    return 0;
}

struct Functions {
    Passes (*passes)(const Problem&);
    void (*drop_rows)(const Dropout&, int64_t, int64_t);
    void (*quantise_rows)(const Quantise&, int64_t, int64_t);
    void (*restore_rows)(const Quantise&, float*, int64_t, int64_t);
};

#define OF(path) {path::passes, path::drop_rows, path::quantise_rows, path::restore_rows}
Functions functions_of(int path) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (path == 2) return OF(avx512);
    if (path == 1) return OF(avx2);
#endif
    (void)path;
    return OF(portable);
}

}  // namespace

EXPORT int64_t dgl_gt_problem_bytes() { return sizeof(Problem); }

EXPORT int32_t dgl_gt_best_path() { return best_path(); }

// Asks for huge pages for a result before its first write, and touches each page. Otherwise page faults for every 4 KiB
// would take up to a quarter of the time, and two threads that write neighbouring rows would wait for one huge page.
EXPORT void dgl_gt_use_huge_pages(void* data, int64_t bytes, int32_t num_threads) {
#if defined(__linux__)
    constexpr int64_t kPage = 2 << 20;
    const int64_t begin = (reinterpret_cast<intptr_t>(data) + kPage - 1) / kPage * kPage;
    const int64_t end = (reinterpret_cast<intptr_t>(data) + bytes) / kPage * kPage;
    if (begin >= end || madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE) != 0) return;
#pragma omp parallel for num_threads(num_threads)
    for (int64_t page = begin; page < end; page += kPage) *reinterpret_cast<volatile char*>(page) = 0;
#else
    (void)data, (void)bytes, (void)num_threads;
#endif
}

// Keyed dropout; for the arguments see Dropout in problem.h.
EXPORT void dgl_gt_drop_rows(const void* from, void* to, int64_t rows, int64_t columns, const int64_t* ids,
                             uint64_t seed, uint64_t threshold, double scale, int32_t storage, int32_t path,
                             int32_t num_threads) {
    constexpr int64_t kRows = 256;
    const Dropout dropout = {from, to, columns, ids, seed, threshold, scale, storage};
    const auto drop_rows = functions_of(path).drop_rows;
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (int64_t first = 0; first < rows; first += kRows) drop_rows(dropout, first, std::min(rows, first + kRows));
}

// Quantises rows with the random bits of `keys` (rows,), or restores rows where `keys` is null; see quantise.h.
EXPORT void dgl_gt_quantise_rows(float* rows, uint8_t* packed, int64_t num_rows, int64_t columns, const int64_t* keys,
                                 uint64_t seed, int32_t bits, int32_t path, int32_t num_threads) {
    constexpr int64_t kRows = 256;
    const Quantise settings = {rows, packed, columns, keys, seed, bits};
    const Functions functions = functions_of(path);
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (int64_t first = 0; first < num_rows; first += kRows) {
        const int64_t last = std::min(num_rows, first + kRows);
        if (keys) functions.quantise_rows(settings, first, last);
        else functions.restore_rows(settings, rows, first, last);
    }
}

EXPORT void dgl_gt_run(const Problem* problem) {
    const Problem& p = *problem;
    const Passes passes = functions_of(p.path).passes(p);
    if (!p.is_backward) return run_pass(p, passes.forward, p.indptr, p.num_dst);
    over_rows(p.indptr, p.num_dst, p.num_threads, p.num_dst + 1, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) passes.stats(p, row);
    });
    if (p.grad_q.data || p.grad_bias.data || p.grad_q_edge.data || p.grad_edge.data)
        run_pass(p, passes.query, p.indptr, p.num_dst, p.num_tables);
    if (p.num_tables) p.storage == kFloat64 ? add_tables<double>(p) : add_tables<float>(p);
    if (p.grad_k.data) run_pass(p, passes.key_value, p.rev_indptr, p.num_src);
}
