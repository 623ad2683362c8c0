// The three passes over rows, for one storage type and head width.
//
// Edges are processed kLanes at a time, and inside these in fours: four dot products share one sum across lanes, and
// four rows are added to a sum that stays in registers.

template <typename S>
struct EdgeFeatures;

// S: storage type. W: lanes of one load of a row. CHUNKS: number of loads per head, or 0 for any head width.
template <typename S, int W, int CHUNKS>
struct Rows {
    typedef EdgeFeatures<S> Features;
    typedef Sum<S> T;
    static constexpr int N = kVectorBytes / sizeof(T);

    static INLINE int64_t dim(const Problem& p) { return CHUNKS ? W * CHUNKS : p.head_dim; }
    static INLINE int64_t chunks(const Problem& p) { return CHUNKS ? CHUNKS : p.head_dim / W; }

    // Writes a row as T, times a factor, with the heads side by side.
    static INLINE void widen_row(const Problem& p, const Array& array, int64_t row, T factor, T* to) {
        for (int64_t h = 0; h < p.num_heads; ++h, to += dim(p)) {
            const S* from = at<S>(array, row, h);
            for (int64_t c = 0; c < chunks(p); ++c) store<W>(to + c * W, load<W>(from + c * W) * factor);
            if constexpr (CHUNKS == 0)
                for (int64_t d = chunks(p) * W; d < dim(p); ++d) to[d] = widened(from[d]) * factor;
        }
    }

    // The reverse: writes x, times a factor for each head, into the row.
    template <typename Factor>
    static INLINE void narrow_row(const Problem& p, const T* x, Factor factor, const Array& array, int64_t row) {
        for (int64_t h = 0; h < p.num_heads; ++h, x += dim(p)) {
            S* to = at<S>(array, row, h);
            const T times = factor(h);
            for (int64_t c = 0; c < chunks(p); ++c) store<W>(to + c * W, load<W>(x + c * W) * times);
            if constexpr (CHUNKS == 0)
                for (int64_t d = chunks(p) * W; d < dim(p); ++d) narrow<S>(to + d, x[d] * times);
        }
    }

    // Prefetches a row into the second-level cache: the first level allows few outstanding misses, which would limit the
    // rate of random reads.
    static INLINE void prefetch(const Problem& p, const Array& array, int64_t row) {
        const bool packed = array.head_stride == dim(p);
        const int64_t bytes = (packed ? p.num_heads * dim(p) : dim(p)) * sizeof(S);
        for (int64_t h = 0; h < (packed ? 1 : p.num_heads); ++h) {
            const char* from = reinterpret_cast<const char*>(at<S>(array, row, h));
            for (int64_t byte = 0; byte < bytes; byte += kLineBytes) __builtin_prefetch(from + byte, 0, 2);
        }
    }

    // Prefetches the rows of the four edges that come kPrefetchEdges later, in this row or the next.
    static INLINE void prefetch_ahead(const Problem& p, const void* indices, int64_t slot, int64_t last, const Array& a,
                                      const Array& b, bool with_stats) {
        for (int64_t ahead = slot + kPrefetchEdges; ahead < slot + kPrefetchEdges + 4; ++ahead) {
            const int64_t number = index_at(p, indices, ahead < last ? ahead : last);
            prefetch(p, a, number);
            prefetch(p, b, number);
            if (with_stats) __builtin_prefetch(at<T>(p.stats, number, 0), 0, 2);
        }
    }

    // Rows of an array for the edges of a block.
    struct Sources {
        const S* rows[kLanes];
        int64_t head_stride, count;

        INLINE Sources(const Array& array, const Block& block) : head_stride(array.head_stride), count(block.count) {
            for (int64_t lane = 0; lane < block.padded; ++lane) rows[lane] = at<S>(array, block.numbers[lane], 0);
        }

        // Returns x . row for four edges.
        INLINE Vec<T, 4> dot(const Problem& p, const T* x, int64_t lane, int64_t head) const {
            const S* const* from = rows + lane;
            const int64_t offset = head * head_stride;
            Vec<T, W> a = {}, b = {}, c = {}, d = {};
            for (int64_t chunk = 0; chunk < chunks(p); ++chunk) {
                const int64_t column = offset + chunk * W;
                const Vec<T, W> factor = load<W>(x + chunk * W);
                a += factor * load<W>(from[0] + column);
                b += factor * load<W>(from[1] + column);
                c += factor * load<W>(from[2] + column);
                d += factor * load<W>(from[3] + column);
            }
            Vec<T, 4> result = sums<W>(a, b, c, d);
            if constexpr (CHUNKS == 0)
                for (int64_t k = chunks(p) * W; k < dim(p); ++k)
                    result += x[k] * Vec<T, 4>{widened(from[0][offset + k]), widened(from[1][offset + k]),
                                               widened(from[2][offset + k]), widened(from[3][offset + k])};
            return result;
        }

        // Adds weight times row to x, for four edges or those that are left: a padded edge would add 0 * inf = NaN.
        INLINE void add_to(const Problem& p, T* x, const T* weights, int64_t lane, int64_t head) const {
            if (count - lane >= 4) add_edges(p, x, weights, rows + lane, head, 4);
            else add_edges(p, x, weights, rows + lane, head, count - lane);
        }

        // The same without the edges that the bias removes; out of line, as few blocks need it.
        NOINLINE void add_kept(const Problem& p, const Block& block, T* x, const T* weights, int64_t lane,
                             int64_t head) const {
            const S* kept_rows[4];
            T kept_weights[4];
            int64_t edges = 0;
            for (int64_t edge = 0; edge < 4 && lane + edge < count; ++edge) {
                if (may_be_removed(weights[edge]) && is_removed<S>(p, block, lane + edge, head)) continue;
                kept_rows[edges] = rows[lane + edge];
                kept_weights[edges++] = weights[edge];
            }
            if (edges == 4) add_edges(p, x, kept_weights, kept_rows, head, 4);
            else add_edges(p, x, kept_weights, kept_rows, head, edges);
        }

        INLINE void add_edges(const Problem& p, T* x, const T* weights, const S* const* from, int64_t head,
                              int64_t edges) const {
            const int64_t offset = head * head_stride;
            for (int64_t chunk = 0; chunk < chunks(p); ++chunk) {
                const int64_t column = offset + chunk * W;
                Vec<T, W> total = load<W>(x + chunk * W);
                for (int64_t edge = 0; edge < edges; ++edge) total += weights[edge] * load<W>(from[edge] + column);
                store<W>(x + chunk * W, total);
            }
            if constexpr (CHUNKS == 0)
                for (int64_t k = chunks(p) * W; k < dim(p); ++k)
                    for (int64_t edge = 0; edge < edges; ++edge) x[k] += weights[edge] * widened(from[edge][offset + k]);
        }
    };

    // Adds the rows of a block, times weights, to x (H, D).
    static INLINE void add_rows(const Problem& p, const Block& block, bool removes, const Sources& rows, const T* weights,
                                T* x) {
        for (int64_t lane = 0; lane < block.padded; lane += 4)
            for (int64_t h = 0; h < p.num_heads; ++h) {
                if (removes) rows.add_kept(p, block, x + h * dim(p), weights + h * kLanes + lane, lane, h);
                else rows.add_to(p, x + h * dim(p), weights + h * kLanes + lane, lane, h);
            }
    }

    // Forward. State: sums of weighted values (H, D), for each head N partial sums of weights and the top score, and sums
    // of weighted edge features (H, F).
    static void forward(const Problem& p, int64_t row, int64_t begin, int64_t end, void* scratch, void* state) {
        const int64_t heads = p.num_heads, last = p.indptr[p.num_dst] - 1;
        T *q = static_cast<T*>(scratch), *weights = q + heads * dim(p), *q_edge = weights + heads * kLanes;
        T *out = static_cast<T*>(state), *totals = out + heads * dim(p), *tops = totals + heads * N, *out_edge = tops + heads;
        widen_row(p, p.q, row, T(p.scale), q);
        if (p.edge_dim) Features::begin(p, p.q_edge, row, T(p.scale), q_edge, out_edge);
        for (T* x = out; x < tops; ++x) *x = 0;
        for (int64_t h = 0; h < heads; ++h) tops[h] = kNone<T>;
        for (int64_t first = begin; first < end; first += kLanes) {
            const Block block(p, p.indices, nullptr, first, end, 4);
            const Sources keys(p.k, block), values(p.v, block);
            for (int64_t lane = 0; lane < block.padded; lane += 4) {
                prefetch_ahead(p, p.indices, first + lane, last, p.k, p.v, false);
                for (int64_t h = 0; h < heads; ++h)
                    store<4>(weights + h * kLanes + lane, keys.dot(p, q + h * dim(p), lane, h));
            }
            if (p.edge_dim) Features::add_products(p, block, q_edge, weights);
            const bool removes = p.bias.data && add_bias<S>(p, block, weights);
            for (int64_t h = 0; h < heads; ++h) {
                const T shrink = softmax_step(p, block, h, weights + h * kLanes, out, totals, tops);
                if (p.edge_dim && shrink != T(1)) Features::shrink(p, h, shrink, out_edge);
            }
            add_rows(p, block, removes, values, weights, out);
            if (p.edge_dim) Features::add_rows(p, block, removes, weights, out_edge);
        }
    }

    // Turns one head's scores of a block into weights. Where the top score rises, the earlier sums shrink; returns by what.
    static INLINE T softmax_step(const Problem& p, const Block& block, int64_t head, T* weights, T* out, T* totals,
                                    T* tops) {
        for (int64_t lane = block.count; lane < kLanes; ++lane) weights[lane] = kNone<T>;
        T top = tops[head];
        for (int64_t lane = 0; lane < kLanes; lane += N) top = largest<T, N>(load<N>(weights + lane), top);
        const T base = top == kNone<T> ? T(0) : top;  // 0 where all edges so far are masked, as inf - inf is NaN
        Vec<T, N> total = load<N>(totals + head * N);
        T shrink = 1;
        if (top != tops[head]) {
            shrink = exponential<N>(Vec<T, N>{} + (tops[head] - base))[0];
            total *= shrink;
            T* x = out + head * dim(p);
            for (int64_t c = 0; c < chunks(p); ++c) store<W>(x + c * W, load<W>(x + c * W) * shrink);
            if constexpr (CHUNKS == 0)
                for (int64_t d = chunks(p) * W; d < dim(p); ++d) x[d] *= shrink;
            tops[head] = top;
        }
        for (int64_t lane = 0; lane < kLanes; lane += N) {
            const Vec<T, N> weight = exponential<N>(load<N>(weights + lane) - base);
            store<N>(weights + lane, weight);
            total += weight;
        }
        store<N>(totals + head * N, total);
        if (p.drop_threshold) {
            T keep[kLanes];
            keep_factors<T, 1>(p, block, head, keep);
            for (int64_t lane = 0; lane < block.padded; ++lane) weights[lane] *= keep[lane];
        }
        return shrink;
    }

    static void merge_forward(const Problem& p, void* state, const void* other) {
        const int64_t heads = p.num_heads;
        T *out = static_cast<T*>(state), *totals = out + heads * dim(p), *tops = totals + heads * N;
        const T *out_2 = static_cast<const T*>(other), *totals_2 = out_2 + heads * dim(p), *tops_2 = totals_2 + heads * N;
        for (int64_t h = 0; h < heads; ++h) {
            const T top = tops[h] > tops_2[h] ? tops[h] : tops_2[h], base = top == kNone<T> ? T(0) : top;
            const T shrink = std::exp(tops[h] - base), shrink_2 = std::exp(tops_2[h] - base);
            for (int64_t d = h * dim(p); d < (h + 1) * dim(p); ++d) out[d] = out[d] * shrink + out_2[d] * shrink_2;
            for (int64_t n = h * N; n < (h + 1) * N; ++n) totals[n] = totals[n] * shrink + totals_2[n] * shrink_2;
            if (p.edge_dim) Features::merge(p, h, shrink, tops + heads, shrink_2, tops_2 + heads);
            tops[h] = top;
        }
    }

    static void finish_forward(const Problem& p, int64_t row, void* state) {
        const int64_t heads = p.num_heads;
        T *out = static_cast<T*>(state), *totals = out + heads * dim(p), *tops = totals + heads * N;
        if (p.edge_dim) Features::finish_forward(p, row, totals, tops + heads);
        narrow_row(p, out, [&](int64_t h) {
            const T total = sum<N>(load<N>(totals + h * N));
            *at<T>(p.lse, row, h) = tops[h] == kNone<T> && total == T(0) ? kNone<T> : tops[h] + std::log(total);
            return total == T(0) ? T(0) : T(1) / total;
        }, p.out, row);
    }

    // For the backward passes, writes lse and delta = grad_out . out - grad_lse of a row: the gradient of a score is
    // weight * (keep * grad_out . v - delta). An lse of -inf, where every edge is masked, becomes inf: exp(s - inf) is 0.
    static void stats(const Problem& p, int64_t row) {
        for (int64_t h = 0; h < p.num_heads; ++h) {
            const S *gradient = at<S>(p.grad_out, row, h), *out = at<S>(p.out, row, h);
            Vec<T, W> total = {};
            for (int64_t c = 0; c < chunks(p); ++c) total += load<W>(gradient + c * W) * load<W>(out + c * W);
            T delta = sum<W>(total) - *at<T>(p.grad_lse, row, h);
            if constexpr (CHUNKS == 0)
                for (int64_t d = chunks(p) * W; d < dim(p); ++d) delta += widened(gradient[d]) * widened(out[d]);
            if (p.edge_dim) delta += Features::delta(p, row, h);
            const T lse = *at<T>(p.lse, row, h);
            at<T>(p.stats, row, 0)[h] = lse == kNone<T> ? -lse : lse;
            at<T>(p.stats, row, 1)[h] = delta;
        }
    }

    // dQ, dbias and the gradients of edge features. State: sums of score gradients times keys (H, D), and times edge
    // features (H, F).
    static void query(const Problem& p, int64_t row, int64_t begin, int64_t end, void* scratch, void* state) {
        const int64_t heads = p.num_heads, last = p.indptr[p.num_dst] - 1, columns = heads * dim(p);
        T *q = static_cast<T*>(scratch), *grad_out = q + columns, *scores = grad_out + columns;
        T *kept = scores + heads * kLanes, *q_edge = kept + heads * kLanes, *grad_q = static_cast<T*>(state);
        T *grad_out_edge = q_edge + heads * p.edge_dim, *grad_q_edge = grad_q + columns;
        const T *lse = at<T>(p.stats, row, 0), *delta = at<T>(p.stats, row, 1);
        widen_row(p, p.q, row, T(p.scale), q);
        widen_row(p, p.grad_out, row, T(1), grad_out);
        for (int64_t d = 0; d < columns; ++d) grad_q[d] = 0;
        if (p.edge_dim) {
            Features::begin(p, p.q_edge, row, T(p.scale), q_edge, grad_q_edge);
            Features::begin(p, p.grad_out_edge, row, T(1), grad_out_edge, nullptr);
        }
        for (int64_t first = begin; first < end; first += kLanes) {
            const Block block(p, p.indices, nullptr, first, end, 4);
            const Sources keys(p.k, block), values(p.v, block);
            for (int64_t lane = 0; lane < block.padded; lane += 4) {
                prefetch_ahead(p, p.indices, first + lane, last, p.k, p.v, false);
                for (int64_t h = 0; h < heads; ++h) {
                    store<4>(scores + h * kLanes + lane, keys.dot(p, q + h * dim(p), lane, h) - lse[h]);
                    store<4>(kept + h * kLanes + lane, values.dot(p, grad_out + h * dim(p), lane, h));
                }
            }
            if (p.edge_dim) {
                Features::add_products(p, block, q_edge, scores);
                Features::add_products(p, block, grad_out_edge, kept);
            }
            const bool removes = p.bias.data && add_bias<S>(p, block, scores);
            for (int64_t h = 0; h < heads; ++h) {
                T deltas[kLanes];
                for (int64_t lane = 0; lane < kLanes; ++lane) deltas[lane] = delta[h];
                edge_gradients(p, block, h, deltas, kept + h * kLanes, scores + h * kLanes);
            }
            if (removes) set_removed<S>(p, block, 0, scores);
            if (p.grad_bias.data) write_grad_bias<S>(p, block, scores, p.num_heads, kLanes, 1);
            if (p.grad_q.data) add_rows(p, block, removes, keys, scores, grad_q);
            if (p.grad_q_edge.data) Features::add_rows(p, block, removes, scores, grad_q_edge);
            if (p.grad_edge.data) Features::write_gradients(p, block, scores, kept, q_edge, grad_out_edge);
        }
    }

    static void merge_query(const Problem& p, void* state, const void* other) {
        add_state(p.num_heads * (dim(p) + p.edge_dim), state, other);
    }
    static void finish_query(const Problem& p, int64_t row, void* state) {
        if (p.grad_q.data)
            narrow_row(p, static_cast<T*>(state), [&](int64_t) { return T(p.scale); }, p.grad_q, row);
        if (p.grad_q_edge.data) Features::finish_query(p, row, static_cast<T*>(state) + p.num_heads * dim(p));
    }

    // dK and dV. State: sums of score gradients times queries, and of weights after dropout times grad_out (H, D each).
    static void key_value(const Problem& p, int64_t row, int64_t begin, int64_t end, void* scratch, void* state) {
        const int64_t heads = p.num_heads, last = p.rev_indptr[p.num_src] - 1, columns = heads * dim(p);
        T *k = static_cast<T*>(scratch), *v = k + columns, *scores = v + columns, *kept = scores + heads * kLanes;
        T *deltas = kept + heads * kLanes, *grad_k = static_cast<T*>(state), *grad_v = grad_k + columns;
        const bool ordered = p.bias.data || p.drop_threshold || p.edge_dim;
        widen_row(p, p.k, row, T(p.scale), k);
        widen_row(p, p.v, row, T(1), v);
        for (int64_t d = 0; d < 2 * columns; ++d) grad_k[d] = 0;
        for (int64_t first = begin; first < end; first += kLanes) {
            const Block block(p, p.rev_dst, ordered ? p.rev_position : nullptr, first, end, 4);
            const Sources queries(p.q, block), gradients(p.grad_out, block);
            for (int64_t lane = 0; lane < block.padded; lane += 4) {
                prefetch_ahead(p, p.rev_dst, first + lane, last, p.q, p.grad_out, true);
                const T* stat[4];
                for (int64_t edge = 0; edge < 4; ++edge) stat[edge] = at<T>(p.stats, block.numbers[lane + edge], 0);
                for (int64_t h = 0; h < heads; ++h) {
                    const Vec<T, 4> lse = {stat[0][h], stat[1][h], stat[2][h], stat[3][h]};
                    const int64_t d = heads + h;
                    store<4>(deltas + h * kLanes + lane, Vec<T, 4>{stat[0][d], stat[1][d], stat[2][d], stat[3][d]});
                    store<4>(scores + h * kLanes + lane, queries.dot(p, k + h * dim(p), lane, h) - lse);
                    store<4>(kept + h * kLanes + lane, gradients.dot(p, v + h * dim(p), lane, h));
                }
            }
            if (p.edge_dim) {
                Features::add_pairs(p, block, p.q_edge, T(p.scale), scores);
                Features::add_pairs(p, block, p.grad_out_edge, T(1), kept);
            }
            const bool removes = p.bias.data && add_bias<S>(p, block, scores);
            for (int64_t h = 0; h < heads; ++h)
                edge_gradients(p, block, h, deltas + h * kLanes, kept + h * kLanes, scores + h * kLanes);
            add_rows(p, block, removes, queries, scores, grad_k);
            add_rows(p, block, removes, gradients, kept, grad_v);
        }
    }

    static void merge_key_value(const Problem& p, void* state, const void* other) {
        add_state(2 * p.num_heads * dim(p), state, other);
    }
    static void finish_key_value(const Problem& p, int64_t row, void* state) {
        T* sums = static_cast<T*>(state);
        narrow_row(p, sums, [&](int64_t) { return T(p.scale); }, p.grad_k, row);
        narrow_row(p, sums + p.num_heads * dim(p), [](int64_t) { return T(1); }, p.grad_v, row);
    }

    static void add_state(int64_t numbers, void* state, const void* other) {
        T* sums = static_cast<T*>(state);
        const T* others = static_cast<const T*>(other);
        for (int64_t d = 0; d < numbers; ++d) sums[d] += others[d];
    }

    static Passes passes(const Problem& p) {
        const int64_t row = p.num_heads * p.head_dim * sizeof(T), lanes = p.num_heads * kLanes * sizeof(T);
        const int64_t edge = p.num_heads * p.edge_dim * sizeof(T);
        return {{forward, merge_forward, finish_forward, row + lanes + edge, row + 2 * lanes + edge},
                {query, merge_query, finish_query, 2 * row + 2 * lanes + 2 * edge, row + edge},
                {key_value, merge_key_value, finish_key_value, 2 * row + 3 * lanes, 2 * row},
                stats};
    }
};
