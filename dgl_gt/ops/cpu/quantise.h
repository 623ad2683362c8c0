// Rows of float32 as whole numbers of 8 or 4 bits; dgl_gt/ops/quantise.py defines the bits.
//
// A packed row is its minimum and its step, both float32, and then its codes. Two 4-bit codes share a byte; the first is in
// the lower half.
constexpr int64_t kRowHeader = 2 * sizeof(float);

void quantise_rows(const Quantise& q, int64_t first, int64_t last) {
    const uint64_t key = mix64(q.seed);
    const float levels = float((1 << q.bits) - 1);
    const int64_t packed_bytes = kRowHeader + (q.columns * q.bits + 7) / 8;
    for (int64_t row = first; row < last; ++row) {
        const float* from = q.rows + row * q.columns;
        uint8_t* to = q.packed + row * packed_bytes;
        float low = q.columns ? from[0] : 0.f, high = low, sum = 0.f;
        for (int64_t column = 0; column < q.columns; ++column) {
            low = from[column] < low ? from[column] : low;
            high = from[column] > high ? from[column] : high;
            sum += from[column] - from[column];  // 0, or NaN if the row holds NaN or infinity
        }
        const float step = (high - low) / levels + sum, inverse = step > 0.f ? 1.f / step : 0.f;
        std::memcpy(to, &low, sizeof low);
        std::memcpy(to + sizeof low, &step, sizeof step);
        to += kRowHeader;
        uint64_t bits = 0;
        for (int64_t column = 0; column < q.columns; ++column) {
            const int lane = int(column % kColumns);
            if (lane == 0) bits = random_bits<uint64_t>(key, uint64_t(q.keys[row]) * kMaxGroups + column / kColumns + 1);
            const float noise = float((bits >> (16 * lane)) & 0xFFFF) * (1.f / 65536.f);
            const float scaled = (from[column] - low) * inverse + noise;
            const uint8_t code = scaled < levels ? uint8_t(scaled) : uint8_t(levels);
            if (q.bits == 8) {
                to[column] = code;
            } else if (column % 2 == 0) {
                to[column / 2] = code;
            } else {
                to[column / 2] |= uint8_t(code << 4);
            }
        }
    }
}

void restore_rows(const Quantise& q, float* rows, int64_t first, int64_t last) {
    const int64_t packed_bytes = kRowHeader + (q.columns * q.bits + 7) / 8;
    for (int64_t row = first; row < last; ++row) {
        const uint8_t* from = q.packed + row * packed_bytes;
        float* to = rows + row * q.columns;
        float low, step;
        std::memcpy(&low, from, sizeof low);
        std::memcpy(&step, from + sizeof low, sizeof step);
        from += kRowHeader;
        for (int64_t column = 0; column < q.columns; ++column) {
            const uint8_t code = q.bits == 8 ? from[column] : (from[column / 2] >> (4 * (column % 2))) & 15;
            to[column] = low + step * float(code);
        }
    }
}
