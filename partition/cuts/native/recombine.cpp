// The search that edge_cut.py's later attempts are: clusters of nodes move as one, then smaller ones, and at last nodes.
// Where clusters lie within parts of two cuts, what the two agree on stays, and what they disagree on is decided
// anew (Sanders and Schulz, "Distributed evolutionary graph partitioning", 2012; Andre, Schlag and Schulz, "Memetic
// multilevel hypergraph partitioning", 2018). Called through ctypes.

#include "native.h"
#include "search.h"

using namespace dgl_gt;

namespace {

constexpr int64_t COARSEST = 30;      // items of the coarsest level, for each part
constexpr double SHRINKAGE = 2.5;     // of items, from level to level
constexpr double LEAST_SHRINKAGE = 1.05;
constexpr double HEAVIEST = 1.5;      // item of the coarsest level, beside the mean
constexpr int64_t MOST_ASKERS = 100;  // of a row that says which items belong together
constexpr int64_t SWEEPS = 4;
constexpr int64_t FEW = 4;  // times fewer items than nodes: where so many are left, more sweeps would take too long
constexpr double TEMPERATURE = 1.0, COARSE_TEMPERATURES[] = {1.0, 5.0, 20.0}, CALMED = 0.2;
constexpr int64_t COARSE_SWEEPS[] = {20, 100};

struct Level {
    Rows rows;
    std::vector<int64_t> first;     // (rows + 1,)
    std::vector<int32_t> askers;    // row r is asked for by askers[first[r]:first[r + 1]]
    std::vector<int64_t> weights;   // (items, kinds)
    std::vector<int64_t> together;  // (items,): those with equal ones may become one
    std::vector<int32_t> owner;     // (items,)
    std::vector<int32_t> merged;    // (items of the finer level,): the item that each is part of

    int64_t asked_by(int64_t row) const { return first[row + 1] - first[row]; }
};

// Lists turned round: who names each of `names` things.
void turned(int64_t count, const std::vector<int64_t>& begin, const std::vector<int32_t>& named, int64_t names,
            std::vector<int64_t>& first, std::vector<int32_t>& namers) {
    first.assign(names + 1, 0);
    for (const int32_t name : named) ++first[name + 1];
    std::partial_sum(first.begin(), first.end(), first.begin());
    namers.resize(named.size());
    std::vector<int64_t> next(first.begin(), first.end() - 1);
    for (int64_t i = 0; i < count; ++i)
        for (int64_t at = begin[i]; at < begin[i + 1]; ++at) namers[next[named[at]]++] = int32_t(i);
}

// Joins each item, in random order, to the cluster with which it shares most rows for their weight; `merged` is the
// cluster of each, and the result how many there are.
int64_t clusters(const Level& level, int64_t kinds, const std::vector<int64_t>& heaviest, Random& random,
                 std::vector<int32_t>& merged) {
    const int64_t items = level.rows.items;
    std::vector<int32_t> leader(items), touched;
    std::vector<int64_t> order(items), weights(level.weights);
    std::vector<char> settled(items, 0);
    std::vector<double> shared(items, 0);
    std::iota(leader.begin(), leader.end(), 0);
    std::iota(order.begin(), order.end(), 0);
    for (int64_t i = items - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
    int64_t left = items;
    for (const int64_t item : order) {
        if (settled[item]) continue;
        if (double(left) * SHRINKAGE < double(items)) break;
        touched.clear();
        for (int64_t at = level.rows.begin[item]; at < level.rows.begin[item + 1]; ++at) {
            const int64_t row = level.rows.asked[at], count = level.asked_by(row);
            if (count < 2 || count > MOST_ASKERS) continue;
            const double alike = level.rows.alike.empty() ? 1 : double(level.rows.alike[row]);
            for (int64_t other = level.first[row]; other < level.first[row + 1]; ++other) {
                const int32_t to = leader[level.askers[other]];
                if (to == item || level.together[to] != level.together[item]) continue;
                if (shared[to] == 0) touched.push_back(to);
                shared[to] += alike / double(count - 1);
            }
        }
        int64_t best = -1;
        double most = 0;
        for (const int32_t to : touched) {
            const double score = shared[to] / double((1 + weights[to * kinds]) * (1 + weights[item * kinds]));
            shared[to] = 0;
            bool fits = true;
            for (int64_t kind = 0; kind < kinds; ++kind)
                fits &= weights[to * kinds + kind] + weights[item * kinds + kind] <= heaviest[kind];
            if (fits && score > most) most = score, best = to;
        }
        if (best < 0) continue;
        leader[item] = int32_t(best);
        settled[item] = settled[best] = 1;
        --left;
        for (int64_t kind = 0; kind < kinds; ++kind) weights[best * kinds + kind] += weights[item * kinds + kind];
    }
    merged.resize(items);
    int64_t count = 0;
    for (int64_t item = 0; item < items; ++item)
        if (leader[item] == item) merged[item] = int32_t(count++);
    for (int64_t item = 0; item < items; ++item) merged[item] = merged[leader[item]];
    return count;
}

// Rows with the same askers become one.
void unite(std::vector<int64_t>& first, std::vector<int32_t>& askers, std::vector<int64_t>& alike) {
    const int64_t rows = int64_t(alike.size());
    std::vector<int64_t> order(rows);
    std::vector<uint64_t> hash(rows);
    for (int64_t row = 0; row < rows; ++row) {
        uint64_t mixed = 1469598103934665603u;  // FNV-1a
        for (int64_t at = first[row]; at < first[row + 1]; ++at)
            mixed = (mixed ^ uint64_t(askers[at])) * 1099511628211u;
        hash[row] = mixed;
    }
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int64_t a, int64_t b) { return std::tie(hash[a], a) < std::tie(hash[b], b); });
    const auto same = [&](int64_t a, int64_t b) {
        return hash[a] == hash[b] && std::equal(askers.begin() + first[a], askers.begin() + first[a + 1],
                                                askers.begin() + first[b], askers.begin() + first[b + 1]);
    };
    for (int64_t i = 0, leading = 0; i < rows; ++i) {
        const int64_t a = order[leading], b = order[i];
        if (i > leading && same(a, b)) {
            alike[a] += alike[b];
            alike[b] = 0;
        } else {
            leading = i;
        }
    }
    int64_t kept = 0, end = 0;
    for (int64_t row = 0; row < rows; ++row) {
        if (!alike[row]) continue;
        const int64_t begin = first[row], length = first[row + 1] - begin;
        std::copy_n(askers.begin() + begin, length, askers.begin() + end);
        alike[kept] = alike[row];
        first[kept++] = end;
        end += length;
    }
    first.resize(kept + 1);
    first[kept] = end;
    askers.resize(end);
    alike.resize(kept);
}

Level coarser(const Level& fine, int64_t kinds, int64_t items, std::vector<int32_t> merged) {
    Level level;
    level.weights.assign(items * kinds, 0);
    level.together.resize(items);
    level.owner.resize(items);
    for (int64_t item = 0; item < fine.rows.items; ++item) {
        for (int64_t kind = 0; kind < kinds; ++kind)
            level.weights[merged[item] * kinds + kind] += fine.weights[item * kinds + kind];
        level.together[merged[item]] = fine.together[item];
        level.owner[merged[item]] = fine.owner[item];
    }
    std::vector<int64_t> seen(items, -1);
    level.first.push_back(0);
    for (int64_t row = 0; row < fine.rows.rows; ++row) {
        const size_t begin = level.askers.size();
        for (int64_t at = fine.first[row]; at < fine.first[row + 1]; ++at) {
            const int32_t item = merged[fine.askers[at]];
            if (seen[item] == row) continue;
            seen[item] = row;
            level.askers.push_back(item);
        }
        if (level.askers.size() - begin < 2) {  // wherever its one asker goes, it is held once
            level.askers.resize(begin);
            continue;
        }
        std::sort(level.askers.begin() + int64_t(begin), level.askers.end());
        level.first.push_back(int64_t(level.askers.size()));
        level.rows.alike.push_back(fine.rows.alike.empty() ? 1 : fine.rows.alike[row]);
    }
    unite(level.first, level.askers, level.rows.alike);
    level.rows.items = items;
    level.rows.rows = int64_t(level.rows.alike.size());
    turned(level.rows.rows, level.first, level.askers, items, level.rows.begin, level.rows.asked);
    for (int64_t item = 0; item < items; ++item)
        level.rows.bare.push_back(level.rows.begin[item] == level.rows.begin[item + 1]);
    level.merged = std::move(merged);
    return level;
}

}  // namespace

// Searches a cut anew, in place, clusters of nodes first. together (N,): nodes with equal ones may move as one. The rest
// is as for dgl_gt_refine.
EXPORT void dgl_gt_recombine(int64_t num_nodes, const int64_t* indptr, const int32_t* sources, int64_t parts,
                             int64_t kinds, const int64_t* weights, const int64_t* floors, const int64_t* capacities,
                             const int64_t* together, int64_t seed, int32_t* counts, int32_t* owner) {
    Random random{uint64_t(seed)};
    std::vector<Level> levels(1);
    levels[0].rows = Rows::of_graph(num_nodes, indptr, sources);
    turned(num_nodes, levels[0].rows.begin, levels[0].rows.asked, num_nodes, levels[0].first, levels[0].askers);
    levels[0].weights.assign(weights, weights + num_nodes * kinds);
    levels[0].owner.assign(owner, owner + num_nodes);
    levels[0].together.assign(together, together + num_nodes);
    std::vector<int64_t> heaviest(kinds, 0);
    for (int64_t at = 0; at < num_nodes * kinds; ++at) heaviest[at % kinds] += weights[at];
    for (int64_t& weight : heaviest)
        weight = std::max<int64_t>(1, int64_t(HEAVIEST * double(weight) / double(COARSEST * parts)));
    while (levels.back().rows.items > COARSEST * parts) {
        std::vector<int32_t> merged;
        const int64_t items = clusters(levels.back(), kinds, heaviest, random, merged);
        if (double(items) * LEAST_SHRINKAGE > double(levels.back().rows.items)) break;
        levels.push_back(coarser(levels.back(), kinds, items, std::move(merged)));
    }
    const double coarse = COARSE_TEMPERATURES[random.below(3)];
    const int64_t coarse_sweeps = COARSE_SWEEPS[random.below(2)];
    for (int64_t number = int64_t(levels.size()) - 1; number >= 0; --number) {
        Level& level = levels[number];
        if (number + 1 < int64_t(levels.size()))
            for (int64_t item = 0; item < level.rows.items; ++item)
                level.owner[item] = levels[number + 1].owner[levels[number + 1].merged[item]];
        const bool coarsest = number == int64_t(levels.size()) - 1 && level.rows.items * FEW <= num_nodes;
        const double height = levels.size() > 1 ? double(number) / double(levels.size() - 1) : 0;
        const double heat = TEMPERATURE * std::pow(std::max(1.0, CALMED * coarse / TEMPERATURE), height);
        Holders holders(level.rows, parts, counts, level.owner.data());
        Loads loads(level.rows.items, parts, kinds, level.weights.data(), floors, capacities, level.owner.data());
        Search search(holders, loads, level.rows.items, level.owner.data());
        search.sweeps(coarsest ? coarse_sweeps : SWEEPS, coarsest ? coarse : heat, random);
    }
    std::copy(levels[0].owner.begin(), levels[0].owner.end(), owner);
}
