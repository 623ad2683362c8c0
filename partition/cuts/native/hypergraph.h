// The hypergraph whose partition is an edge cut with few halo rows, and the parts that each net reaches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dgl_gt {

// Each row of the graph is a net. Its pins are the vertices that need the row: the node itself and the destinations of
// its out-edges. A part that owns a pin must hold the row, so the number of halo rows is the sum over nets of
// weight x (parts that own a pin - 1), the connectivity metric of hypergraph partitioning (Catalyurek and Aykanat,
// "Hypergraph-partitioning-based decomposition for parallel sparse-matrix vector multiplication", 1999).
//
// At the finest level a vertex is a node, and each net stands for one row. At a coarser level a vertex is a cluster of
// nodes, and a net stands for all rows that have the same pins.
struct Hypergraph {
    int64_t num_vertices = 0, num_nets = 0;
    std::vector<int64_t> begin;         // (num_vertices + 1,)
    std::vector<int32_t> nets;          // vertex v is a pin of nets[begin[v]:begin[v + 1]], each listed once
    std::vector<int64_t> net_weights;   // (num_nets,), rows; empty where every net stands for one row
    std::vector<char> may_be_isolated;  // (num_vertices,): a node without in-edges, or a cluster that is in no net

    int64_t net_weight(int64_t net) const { return net_weights.empty() ? 1 : net_weights[net]; }

    // The finest level: a node is a pin of its own net and of those of the sources of its in-edges.
    static Hypergraph of_graph(int64_t num_nodes, const int64_t* indptr, const int32_t* sources) {
        Hypergraph graph;
        graph.num_vertices = graph.num_nets = num_nodes;
        graph.begin.reserve(num_nodes + 1);
        graph.begin.push_back(0);
        graph.nets.reserve(num_nodes + indptr[num_nodes]);
        std::vector<int64_t> last_pin(num_nodes, -1);  // of each net
        for (int64_t node = 0; node < num_nodes; ++node) {
            last_pin[node] = node;
            graph.nets.push_back(int32_t(node));
            for (int64_t edge = indptr[node]; edge < indptr[node + 1]; ++edge) {
                if (last_pin[sources[edge]] == node) continue;
                last_pin[sources[edge]] = node;
                graph.nets.push_back(sources[edge]);
            }
            graph.begin.push_back(int64_t(graph.nets.size()));
            graph.may_be_isolated.push_back(indptr[node] == indptr[node + 1]);
        }
        return graph;
    }
};

// How many pins of each net each part owns, kept up to date while vertices move.
class Connectivity {
   public:
    // pin_counts: (num_nets, parts), scratch. prices: null, or (parts, parts) at the finest level: at [i, j] the cost of
    // a row that part i holds and part j owns, 0 on the diagonal. The caller then updates `owner` with every move.
    Connectivity(const Hypergraph& graph, int64_t parts, int32_t* pin_counts, const int32_t* owner,
                 const int64_t* prices = nullptr)
        : graph(graph),
          parts(parts),
          stride(1 + (parts + 63) / 64),
          pin_counts(pin_counts),
          owner(owner),
          prices(prices),
          held_weight(parts),
          rows_of(parts) {
        std::fill(pin_counts, pin_counts + graph.num_nets * parts, 0);
        records.assign(graph.num_nets * stride, 0);
        for (int64_t net = 0; net < graph.num_nets; ++net) records[net * stride] = graph.net_weight(net);
        for (int64_t vertex = 0; vertex < graph.num_vertices; ++vertex)
            for (int64_t at = graph.begin[vertex]; at < graph.begin[vertex + 1]; ++at)
                add_pin(graph.nets[at], owner[vertex]);
    }

    // Writes to cost (parts,) by how many halo rows the cut grows if `vertex` moves from part `from` to each part.
    // With prices: by how much the prices of all copies grow.
    void move_costs(int64_t vertex, int64_t from, int64_t* cost) {
        if (prices) return priced_move_costs(vertex, from, cost);
        std::fill(held_weight.begin(), held_weight.end(), 0);
        int64_t total = 0, released = 0;
        for (int64_t at = graph.begin[vertex]; at < graph.begin[vertex + 1]; ++at) {
            const int64_t net = graph.nets[at];
            const uint64_t* record = &records[net * stride];
            const int64_t weight = int64_t(record[0]);
            total += weight;
            if (pin_counts[net * parts + from] == 1) released += weight;
            for (int64_t word = 1; word < stride; ++word)
                for (uint64_t rest = record[word]; rest; rest &= rest - 1)
                    held_weight[(word - 1) * 64 + __builtin_ctzll(rest)] += weight;
        }
        for (int64_t to = 0; to < parts; ++to) cost[to] = total - held_weight[to] - released;
    }

    // Whether the vertex, which is in `part`, has no edges; it may then stay where it is.
    bool is_isolated(int64_t vertex, int64_t part) const {
        if (!graph.may_be_isolated[vertex]) return false;
        for (int64_t at = graph.begin[vertex]; at < graph.begin[vertex + 1]; ++at) {
            const int64_t net = graph.nets[at];
            if (pin_counts[net * parts + part] != 1) return false;
            int64_t reached = 0;
            for (int64_t word = 1; word < stride; ++word) reached += __builtin_popcountll(records[net * stride + word]);
            if (reached != 1) return false;
        }
        return true;
    }

    void move(int64_t vertex, int64_t from, int64_t to) {
        for (int64_t at = graph.begin[vertex]; at < graph.begin[vertex + 1]; ++at) {
            const int64_t net = graph.nets[at];
            if (--pin_counts[net * parts + from] == 0)
                records[net * stride + 1 + from / 64] &= ~(uint64_t(1) << (from % 64));
            add_pin(net, to);
        }
    }

    // Start to read what move_costs() needs. In random order nearly every read would wait for memory otherwise.
    void prefetch_nets(int64_t vertex) const { __builtin_prefetch(graph.nets.data() + graph.begin[vertex]); }
    void prefetch_records(int64_t vertex, int64_t part) const {
        const int64_t end = std::min(graph.begin[vertex + 1], graph.begin[vertex] + MAX_PREFETCHED);
        for (int64_t at = graph.begin[vertex]; at < end; ++at) {
            __builtin_prefetch(&records[graph.nets[at] * stride]);
            __builtin_prefetch(pin_counts + graph.nets[at] * parts + part);
        }
    }

   private:
    static constexpr int64_t MAX_PREFETCHED = 32;  // nets of a vertex

    // The node moves, and so does the row of its own net: the copies of that row get the prices of another owner.
    void priced_move_costs(int64_t vertex, int64_t from, int64_t* cost) {
        std::fill(held_weight.begin(), held_weight.end(), 0);
        std::fill(rows_of.begin(), rows_of.end(), 0);
        std::fill(cost, cost + parts, 0);
        int64_t released = 0;
        for (int64_t at = graph.begin[vertex]; at < graph.begin[vertex + 1]; ++at) {
            const int64_t net = graph.nets[at], home = owner[net];
            const bool is_last_pin = pin_counts[net * parts + from] == 1;
            if (net != vertex) {
                ++rows_of[home];
                if (is_last_pin) released += prices[from * parts + home];
            }
            for (int64_t word = 1; word < stride; ++word)
                for (uint64_t rest = records[net * stride + word]; rest; rest &= rest - 1) {
                    const int64_t holder = (word - 1) * 64 + __builtin_ctzll(rest);
                    if (net != vertex) {
                        held_weight[holder] += prices[holder * parts + home];
                    } else if (holder != from || !is_last_pin) {
                        released += prices[holder * parts + from];
                        for (int64_t to = 0; to < parts; ++to) cost[to] += prices[holder * parts + to];
                    }
                }
        }
        for (int64_t to = 0; to < parts; ++to) {
            cost[to] -= held_weight[to] + released;
            for (int64_t home = 0; home < parts; ++home) cost[to] += rows_of[home] * prices[to * parts + home];
        }
    }

    void add_pin(int64_t net, int64_t part) {
        if (pin_counts[net * parts + part]++ == 0) records[net * stride + 1 + part / 64] |= uint64_t(1) << (part % 64);
    }

    const Hypergraph& graph;
    int64_t parts, stride;
    int32_t* pin_counts;
    const int32_t* owner;
    const int64_t* prices;
    std::vector<uint64_t> records;     // (num_nets, stride): a net's weight, then one bit for each part that owns a pin
    std::vector<int64_t> held_weight, rows_of;  // (parts,), scratch
};

}  // namespace dgl_gt
