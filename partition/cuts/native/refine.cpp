// The local search of edge_cut.py, which METIS can only approximate. Called through ctypes.

#include "native.h"
#include "search.h"

using namespace dgl_gt;

// Moves nodes between parts, in place: in each of `sweeps` rounds every node, in random order, is offered the part with
// room where it makes the fewest halo rows; a move that makes d more is taken with probability exp(-d / temperature),
// the temperature falling linearly to zero. No such move takes a part below a floor. Before and after each round parts
// beyond a capacity give nodes away; with zero sweeps they still do.
//
// indptr (N + 1,) and sources (E,) are the in-edges; weights (N, kinds), floors and capacities (K, kinds); counts (N, K)
// is scratch.
EXPORT void dgl_gt_refine(int64_t num_nodes, const int64_t* indptr, const int32_t* sources, int64_t parts, int64_t kinds,
                          const int64_t* weights, const int64_t* floors, const int64_t* capacities, int64_t sweeps,
                          double temperature, int64_t seed, int32_t* counts, int32_t* owner) {
    const Rows rows = Rows::of_graph(num_nodes, indptr, sources);
    Holders holders(rows, parts, counts, owner);
    Loads loads(num_nodes, parts, kinds, weights, floors, capacities, owner);
    Random random{uint64_t(seed)};
    Search(holders, loads, num_nodes, owner).sweeps(sweeps, temperature, random);
}
