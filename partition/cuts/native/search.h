// Local search for edge cuts with few halo rows: it moves single vertices, which are nodes or clusters of nodes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <vector>

#include "hypergraph.h"
#include "part_loads.h"
#include "random.h"

namespace dgl_gt {

class Search {
   public:
    Search(Connectivity& connectivity, PartLoads& loads, int64_t num_vertices, int32_t* owner)
        : connectivity(connectivity), loads(loads), num_vertices(num_vertices), owner(owner), cost(loads.parts) {}

    // Simulated annealing: in each sweep every vertex, in random order, may move once. The temperature (in halo rows)
    // falls linearly to zero. Before the first sweep and after each one, overloaded parts give vertices away.
    void run(int64_t sweeps, double temperature, Xorshift64Star& random) {
        std::vector<int64_t> order(num_vertices);
        std::iota(order.begin(), order.end(), 0);
        rebalance();
        for (int64_t sweep = 0; sweep < sweeps; ++sweep) {
            const double now = temperature * std::max(0.0, 1 - double(sweep) / std::max<double>(1, double(sweeps - 2)));
            random.shuffle(order);
            for (int64_t i = 0; i < num_vertices; ++i) {
                if (i + 2 * PREFETCH_DISTANCE < num_vertices)
                    connectivity.prefetch_nets(order[i + 2 * PREFETCH_DISTANCE]);
                if (i + PREFETCH_DISTANCE < num_vertices)
                    connectivity.prefetch_records(order[i + PREFETCH_DISTANCE], owner[order[i + PREFETCH_DISTANCE]]);
                try_move(order[i], now, random);
            }
            rebalance();
        }
    }

   private:
    static constexpr int64_t PREFETCH_DISTANCE = 4;  // vertices
    static constexpr double MIN_REDUCTION = 1e-12;  // of overload; less is a rounding error

    struct Candidate {
        double price;  // halo rows against overload that goes
        int64_t vertex, to;
        bool operator<(const Candidate& other) const {
            return std::tie(price, vertex, to) < std::tie(other.price, other.vertex, other.to);
        }
    };

    // Moves the vertex to the part with room where it makes the fewest halo rows, if these are fewer than now, or as
    // many in a less full part. A move that makes d more is taken with probability exp(-d / temperature).
    void try_move(int64_t vertex, double temperature, Xorshift64Star& random) {
        const int64_t from = owner[vertex];
        if (connectivity.is_isolated(vertex, from) || !loads.can_spare(vertex, from)) return;
        connectivity.move_costs(vertex, from, cost.data());
        int64_t best = -1;
        for (int64_t part = 0; part < loads.parts; ++part) {
            if (part == from || !loads.has_room(vertex, part)) continue;
            if (best < 0 || cost[part] < cost[best] ||
                (cost[part] == cost[best] && loads.fullness(part) < loads.fullness(best)))
                best = part;
        }
        if (best < 0) return;
        const bool levels = cost[best] == 0 && loads.fullness(best) < loads.fullness(from);
        if (cost[best] < 0 || levels ||
            (temperature > 0 && random.uniform() < std::exp(-double(cost[best]) / temperature)))
            move(vertex, best);
    }

    // Moves vertices out of overloaded parts while that lowers the overload, the cheapest moves first.
    void rebalance() {
        for (bool moved = true; moved;) {
            moved = false;
            for (int64_t part = 0; part < loads.parts; ++part) {
                if (!loads.is_overloaded(part)) continue;
                for (const Candidate& candidate : candidates(part)) {
                    if (!loads.is_overloaded(part)) break;
                    if (loads.overload_reduction(candidate.vertex, part, candidate.to) < MIN_REDUCTION) continue;
                    move(candidate.vertex, candidate.to);
                    moved = true;
                }
            }
        }
    }

    // For each vertex of the part its cheapest move that lowers the overload, if there is one; cheapest first.
    std::vector<Candidate> candidates(int64_t part) {
        std::vector<Candidate> found;
        for (int64_t vertex = 0; vertex < num_vertices; ++vertex) {
            if (owner[vertex] != part) continue;
            bool has_costs = false;
            Candidate best{0, vertex, -1};
            for (int64_t to = 0; to < loads.parts; ++to) {
                const double reduction = to == part ? 0 : loads.overload_reduction(vertex, part, to);
                if (reduction < MIN_REDUCTION) continue;
                if (!has_costs) connectivity.move_costs(vertex, part, cost.data());
                has_costs = true;
                const double price = cost[to] < 0 ? double(cost[to]) * reduction : double(cost[to] + 1) / reduction;
                if (best.to < 0 || price < best.price) best = {price, vertex, to};
            }
            if (best.to >= 0) found.push_back(best);
        }
        std::sort(found.begin(), found.end());
        return found;
    }

    void move(int64_t vertex, int64_t to) {
        connectivity.move(vertex, owner[vertex], to);
        loads.add(vertex, owner[vertex], -1);
        loads.add(vertex, to, 1);
        owner[vertex] = int32_t(to);
    }

    Connectivity& connectivity;
    PartLoads& loads;
    int64_t num_vertices;
    int32_t* owner;
    std::vector<int64_t> cost;  // (parts,), halo rows
};

}  // namespace dgl_gt
