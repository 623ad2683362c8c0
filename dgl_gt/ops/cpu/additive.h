// The three passes for additive scores, LeakyReLU(q_i + k_j) with one number per row and head on either side (Velickovic et
// al. 2018, arXiv 1710.10903).
//
// With w the weights, s the slopes of LeakyReLU (1 or negative_slope), g = grad_out and delta as in Rows::stats, the
// gradient of score ij is s_ij (w_ij keep_ij g_i . v_j - w_ij delta_i). So that of q_i is g_i . sum_j s w keep v_j -
// delta_i sum_j s w, and that of k_j is v_j . sum_i s w keep g_i - sum_i s w delta_i: sums of rows, and one product per
// row instead of one per edge.

template <typename S, int W, int CHUNKS>
struct Additive : Rows<S, W, CHUNKS> {
    typedef Rows<S, W, CHUNKS> Base;
    typedef typename Base::Sources Sources;
    using typename Base::T;
    using Base::dim;
    using Base::N;
    typedef Vec<T, N> V;

    static INLINE void read_heads(const Problem& p, const Array& array, int64_t row, T* to) {
        for (int64_t h = 0; h < p.num_heads; ++h) to[h] = widened(*at<S>(array, row, h));
    }

    // Prefetches rows of the four edges that come kLanes later; heads that nearly touch are one range of memory.
    static INLINE void prefetch_ahead(const Problem& p, const void* indices, int64_t slot, int64_t last, const Array& array,
                                      const Array& scores, bool with_stats) {
        const bool dense = array.head_stride <= dim(p) + 2;
        const int64_t bytes = (dense ? (p.num_heads - 1) * array.head_stride + dim(p) : dim(p)) * int64_t(sizeof(S));
        for (int64_t ahead = slot + kLanes; ahead < slot + kLanes + 4; ++ahead) {
            const int64_t number = index_at(p, indices, ahead < last ? ahead : last);
            for (int64_t h = 0; h < (dense ? 1 : p.num_heads); ++h) {
                const char* from = reinterpret_cast<const char*>(at<S>(array, number, h));
                for (int64_t byte = 0; byte < bytes; byte += kLineBytes) __builtin_prefetch(from + byte, 0, 2);
                __builtin_prefetch(from + bytes - 1, 0, 2);
            }
            __builtin_prefetch(at<S>(scores, number, 0), 0, 2);
            if (with_stats) __builtin_prefetch(at<T>(p.stats, number, 0), 0, 2);
        }
    }

    // Writes scores of a block, (H, kLanes), before LeakyReLU. `own` has the numbers of the row whose edges these are.
    static INLINE void add_ends(const Problem& p, const T* own, const Array& others, const Block& block, T* scores) {
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            const int64_t number = block.numbers[lane < block.count ? lane : 0];
            for (int64_t h = 0; h < p.num_heads; ++h)
                scores[h * kLanes + lane] = own[h] + widened(*at<S>(others, number, h));
        }
    }

    static INLINE V slope(const Problem& p, V score) {
        const V one = V{} + T(1), negative = V{} + T(p.negative_slope);
        return score > V{} ? one : negative;
    }

    static void forward(const Problem& p, int64_t row, int64_t begin, int64_t end, void* scratch, void* state) {
        const int64_t heads = p.num_heads, last = p.indptr[p.num_dst] - 1;
        T *own = static_cast<T*>(scratch), *weights = own + heads;
        T *out = static_cast<T*>(state), *totals = out + heads * dim(p), *tops = totals + heads * N;
        read_heads(p, p.q, row, own);
        for (T* x = out; x < tops; ++x) *x = 0;
        for (int64_t h = 0; h < heads; ++h) tops[h] = kNone<T>;
        for (int64_t first = begin; first < end; first += kLanes) {
            const Block block(p, p.indices, nullptr, first, end, 4);
            const Sources values(p.v, block);
            add_ends(p, own, p.k, block, weights);
            for (int64_t h = 0; h < heads; ++h) {
                T* of_head = weights + h * kLanes;
                for (int64_t lane = 0; lane < kLanes; lane += N) {
                    const V score = load<N>(of_head + lane);
                    store<N>(of_head + lane, score * slope(p, score));
                }
                Base::softmax_step(p, block, h, of_head, out, totals, tops);
            }
            for (int64_t lane = 0; lane < block.padded; lane += 4) {
                prefetch_ahead(p, p.indices, first + lane, last, p.v, p.k, false);
                for (int64_t h = 0; h < heads; ++h)
                    values.add_to(p, out + h * dim(p), weights + h * kLanes + lane, lane, h);
            }
        }
    }

    // Turns one head's scores before LeakyReLU into s w keep, writes w keep if it is wanted, and returns the sum of s w
    // times `factors`. Lanes beyond the block get zeros.
    static INLINE T edge_weights(const Problem& p, const Block& block, int64_t head, const T* lses, const T* factors,
                                 T* scores, T* kept) {
        T keep[kLanes];
        V total = {};
        if (p.drop_threshold) keep_factors<T, 1>(p, block, head, keep);
        for (int64_t lane = 0; lane < kLanes; lane += N) {
            const V score = load<N>(scores + lane), slopes = slope(p, score);
            V weight = exponential<N>(score * slopes - load<N>(lses + lane));
            for (int64_t i = block.count - lane > 0 ? block.count - lane : 0; i < N; ++i) weight[i] = 0;
            total += slopes * weight * load<N>(factors + lane);
            if (p.drop_threshold) weight *= load<N>(keep + lane);
            if (kept) store<N>(kept + lane, weight);
            store<N>(scores + lane, slopes * weight);
        }
        return sum<N>(total);
    }

    // grad_q. State: sums of s w keep v (H, D), and of s w (H).
    static void query(const Problem& p, int64_t row, int64_t begin, int64_t end, void* scratch, void* state) {
        const int64_t heads = p.num_heads, last = p.indptr[p.num_dst] - 1, columns = heads * dim(p);
        T *own = static_cast<T*>(scratch), *weights = own + heads;
        T *sums = static_cast<T*>(state), *totals = sums + columns, lses[kLanes], ones[kLanes];
        read_heads(p, p.q, row, own);
        for (int64_t lane = 0; lane < kLanes; ++lane) ones[lane] = 1;
        for (int64_t d = 0; d < columns + heads; ++d) sums[d] = 0;
        for (int64_t first = begin; first < end; first += kLanes) {
            const Block block(p, p.indices, nullptr, first, end, 4);
            const Sources values(p.v, block);
            add_ends(p, own, p.k, block, weights);
            for (int64_t h = 0; h < heads; ++h) {
                for (int64_t lane = 0; lane < kLanes; ++lane) lses[lane] = at<T>(p.stats, row, 0)[h];
                totals[h] += edge_weights(p, block, h, lses, ones, weights + h * kLanes, nullptr);
            }
            for (int64_t lane = 0; lane < block.padded; lane += 4) {
                prefetch_ahead(p, p.indices, first + lane, last, p.v, p.k, false);
                for (int64_t h = 0; h < heads; ++h)
                    values.add_to(p, sums + h * dim(p), weights + h * kLanes + lane, lane, h);
            }
        }
    }

    // x . row of a head.
    static INLINE T dot(const Problem& p, const T* x, const Array& array, int64_t row, int64_t head) {
        const S* from = at<S>(array, row, head);
        Vec<T, W> total = {};
        for (int64_t c = 0; c < Base::chunks(p); ++c) total += load<W>(x + c * W) * load<W>(from + c * W);
        T result = sum<W>(total);
        if constexpr (CHUNKS == 0)
            for (int64_t d = Base::chunks(p) * W; d < dim(p); ++d) result += x[d] * widened(from[d]);
        return result;
    }

    static void finish_query(const Problem& p, int64_t row, void* state) {
        const T *sums = static_cast<T*>(state), *totals = sums + p.num_heads * dim(p), *delta = at<T>(p.stats, row, 1);
        for (int64_t h = 0; h < p.num_heads; ++h) {
            const T spread = totals[h] == T(0) ? T(0) : delta[h] * totals[h];  // a row without edges may have any delta
            narrow<S>(at<S>(p.grad_q, row, h), dot(p, sums + h * dim(p), p.grad_out, row, h) - spread);
        }
    }

    // Adds rows of up to four edges to x and to y, each times weights of its own.
    static INLINE void add_twice(const Problem& p, T* x, const T* of_x, T* y, const T* of_y, const Sources& sources,
                                 int64_t lane, int64_t head, int64_t edges) {
        const S* const* from = sources.rows + lane;
        const int64_t offset = head * sources.head_stride;
        for (int64_t chunk = 0; chunk < Base::chunks(p); ++chunk) {
            const int64_t column = offset + chunk * W;
            Vec<T, W> first = load<W>(x + chunk * W), second = load<W>(y + chunk * W);
            for (int64_t edge = 0; edge < edges; ++edge) {
                const Vec<T, W> row = load<W>(from[edge] + column);
                first += of_x[edge] * row;
                second += of_y[edge] * row;
            }
            store<W>(x + chunk * W, first);
            store<W>(y + chunk * W, second);
        }
        if constexpr (CHUNKS == 0)
            for (int64_t k = Base::chunks(p) * W; k < dim(p); ++k)
                for (int64_t edge = 0; edge < edges; ++edge) {
                    const T number = widened(from[edge][offset + k]);
                    x[k] += of_x[edge] * number;
                    y[k] += of_y[edge] * number;
                }
    }

    // grad_k and grad_v. State: sums of w keep g (H, D), of s w keep g (H, D), and of s w delta (H).
    static void key_value(const Problem& p, int64_t row, int64_t begin, int64_t end, void* scratch, void* state) {
        const int64_t heads = p.num_heads, last = p.rev_indptr[p.num_src] - 1, columns = heads * dim(p);
        T *own = static_cast<T*>(scratch), *weights = own + heads, *kept = weights + heads * kLanes;
        T *grad_v = static_cast<T*>(state), *sloped = grad_v + columns, *totals = sloped + columns;
        T lses[kLanes], deltas[kLanes];
        read_heads(p, p.k, row, own);
        for (int64_t d = 0; d < 2 * columns + heads; ++d) grad_v[d] = 0;
        for (int64_t first = begin; first < end; first += kLanes) {
            const Block block(p, p.rev_dst, p.drop_threshold ? p.rev_position : nullptr, first, end, 4);
            const Sources gradients(p.grad_out, block);
            add_ends(p, own, p.q, block, weights);
            for (int64_t h = 0; h < heads; ++h) {
                for (int64_t lane = 0; lane < kLanes; ++lane) {
                    const T* stats = at<T>(p.stats, block.numbers[lane < block.count ? lane : 0], 0);
                    lses[lane] = stats[h];
                    deltas[lane] = stats[heads + h];
                }
                T *of_head = weights + h * kLanes, *kept_of_head = kept + h * kLanes;
                totals[h] += edge_weights(p, block, h, lses, deltas, of_head, kept_of_head);
            }
            bool is_flat = true;  // the slope is 0 at every score, as in a mean
            for (int64_t i = 0; is_flat && i < heads * kLanes; ++i) is_flat = weights[i] == T(0);
            for (int64_t lane = 0; lane < block.padded; lane += 4) {
                prefetch_ahead(p, p.rev_dst, first + lane, last, p.grad_out, p.q, true);
                const int64_t edges = block.count - lane;
                for (int64_t h = 0; h < heads; ++h) {
                    const T *one = kept + h * kLanes + lane, *other = weights + h * kLanes + lane;
                    T *sums = grad_v + h * dim(p), *more = sloped + h * dim(p);
                    if (is_flat) gradients.add_to(p, sums, one, lane, h);
                    else if (edges >= 4) add_twice(p, sums, one, more, other, gradients, lane, h, 4);
                    else add_twice(p, sums, one, more, other, gradients, lane, h, edges);
                }
            }
        }
    }

    static void finish_key_value(const Problem& p, int64_t row, void* state) {
        const int64_t columns = p.num_heads * dim(p);
        const T *grad_v = static_cast<T*>(state), *sloped = grad_v + columns, *totals = sloped + columns;
        for (int64_t h = 0; h < p.num_heads; ++h)
            narrow<S>(at<S>(p.grad_k, row, h), dot(p, sloped + h * dim(p), p.v, row, h) - totals[h]);
        Base::narrow_row(p, grad_v, [](int64_t) { return T(1); }, p.grad_v, row);
    }

    template <int ARRAYS>
    static void merge(const Problem& p, void* state, const void* other) {
        T* sums = static_cast<T*>(state);
        const T* others = static_cast<const T*>(other);
        for (int64_t d = 0; d < p.num_heads * (ARRAYS * dim(p) + 1); ++d) sums[d] += others[d];
    }

    static Passes passes(const Problem& p) {
        const int64_t heads = p.num_heads * sizeof(T), row = heads * p.head_dim, lanes = heads * kLanes;
        Passes base = Base::passes(p);
        return {{forward, Base::merge_forward, Base::finish_forward, heads + lanes, base.forward.state_bytes},
                {query, merge<1>, finish_query, heads + lanes, row + heads},
                {key_value, merge<2>, finish_key_value, heads + 2 * lanes, 2 * row + heads},
                Base::stats};
    }
};
