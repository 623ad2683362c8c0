// The passes for any processor.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "problem.h"

namespace portable {
constexpr int kVectorBytes = 16;
#include "vectors.h"
#include "dropout.h"
#include "quantise.h"
#include "edges.h"
#include "rows.h"
#include "additive.h"
#include "head_minor.h"
#include "passes.h"
}  // namespace portable
