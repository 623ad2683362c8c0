// Clusters of an undirected graph by label propagation under a bound on their weight, and the graph of these clusters
// (Meyerhenke, Sanders and Schulz, "Partitioning complex networks via size-constrained clustering", 2014).

#include <cstdint>
#include <vector>

#include "export.h"
#include "random.h"

using namespace dgl_gt;

namespace {

constexpr int64_t MIN_MOVES = 50;  // a sweep that moves less than one in this many nodes is the last

struct Undirected {
    const int64_t* indptr;        // (N + 1,)
    const int32_t* neighbours;    // (indptr[N],)
    const int64_t* edge_weights;  // (indptr[N],), or null where all are one

    int64_t weight(int64_t edge) const { return edge_weights ? edge_weights[edge] : 1; }
};

// Numbers labels from 0, in the order of each label's first node.
void renumber(int64_t num_nodes, int32_t* label) {
    std::vector<int32_t> number(num_nodes, -1);
    int32_t count = 0;
    for (int64_t node = 0; node < num_nodes; ++node) {
        int32_t& found = number[label[node]];
        if (found < 0) found = count++;
        label[node] = found;
    }
}

}  // namespace

// Writes the cluster of each node to label (N,), counted from 0 in the order of each cluster's first node.
//
// Each node, one after the other, joins the cluster to which most of its edge weight goes, as long as the cluster's
// weight stays within `heaviest`. Only nodes of the same group share a cluster. `edge_weights` has a weight for each
// edge where num_weights is not 0.
EXPORT void dgl_gt_find_clusters(int64_t num_nodes, const int64_t* indptr, const int32_t* neighbours,
                                 int64_t num_weights, const int64_t* edge_weights, const int64_t* node_weights,
                                 const int32_t* groups, int64_t heaviest, int64_t sweeps, int64_t seed,
                                 int32_t* label) {
    const Undirected graph{indptr, neighbours, num_weights ? edge_weights : nullptr};
    Xorshift64Star random{uint64_t(seed)};
    std::vector<int64_t> cluster_weight(node_weights, node_weights + num_nodes), affinity(num_nodes, 0);
    std::vector<int32_t> reached;
    for (int64_t node = 0; node < num_nodes; ++node) label[node] = int32_t(node);
    for (int64_t sweep = 0; sweep < sweeps; ++sweep) {
        int64_t moves = 0;
        for (int64_t node = 0; node < num_nodes; ++node) {
            reached.clear();
            for (int64_t edge = graph.indptr[node]; edge < graph.indptr[node + 1]; ++edge) {
                const int32_t to = graph.neighbours[edge];
                if (to == node || groups[to] != groups[node]) continue;
                if (affinity[label[to]] == 0) reached.push_back(label[to]);
                affinity[label[to]] += graph.weight(edge);
            }
            int32_t best = label[node];
            int64_t most = affinity[best], ties = 1;
            for (const int32_t cluster : reached) {
                const int64_t found = affinity[cluster];
                affinity[cluster] = 0;
                if (cluster == label[node] || found < most) continue;
                if (cluster_weight[cluster] + node_weights[node] > heaviest) continue;
                if (found > most) {
                    best = cluster, most = found, ties = 1;
                } else if (best != label[node] && random.below(++ties) == 0) {
                    best = cluster;
                }
            }
            if (best == label[node]) continue;
            cluster_weight[label[node]] -= node_weights[node];
            cluster_weight[best] += node_weights[node];
            label[node] = best;
            ++moves;
        }
        if (moves * MIN_MOVES < num_nodes) break;
    }
    renumber(num_nodes, label);
}

// Writes for each node that asks to which other cluster most of its edges go, by lot among several: to `wished` (N,) of
// all other clusters, and to `joined` (N,) of those with room for it and more of its edges than its own; -1 where there
// is none. The columns of `neighbours` are nodes, too, whose clusters are `of_neighbour`, and `own` are those of the
// rows; both are places in `names` and `room`, (num_clusters,).
EXPORT void dgl_gt_choose_clusters(int64_t num_nodes, const int64_t* indptr, const int32_t* neighbours,
                                   const int32_t* of_neighbour, const int32_t* own, const bool* asks,
                                   const int64_t* node_weights, int64_t num_clusters, const int64_t* names,
                                   const int64_t* room, int64_t salt, int32_t* joined, int32_t* wished) {
    std::vector<int64_t> affinity(num_clusters, 0);
    std::vector<int32_t> reached;
    for (int64_t node = 0; node < num_nodes; ++node) {
        joined[node] = wished[node] = -1;
        if (!asks[node]) continue;
        reached.clear();
        for (int64_t edge = indptr[node]; edge < indptr[node + 1]; ++edge) {
            const int32_t cluster = of_neighbour[neighbours[edge]];
            if (affinity[cluster]++ == 0) reached.push_back(cluster);
        }
        const auto lot = [&](int32_t cluster) { return mixed(uint64_t(names[cluster]) * 31 + uint64_t(node), salt); };
        const auto is_better = [&](int32_t cluster, int32_t best) {
            if (best < 0 || affinity[cluster] != affinity[best]) return best < 0 || affinity[cluster] > affinity[best];
            return lot(cluster) > lot(best);
        };
        for (const int32_t cluster : reached) {
            if (cluster == own[node]) continue;
            if (is_better(cluster, wished[node])) wished[node] = cluster;
            if (affinity[cluster] > affinity[own[node]] && room[cluster] >= node_weights[node] &&
                is_better(cluster, joined[node]))
                joined[node] = cluster;
        }
        for (const int32_t cluster : reached) affinity[cluster] = 0;
    }
}

// Writes the graph of the clusters, without edges inside them: its indptr (num_clusters + 1,), and as many neighbours
// and edge weights as indptr's last number says, at most indptr[N]. The weight of an edge is that of all edges between
// the two clusters.
EXPORT void dgl_gt_contract(int64_t num_nodes, const int64_t* indptr, const int32_t* neighbours, int64_t num_weights,
                            const int64_t* edge_weights, const int32_t* label, int64_t num_clusters,
                            int64_t* coarse_indptr, int32_t* coarse_neighbours, int64_t* coarse_weights) {
    const Undirected graph{indptr, neighbours, num_weights ? edge_weights : nullptr};
    std::vector<int64_t> begin(num_clusters + 1, 0), members(num_nodes), affinity(num_clusters, 0);
    for (int64_t node = 0; node < num_nodes; ++node) ++begin[label[node] + 1];
    for (int64_t cluster = 0; cluster < num_clusters; ++cluster) begin[cluster + 1] += begin[cluster];
    std::vector<int64_t> next(begin.begin(), begin.end() - 1);
    for (int64_t node = 0; node < num_nodes; ++node) members[next[label[node]]++] = node;
    int64_t end = 0;
    coarse_indptr[0] = 0;
    for (int64_t cluster = 0; cluster < num_clusters; ++cluster) {
        const int64_t first = end;
        for (int64_t at = begin[cluster]; at < begin[cluster + 1]; ++at)
            for (int64_t edge = graph.indptr[members[at]]; edge < graph.indptr[members[at] + 1]; ++edge) {
                const int32_t to = label[graph.neighbours[edge]];
                if (to == cluster) continue;
                if (affinity[to] == 0) coarse_neighbours[end++] = to;
                affinity[to] += graph.weight(edge);
            }
        for (int64_t at = first; at < end; ++at) {
            coarse_weights[at] = affinity[coarse_neighbours[at]];
            affinity[coarse_neighbours[at]] = 0;
        }
        coarse_indptr[cluster + 1] = end;
    }
}
