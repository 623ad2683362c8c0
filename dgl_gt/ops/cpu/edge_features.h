// Features of edges in keys and values: q . (k + W x) is q . k + q_edge . x with q_edge = W^T q, and the sum of a (v + W x)
// is that of a v plus W times that of a x, which is out_edge. So an edge reads F numbers, which all heads share.
//
// These add to what the passes of rows.h do. A block's features are rows of width F with a head_stride of 0, so the code
// for rows of any width serves them, with a problem whose head_dim is F.

template <typename S>
struct EdgeFeatures {
    typedef Sum<S> T;
    static constexpr int N = kVectorBytes / sizeof(T), NARROW = N < 4 ? N : 4;
    typedef Rows<S, N, 0> Wide;
    typedef Rows<S, NARROW, 0> Narrow;

    static INLINE Problem of_features(const Problem& p) {
        Problem features = p;
        features.head_dim = p.edge_dim;
        return features;
    }

    static INLINE Block rows_of(const Problem& p, const Block& block) {
        Block rows = block;
        for (int64_t lane = 0; lane < rows.padded; ++lane) rows.numbers[lane] = edge_id(p, rows.positions[lane]);
        return rows;
    }

    // Widens a row (H, F), times a factor, and sets the sums (H, F), where there are any, to 0.
    static NOINLINE void begin(const Problem& p, const Array& array, int64_t row, T factor, T* to, T* sums) {
        const Problem features = of_features(p);
        Narrow::widen_row(features, array, row, factor, to);
        if (sums)
            for (int64_t d = 0; d < p.num_heads * p.edge_dim; ++d) sums[d] = 0;
    }

    // Adds x . (row of head h), x the features of an edge, to numbers (H, kLanes).
    static NOINLINE void add_products(const Problem& p, const Block& block, const T* row, T* numbers) {
        if (p.edge_dim >= N) products<Wide>(p, block, row, numbers);
        else products<Narrow>(p, block, row, numbers);
    }

    template <typename R>
    static INLINE void products(const Problem& p, const Block& block, const T* row, T* numbers) {
        const Problem features = of_features(p);
        const typename R::Sources rows(p.edge, rows_of(p, block));
        for (int64_t lane = 0; lane < block.padded; lane += 4)
            for (int64_t h = 0; h < p.num_heads; ++h) {
                T* to = numbers + h * kLanes + lane;
                store<4>(to, load<4>(to) + rows.dot(features, row + h * p.edge_dim, lane, h));
            }
    }

    // Adds the features of a block, times weights (H, kLanes), to sums (H, F).
    static NOINLINE void add_rows(const Problem& p, const Block& block, bool removes, const T* weights, T* sums) {
        const Problem features = of_features(p);
        const Block rows = rows_of(p, block);
        if (p.edge_dim >= N) Wide::add_rows(features, rows, removes, typename Wide::Sources(p.edge, rows), weights, sums);
        else Narrow::add_rows(features, rows, removes, typename Narrow::Sources(p.edge, rows), weights, sums);
    }

    static void shrink(const Problem& p, int64_t head, T factor, T* sums) {
        for (int64_t d = head * p.edge_dim; d < (head + 1) * p.edge_dim; ++d) sums[d] *= factor;
    }

    static void merge(const Problem& p, int64_t head, T factor, T* sums, T factor_2, const T* sums_2) {
        for (int64_t d = head * p.edge_dim; d < (head + 1) * p.edge_dim; ++d)
            sums[d] = sums[d] * factor + sums_2[d] * factor_2;
    }

    static NOINLINE void finish_forward(const Problem& p, int64_t row, const T* totals, const T* sums) {
        Narrow::narrow_row(of_features(p), sums, [&](int64_t h) {
            const T total = sum<N>(load<N>(totals + h * N));
            return total == T(0) ? T(0) : T(1) / total;
        }, p.out_edge, row);
    }

    static NOINLINE void finish_query(const Problem& p, int64_t row, const T* sums) {
        Narrow::narrow_row(of_features(p), sums, [&](int64_t) { return T(p.scale); }, p.grad_q_edge, row);
    }

    // grad_out_edge . out_edge of a row and head
    static NOINLINE T delta(const Problem& p, int64_t row, int64_t head) {
        const S *gradient = at<S>(p.grad_out_edge, row, head), *out = at<S>(p.out_edge, row, head);
        T total = 0;
        for (int64_t d = 0; d < p.edge_dim; ++d) total += widened(gradient[d]) * widened(out[d]);
        return total;
    }

    // Writes the gradient of each edge's features: that of its scores times q_edge (which is scaled), and its weights
    // after dropout times grad_out_edge, summed over heads.
    static NOINLINE void write_gradients(const Problem& p, const Block& block, const T* scores, const T* kept,
                                         const T* q_edge, const T* grad_out_edge) {
        const Block rows = rows_of(p, block);
        for (int64_t lane = 0; lane < block.count; ++lane) {
            S* to = at<S>(p.grad_edge, rows.numbers[lane], 0);
            int64_t d = 0;
            for (; d + N <= p.edge_dim; d += N) store<N>(to + d, sum_over_heads<N>(p, lane, d, scores, kept, q_edge, grad_out_edge));
            for (; d < p.edge_dim; ++d) {
                T total = 0;
                for (int64_t h = 0; h < p.num_heads; ++h)
                    total += scores[h * kLanes + lane] * q_edge[h * p.edge_dim + d] +
                             kept[h * kLanes + lane] * grad_out_edge[h * p.edge_dim + d];
                narrow<S>(to + d, total);
            }
        }
    }

    template <int M>
    static INLINE Vec<T, M> sum_over_heads(const Problem& p, int64_t lane, int64_t d, const T* scores, const T* kept,
                                           const T* q_edge, const T* grad_out_edge) {
        Vec<T, M> total = {};
        for (int64_t h = 0; h < p.num_heads; ++h)
            total += scores[h * kLanes + lane] * load<M>(q_edge + h * p.edge_dim + d) +
                     kept[h * kLanes + lane] * load<M>(grad_out_edge + h * p.edge_dim + d);
        return total;
    }

    // Adds factor * x . (row of head h) to numbers (H, kLanes), x the features of an edge and the row that of its far end.
    static NOINLINE void add_pairs(const Problem& p, const Block& block, const Array& array, T factor, T* numbers) {
        if (p.edge_dim >= N) pairs<N>(p, block, array, factor, numbers);
        else pairs<NARROW>(p, block, array, factor, numbers);
    }

    template <int W>
    static INLINE void pairs(const Problem& p, const Block& block, const Array& array, T factor, T* numbers) {
        const Block edges = rows_of(p, block);
        for (int64_t lane = 0; lane < block.padded; lane += 4) {
            const S *x[4], *rows[4];
            for (int64_t edge = 0; edge < 4; ++edge) {
                x[edge] = at<S>(p.edge, edges.numbers[lane + edge], 0);
                rows[edge] = at<S>(array, block.numbers[lane + edge], 0);
            }
            for (int64_t h = 0; h < p.num_heads; ++h) {
                const int64_t offset = h * array.head_stride;
                Vec<T, W> a = {}, b = {}, c = {}, e = {};
                int64_t d = 0;
                for (; d + W <= p.edge_dim; d += W) {
                    a += load<W>(x[0] + d) * load<W>(rows[0] + offset + d);
                    b += load<W>(x[1] + d) * load<W>(rows[1] + offset + d);
                    c += load<W>(x[2] + d) * load<W>(rows[2] + offset + d);
                    e += load<W>(x[3] + d) * load<W>(rows[3] + offset + d);
                }
                Vec<T, 4> total = sums<W>(a, b, c, e);
                for (; d < p.edge_dim; ++d)
                    for (int64_t edge = 0; edge < 4; ++edge)
                        total[edge] += widened(x[edge][d]) * widened(rows[edge][offset + d]);
                T* to = numbers + h * kLanes + lane;
                store<4>(to, load<4>(to) + factor * total);
            }
        }
    }
};
