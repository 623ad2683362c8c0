// All code of an instruction set, whose file includes this inside its own namespace, so that no two of them share a compiled
// function; and the passes for a problem, by its layout, storage type, number of heads and width of a head.

#include "vectors.h"
#include "dropout.h"
#include "quantise.h"
#include "edges.h"
#include "rows.h"
#include "edge_features.h"
#include "additive.h"
#include "head_minor.h"

template <template <typename, int, int> class Kernel, typename S>
Passes of_width(const Problem& p) {
    constexpr int N = kVectorBytes / sizeof(Sum<S>);
    if constexpr (kVectorBytes > 16 && sizeof(Sum<S>) == 4)
        if (p.head_dim == 8) return Kernel<S, 8, 1>::passes(p);
    // float16 is rare, and does without kernels of its own for these.
    if constexpr (kVectorBytes > 16 && (std::is_same<S, float>() || std::is_same<S, BFloat16>())) {
        switch (p.head_dim) {
            case 16: return Kernel<S, N, 16 / N>::passes(p);
            case 32: return Kernel<S, N, 32 / N>::passes(p);
            case 64: return Kernel<S, N, 64 / N>::passes(p);
        }
    }
    return p.head_dim % N == 0 ? Kernel<S, N, 0>::passes(p) : Kernel<S, N < 4 ? N : 4, 0>::passes(p);
}

template <typename S>
Passes passes_of(const Problem& p) {
    if (p.is_additive) return of_width<Additive, S>(p);
    if constexpr (sizeof(Sum<S>) == 4) {
        if (p.is_head_minor) {
            switch (p.num_heads) {
                case 4: return HeadMinor<S, 4>::passes(p);
                case 8: return HeadMinor<S, 8>::passes(p);
                default: return HeadMinor<S, 16>::passes(p);
            }
        }
    }
    return of_width<Rows, S>(p);
}

Passes passes(const Problem& p) {
    switch (p.storage) {
        case kFloat64: return passes_of<double>(p);
        case kBFloat16: return passes_of<BFloat16>(p);
        case kFloat16: return passes_of<Float16>(p);
        default: return passes_of<float>(p);
    }
}
