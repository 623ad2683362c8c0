// Local search for edge cuts whose parts hold few halo rows, which is what METIS can only approximate. Called through
// ctypes by edge_cut.py.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <vector>

#include "native.h"

namespace {

constexpr int64_t AHEAD = 4, PREFETCHED_EDGES = 32;
constexpr double LEAST_RELIEF = 1e-12;

// The rows that parts hold. Row u is held wherever u or one of its out-neighbours is owned: halo rows in all are the sum
// over u of (parts that hold u) - 1, the connectivity metric of hypergraph partitioning (Catalyurek and Aykanat,
// "Hypergraph-partitioning-based decomposition for parallel sparse-matrix vector multiplication", 1999).
class Holders {
   public:
    Holders(int64_t num_nodes, const int64_t* indptr, const int32_t* sources, int64_t parts, int32_t* counts,
            const int32_t* owner)
        : indptr(indptr),
          sources(sources),
          parts(parts),
          counts(counts),
          bits(num_nodes * ((parts + 63) / 64)),
          copies(bits.data(), parts),
          here(parts),
          seen(num_nodes) {
        std::fill(counts, counts + num_nodes * parts, 0);
        for (int64_t node = 0; node < num_nodes; ++node) each_row(node, [&](int64_t row) { enter(row, owner[node]); });
    }

    // How many halo rows more (or fewer) there are with `node` in `to` instead of `from`, for every `to`, into `cost`.
    void costs(int64_t node, int64_t from, int64_t* cost) {
        std::fill(here.begin(), here.end(), 0);
        int64_t rows = 0, left = 0;
        each_row(node, [&](int64_t row) {
            ++rows;
            left += counts[row * parts + from] == 1;
            for (int64_t word = 0; word < copies.words; ++word)
                for (uint64_t rest = copies.bits[row * copies.words + word]; rest; rest &= rest - 1)
                    ++here[word * 64 + __builtin_ctzll(rest)];
        });
        for (int64_t to = 0; to < parts; ++to) cost[to] = rows - here[to] - left;
    }

    // Whether the node has no edges: it may stay where it is.
    bool isolated(int64_t node, int64_t part) const {
        if (indptr[node] != indptr[node + 1] || counts[node * parts + part] != 1) return false;
        int64_t holding = 0;
        for (int64_t word = 0; word < copies.words; ++word)
            holding += __builtin_popcountll(copies.bits[node * copies.words + word]);
        return holding == 1;
    }

    void move(int64_t node, int64_t from, int64_t to) {
        each_row(node, [&](int64_t row) {
            if (--counts[row * parts + from] == 0) copies.remove(row, from);
            enter(row, to);
        });
    }

    // Starts to read what costs() will: in random order nearly every read would wait for memory.
    void prefetch(int64_t node, int64_t part) const {
        const int64_t end = std::min(indptr[node + 1], indptr[node] + PREFETCHED_EDGES);
        for (int64_t edge = indptr[node]; edge < end; ++edge) {
            __builtin_prefetch(copies.bits + sources[edge] * copies.words);
            __builtin_prefetch(counts + sources[edge] * parts + part);
            __builtin_prefetch(seen.data() + sources[edge], 1);
        }
    }

   private:
    // The rows that a part must hold to own the node, each once: parallel edges and self-loops ask for nothing more.
    template <typename Visit>
    void each_row(int64_t node, const Visit& visit) {
        seen[node] = ++visits;
        visit(node);
        for (int64_t edge = indptr[node]; edge < indptr[node + 1]; ++edge) {
            const int64_t source = sources[edge];
            if (seen[source] == visits) continue;
            seen[source] = visits;
            visit(source);
        }
    }
    void enter(int64_t row, int64_t part) {
        if (counts[row * parts + part]++ == 0) copies.add(row, part);
    }

    const int64_t* indptr;
    const int32_t* sources;
    int64_t parts;
    int32_t* counts;
    std::vector<uint64_t> bits;
    Copies copies;
    std::vector<int64_t> here, seen;  // seen: the last visit that came by
    int64_t visits = 0;
};

// The parts' loads of several kinds (nodes, edges, training nodes), and how little and how much each may have.
struct Loads {
    int64_t parts, kinds;
    const int64_t *weights, *floors, *capacities;  // (N, kinds), (K, kinds), (K, kinds)
    std::vector<int64_t> loads;                    // (K, kinds)

    Loads(int64_t num_nodes, int64_t parts, int64_t kinds, const int64_t* weights, const int64_t* floors,
          const int64_t* capacities, const int32_t* owner)
        : parts(parts), kinds(kinds), weights(weights), floors(floors), capacities(capacities), loads(parts * kinds) {
        for (int64_t node = 0; node < num_nodes; ++node) add(node, owner[node], 1);
    }
    void add(int64_t node, int64_t part, int64_t sign) {
        for (int64_t kind = 0; kind < kinds; ++kind) loads[part * kinds + kind] += sign * weights[node * kinds + kind];
    }
    bool fits(int64_t node, int64_t part) const {
        for (int64_t kind = 0; kind < kinds; ++kind) {
            const int64_t weight = weights[node * kinds + kind], at = part * kinds + kind;
            if (weight > 0 && loads[at] + weight > capacities[at]) return false;
        }
        return true;
    }
    bool spared(int64_t node, int64_t part) const {
        for (int64_t kind = 0; kind < kinds; ++kind) {
            const int64_t weight = weights[node * kinds + kind], at = part * kinds + kind;
            if (weight > 0 && loads[at] - weight < floors[at]) return false;
        }
        return true;
    }
    bool over(int64_t part) const {
        for (int64_t at = part * kinds; at < (part + 1) * kinds; ++at)
            if (loads[at] > capacities[at]) return true;
        return false;
    }
    // By how much less the two parts together are beyond their capacities, in shares of these, once the node has moved.
    double relief(int64_t node, int64_t from, int64_t to) const {
        double sum = 0;
        for (int64_t kind = 0; kind < kinds; ++kind) {
            const int64_t weight = weights[node * kinds + kind];
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

// The state of a search, and its two kinds of moves.
class Search {
   public:
    Search(Holders& holders, Loads& loads, int64_t num_nodes, int32_t* owner)
        : holders(holders), loads(loads), num_nodes(num_nodes), owner(owner), cost(loads.parts) {}

    // Takes nodes out of parts beyond a capacity, into parts where less is beyond it afterwards: first those that cost
    // fewest halo rows for the relief.
    void relieve() {
        for (bool moved = true; moved;) {
            moved = false;
            for (int64_t part = 0; part < loads.parts; ++part) {
                if (!loads.over(part)) continue;
                for (const Leaving& entry : leaving(part)) {
                    if (!loads.over(part)) break;
                    if (loads.relief(entry.node, part, entry.to) < LEAST_RELIEF) continue;
                    move(entry.node, entry.to);
                    moved = true;
                }
            }
        }
    }

    // Offers the node the part with room where it makes the fewest halo rows; d more are taken with chance exp(-d / heat).
    void offer(int64_t node, double heat, Random& random) {
        const int64_t from = owner[node];
        if (holders.isolated(node, from) || !loads.spared(node, from)) return;
        holders.costs(node, from, cost.data());
        int64_t best = -1;
        for (int64_t part = 0; part < loads.parts; ++part) {
            if (part == from || !loads.fits(node, part)) continue;
            if (best < 0 || cost[part] < cost[best] || (cost[part] == cost[best] && loads.fill(part) < loads.fill(best)))
                best = part;
        }
        if (best < 0) return;
        const bool levels = cost[best] == 0 && loads.fill(best) < loads.fill(from);
        if (cost[best] < 0 || levels || (heat > 0 && random.uniform() < std::exp(-double(cost[best]) / heat)))
            move(node, best);
    }

   private:
    struct Leaving {
        double price;
        int64_t node, to;
        bool operator<(const Leaving& other) const {
            return std::tie(price, node, to) < std::tie(other.price, other.node, other.to);
        }
    };

    std::vector<Leaving> leaving(int64_t part) {
        std::vector<Leaving> found;
        for (int64_t node = 0; node < num_nodes; ++node) {
            if (owner[node] != part) continue;
            bool counted = false;
            Leaving best{0, node, -1};
            for (int64_t to = 0; to < loads.parts; ++to) {
                const double relief = to == part ? 0 : loads.relief(node, part, to);
                if (relief < LEAST_RELIEF) continue;
                if (!counted) holders.costs(node, part, cost.data());
                counted = true;
                const double price = cost[to] < 0 ? double(cost[to]) * relief : double(cost[to] + 1) / relief;
                if (best.to < 0 || price < best.price) best = {price, node, to};
            }
            if (best.to >= 0) found.push_back(best);
        }
        std::sort(found.begin(), found.end());
        return found;
    }

    void move(int64_t node, int64_t to) {
        holders.move(node, owner[node], to);
        loads.add(node, owner[node], -1);
        loads.add(node, to, 1);
        owner[node] = int32_t(to);
    }

    Holders& holders;
    Loads& loads;
    int64_t num_nodes;
    int32_t* owner;
    std::vector<int64_t> cost;
};

}  // namespace

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
    Holders holders(num_nodes, indptr, sources, parts, counts, owner);
    Loads loads(num_nodes, parts, kinds, weights, floors, capacities, owner);
    Search search(holders, loads, num_nodes, owner);
    Random random{uint64_t(seed)};
    std::vector<int64_t> order(num_nodes);
    std::iota(order.begin(), order.end(), 0);
    search.relieve();
    for (int64_t sweep = 0; sweep < sweeps; ++sweep) {
        const double heat = temperature * std::max(0.0, 1 - double(sweep) / std::max<double>(1, double(sweeps - 2)));
        for (int64_t i = num_nodes - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
        for (int64_t i = 0; i < num_nodes; ++i) {
            if (i + 2 * AHEAD < num_nodes) __builtin_prefetch(sources + indptr[order[i + 2 * AHEAD]]);
            if (i + AHEAD < num_nodes) holders.prefetch(order[i + AHEAD], owner[order[i + AHEAD]]);
            search.offer(order[i], heat, random);
        }
        search.relieve();
    }
}
