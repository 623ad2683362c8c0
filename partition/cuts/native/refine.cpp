// The local search that every attempt at an edge cut ends with.

#include "export.h"
#include "search.h"

using namespace dgl_gt;

// Moves nodes between parts for fewer halo rows and within the capacities; changes owner (N,). No move for fewer halo
// rows takes a part below a floor. With zero sweeps overloaded parts still give nodes away.
//
// indptr (N + 1,) and sources (E,) are the in-edges; weights (N, kinds), floors and capacities (parts, kinds);
// pin_counts (N, parts) is scratch; the temperature is in halo rows. With num_prices, prices (parts, parts) holds
// at [i, j] the cost of a halo row that part i holds and part j owns; prices then count in place of halo rows. Only the
// first num_movable nodes move.
EXPORT void dgl_gt_refine_some(int64_t num_nodes, const int64_t* indptr, const int32_t* sources, int64_t parts,
                          int64_t kinds, const int64_t* weights, const int64_t* floors, const int64_t* capacities,
                          int32_t* pin_counts, int32_t* owner, int64_t num_movable, int64_t num_prices,
                          const int64_t* prices, int64_t sweeps, double temperature, int64_t seed) {
    const Hypergraph graph = Hypergraph::of_graph(num_nodes, indptr, sources);
    Connectivity connectivity(graph, parts, pin_counts, owner, num_prices ? prices : nullptr);
    PartLoads loads(num_nodes, parts, kinds, weights, floors, capacities, owner);
    Xorshift64Star random{uint64_t(seed)};
    Search(connectivity, loads, num_movable, owner).run(sweeps, temperature, random);
}
