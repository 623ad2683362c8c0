// Sparse attention over the edges of a graph, float and double, forward and backward.
//
// Forward: online softmax over a row's in-edges (Milakov and Gimelshein 2018, arXiv 1805.02867). Backward: the weights
// are computed again from the log-sum-exp (FlashAttention, Dao et al. 2022, arXiv 2205.14135), in one pass over
// in-edges for dQ and dbias and one over out-edges for dK and dV. Every output row is written by one thread in one
// order: no atomics, and the same bits with any number of threads. Nothing depends on Python, torch or numpy.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
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

// exp for a loop over lanes: float by the polynomial of Cephes (Moshier 1989) after Cody and Waite's range reduction,
// to about an ulp, in operations that vectorise; double by the library.
INLINE float exponential(float x) {
    const float clamped = x > 88.f ? 88.f : x < -87.f ? -87.f : x;  // NaN stays
    const float shifted = clamped * 1.44269504f + 12582912.f;       // rounds to an integer, in the low bits
    const float whole = shifted - 12582912.f;
    const float r = (clamped - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float poly = 1.9875691500e-4f;
    poly = poly * r + 1.3981999507e-3f;
    poly = poly * r + 8.3334519073e-3f;
    poly = poly * r + 4.1665795894e-2f;
    poly = poly * r + 1.6666665459e-1f;
    poly = poly * r + 5.0000001201e-1f;
    poly = poly * (r * r) + r + 1.f;
    int32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return x < -87.f ? 0.f : poly * power;
}
INLINE double exponential(double x) { return std::exp(x); }

// Edges are taken kLanes at a time: one vector of scores a head.
constexpr int64_t kLanes = 16;
constexpr int64_t kLineBytes = 64;
constexpr int64_t kPrefetchEdges = 8;  // far enough ahead to hide a cache miss, near enough to stay in cache

// Ask for a row of two arrays before it is needed.
template <typename T, int D>
INLINE void prefetch(const Problem& p, const Array& a, const Array& b, int64_t row) {
    for (int64_t h = 0; h < p.num_heads; ++h) {
        for (int64_t d = 0; d < width<D>(p); d += kLineBytes / int64_t(sizeof(T))) {
            __builtin_prefetch(at<T>(a, row, h) + d);
            __builtin_prefetch(at<T>(b, row, h) + d);
        }
    }
}

template <typename T>
INLINE T bias_of(const Problem& p, int64_t position, int64_t head) {
    return p.bias.data ? *at<T>(p.bias, p.edge_ids ? p.edge_ids[position] : position, head) : T(0);
}

template <typename T, typename I, int D>
CLONES void forward_rows(const Problem& p, int64_t begin, int64_t end) {
    const T none = -std::numeric_limits<T>::infinity();
    const I* indices = static_cast<const I*>(p.indices);
    const int64_t dim = width<D>(p), heads = p.num_heads, last = p.indptr[end];
    const uint64_t key = mix64(p.seed);
    std::vector<T> tops(heads), totals(heads), weights(heads * kLanes);
    for (int64_t row = begin; row < end; ++row) {
        std::fill(tops.begin(), tops.end(), none);
        std::fill(totals.begin(), totals.end(), T(0));
        for (int64_t h = 0; h < heads; ++h) std::fill_n(at<T>(p.out, row, h), dim, T(0));
        for (int64_t first = p.indptr[row]; first < p.indptr[row + 1]; first += kLanes) {
            const int64_t count = std::min(kLanes, p.indptr[row + 1] - first);
            if (count < kLanes) std::fill(weights.begin(), weights.end(), none);
            for (int64_t lane = 0; lane < count; ++lane) {
                const int64_t position = first + lane, source = indices[position];
                if (position + kPrefetchEdges < last) prefetch<T, D>(p, p.k, p.v, indices[position + kPrefetchEdges]);
                for (int64_t h = 0; h < heads; ++h)
                    weights[h * kLanes + lane] =
                        dot(at<T>(p.q, row, h), at<T>(p.k, source, h), dim) * T(p.scale) + bias_of<T>(p, position, h);
            }
            for (int64_t h = 0; h < heads; ++h) {
                T* weight = &weights[h * kLanes];
                T top = tops[h];
                for (int64_t lane = 0; lane < kLanes; ++lane) top = weight[lane] > top ? weight[lane] : top;
                const T base = top == none ? T(0) : top;  // where every edge so far is masked; inf - inf otherwise
                T total = 0;
#pragma omp simd reduction(+ : total)
                for (int64_t lane = 0; lane < kLanes; ++lane) {
                    weight[lane] = exponential(weight[lane] - base);
                    total += weight[lane];
                }
                if (top != tops[h]) {
                    const T shrink = exponential(tops[h] - base);
                    T* out = at<T>(p.out, row, h);
                    totals[h] *= shrink;
#pragma omp simd
                    for (int64_t d = 0; d < dim; ++d) out[d] *= shrink;
                    tops[h] = top;
                }
                totals[h] += total;
                if (p.drop_threshold)
                    for (int64_t lane = 0; lane < count; ++lane)
                        weight[lane] *= keep_factor<T>(p, key, first + lane, h);
            }
            for (int64_t lane = 0; lane < count; ++lane) {
                const int64_t source = indices[first + lane];
                for (int64_t h = 0; h < heads; ++h)
                    add_scaled(at<T>(p.out, row, h), weights[h * kLanes + lane], at<T>(p.v, source, h), dim);
            }
        }
        for (int64_t h = 0; h < heads; ++h) {
            *at<T>(p.lse, row, h) = tops[h] == none && totals[h] == T(0) ? none : tops[h] + std::log(totals[h]);
            if (totals[h] == T(0)) continue;
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

// For up to kLanes edges of one head, in place: from grad_out . v to the dropped weights (d out / d v), and from scores
// to d loss / d score. lse and delta are those of each edge's destination.
template <typename T>
INLINE void edge_gradients(const T* lse, const T* delta, const T* keep, T* kept, T* score) {
    const T none = -std::numeric_limits<T>::infinity();
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
        // An lse of -inf: every edge of the row is masked.
        const T weight = lse[lane] == none ? T(0) : exponential(score[lane] - lse[lane]);
        const T grad_kept = kept[lane];
        kept[lane] = weight * keep[lane];
        score[lane] = kept[lane] * grad_kept - weight * delta[lane];
    }
}

template <typename T, typename I, int D>
CLONES void backward_query_rows(const Problem& p, int64_t begin, int64_t end) {
    const I* indices = static_cast<const I*>(p.indices);
    const int64_t dim = width<D>(p), heads = p.num_heads, last = p.indptr[end];
    const uint64_t key = mix64(p.seed);
    std::vector<T> scores(heads * kLanes), kept(heads * kLanes), keep(kLanes, T(1)), lse(kLanes), delta(kLanes);
    for (int64_t row = begin; row < end; ++row) {
        if (p.grad_q.data)
            for (int64_t h = 0; h < heads; ++h) std::fill_n(at<T>(p.grad_q, row, h), dim, T(0));
        for (int64_t first = p.indptr[row]; first < p.indptr[row + 1]; first += kLanes) {
            const int64_t count = std::min(kLanes, p.indptr[row + 1] - first);
            for (int64_t lane = 0; lane < count; ++lane) {
                const int64_t position = first + lane, source = indices[position];
                if (position + kPrefetchEdges < last) prefetch<T, D>(p, p.k, p.v, indices[position + kPrefetchEdges]);
                for (int64_t h = 0; h < heads; ++h) {
                    scores[h * kLanes + lane] =
                        dot(at<T>(p.q, row, h), at<T>(p.k, source, h), dim) * T(p.scale) + bias_of<T>(p, position, h);
                    kept[h * kLanes + lane] = dot(at<T>(p.grad_out, row, h), at<T>(p.v, source, h), dim);
                }
            }
            for (int64_t h = 0; h < heads; ++h) {
                std::fill(lse.begin(), lse.end(), *at<T>(p.lse, row, h));
                std::fill(delta.begin(), delta.end(), *at<T>(p.delta, row, h));
                if (p.drop_threshold)
                    for (int64_t lane = 0; lane < count; ++lane) keep[lane] = keep_factor<T>(p, key, first + lane, h);
                edge_gradients(lse.data(), delta.data(), keep.data(), &kept[h * kLanes], &scores[h * kLanes]);
            }
            for (int64_t lane = 0; lane < count; ++lane) {
                const int64_t position = first + lane, source = indices[position];
                for (int64_t h = 0; h < heads; ++h) {
                    const T gradient = scores[h * kLanes + lane];
                    if (p.grad_q.data)
                        add_scaled(at<T>(p.grad_q, row, h), gradient * T(p.scale), at<T>(p.k, source, h), dim);
                    if (p.grad_bias.data)
                        *at<T>(p.grad_bias, p.edge_ids ? p.edge_ids[position] : position, h) = gradient;
                }
            }
        }
    }
}

template <typename T, typename I, int D>
CLONES void backward_key_value_rows(const Problem& p, int64_t begin, int64_t end) {
    const I* destinations = static_cast<const I*>(p.rev_dst);
    const int64_t dim = width<D>(p), heads = p.num_heads, last = p.rev_indptr[end];
    const uint64_t key = mix64(p.seed);
    std::vector<T> scores(heads * kLanes), kept(heads * kLanes), keep(kLanes, T(1));
    std::vector<T> lse(heads * kLanes), delta(heads * kLanes);
    for (int64_t source = begin; source < end; ++source) {
        for (int64_t h = 0; h < heads; ++h) {
            std::fill_n(at<T>(p.grad_k, source, h), dim, T(0));
            std::fill_n(at<T>(p.grad_v, source, h), dim, T(0));
        }
        for (int64_t first = p.rev_indptr[source]; first < p.rev_indptr[source + 1]; first += kLanes) {
            const int64_t count = std::min(kLanes, p.rev_indptr[source + 1] - first);
            for (int64_t lane = 0; lane < count; ++lane) {
                const int64_t slot = first + lane, row = destinations[slot], position = p.rev_position[slot];
                const int64_t ahead = slot + kPrefetchEdges;
                if (ahead < last) prefetch<T, D>(p, p.q, p.grad_out, destinations[ahead]);
                for (int64_t h = 0; h < heads; ++h) {
                    const int64_t at_lane = h * kLanes + lane;
                    scores[at_lane] =
                        dot(at<T>(p.q, row, h), at<T>(p.k, source, h), dim) * T(p.scale) + bias_of<T>(p, position, h);
                    kept[at_lane] = dot(at<T>(p.grad_out, row, h), at<T>(p.v, source, h), dim);
                    lse[at_lane] = *at<T>(p.lse, row, h);
                    delta[at_lane] = *at<T>(p.delta, row, h);
                }
            }
            for (int64_t h = 0; h < heads; ++h) {
                if (p.drop_threshold)
                    for (int64_t lane = 0; lane < count; ++lane)
                        keep[lane] = keep_factor<T>(p, key, p.rev_position[first + lane], h);
                const int64_t lanes = h * kLanes;
                edge_gradients(&lse[lanes], &delta[lanes], keep.data(), &kept[lanes], &scores[lanes]);
            }
            for (int64_t lane = 0; lane < count; ++lane) {
                const int64_t row = destinations[first + lane];
                for (int64_t h = 0; h < heads; ++h) {
                    const int64_t at_lane = h * kLanes + lane;
                    add_scaled(at<T>(p.grad_k, source, h), scores[at_lane] * T(p.scale), at<T>(p.q, row, h), dim);
                    add_scaled(at<T>(p.grad_v, source, h), kept[at_lane], at<T>(p.grad_out, row, h), dim);
                }
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
