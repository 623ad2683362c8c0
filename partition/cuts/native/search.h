// Local search for edge cuts whose parts hold few halo rows: moves of items, which are nodes or clusters of nodes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <vector>

namespace dgl_gt {

constexpr int64_t AHEAD = 4, PREFETCHED_ROWS = 32;
constexpr double LEAST_RELIEF = 1e-12;

// Which rows a part must hold to own an item. A row of a graph stands for itself; one of a coarser level, `alike`, for
// all that the same items ask for. A row is held wherever one of its askers is owned: halo rows in all are the sum over
// rows of (parts that hold it) - 1, the connectivity metric of hypergraph partitioning (Catalyurek and Aykanat,
// "Hypergraph-partitioning-based decomposition for parallel sparse-matrix vector multiplication", 1999).
struct Rows {
    int64_t items = 0, rows = 0;
    std::vector<int64_t> begin;  // (items + 1,)
    std::vector<int32_t> asked;  // item i asks for asked[begin[i]:begin[i + 1]], each once
    std::vector<int64_t> alike;  // (rows,); empty where all are 1
    std::vector<char> bare;      // (items,): whether nothing but a node's own row is asked for, by no edge

    // A node's row and those of the sources of its in-edges.
    static Rows of_graph(int64_t num_nodes, const int64_t* indptr, const int32_t* sources) {
        Rows found;
        found.items = found.rows = num_nodes;
        found.begin.reserve(num_nodes + 1);
        found.begin.push_back(0);
        found.asked.reserve(num_nodes + indptr[num_nodes]);
        std::vector<int64_t> seen(num_nodes, -1);
        for (int64_t node = 0; node < num_nodes; ++node) {
            seen[node] = node;
            found.asked.push_back(int32_t(node));
            for (int64_t edge = indptr[node]; edge < indptr[node + 1]; ++edge) {
                if (seen[sources[edge]] == node) continue;
                seen[sources[edge]] = node;
                found.asked.push_back(sources[edge]);
            }
            found.begin.push_back(int64_t(found.asked.size()));
            found.bare.push_back(indptr[node] == indptr[node + 1]);
        }
        return found;
    }
};

// The rows that parts hold.
class Holders {
   public:
    // counts: (rows, parts), scratch.
    Holders(const Rows& rows, int64_t parts, int32_t* counts, const int32_t* owner)
        : rows(rows), parts(parts), stride(1 + (parts + 63) / 64), counts(counts), here(parts) {
        std::fill(counts, counts + rows.rows * parts, 0);
        held.assign(rows.rows * stride, 0);
        for (int64_t row = 0; row < rows.rows; ++row) held[row * stride] = rows.alike.empty() ? 1 : rows.alike[row];
        for (int64_t item = 0; item < rows.items; ++item)
            for (int64_t at = rows.begin[item]; at < rows.begin[item + 1]; ++at) enter(rows.asked[at], owner[item]);
    }

    // How many halo rows more (or fewer) there are with `item` in `to` instead of `from`, for every `to`, into `cost`.
    void costs(int64_t item, int64_t from, int64_t* cost) {
        std::fill(here.begin(), here.end(), 0);
        int64_t all = 0, left = 0;
        for (int64_t at = rows.begin[item]; at < rows.begin[item + 1]; ++at) {
            const int64_t row = rows.asked[at];
            const uint64_t* of_row = &held[row * stride];
            const int64_t alike = int64_t(of_row[0]);
            all += alike;
            if (counts[row * parts + from] == 1) left += alike;
            for (int64_t word = 1; word < stride; ++word)
                for (uint64_t rest = of_row[word]; rest; rest &= rest - 1)
                    here[(word - 1) * 64 + __builtin_ctzll(rest)] += alike;
        }
        for (int64_t to = 0; to < parts; ++to) cost[to] = all - here[to] - left;
    }

    // Whether the item has no edges: it may stay where it is.
    bool isolated(int64_t item, int64_t part) const {
        if (!rows.bare[item]) return false;
        for (int64_t at = rows.begin[item]; at < rows.begin[item + 1]; ++at) {
            const int64_t row = rows.asked[at];
            if (counts[row * parts + part] != 1) return false;
            int64_t holding = 0;
            for (int64_t word = 1; word < stride; ++word) holding += __builtin_popcountll(held[row * stride + word]);
            if (holding != 1) return false;
        }
        return true;
    }

    void move(int64_t item, int64_t from, int64_t to) {
        for (int64_t at = rows.begin[item]; at < rows.begin[item + 1]; ++at) {
            const int64_t row = rows.asked[at];
            if (--counts[row * parts + from] == 0) held[row * stride + 1 + from / 64] &= ~(uint64_t(1) << (from % 64));
            enter(row, to);
        }
    }

    // Starts to read what costs() will: in random order nearly every read would wait for memory.
    void prefetch(int64_t item, int64_t part) const {
        const int64_t end = std::min(rows.begin[item + 1], rows.begin[item] + PREFETCHED_ROWS);
        for (int64_t at = rows.begin[item]; at < end; ++at) {
            __builtin_prefetch(&held[rows.asked[at] * stride]);
            __builtin_prefetch(counts + rows.asked[at] * parts + part);
        }
    }
    void prefetch(int64_t item) const { __builtin_prefetch(rows.asked.data() + rows.begin[item]); }

   private:
    void enter(int64_t row, int64_t part) {
        if (counts[row * parts + part]++ == 0) held[row * stride + 1 + part / 64] |= uint64_t(1) << (part % 64);
    }

    const Rows& rows;
    int64_t parts, stride;
    int32_t* counts;
    std::vector<uint64_t> held;  // of each row: how many are alike, then a bit for each part
    std::vector<int64_t> here;
};

// The parts' loads of several kinds (nodes, edges, training nodes), and how little and how much each may have.
struct Loads {
    int64_t parts, kinds;
    const int64_t *weights, *floors, *capacities;  // (N, kinds), (K, kinds), (K, kinds)
    std::vector<int64_t> loads;                    // (K, kinds)

    Loads(int64_t num_items, int64_t parts, int64_t kinds, const int64_t* weights, const int64_t* floors,
          const int64_t* capacities, const int32_t* owner)
        : parts(parts), kinds(kinds), weights(weights), floors(floors), capacities(capacities), loads(parts * kinds) {
        for (int64_t item = 0; item < num_items; ++item) add(item, owner[item], 1);
    }
    void add(int64_t item, int64_t part, int64_t sign) {
        for (int64_t kind = 0; kind < kinds; ++kind) loads[part * kinds + kind] += sign * weights[item * kinds + kind];
    }
    bool fits(int64_t item, int64_t part) const {
        for (int64_t kind = 0; kind < kinds; ++kind) {
            const int64_t weight = weights[item * kinds + kind], at = part * kinds + kind;
            if (weight > 0 && loads[at] + weight > capacities[at]) return false;
        }
        return true;
    }
    bool spared(int64_t item, int64_t part) const {
        for (int64_t kind = 0; kind < kinds; ++kind) {
            const int64_t weight = weights[item * kinds + kind], at = part * kinds + kind;
            if (weight > 0 && loads[at] - weight < floors[at]) return false;
        }
        return true;
    }
    bool over(int64_t part) const {
        for (int64_t at = part * kinds; at < (part + 1) * kinds; ++at)
            if (loads[at] > capacities[at]) return true;
        return false;
    }
    // By how much less the two parts together are beyond their capacities, in shares of these, once the item has moved.
    double relief(int64_t item, int64_t from, int64_t to) const {
        double sum = 0;
        for (int64_t kind = 0; kind < kinds; ++kind) {
            const int64_t weight = weights[item * kinds + kind];
            for (const int64_t part : {from, to}) {
                const int64_t room = capacities[part * kinds + kind], load = loads[part * kinds + kind];
                const int64_t then = part == from ? load - weight : load + weight;
                sum += double(std::max<int64_t>(load - room, 0) - std::max<int64_t>(then - room, 0)) /
                       double(std::max<int64_t>(room, 1));
            }
        }
        return sum;
    }
    // The fullest kind of a part, as a share of its capacity.
    double fill(int64_t part) const {
        double most = 0;
        for (int64_t at = part * kinds; at < (part + 1) * kinds; ++at)
            most = std::max(most, double(loads[at]) / double(std::max<int64_t>(capacities[at], 1)));
        return most;
    }
};

class Random {  // xorshift64*
   public:
    explicit Random(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15u + 0x2545F4914F6CDD1Du) {}
    uint64_t next() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return state * 0x2545F4914F6CDD1Du;
    }
    int64_t below(int64_t bound) { return int64_t(next() % uint64_t(bound)); }
    double uniform() { return double(next() >> 11) / 9007199254740992.0; }

   private:
    uint64_t state;
};

// The state of a search, its two kinds of moves, and the course of it.
class Search {
   public:
    Search(Holders& holders, Loads& loads, int64_t num_items, int32_t* owner)
        : holders(holders), loads(loads), num_items(num_items), owner(owner), cost(loads.parts) {}

    // Takes items out of parts beyond a capacity, into parts where less is beyond it afterwards: first those that cost
    // fewest halo rows for the relief.
    void relieve() {
        for (bool moved = true; moved;) {
            moved = false;
            for (int64_t part = 0; part < loads.parts; ++part) {
                if (!loads.over(part)) continue;
                for (const Leaving& entry : leaving(part)) {
                    if (!loads.over(part)) break;
                    if (loads.relief(entry.item, part, entry.to) < LEAST_RELIEF) continue;
                    move(entry.item, entry.to);
                    moved = true;
                }
            }
        }
    }

    // Offers the item the part with room where it makes the fewest halo rows; d more are taken by chance exp(-d / heat).
    void offer(int64_t item, double heat, Random& random) {
        const int64_t from = owner[item];
        if (holders.isolated(item, from) || !loads.spared(item, from)) return;
        holders.costs(item, from, cost.data());
        int64_t best = -1;
        for (int64_t part = 0; part < loads.parts; ++part) {
            if (part == from || !loads.fits(item, part)) continue;
            if (best < 0 || cost[part] < cost[best] || (cost[part] == cost[best] && loads.fill(part) < loads.fill(best)))
                best = part;
        }
        if (best < 0) return;
        const bool levels = cost[best] == 0 && loads.fill(best) < loads.fill(from);
        if (cost[best] < 0 || levels || (heat > 0 && random.uniform() < std::exp(-double(cost[best]) / heat)))
            move(item, best);
    }

    // In each of `count` rounds every item, in random order, is offered a part, with a heat that falls linearly to zero;
    // before and after each round parts beyond a capacity give items away.
    void sweeps(int64_t count, double temperature, Random& random) {
        std::vector<int64_t> order(num_items);
        std::iota(order.begin(), order.end(), 0);
        relieve();
        for (int64_t sweep = 0; sweep < count; ++sweep) {
            const double heat = temperature * std::max(0.0, 1 - double(sweep) / std::max<double>(1, double(count - 2)));
            for (int64_t i = num_items - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
            for (int64_t i = 0; i < num_items; ++i) {
                if (i + 2 * AHEAD < num_items) holders.prefetch(order[i + 2 * AHEAD]);
                if (i + AHEAD < num_items) holders.prefetch(order[i + AHEAD], owner[order[i + AHEAD]]);
                offer(order[i], heat, random);
            }
            relieve();
        }
    }

   private:
    struct Leaving {
        double price;
        int64_t item, to;
        bool operator<(const Leaving& other) const {
            return std::tie(price, item, to) < std::tie(other.price, other.item, other.to);
        }
    };

    std::vector<Leaving> leaving(int64_t part) {
        std::vector<Leaving> found;
        for (int64_t item = 0; item < num_items; ++item) {
            if (owner[item] != part) continue;
            bool counted = false;
            Leaving best{0, item, -1};
            for (int64_t to = 0; to < loads.parts; ++to) {
                const double relief = to == part ? 0 : loads.relief(item, part, to);
                if (relief < LEAST_RELIEF) continue;
                if (!counted) holders.costs(item, part, cost.data());
                counted = true;
                const double price = cost[to] < 0 ? double(cost[to]) * relief : double(cost[to] + 1) / relief;
                if (best.to < 0 || price < best.price) best = {price, item, to};
            }
            if (best.to >= 0) found.push_back(best);
        }
        std::sort(found.begin(), found.end());
        return found;
    }

    void move(int64_t item, int64_t to) {
        holders.move(item, owner[item], to);
        loads.add(item, owner[item], -1);
        loads.add(item, to, 1);
        owner[item] = int32_t(to);
    }

    Holders& holders;
    Loads& loads;
    int64_t num_items;
    int32_t* owner;
    std::vector<int64_t> cost;
};

}  // namespace dgl_gt
