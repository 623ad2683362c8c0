// Blocks of edges, their bias and the dropout of their weights, for any width of a head. What a call may do without is
// out of line, and compiled once for all passes.

constexpr int kLanes = 16;
constexpr int64_t kLineBytes = 64;
constexpr int64_t kPrefetchEdges = 12;
constexpr uint64_t kMaxHeads = 65536;
template <typename T>
constexpr T kNone = -std::numeric_limits<T>::infinity();  // the score of an edge that gives nothing

// Up to kLanes edges: their number, rows and positions. Up to `padded`, a multiple of `group`, the last one repeats.
struct Block {
    int64_t count, padded, numbers[kLanes], positions[kLanes];

    INLINE Block(const Problem& p, const void* indices, const int64_t* order, int64_t first, int64_t end, int group) {
        count = end - first < kLanes ? end - first : kLanes;
        padded = (count + group - 1) / group * group;
        for (int64_t lane = 0; lane < padded; ++lane) {
            const int64_t slot = first + (lane < count ? lane : count - 1);
            numbers[lane] = index_at(p, indices, slot);
            positions[lane] = order ? order[slot] : slot;
        }
    }
};

// ---- bias -----------------------------------------------------------------------------------------------------------

INLINE int64_t edge_id(const Problem& p, int64_t position) { return p.edge_ids ? p.edge_ids[position] : position; }

INLINE int64_t bias_row(const Problem& p, int64_t position) {
    const int64_t id = edge_id(p, position);
    return p.kind ? p.kind[id] : id;
}

template <typename S>
INLINE Sum<S> bias_of(const Problem& p, int64_t row, int64_t head) {
    return p.bias_storage == p.storage ? widened(*at<S>(p.bias, row, head)) : *at<Sum<S>>(p.bias, row, head);
}

template <typename S>
INLINE bool is_removed(const Problem& p, const Block& block, int64_t lane, int64_t head) {
    return bias_of<S>(p, bias_row(p, block.positions[lane]), head) == kNone<Sum<S>>;
}

// Scores, weights and gradients of removed edges are -inf, 0 or NaN; this saves reading the bias again for the others.
template <typename T>
INLINE bool may_be_removed(T number) {
    return number == T(0) || !(number > kNone<T>);
}

// Sets numbers (H, kLanes) of removed edges.
template <typename S>
NOINLINE void set_removed(const Problem& p, const Block& block, Sum<S> value, Sum<S>* numbers) {
    for (int64_t lane = 0; lane < block.padded; ++lane)
        for (int64_t h = 0; h < p.num_heads; ++h)
            if (may_be_removed(numbers[h * kLanes + lane]) && is_removed<S>(p, block, lane, h))
                numbers[h * kLanes + lane] = value;
}

// Adds the bias to scores (H, kLanes); returns whether it may remove edges. What these read may be NaN, so their scores
// are set, and their rows are not added.
template <typename S>
NOINLINE bool add_bias(const Problem& p, const Block& block, Sum<S>* scores) {
    for (int64_t lane = 0; lane < block.padded; ++lane) {
        const int64_t row = bias_row(p, block.positions[lane]);
        for (int64_t h = 0; h < p.num_heads; ++h) scores[h * kLanes + lane] += bias_of<S>(p, row, h);
    }
    const Vec<Sum<S>, 4> none = Vec<Sum<S>, 4>{} + kNone<Sum<S>>;
    auto is_number = none == none;
    for (int64_t h = 0; h < p.num_heads; ++h)
        for (int64_t lane = 0; lane < block.padded; lane += 4) is_number &= load<4>(scores + h * kLanes + lane) > none;
    if (is_number[0] & is_number[1] & is_number[2] & is_number[3]) return false;
    set_removed<S>(p, block, kNone<Sum<S>>, scores);
    return true;
}

template <typename S>
NOINLINE void write_grad_bias(const Problem& p, const Block& block, const Sum<S>* scores, int64_t heads,
                              int64_t head_stride, int64_t lane_stride) {
    for (int64_t lane = 0; lane < block.count; ++lane) {
        const int64_t row = bias_row(p, block.positions[lane]);
        for (int64_t h = 0; h < heads; ++h) {
            const Sum<S> gradient = scores[h * head_stride + lane * lane_stride];
            if (p.kind) *at<Sum<S>>(p.grad_bias, row, h) += gradient;
            else if (p.bias_storage == p.storage) narrow<S>(at<S>(p.grad_bias, row, h), gradient);
            else *at<Sum<S>>(p.grad_bias, row, h) = gradient;
        }
    }
}

// ---- dropout --------------------------------------------------------------------------------------------------------

// The factors of the weights of H heads, (kLanes, H): 0 where dropout drops one, else 1 / (1 - p). reference.py defines
// the bits.
template <typename T, int H>
NOINLINE void keep_factors(const Problem& p, const Block& block, int64_t first_head, T* factors) {
    constexpr int M = kVectorBytes / sizeof(uint64_t);
    typedef Vec<uint64_t, M> Bits;
    typedef Vec<typename std::conditional<sizeof(T) == 8, int64_t, int32_t>::type, M> Mask;
    const int64_t* ids = p.global_edge_ids ? p.global_edge_ids : p.edge_ids;
    const uint64_t key = mix64(p.seed), column = uint64_t(p.head_offset + first_head) + 1;
    uint64_t counters[kLanes * H];
    for (int64_t lane = 0; lane < block.padded; ++lane) {
        const int64_t position = block.positions[lane];
        const uint64_t first = uint64_t(ids ? ids[position] : position) * kMaxHeads + column;
        for (int64_t h = 0; h < H; ++h) counters[lane * H + h] = first + uint64_t(h);
    }
    for (int64_t i = 0; i < block.count * H; i += M) {
        Bits of_lanes;
        std::memcpy(&of_lanes, counters + i, sizeof of_lanes);
        const Bits bits = random_bits(key, of_lanes) >> 40;
        const Mask kept = __builtin_convertvector(bits >= p.drop_threshold, Mask);
        store<M>(factors + i, (Vec<T, M>)(kept & (Mask)(Vec<T, M>{} + T(p.keep_scale))));
    }
}

// For the edges of one head, in place: turns grad_out . v into the weights after dropout (d out / d v), and scores
// minus lse into d loss / d score. Lanes that repeat the last edge get zeros.
template <typename T>
INLINE void edge_gradients(const Problem& p, const Block& block, int64_t head, const T* deltas, T* kept, T* scores) {
    constexpr int N = kVectorBytes / sizeof(T);
    T keep[kLanes];
    if (p.drop_threshold) keep_factors<T, 1>(p, block, head, keep);
    for (int64_t lane = 0; lane < block.padded; lane += N) {
        const Vec<T, N> weight = exponential<N>(load<N>(scores + lane));
        const Vec<T, N> dropped = p.drop_threshold ? weight * load<N>(keep + lane) : weight;
        store<N>(scores + lane, dropped * load<N>(kept + lane) - weight * load<N>(deltas + lane));
        store<N>(kept + lane, dropped);
    }
    for (int64_t lane = block.count; lane < block.padded; ++lane) scores[lane] = kept[lane] = 0;
}
