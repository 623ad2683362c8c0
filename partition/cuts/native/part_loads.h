// The loads of the parts and their limits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dgl_gt {

// Loads of several kinds (nodes, edges, training nodes), and the least and the most of each that a part may have. A
// vertex that weighs nothing of a kind is not limited by that kind.
struct PartLoads {
    int64_t parts, kinds;
    const int64_t *weights, *floors, *capacities;  // (num_vertices, kinds), (parts, kinds), (parts, kinds)
    std::vector<int64_t> loads;                    // (parts, kinds)

    PartLoads(int64_t num_vertices, int64_t parts, int64_t kinds, const int64_t* weights, const int64_t* floors,
              const int64_t* capacities, const int32_t* owner)
        : parts(parts), kinds(kinds), weights(weights), floors(floors), capacities(capacities), loads(parts * kinds) {
        for (int64_t vertex = 0; vertex < num_vertices; ++vertex) add(vertex, owner[vertex], 1);
    }

    void add(int64_t vertex, int64_t part, int64_t sign) {
        for (int64_t kind = 0; kind < kinds; ++kind)
            loads[part * kinds + kind] += sign * weights[vertex * kinds + kind];
    }

    // Whether the part stays within its capacities with the vertex.
    bool has_room(int64_t vertex, int64_t part) const {
        for (int64_t kind = 0; kind < kinds; ++kind) {
            const int64_t weight = weights[vertex * kinds + kind], at = part * kinds + kind;
            if (weight > 0 && loads[at] + weight > capacities[at]) return false;
        }
        return true;
    }

    // Whether the part keeps its floors without the vertex.
    bool can_spare(int64_t vertex, int64_t part) const {
        for (int64_t kind = 0; kind < kinds; ++kind) {
            const int64_t weight = weights[vertex * kinds + kind], at = part * kinds + kind;
            if (weight > 0 && loads[at] - weight < floors[at]) return false;
        }
        return true;
    }

    bool is_overloaded(int64_t part) const {
        for (int64_t at = part * kinds; at < (part + 1) * kinds; ++at)
            if (loads[at] > capacities[at]) return true;
        return false;
    }

    // By how much the overload of the two parts falls if the vertex moves, summed over kinds, as a share of capacity.
    double overload_reduction(int64_t vertex, int64_t from, int64_t to) const {
        double sum = 0;
        for (int64_t kind = 0; kind < kinds; ++kind) {
            const int64_t weight = weights[vertex * kinds + kind];
            for (const int64_t part : {from, to}) {
                const int64_t capacity = capacities[part * kinds + kind], before = loads[part * kinds + kind];
                const int64_t after = part == from ? before - weight : before + weight;
                sum += double(std::max<int64_t>(before - capacity, 0) - std::max<int64_t>(after - capacity, 0)) /
                       double(std::max<int64_t>(capacity, 1));
            }
        }
        return sum;
    }

    // The largest load of a part as a share of its capacity, over all kinds.
    double fullness(int64_t part) const {
        double most = 0;
        for (int64_t at = part * kinds; at < (part + 1) * kinds; ++at)
            most = std::max(most, double(loads[at]) / double(std::max<int64_t>(capacities[at], 1)));
        return most;
    }
};

}  // namespace dgl_gt
