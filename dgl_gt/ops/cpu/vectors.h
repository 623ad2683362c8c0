// Vectors of floats and doubles: loads from every storage type, stores, sums across lanes, exp; and random bits.

template <typename T, int W>
struct VectorOf {
    typedef T type __attribute__((vector_size(W * sizeof(T))));
};
template <typename T, int W>
using Vec = typename VectorOf<T, W>::type;

struct BFloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

// The type in which sums of a storage type are held.
template <typename S>
struct SumOf {
    typedef float type;
};
template <>
struct SumOf<double> {
    typedef double type;
};
template <typename S>
using Sum = typename SumOf<S>::type;

template <int W>
INLINE Vec<float, W> load(const float* from) {
    Vec<float, W> vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

template <int W>
INLINE Vec<double, W> load(const double* from) {
    Vec<double, W> vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

template <int W>
INLINE void store(float* to, Vec<float, W> vector) {
    std::memcpy(to, &vector, sizeof vector);
}

template <int W>
INLINE void store(double* to, Vec<double, W> vector) {
    std::memcpy(to, &vector, sizeof vector);
}

template <int W>
INLINE Vec<float, W> load(const BFloat16* from) {
    Vec<uint16_t, W> bits;
    std::memcpy(&bits, from, sizeof bits);
    return (Vec<float, W>)(__builtin_convertvector(bits, Vec<uint32_t, W>) << 16);
}

template <int W>
INLINE void store(BFloat16* to, Vec<float, W> vector) {
    const Vec<uint32_t, W> bits = (Vec<uint32_t, W>)vector;
    const Vec<uint32_t, W> even = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;  // rounded to nearest, ties to even
    const Vec<uint32_t, W> is_nan = (Vec<uint32_t, W>)(vector != vector);
    const auto rounded = __builtin_convertvector((even & ~is_nan) | (is_nan & 0x7FC0), Vec<uint16_t, W>);
    std::memcpy(to, &rounded, sizeof rounded);
}

template <int W>
INLINE Vec<float, W> load(const Float16* from) {
    typedef Vec<uint32_t, W> Bits;
    Vec<uint16_t, W> half;
    std::memcpy(&half, from, sizeof half);
#if defined(WIDE_HALVES)
    if constexpr (W == WIDE_HALVES) return (Vec<float, W>)widen_halves(half);
#endif
    // The exponents' biases differ by 112; infinities and NaN keep an exponent of ones. Exact for subnormal halves too.
    const Bits bits = __builtin_convertvector(half, Bits), magnitude = (bits & 0x7FFF) << 13;
    const Bits finite = (Bits)((Vec<float, W>)magnitude * 0x1p112f);
    const Bits special = (Bits)(magnitude >= (0x7C00u << 13));
    return (Vec<float, W>)((finite & ~special) | ((magnitude | 0x7F800000u) & special) | ((bits & 0x8000) << 16));
}

template <int W>
INLINE void store(Float16* to, Vec<float, W> vector) {
    typedef Vec<uint32_t, W> Bits;
    const Bits bits = (Bits)vector, magnitude = bits & 0x7FFFFFFF;
    // Rounded to nearest, ties to even: of normal halves by carrying into the exponent, of subnormal ones by adding a
    // float whose unit in the last place equals theirs.
    const Bits normal = (magnitude - (112u << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
    const Bits subnormal = (Bits)((Vec<float, W>)magnitude + 0.5f) - 0x3F000000u;
    const Bits is_small = (Bits)(magnitude < 0x38800000u), is_large = (Bits)(magnitude >= 0x47800000u);
    const Bits is_nan = (Bits)(magnitude > 0x7F800000u);
    const Bits finite = (subnormal & is_small) | (normal & ~is_small);
    const Bits rounded = (finite & ~is_large) | (0x7C00 & is_large) | (0x0200 & is_nan) | ((bits >> 16) & 0x8000);
    const auto half = __builtin_convertvector(rounded, Vec<uint16_t, W>);
    std::memcpy(to, &half, sizeof half);
}

INLINE float widened(float value) { return value; }
INLINE double widened(double value) { return value; }
INLINE float widened(BFloat16 value) {
    const uint32_t bits = uint32_t(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}
template <typename S>
INLINE float widened(S value) {
    const S lanes[4] = {value, value, value, value};
    return load<4>(lanes)[0];
}
template <typename S>
INLINE void narrow(S* to, Sum<S> value) {
    if constexpr (sizeof(S) == sizeof(Sum<S>)) *to = value;
    else {
        S lanes[4];
        store<4>(lanes, Vec<float, 4>{value, value, value, value});
        *to = lanes[0];
    }
}

template <int... I, typename V>
INLINE V pick(V a, V b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, I...);
#else
    typedef typename std::conditional<sizeof(a[0]) == 8, int64_t, int32_t>::type Index;
    return __builtin_shuffle(a, b, (Vec<Index, sizeof...(I)>){I...});
#endif
}

// Sums a, b, c and d over each group of four lanes; the group then holds (sum a, sum b, sum c, sum d).
template <int... I, typename V>
INLINE V group_sums(std::integer_sequence<int, I...>, V a, V b, V c, V d) {
    constexpr int W = sizeof...(I);
    const V ab = pick<I / 4 * 4 + I % 4 / 2 + I % 2 * W...>(a, b) + pick<I / 4 * 4 + I % 4 / 2 + 2 + I % 2 * W...>(a, b);
    const V cd = pick<I / 4 * 4 + I % 4 / 2 + I % 2 * W...>(c, d) + pick<I / 4 * 4 + I % 4 / 2 + 2 + I % 2 * W...>(c, d);
    return pick<I / 4 * 4 + I % 2 + I % 4 / 2 * W...>(ab, cd) + pick<I / 4 * 4 + I % 2 + 2 + I % 4 / 2 * W...>(ab, cd);
}

template <int W>
INLINE Vec<float, 4> fold(Vec<float, W> groups) {
    if constexpr (W == 4) return groups;
    else {
        Vec<float, W / 2> halves[2];
        std::memcpy(halves, &groups, sizeof halves);
        return fold<W / 2>(halves[0] + halves[1]);
    }
}

// Returns (sum a, sum b, sum c, sum d), each over all lanes.
template <int W>
INLINE Vec<float, 4> sums(Vec<float, W> a, Vec<float, W> b, Vec<float, W> c, Vec<float, W> d) {
    return fold<W>(group_sums(std::make_integer_sequence<int, W>(), a, b, c, d));
}

template <int W>
INLINE Vec<double, 4> sums(Vec<double, W> a, Vec<double, W> b, Vec<double, W> c, Vec<double, W> d) {
    Vec<double, 4> total = {};
    for (int lane = 0; lane < W; ++lane) total += Vec<double, 4>{a[lane], b[lane], c[lane], d[lane]};
    return total;
}

template <int W, typename V>
INLINE auto sum(V vector) {
    auto total = vector[0];
    for (int lane = 1; lane < W; ++lane) total += vector[lane];
    return total;
}

// Returns the largest of all lanes and one more number; lanes with NaN do not count.
template <typename T, int W>
INLINE T largest(Vec<T, W> vector, T other) {
    if constexpr (W > 2) {
        Vec<T, W / 2> halves[2];
        std::memcpy(halves, &vector, sizeof halves);
        return largest<T, W / 2>(halves[0] > halves[1] ? halves[0] : halves[1], other);
    } else {
        const T pair = vector[0] > vector[1] ? vector[0] : vector[1];
        return pair > other ? pair : other;
    }
}

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014); dgl_gt/ops/reference.py defines the random bits of dropout.
template <typename Bits>
INLINE Bits mix64(Bits bits) {
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    return bits ^ (bits >> 31);
}

// The random bits of counters under a key, which is mix64 of the seed.
template <typename Bits>
INLINE Bits random_bits(uint64_t key, Bits counters) {
    return mix64(key + counters * 0x9E3779B97F4A7C15ull);
}

// exp: float by the polynomial of Cephes (Moshier 1989) after Cody and Waite's range reduction, to about an ulp;
// double by the library.
template <int W>
INLINE Vec<float, W> exponential(Vec<float, W> x) {
    const Vec<float, W> top = Vec<float, W>{} + 88.f, bottom = Vec<float, W>{} - 87.f;
    Vec<float, W> clamped = x > top ? top : x;  // NaN stays
    clamped = clamped < bottom ? bottom : clamped;
    const Vec<float, W> shifted = clamped * 1.44269504f + 12582912.f;  // rounds to an integer, in the low bits
    const Vec<float, W> whole = shifted - 12582912.f;
    const Vec<float, W> r = (clamped - whole * 0.693359375f) + whole * 2.12194440e-4f;
    Vec<float, W> poly = r * 1.9875691500e-4f + 1.3981999507e-3f;
    poly = poly * r + 8.3334519073e-3f;
    poly = poly * r + 4.1665795894e-2f;
    poly = poly * r + 1.6666665459e-1f;
    poly = poly * r + 5.0000001201e-1f;
    poly = poly * (r * r) + (r + 1.f);
    const Vec<float, W> power = (Vec<float, W>)(((Vec<int32_t, W>)shifted + 127) << 23);
    return x < bottom ? Vec<float, W>{} : poly * power;
}

template <int W>
INLINE Vec<double, W> exponential(Vec<double, W> x) {
    for (int lane = 0; lane < W; ++lane) x[lane] = std::exp(x[lane]);
    return x;
}
