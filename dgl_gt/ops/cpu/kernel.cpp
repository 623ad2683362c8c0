// Sparse attention over the edges of a graph, float and double, forward and backward.
//
// Forward: online softmax over a row's in-edges (Milakov and Gimelshein 2018, arXiv 1805.02867). Backward: the weights
// are computed again from the log-sum-exp (FlashAttention, Dao et al. 2022, arXiv 2205.14135), in one pass over
// in-edges for dQ and dbias and one over out-edges for dK and dV. Every output row is written by one thread in one
// order: no atomics, and the same bits with any number of threads. Nothing depends on Python, torch or numpy.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

// The loader picks the widest clone that the processor can run. x86-64-v3 and v4 are AVX2 with FMA, and AVX-512.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

#if defined(__GNUC__)
#define INLINE inline __attribute__((always_inline))
#define EXPORT extern "C" __attribute__((visibility("default")))
#else
#define INLINE inline
#define EXPORT extern "C"
#endif

namespace {

// A (rows, H, D) or (rows, H) array. The last dimension of the former has stride 1; strides count elements.
struct Array {
    void* data;
    int64_t row_stride, head_stride;
};

}  // namespace

// Mirrored field by field by _Problem in __init__.py. Pointers to what a call does not need are null.
struct Problem {
    Array q, k, v, bias, out, lse, grad_out, grad_lse, delta, grad_q, grad_k, grad_v, grad_bias;
    const int64_t* indptr;
    const void* indices;
    const int64_t *edge_ids, *global_edge_ids;
    const int64_t* rev_indptr;
    const void* rev_dst;
    const int64_t* rev_position;
    int64_t num_dst, num_src, num_heads, head_dim, head_offset;
    double scale, keep_scale;
    uint64_t seed, drop_threshold;
    int32_t is_double, is_int64, is_backward, num_threads;
};

namespace {

constexpr uint64_t kMaxHeads = 65536;

// The head width, as a constant where the code is made for one: then the loops over it become a few instructions.
template <int D>
INLINE int64_t width(const Problem& p) {
    return D ? D : p.head_dim;
}

template <typename T>
INLINE T* at(const Array& array, int64_t row, int64_t head) {
    return static_cast<T*>(array.data) + row * array.row_stride + head * array.head_stride;
}

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
INLINE uint64_t mix64(uint64_t bits) {
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    return bits ^ (bits >> 31);
}

// What multiplies a weight: 0 where dropout takes it, 1 / (1 - p) where not. reference.py defines the bits.
template <typename T>
INLINE T keep_factor(const Problem& p, uint64_t key, int64_t position, int64_t head) {
    if (p.drop_threshold == 0) return T(1);
    const int64_t* ids = p.global_edge_ids ? p.global_edge_ids : p.edge_ids;
    const uint64_t edge = ids ? ids[position] : position;
    const uint64_t counter = edge * kMaxHeads + uint64_t(p.head_offset + head) + 1;
    const uint64_t bits = mix64(key + counter * 0x9E3779B97F4A7C15ull);
    return (bits >> 40) >= p.drop_threshold ? T(p.keep_scale) : T(0);
}

template <typename T>
INLINE T dot(const T* a, const T* b, int64_t n) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < n; ++d) sum += a[d] * b[d];
    return sum;
}

template <typename T>
INLINE void add_scaled(T* target, T factor, const T* source, int64_t n) {
#pragma omp simd
    for (int64_t d = 0; d < n; ++d) target[d] += factor * source[d];
}

template <typename T, int D>
INLINE T score(const Problem& p, const T* q, const T* k, int64_t position, int64_t head) {
    T s = dot(q, k, width<D>(p)) * T(p.scale);
    if (p.bias.data) s += *at<T>(p.bias, p.edge_ids ? p.edge_ids[position] : position, head);
    return s;
}

template <typename T, typename I, int D>
CLONES void forward_rows(const Problem& p, int64_t begin, int64_t end) {
    const T none = -std::numeric_limits<T>::infinity();
    const I* indices = static_cast<const I*>(p.indices);
    const int64_t dim = width<D>(p);
    const uint64_t key = mix64(p.seed);
    std::vector<T> tops(p.num_heads), totals(p.num_heads);
    for (int64_t row = begin; row < end; ++row) {
        std::fill(tops.begin(), tops.end(), none);
        std::fill(totals.begin(), totals.end(), T(0));
        for (int64_t h = 0; h < p.num_heads; ++h) std::fill_n(at<T>(p.out, row, h), dim, T(0));
        for (int64_t position = p.indptr[row]; position < p.indptr[row + 1]; ++position) {
            const int64_t source = indices[position];
            for (int64_t h = 0; h < p.num_heads; ++h) {
                T* out = at<T>(p.out, row, h);
                const T s = score<T, D>(p, at<T>(p.q, row, h), at<T>(p.k, source, h), position, h);
                if (s == none) continue;  // masked by the bias; before any other edge, it would give inf - inf
                if (!(s <= tops[h])) {  // also for NaN, which must reach the result
                    const T shrink = std::exp(tops[h] - s);
                    totals[h] *= shrink;
#pragma omp simd
                    for (int64_t d = 0; d < dim; ++d) out[d] *= shrink;
                    tops[h] = s;
                }
                const T weight = std::exp(s - tops[h]);
                totals[h] += weight;
                add_scaled(out, weight * keep_factor<T>(p, key, position, h), at<T>(p.v, source, h), dim);
            }
        }
        for (int64_t h = 0; h < p.num_heads; ++h) {
            *at<T>(p.lse, row, h) = tops[h] == none ? none : tops[h] + std::log(totals[h]);
            if (tops[h] == none) continue;
            T* out = at<T>(p.out, row, h);
            const T inverse = T(1) / totals[h];
#pragma omp simd
            for (int64_t d = 0; d < dim; ++d) out[d] *= inverse;
        }
    }
}

// delta = grad_out . out - grad_lse, what every score gradient of a row subtracts; the backward passes read it.
template <typename T, int D>
CLONES void delta_rows(const Problem& p, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        for (int64_t h = 0; h < p.num_heads; ++h) {
            *at<T>(p.delta, row, h) =
                dot(at<T>(p.grad_out, row, h), at<T>(p.out, row, h), width<D>(p)) - *at<T>(p.grad_lse, row, h);
        }
    }
}

template <typename T>
struct EdgeGradient {
    T kept;   // the dropped, normalised weight: d out / d v
    T score;  // d loss / d score
};

template <typename T, int D>
INLINE EdgeGradient<T> edge_gradient(const Problem& p, uint64_t key, int64_t row, int64_t source, int64_t position,
                                     int64_t h) {
    const T lse = *at<T>(p.lse, row, h);
    if (lse == -std::numeric_limits<T>::infinity()) return {T(0), T(0)};  // every edge of the row is masked
    const T weight = std::exp(score<T, D>(p, at<T>(p.q, row, h), at<T>(p.k, source, h), position, h) - lse);
    const T kept = weight * keep_factor<T>(p, key, position, h);
    const T grad_kept = dot(at<T>(p.grad_out, row, h), at<T>(p.v, source, h), width<D>(p));
    return {kept, kept * grad_kept - weight * *at<T>(p.delta, row, h)};
}

template <typename T, typename I, int D>
CLONES void backward_query_rows(const Problem& p, int64_t begin, int64_t end) {
    const I* indices = static_cast<const I*>(p.indices);
    const uint64_t key = mix64(p.seed);
    for (int64_t row = begin; row < end; ++row) {
        if (p.grad_q.data)
            for (int64_t h = 0; h < p.num_heads; ++h) std::fill_n(at<T>(p.grad_q, row, h), width<D>(p), T(0));
        for (int64_t position = p.indptr[row]; position < p.indptr[row + 1]; ++position) {
            const int64_t source = indices[position];
            for (int64_t h = 0; h < p.num_heads; ++h) {
                const T gradient = edge_gradient<T, D>(p, key, row, source, position, h).score;
                if (p.grad_q.data)
                    add_scaled(at<T>(p.grad_q, row, h), gradient * T(p.scale), at<T>(p.k, source, h), width<D>(p));
                if (p.grad_bias.data)
                    *at<T>(p.grad_bias, p.edge_ids ? p.edge_ids[position] : position, h) = gradient;
            }
        }
    }
}

template <typename T, typename I, int D>
CLONES void backward_key_value_rows(const Problem& p, int64_t begin, int64_t end) {
    const I* destinations = static_cast<const I*>(p.rev_dst);
    const uint64_t key = mix64(p.seed);
    for (int64_t source = begin; source < end; ++source) {
        for (int64_t h = 0; h < p.num_heads; ++h) {
            std::fill_n(at<T>(p.grad_k, source, h), width<D>(p), T(0));
            std::fill_n(at<T>(p.grad_v, source, h), width<D>(p), T(0));
        }
        for (int64_t slot = p.rev_indptr[source]; slot < p.rev_indptr[source + 1]; ++slot) {
            const int64_t row = destinations[slot], position = p.rev_position[slot];
            for (int64_t h = 0; h < p.num_heads; ++h) {
                const EdgeGradient<T> g = edge_gradient<T, D>(p, key, row, source, position, h);
                add_scaled(at<T>(p.grad_k, source, h), g.score * T(p.scale), at<T>(p.q, row, h), width<D>(p));
                add_scaled(at<T>(p.grad_v, source, h), g.kept, at<T>(p.grad_out, row, h), width<D>(p));
            }
        }
    }
}

// The first row at which `share` of all edges and rows lie behind. Rows count too: an empty row is work as well.
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

// Runs work(p, begin, end) over ranges of rows with about equal numbers of edges.
template <typename Work>
void over_rows(const Problem& p, const int64_t* indptr, int64_t rows, Work work) {
    const int64_t target_rows_and_edges = 1024;
    const int64_t chunks = std::max<int64_t>(1, (indptr[rows] + rows) / target_rows_and_edges);
#pragma omp parallel for schedule(dynamic, 1) num_threads(p.num_threads)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t begin = chunk == 0 ? 0 : boundary(indptr, rows, double(chunk) / chunks);
        const int64_t end = chunk + 1 == chunks ? rows : boundary(indptr, rows, double(chunk + 1) / chunks);
        work(p, begin, end);
    }
}

template <typename T, typename I, int D>
void run(const Problem& p) {
    if (!p.is_backward) {
        over_rows(p, p.indptr, p.num_dst, forward_rows<T, I, D>);
        return;
    }
    over_rows(p, p.indptr, p.num_dst, delta_rows<T, D>);
    if (p.grad_q.data || p.grad_bias.data) over_rows(p, p.indptr, p.num_dst, backward_query_rows<T, I, D>);
    if (p.grad_k.data) over_rows(p, p.rev_indptr, p.num_src, backward_key_value_rows<T, I, D>);
}

template <typename T, typename I>
void run_width(const Problem& p) {
    switch (p.head_dim) {
        case 8: return run<T, I, 8>(p);
        case 16: return run<T, I, 16>(p);
        case 32: return run<T, I, 32>(p);
        case 64: return run<T, I, 64>(p);
        default: return run<T, I, 0>(p);
    }
}

}  // namespace

EXPORT int64_t dgl_gt_problem_bytes() { return sizeof(Problem); }

EXPORT void dgl_gt_run(const Problem* p) {
    if (p->is_double) p->is_int64 ? run_width<double, int64_t>(*p) : run_width<double, int32_t>(*p);
    else p->is_int64 ? run_width<float, int64_t>(*p) : run_width<float, int32_t>(*p);
}
