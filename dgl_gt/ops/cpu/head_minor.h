// The three passes over rows whose heads lie side by side ("head-minor"): number d of head h is column d * H + h of a
// row. A vector then holds the same few numbers of all heads, so that one product and one sum serve them all, where
// rows.h sums and broadcasts for each head.
//
// Gathered rows must be head-minor. Rows that are read or written once may have either layout.

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__has_builtin)  // not before GCC 10
#if __has_builtin(__builtin_shufflevector)
#define HAS_SHUFFLEVECTOR 1
#endif
#endif

// S: storage type. H: number of heads, a power of two.
template <typename S, int H>
struct HeadMinor {
    typedef Sum<S> T;
    static constexpr int N = kVectorBytes / sizeof(T);  // numbers of a vector
    static constexpr int L = H > N ? H : N;             // lanes: lane l belongs to head l % H
    static constexpr int G = L / N;                     // vectors of L lanes
    static constexpr int E = L / H;                     // edges whose scores fill L lanes
    static constexpr int U = G > 1 ? 2 : E > 4 ? E : 4;  // edges whose scores are computed together
    typedef Vec<T, N> V;
    typedef std::make_integer_sequence<int, N> Lanes;

    static INLINE int64_t columns(const Problem& p) { return H * p.head_dim; }

    // ---- lanes ----------------------------------------------------------------------------------------------------

    template <int W, int... I>
    static INLINE V add_segments(std::integer_sequence<int, I...>, V a, V b) {
        return pick<(I / W * 2 * W + I % W)...>(a, b) + pick<(I / W * 2 * W + W + I % W)...>(a, b);
    }

    // Sums the segments of each of E vectors; the result has the H sums of the first, then those of the second, ...
    template <int W, int COUNT>
    static INLINE V fold(const V* vectors) {
        if constexpr (COUNT == 1) return vectors[0];
        else {
            V halves[COUNT / 2];
            UNROLL
            for (int i = 0; i < COUNT / 2; ++i) halves[i] = add_segments<W>(Lanes(), vectors[2 * i], vectors[2 * i + 1]);
            return fold<W / 2, COUNT / 2>(halves);
        }
    }

    template <int W, int... I>
    static INLINE V swapped(std::integer_sequence<int, I...>, V v) {
        return pick<(I ^ W)...>(v, v);
    }

    // The sum (or maximum) over the lanes of each head, in every lane.
    template <int W = N / 2>
    static INLINE V sum_of_heads(V v) {
        if constexpr (W < H) return v;
        else return sum_of_heads<W / 2>(v + swapped<W>(Lanes(), v));
    }

    template <int W = N / 2>
    static INLINE V top_of_heads(V v) {
        if constexpr (W < H) return v;
        else {
            const V other = swapped<W>(Lanes(), v);
            return top_of_heads<W / 2>(v > other ? v : other);
        }
    }

    // Repeats H numbers until they fill a vector. Each step doubles their number, because GCC compiles a larger step
    // through memory, where the read waits for narrower writes. Without the builtin, a full vector is read: scratch memory
    // has room for that.
#if defined(HAS_SHUFFLEVECTOR)
    template <int... I>
    static INLINE auto twice(std::integer_sequence<int, I...>, Vec<T, sizeof...(I) / 2> v) {
        return __builtin_shufflevector(v, v, I...);
    }

    template <int W>
    static INLINE V doubled(Vec<T, W> v) {
        if constexpr (W == N) return v;
        else return doubled<2 * W>(twice(std::make_integer_sequence<int, 2 * W>(), v));
    }

    static INLINE V repeated(Lanes, const T* of_heads) { return doubled<H>(load<H>(of_heads)); }
#else
    template <int... I>
    static INLINE V repeated(std::integer_sequence<int, I...>, const T* of_heads) {
        const V v = load<N>(of_heads);
        return pick<(I % H)...>(v, v);
    }
#endif

    // The g-th vector of L lanes from H numbers.
    static INLINE V spread(const T* of_heads, int g) {
        if constexpr (H >= N) return load<N>(of_heads + g * N);
        else return repeated(Lanes(), of_heads);
    }

    // Whether any bit of a vector is set.
    template <typename B>
    static INLINE bool any(B bits) {
        if constexpr (sizeof(B) == 16) {
            uint64_t halves[2];
            std::memcpy(halves, &bits, sizeof halves);
            return halves[0] | halves[1];
        } else {
            Vec<int64_t, sizeof(B) / 16> halves[2];
            std::memcpy(halves, &bits, sizeof halves);
            return any(halves[0] | halves[1]);
        }
    }

    // ---- rows that are read or written once -----------------------------------------------------------------------

    static INLINE bool is_minor(const Array& array) { return array.head_stride == 1; }

    static NOINLINE void widen_row(const Problem& p, const Array& array, int64_t row, T factor, T* to) {
        if (is_minor(array)) {
            const S* from = at<S>(array, row, 0);
            for (int64_t c = 0; c < columns(p); c += N) store<N>(to + c, load<N>(from + c) * factor);
            return;
        }
        for (int64_t h = 0; h < H; ++h) {
            const S* from = at<S>(array, row, h);
            int64_t d = 0;
            for (; d + 4 <= p.head_dim; d += 4) {
                const Vec<T, 4> four = load<4>(from + d) * factor;
                for (int64_t i = 0; i < 4; ++i) to[(d + i) * H + h] = four[i];
            }
            for (; d < p.head_dim; ++d) to[d * H + h] = widened(from[d]) * factor;
        }
    }

    // Writes x times a factor for each lane into the row.
    static INLINE void narrow_row(const Problem& p, const T* x, const T* factors, const Array& array, int64_t row) {
        if (is_minor(array)) {
            S* to = at<S>(array, row, 0);
            for (int64_t c = 0; c < columns(p); c += N) store<N>(to + c, load<N>(x + c) * load<N>(factors + c % L));
            return;
        }
        for (int64_t h = 0; h < H; ++h) {
            S* to = at<S>(array, row, h);
            int64_t d = 0;
            for (; d + 4 <= p.head_dim; d += 4) {
                const T* from = x + d * H + h;
                store<4>(to + d, Vec<T, 4>{from[0], from[H], from[2 * H], from[3 * H]} * factors[h]);
            }
            for (; d < p.head_dim; ++d) narrow<S>(to + d, x[d * H + h] * factors[h]);
        }
    }

    // ---- edges ----------------------------------------------------------------------------------------------------

    static INLINE void prefetch(const Problem& p, const Array& array, int64_t row) {
        const char* from = reinterpret_cast<const char*>(at<S>(array, row, 0));
        for (int64_t byte = 0; byte < columns(p) * int64_t(sizeof(S)); byte += kLineBytes)
            __builtin_prefetch(from + byte, 0, 2);
    }

    static INLINE void prefetch_ahead(const Problem& p, const void* indices, int64_t slot, int64_t last, const Array& a,
                                      const Array& b, bool with_stats) {
        for (int64_t ahead = slot + kPrefetchEdges; ahead < slot + kPrefetchEdges + U; ++ahead) {
            const int64_t number = index_at(p, indices, ahead < last ? ahead : last);
            prefetch(p, a, number);
            prefetch(p, b, number);
            if (with_stats) __builtin_prefetch(at<T>(p.stats, number, 0), 0, 2);
        }
    }

    // Writes x . row of each head for U edges.
    static INLINE void dot(const Problem& p, const T* x, const Array& array, const int64_t* numbers, T* scores) {
        const S* rows[U];
        UNROLL
        for (int u = 0; u < U; ++u) rows[u] = at<S>(array, numbers[u], 0);
        V total[G][U] = {};
        for (int64_t c = 0; c < columns(p); c += L)
            UNROLL
            for (int g = 0; g < G; ++g) {
                const V factor = load<N>(x + c + g * N);
                UNROLL
                for (int u = 0; u < U; ++u) total[g][u] += factor * load<N>(rows[u] + c + g * N);
            }
        if constexpr (G == 1)
            UNROLL
            for (int u = 0; u < U; u += E) store<N>(scores + u * H, fold<N / 2, E>(total[0] + u));
        else
            UNROLL
            for (int u = 0; u < U; ++u)
                UNROLL
                for (int g = 0; g < G; ++g) store<N>(scores + u * H + g * N, total[g][u]);
    }

    // Adds weights times rows to x, (columns,), R vectors at a time, which stay in registers. Where `removed` (edges, H) is
    // not 0, a row counts as zeros.
    template <int R, bool REMOVES>
    static INLINE void add_columns(T* x, const Array& array, const Block& block, const T* weights, const T* removed,
                                   int64_t column) {
        V total[R];
        UNROLL
        for (int r = 0; r < R; ++r) total[r] = load<N>(x + column + r * N);
        for (int64_t edge = 0; edge < block.count; ++edge) {
            const S* row = at<S>(array, block.numbers[edge], 0) + column;
            V weight[G];
            UNROLL
            for (int g = 0; g < G; ++g) weight[g] = spread(weights + edge * H, g);
            UNROLL
            for (int r = 0; r < R; ++r) {
                V numbers = load<N>(row + r * N);
                if constexpr (REMOVES) numbers = spread(removed + edge * H, r % G) != T(0) ? V{} : numbers;
                total[r] += weight[r % G] * numbers;
            }
        }
        UNROLL
        for (int r = 0; r < R; ++r) store<N>(x + column + r * N, total[r]);
    }

    template <bool REMOVES>
    static INLINE void add_all(const Problem& p, T* x, const Array& array, const Block& block, const T* weights,
                               const T* removed) {
        int64_t column = 0;
        for (; column + 8 * N <= columns(p); column += 8 * N)
            add_columns<8, REMOVES>(x, array, block, weights, removed, column);
        if constexpr (G <= 4)
            for (; column + 4 * N <= columns(p); column += 4 * N)
                add_columns<4, REMOVES>(x, array, block, weights, removed, column);
        for (; column < columns(p); column += L) add_columns<G, REMOVES>(x, array, block, weights, removed, column);
    }

    static NOINLINE void add_kept(const Problem& p, T* x, const Array& array, const Block& block, const T* weights,
                                  const T* removed) {
        add_all<true>(p, x, array, block, weights, removed);
    }

    // Without `removed`, the bias removes no edge of the block, which is common.
    static INLINE void add_rows(const Problem& p, T* x, const Array& array, const Block& block, const T* weights,
                                const T* removed) {
        if (removed) add_kept(p, x, array, block, weights, removed);
        else add_all<false>(p, x, array, block, weights, nullptr);
    }

    // Adds the bias to scores. Where it may remove edges, sets their scores, because what they read may be NaN, marks them in
    // `removed` (kLanes, H) and returns it; else returns null.
    static NOINLINE const T* add_bias(const Problem& p, const Block& block, T* scores, T* removed) {
        for (int64_t lane = 0; lane < block.count; ++lane) {
            const int64_t row = bias_row(p, block.positions[lane]);
            for (int64_t h = 0; h < H; ++h) scores[lane * H + h] += bias_of<S>(p, row, h);
        }
        const V none = V{} + kNone<T>;
        auto is_no_number = none != none;
        for (int64_t i = 0; i < block.padded * H; i += N) is_no_number |= ~(load<N>(scores + i) > none);
        if (!any(is_no_number)) return nullptr;
        mark_removed(p, block, scores, removed);
        return removed;
    }

    static INLINE void mark_removed(const Problem& p, const Block& block, T* scores, T* removed) {
        for (int64_t lane = 0; lane < block.count; ++lane) {
            const int64_t row = bias_row(p, block.positions[lane]), begin = lane * H;
            bool is_number = true;
            for (int64_t i = begin; i < begin + H; ++i) {
                is_number &= scores[i] > kNone<T>;
                removed[i] = 0;
            }
            for (int64_t i = begin; !is_number && i < begin + H; ++i) {
                removed[i] = bias_of<S>(p, row, i % H) == kNone<T>;
                scores[i] = removed[i] != T(0) ? kNone<T> : scores[i];
            }
        }
    }

    // ---- forward --------------------------------------------------------------------------------------------------

    // State: sums of weighted values (columns), and for each lane partial sums of weights and the top score.
    static void forward(const Problem& p, int64_t row, int64_t begin, int64_t end, void* scratch, void* state) {
        const int64_t last = p.indptr[p.num_dst] - 1;
        T *q = static_cast<T*>(scratch), *weights = q + columns(p);
        T *out = static_cast<T*>(state), *totals = out + columns(p), *tops = totals + L, marks[kLanes * H];
        widen_row(p, p.q, row, T(p.scale), q);
        for (T* x = out; x < tops; ++x) *x = 0;
        UNROLL
        for (int l = 0; l < L; ++l) tops[l] = kNone<T>;
        for (int64_t first = begin; first < end; first += kLanes) {
            const Block block(p, p.indices, nullptr, first, end, U);
            for (int64_t lane = 0; lane < block.padded; lane += U) {
                prefetch_ahead(p, p.indices, first + lane, last, p.k, p.v, false);
                dot(p, q, p.k, block.numbers + lane, weights + lane * H);
            }
            const T* removed = p.bias.data ? add_bias(p, block, weights, marks) : nullptr;
            softmax_step(p, block, weights, out, totals, tops);
            add_rows(p, out, p.v, block, weights, removed);
        }
    }

    // Turns the scores of a block into weights. Where a top score rises, the earlier sums shrink.
    static INLINE void softmax_step(const Problem& p, const Block& block, T* weights, T* out, T* totals, T* tops) {
        for (int64_t i = block.count * H; i < kLanes * H; ++i) weights[i] = kNone<T>;
        V base[G], total[G];
        UNROLL
        for (int g = 0; g < G; ++g) {
            const V old = load<N>(tops + g * N);
            V top = old;
            for (int64_t i = g * N; i < kLanes * H; i += L) {
                const V score = load<N>(weights + i);
                top = score > top ? score : top;  // NaN does not count
            }
            if constexpr (E > 1) top = top_of_heads(top);
            base[g] = top == kNone<T> ? V{} : top;  // 0 where all edges so far are masked, as inf - inf is NaN
            total[g] = load<N>(totals + g * N);
            if (any(top != old)) {
                const V shrink = exponential<N>(old - base[g]);
                total[g] *= shrink;
                for (int64_t c = g * N; c < columns(p); c += L) store<N>(out + c, load<N>(out + c) * shrink);
                store<N>(tops + g * N, top);
            }
        }
        for (int64_t i = 0; i < kLanes * H; i += L)
            UNROLL
            for (int g = 0; g < G; ++g) {
                const V weight = exponential<N>(load<N>(weights + i + g * N) - base[g]);
                store<N>(weights + i + g * N, weight);
                total[g] += weight;
            }
        UNROLL
        for (int g = 0; g < G; ++g) store<N>(totals + g * N, total[g]);
        if (p.drop_threshold) {
            T keep[kLanes * H];
            keep_factors<T, H>(p, block, 0, keep);
            for (int64_t i = 0; i < kLanes * H; i += N) store<N>(weights + i, load<N>(weights + i) * load<N>(keep + i));
        }
    }

    static void merge_forward(const Problem& p, void* state, const void* other) {
        T *out = static_cast<T*>(state), *totals = out + columns(p), *tops = totals + L;
        const T *out_2 = static_cast<const T*>(other), *totals_2 = out_2 + columns(p), *tops_2 = totals_2 + L;
        T shrink[L], shrink_2[L];
        for (int l = 0; l < L; ++l) {
            const T top = tops[l] > tops_2[l] ? tops[l] : tops_2[l], base = top == kNone<T> ? T(0) : top;
            shrink[l] = std::exp(tops[l] - base);
            shrink_2[l] = std::exp(tops_2[l] - base);
            totals[l] = totals[l] * shrink[l] + totals_2[l] * shrink_2[l];
            tops[l] = top;
        }
        for (int64_t c = 0; c < columns(p); ++c) out[c] = out[c] * shrink[c % L] + out_2[c] * shrink_2[c % L];
    }

    static void finish_forward(const Problem& p, int64_t row, void* state) {
        T *out = static_cast<T*>(state), *totals = out + columns(p), *tops = totals + L, factors[L];
        UNROLL
        for (int g = 0; g < G; ++g) {
            V total = load<N>(totals + g * N);
            if constexpr (E > 1) total = sum_of_heads(total);
            store<N>(totals + g * N, total);
            store<N>(factors + g * N, total == T(0) ? V{} : T(1) / total);
        }
        for (int h = 0; h < H; ++h)
            *at<T>(p.lse, row, h) = tops[h] == kNone<T> && totals[h] == T(0) ? kNone<T> : tops[h] + std::log(totals[h]);
        narrow_row(p, out, factors, p.out, row);
    }

    // ---- backward -------------------------------------------------------------------------------------------------

    // As Rows::stats, for rows of which grad_out or out are head-minor.
    static void stats(const Problem& p, int64_t row) {
        for (int64_t h = 0; h < H; ++h) {
            const S *gradient = at<S>(p.grad_out, row, h), *out = at<S>(p.out, row, h);
            const int64_t step = is_minor(p.grad_out) ? H : 1, out_step = is_minor(p.out) ? H : 1;
            T delta = -*at<T>(p.grad_lse, row, h);
            for (int64_t d = 0; d < p.head_dim; ++d) delta += widened(gradient[d * step]) * widened(out[d * out_step]);
            const T lse = *at<T>(p.lse, row, h);
            at<T>(p.stats, row, 0)[h] = lse == kNone<T> ? -lse : lse;
            at<T>(p.stats, row, 1)[h] = delta;
        }
    }

    // For the edges of a block, in place: turns `kept` from grad_out . v into the weights after dropout (d out / d v), and
    // `scores` into d loss / d score.
    static INLINE void edge_gradients(const Problem& p, const Block& block, const T* lses, const T* deltas,
                                      const T* removed, T* kept, T* scores) {
        T keep[kLanes * H];
        if (p.drop_threshold) keep_factors<T, H>(p, block, 0, keep);
        for (int64_t i = 0; i < kLanes * H; i += N) {
            const V weight = exponential<N>(load<N>(scores + i) - load<N>(lses + i));
            const V dropped = p.drop_threshold ? weight * load<N>(keep + i) : weight;
            store<N>(scores + i, dropped * load<N>(kept + i) - weight * load<N>(deltas + i));
            store<N>(kept + i, dropped);
        }
        if (removed)  // their grad_out . v may be NaN
            for (int64_t i = 0; i < block.count * H; ++i) scores[i] = removed[i] != T(0) ? T(0) : scores[i];
    }

    // dQ and dbias. State: sums of score gradients times keys (columns).
    static void query(const Problem& p, int64_t row, int64_t begin, int64_t end, void* scratch, void* state) {
        const int64_t last = p.indptr[p.num_dst] - 1;
        T *q = static_cast<T*>(scratch), *grad_out = q + columns(p), *scores = grad_out + columns(p);
        T *kept = scores + kLanes * H, *lses = kept + kLanes * H, *deltas = lses + kLanes * H;
        T *grad_q = static_cast<T*>(state), marks[kLanes * H];
        widen_row(p, p.q, row, T(p.scale), q);
        widen_row(p, p.grad_out, row, T(1), grad_out);
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            std::memcpy(lses + lane * H, at<T>(p.stats, row, 0), H * sizeof(T));
            std::memcpy(deltas + lane * H, at<T>(p.stats, row, 1), H * sizeof(T));
        }
        for (int64_t c = 0; c < columns(p); ++c) grad_q[c] = 0;
        for (T* x = scores; x < lses; ++x) *x = 0;  // in a last block that is not full, some are never written
        for (int64_t first = begin; first < end; first += kLanes) {
            const Block block(p, p.indices, nullptr, first, end, U);
            for (int64_t lane = 0; lane < block.padded; lane += U) {
                prefetch_ahead(p, p.indices, first + lane, last, p.k, p.v, false);
                dot(p, q, p.k, block.numbers + lane, scores + lane * H);
                dot(p, grad_out, p.v, block.numbers + lane, kept + lane * H);
            }
            const T* removed = p.bias.data ? add_bias(p, block, scores, marks) : nullptr;
            edge_gradients(p, block, lses, deltas, removed, kept, scores);
            if (p.grad_bias.data) write_grad_bias<S>(p, block, scores, H, 1, H);
            if (p.grad_q.data) add_rows(p, grad_q, p.k, block, scores, removed);
        }
    }

    static void merge_query(const Problem& p, void* state, const void* other) { add_state(p, 1, state, other); }
    static void finish_query(const Problem& p, int64_t row, void* state) {
        if (p.grad_q.data) finish(p, static_cast<T*>(state), T(p.scale), p.grad_q, row);
    }

    // dK and dV. State: sums of score gradients times queries, and of weights after dropout times grad_out (columns each).
    static void key_value(const Problem& p, int64_t row, int64_t begin, int64_t end, void* scratch, void* state) {
        const int64_t last = p.rev_indptr[p.num_src] - 1;
        T *k = static_cast<T*>(scratch), *v = k + columns(p), *scores = v + columns(p), *kept = scores + kLanes * H;
        T *lses = kept + kLanes * H, *deltas = lses + kLanes * H;
        T *grad_k = static_cast<T*>(state), *grad_v = grad_k + columns(p), marks[kLanes * H];
        const bool ordered = p.bias.data || p.drop_threshold;
        widen_row(p, p.k, row, T(p.scale), k);
        widen_row(p, p.v, row, T(1), v);
        for (int64_t c = 0; c < 2 * columns(p); ++c) grad_k[c] = 0;
        for (T* x = scores; x < deltas + kLanes * H; ++x) *x = 0;
        for (int64_t first = begin; first < end; first += kLanes) {
            const Block block(p, p.rev_dst, ordered ? p.rev_position : nullptr, first, end, U);
            for (int64_t lane = 0; lane < block.padded; lane += U) {
                prefetch_ahead(p, p.rev_dst, first + lane, last, p.q, p.grad_out, true);
                for (int64_t edge = lane; edge < lane + U; ++edge) {
                    std::memcpy(lses + edge * H, at<T>(p.stats, block.numbers[edge], 0), H * sizeof(T));
                    std::memcpy(deltas + edge * H, at<T>(p.stats, block.numbers[edge], 1), H * sizeof(T));
                }
                dot(p, k, p.q, block.numbers + lane, scores + lane * H);
                dot(p, v, p.grad_out, block.numbers + lane, kept + lane * H);
            }
            const T* removed = p.bias.data ? add_bias(p, block, scores, marks) : nullptr;
            edge_gradients(p, block, lses, deltas, removed, kept, scores);
            add_rows(p, grad_k, p.q, block, scores, removed);
            add_rows(p, grad_v, p.grad_out, block, kept, removed);
        }
    }

    static void merge_key_value(const Problem& p, void* state, const void* other) { add_state(p, 2, state, other); }
    static void finish_key_value(const Problem& p, int64_t row, void* state) {
        T* sums = static_cast<T*>(state);
        finish(p, sums, T(p.scale), p.grad_k, row);
        finish(p, sums + columns(p), T(1), p.grad_v, row);
    }

    static NOINLINE void finish(const Problem& p, const T* x, T factor, const Array& array, int64_t row) {
        T factors[L];
        UNROLL
        for (int l = 0; l < L; ++l) factors[l] = factor;
        narrow_row(p, x, factors, array, row);
    }

    static void add_state(const Problem& p, int64_t arrays, void* state, const void* other) {
        T* sums = static_cast<T*>(state);
        const T* others = static_cast<const T*>(other);
        for (int64_t c = 0; c < arrays * columns(p); ++c) sums[c] += others[c];
    }

    static Passes passes(const Problem& p) {
        const int64_t row = columns(p) * sizeof(T), lanes = kLanes * H * sizeof(T), room = kVectorBytes;
        return {{forward, merge_forward, finish_forward, row + lanes + room, row + 2 * L * int64_t(sizeof(T))},
                {query, merge_query, finish_query, 2 * row + 4 * lanes, row},
                {key_value, merge_key_value, finish_key_value, 2 * row + 4 * lanes, 2 * row},
                stats};
    }
};
