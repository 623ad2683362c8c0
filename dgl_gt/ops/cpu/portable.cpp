// The passes for any processor.
#include "problem.h"

namespace portable {
constexpr int kVectorBytes = 16;
#include "passes.h"
}  // namespace portable
