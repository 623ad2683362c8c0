// The loops of vertex cuts, which would take minutes in Python.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <queue>
#include <utility>
#include <vector>

#include "export.h"

namespace {

// Which parts hold a copy of each node: (N, ceil(parts / 64)) words, one bit for each part.
struct Copies {
    uint64_t* bits;
    int64_t words;

    Copies(uint64_t* bits, int64_t parts) : bits(bits), words((parts + 63) / 64) {}
    bool has(int64_t node, int64_t part) const { return bits[node * words + part / 64] >> (part % 64) & 1; }
    void add(int64_t node, int64_t part) { bits[node * words + part / 64] |= uint64_t(1) << (part % 64); }
};

// What a count of each part is multiplied by so that parts of unequal capacities compare: the mean capacity over the
// part's. With equal capacities it is exactly 1.
std::vector<double> scales_of(const int64_t* capacities, int64_t parts) {
    const double total = double(std::accumulate(capacities, capacities + parts, int64_t(0)));
    std::vector<double> scales(parts, 1.0);
    for (int64_t part = 0; part < parts; ++part)
        if (capacities[part] > 0) scales[part] = total / (double(parts) * double(capacities[part]));
    return scales;
}

// The part whose count is the smallest for its capacity.
int64_t smallest_part(const std::vector<int64_t>& counts, const std::vector<double>& scales) {
    int64_t best = 0;
    for (int64_t part = 1; part < int64_t(counts.size()); ++part)
        if (double(counts[part]) * scales[part] < double(counts[best]) * scales[best]) best = part;
    return best;
}

}  // namespace

// Counts the copies (N, ceil(parts / 64)) and sizes (parts,) that the edges with an owner make; both hold zeros before.
// An edge without an owner has a negative number.
EXPORT void dgl_gt_count_copies(int64_t num_edges, const int32_t* sources, const int32_t* destinations, int64_t parts,
                                const int32_t* owner, uint64_t* copies_bits, int64_t* sizes) {
    Copies copies(copies_bits, parts);
    for (int64_t edge = 0; edge < num_edges; ++edge) {
        if (owner[edge] < 0) continue;
        ++sizes[owner[edge]];
        copies.add(sources[edge], owner[edge]);
        copies.add(destinations[edge], owner[edge]);
    }
}

// Gives each of the listed edges, in this order, to the part of the highest HDRF score (Petroni et al., "HDRF:
// Stream-based partitioning for power-law graphs", CIKM 2015). The score of part p is
//   the sum, over the ends x of which p has a copy, of 2 - degree(x) / (degree(source) + degree(destination))
//   + balance * (largest - size(p)) / (1 + largest - smallest)
// where sizes are scaled by capacities (parts,). A part with as many edges as its capacity takes no more while another
// has room. Of equal scores the smaller part wins. Updates copies, sizes and owner. With `counts_degrees` the degrees (N,)
// are counted on the way, as in a stream that does not know them.
EXPORT void dgl_gt_place_by_hdrf(int64_t num_listed, const int32_t* listed, const int32_t* sources,
                                 const int32_t* destinations, int64_t* degrees, int64_t counts_degrees, int64_t parts,
                                 double balance, const int64_t* capacities, uint64_t* copies_bits, int64_t* sizes,
                                 int32_t* owner) {
    Copies copies(copies_bits, parts);
    const std::vector<double> scales = scales_of(capacities, parts);
    std::vector<double> filled(parts);
    int64_t with_room = 0;
    for (int64_t part = 0; part < parts; ++part) {
        filled[part] = double(sizes[part]) * scales[part];
        with_room += sizes[part] < capacities[part];
    }
    for (int64_t i = 0; i < num_listed; ++i) {
        const int64_t edge = listed[i], u = sources[edge], v = destinations[edge];
        if (counts_degrees) ++degrees[u], ++degrees[v];
        const double share = double(degrees[u]) / double(degrees[u] + degrees[v]);
        const auto [smallest, largest] = std::minmax_element(filled.begin(), filled.end());
        const double range = 1 + *largest - *smallest;
        int64_t best = -1;
        double best_score = -1;
        for (int64_t part = 0; part < parts; ++part) {
            if (sizes[part] >= capacities[part] && with_room > 0) continue;
            const double score = (copies.has(u, part) ? 2 - share : 0) + (copies.has(v, part) ? 1 + share : 0) +
                                 balance * (*largest - filled[part]) / range;
            if (score > best_score || (score == best_score && filled[part] < filled[best])) {
                best = part;
                best_score = score;
            }
        }
        owner[edge] = int32_t(best);
        with_room -= ++sizes[best] == capacities[best];
        filled[best] = double(sizes[best]) * scales[best];
        copies.add(u, best);
        copies.add(v, best);
    }
}

// Neighbour expansion (Zhang et al., "Graph edge partitioning via neighborhood heuristic", KDD 2017). One part after
// the other grows from a seed node: the boundary node with the fewest free edges joins the core, its neighbours join
// the boundary, and the part takes the edges between them, until it has as many as its capacity or nothing is left.
// Edges that remain keep the owner -1.
//
// indptr (N + 1,), neighbours (M,) and edges (M,) list each edge at both of its ends, a self-loop twice at its node.
// start (N,) is the order in which nodes are tried as seeds. joined (N,) gets the order in which nodes first joined a
// core; it is left as it is for the other nodes.
EXPORT void dgl_gt_expand_neighbours(int64_t num_nodes, const int64_t* indptr, const int32_t* neighbours,
                                     const int32_t* edges, const int64_t* start, int64_t parts,
                                     const int64_t* capacities,
                                     int32_t* owner, int64_t* joined) {
    typedef std::pair<int64_t, int64_t> Entry;  // free edges, node; outdated entries stay in the queue and are skipped
    std::vector<int64_t> free(num_nodes);
    for (int64_t node = 0; node < num_nodes; ++node) free[node] = indptr[node + 1] - indptr[node];
    std::vector<int32_t> inside(num_nodes, -1), core(num_nodes, -1);  // last part whose nodes or core it joined
    int64_t next_seed = 0, cores = 0;
    for (int32_t part = 0; part < parts; ++part) {
        std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> queue;
        int64_t size = 0;
        const int64_t capacity = capacities[part];
        const auto take = [&](int64_t slot, int64_t node) {
            if (owner[edges[slot]] >= 0 || size >= capacity) return;
            owner[edges[slot]] = part;
            ++size;
            for (int64_t end : {node, int64_t(neighbours[slot])})
                if (--free[end] > 0 && inside[end] == part && core[end] != part) queue.push({free[end], end});
        };
        const auto join = [&](int64_t node) {  // the boundary; the part takes its edges to other nodes inside
            if (inside[node] == part) return;
            inside[node] = part;
            for (int64_t slot = indptr[node]; slot < indptr[node + 1]; ++slot)
                if (inside[neighbours[slot]] == part) take(slot, node);
            if (free[node] > 0) queue.push({free[node], node});
        };
        while (size < capacity) {
            while (!queue.empty() &&
                   (core[queue.top().second] == part || queue.top().first != free[queue.top().second]))
                queue.pop();
            int64_t node;
            if (!queue.empty()) {
                node = queue.top().second;
            } else {
                while (next_seed < num_nodes && free[start[next_seed]] == 0) ++next_seed;
                if (next_seed == num_nodes) return;
                node = start[next_seed];
                join(node);
            }
            if (core[node] < 0) joined[node] = cores++;
            core[node] = part;
            for (int64_t slot = indptr[node]; slot < indptr[node + 1] && size < capacity; ++slot)
                if (owner[edges[slot]] < 0) join(neighbours[slot]);
        }
    }
}

// Makes one of the parts that hold a copy of a node its master, and balances owned rows and sent rows (copies in other
// parts) together: nodes with one copy come first, then the others, each to its part of the least load so far. A node
// without copies goes to the part that owns the fewest nodes. Loads and nodes are scaled by capacities (parts,).
EXPORT void dgl_gt_choose_masters(int64_t num_nodes, int64_t parts, const int64_t* capacities,
                                  const uint64_t* copies_bits, int32_t* master) {
    const Copies copies(const_cast<uint64_t*>(copies_bits), parts);
    const std::vector<double> scales = scales_of(capacities, parts);
    std::vector<int64_t> owned(parts), load(parts);
    for (const int64_t pass : {1, 2, 0}) {  // one copy, several copies, none
        for (int64_t node = 0; node < num_nodes; ++node) {
            int64_t best = -1, count = 0;
            for (int64_t part = 0; part < parts; ++part) {
                if (!copies.has(node, part)) continue;
                ++count;
                if (best < 0 || double(load[part]) * scales[part] < double(load[best]) * scales[best]) best = part;
            }
            if (std::min<int64_t>(count, 2) != pass) continue;
            if (best < 0) best = smallest_part(owned, scales);
            master[node] = int32_t(best);
            ++owned[best];
            load[best] += std::max<int64_t>(count, 1);
        }
    }
}

// Lists each edge at both of its ends: neighbours and edges (2 E,) by indptr (N + 1,). An edge's number is its position
// among the in-edges, which in_indptr (N + 1,) and sources (E,) give.
EXPORT void dgl_gt_list_by_node(int64_t num_nodes, const int64_t* in_indptr, const int32_t* sources, int64_t* indptr,
                                int32_t* neighbours, int32_t* edges) {
    const int64_t num_edges = in_indptr[num_nodes];
    std::fill(indptr, indptr + num_nodes + 1, 0);
    for (int64_t node = 0; node < num_nodes; ++node) indptr[node + 1] = in_indptr[node + 1] - in_indptr[node];
    for (int64_t edge = 0; edge < num_edges; ++edge) ++indptr[sources[edge] + 1];
    for (int64_t node = 0; node < num_nodes; ++node) indptr[node + 1] += indptr[node];
    std::vector<int64_t> next(indptr, indptr + num_nodes);
    for (int64_t node = 0; node < num_nodes; ++node)
        for (int64_t edge = in_indptr[node]; edge < in_indptr[node + 1]; ++edge) {
            const int64_t source = sources[edge], here = next[node]++, there = next[source]++;
            neighbours[here] = int32_t(source);
            neighbours[there] = int32_t(node);
            edges[here] = edges[there] = int32_t(edge);
        }
}

// Evens out the copies that parts hold: moves the listed nodes, in this order, out of parts with many copies. The edges of
// a node there go to one other part, which has fewer copies for its capacity (parts,), has room for the edges, and holds
// enough of their other ends that the number of all copies does not grow. Repeats this up to `rounds` times, until a round
// moves nothing.
//
// The lists are those of dgl_gt_expand_neighbours; counts (N, parts) is scratch.
EXPORT void dgl_gt_level_copies(int64_t num_nodes, const int64_t* indptr, const int32_t* neighbours,
                                const int32_t* edges, int64_t num_listed, const int64_t* listed, int64_t parts,
                                const int64_t* capacities, int64_t rounds, int32_t* counts, int32_t* owner) {
    const std::vector<double> scales = scales_of(capacities, parts);
    std::vector<int64_t> copies(parts), sizes(parts);  // sizes in ends of edges, two for each edge
    std::fill(counts, counts + num_nodes * parts, 0);
    for (int64_t node = 0; node < num_nodes; ++node)
        for (int64_t slot = indptr[node]; slot < indptr[node + 1]; ++slot) {
            ++sizes[owner[edges[slot]]];
            if (counts[node * parts + owner[edges[slot]]]++ == 0) ++copies[owner[edges[slot]]];
        }
    for (int64_t round = 0; round < rounds; ++round) {
        int64_t moved = 0;
        for (int64_t i = 0; i < num_listed; ++i) {
            const int64_t node = listed[i], begin = indptr[node], end = indptr[node + 1];
            for (int64_t from = 0; from < parts; ++from) {
                if (counts[node * parts + from] == 0) continue;
                int64_t best = -1, best_gain = 0;
                for (int64_t to = 0; to < parts; ++to) {
                    if (double(copies[to] + 1) * scales[to] >= double(copies[from]) * scales[from] ||
                        sizes[to] + 2 * counts[node * parts + from] > 2 * capacities[to])
                        continue;
                    int64_t gain = counts[node * parts + to] > 0;
                    for (int64_t slot = begin; slot < end && gain >= 0; ++slot) {
                        const int64_t other = neighbours[slot];
                        if (owner[edges[slot]] != from || other == node) continue;
                        gain += (counts[other * parts + from] == 1) - (counts[other * parts + to] == 0);
                    }
                    if (gain > best_gain || (gain == best_gain && (best < 0 || double(copies[to]) * scales[to] < double(copies[best]) * scales[best]))) {
                        best = to;
                        best_gain = gain;
                    }
                }
                if (best < 0) continue;
                for (int64_t slot = begin; slot < end; ++slot) {
                    if (owner[edges[slot]] != from) continue;
                    owner[edges[slot]] = int32_t(best);
                    for (int64_t at : {node, int64_t(neighbours[slot])}) {
                        copies[from] -= --counts[at * parts + from] == 0;
                        copies[best] += counts[at * parts + best]++ == 0;
                        --sizes[from];
                        ++sizes[best];
                    }
                }
                ++moved;
            }
        }
        if (moved == 0) return;
    }
}
