// Feature dropout keyed by (seed, row id, column); dgl_gt/ops/dropout.py defines the bits. No mask is stored: forward
// and backward both compute it.

constexpr int kColumns = 4;  // columns that share 64 random bits, 16 bits each
constexpr uint64_t kMaxGroups = 65536;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a key's lowest 16 bits come first in memory");

template <typename S>
struct Drop {
    typedef Sum<S> T;
    static constexpr int kKeys = kVectorBytes / sizeof(uint64_t), kStep = kKeys * kColumns;  // per register
    static constexpr int N = kVectorBytes / sizeof(T);
    typedef Vec<uint64_t, kKeys> Keys;
    typedef Vec<uint16_t, kStep> Lanes;
    typedef Vec<typename std::conditional<sizeof(T) == 8, int64_t, int32_t>::type, N> Mask;

    // Drops in kStep columns of a row; `counters` holds id * kMaxGroups + group + 1 for each group of columns.
    static INLINE void step(const S* from, S* to, Keys counters, uint64_t key, uint16_t threshold, T scale) {
        const Keys bits = random_bits(key, counters);
        const Lanes kept = (Lanes)((Lanes)bits >= threshold);
        for (int column = 0; column < kStep; column += N) {
            Vec<int16_t, N> narrow_mask;
            std::memcpy(&narrow_mask, reinterpret_cast<const char*>(&kept) + 2 * column, sizeof narrow_mask);
            const Mask mask = __builtin_convertvector(narrow_mask, Mask);
            store<N>(to + column, (Vec<T, N>)(mask & (Mask)(load<N>(from + column) * scale)));
        }
    }

    static void rows(const Dropout& d, int64_t first, int64_t last) {
        const uint64_t key = mix64(d.seed);
        const uint16_t threshold = uint16_t(d.threshold);
        Keys steps;
        for (int i = 0; i < kKeys; ++i) steps[i] = i + 1;
        for (int64_t row = first; row < last; ++row) {
            const S* from = static_cast<const S*>(d.from) + row * d.columns;
            S* to = static_cast<S*>(d.to) + row * d.columns;
            Keys counters = uint64_t(d.ids ? d.ids[row] : row) * kMaxGroups + steps;
            int64_t column = 0;
            for (; column + kStep <= d.columns; column += kStep, counters += kKeys)
                step(from + column, to + column, counters, key, threshold, T(d.scale));
            if (column < d.columns) {
                S rest[kStep] = {};
                std::memcpy(rest, from + column, (d.columns - column) * sizeof(S));
                step(rest, rest, counters, key, threshold, T(d.scale));
                std::memcpy(to + column, rest, (d.columns - column) * sizeof(S));
            }
        }
    }
};

void drop_rows(const Dropout& d, int64_t first, int64_t last) {
    switch (d.storage) {
        case kFloat64: return Drop<double>::rows(d, first, last);
        case kBFloat16: return Drop<BFloat16>::rows(d, first, last);
        case kFloat16: return Drop<Float16>::rows(d, first, last);
        default: return Drop<float>::rows(d, first, last);
    }
}
