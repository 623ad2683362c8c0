// The multilevel search of later attempts at an edge cut: the graph is coarsened into clusters of nodes, and the local
// search runs on every level, coarsest first, starting from the given cut.
//
// A cluster never crosses a border between groups of nodes. Where the groups are what two cuts agree on, this is the
// recombination of evolutionary partitioning: what both cuts keep together stays together, and the rest is decided anew
// (Sanders and Schulz, "Distributed evolutionary graph partitioning", 2012; Andre, Schlag and Schulz, "Memetic
// multilevel hypergraph partitioning", 2018).

#include "export.h"
#include "search.h"

using namespace dgl_gt;

namespace {

constexpr int64_t COARSEST_VERTICES = 30;  // per part, on the coarsest level
constexpr double SHRINKAGE = 2.5;          // of the number of vertices, from level to level
constexpr double MIN_SHRINKAGE = 1.05;     // less, and coarsening ends
constexpr double HEAVIEST = 1.5;           // weight of a cluster over the mean of the coarsest level, at most
constexpr int64_t MAX_PINS = 100;          // of a net that says which vertices belong together
constexpr int64_t SWEEPS = 4;
constexpr double TEMPERATURE = 1.0;  // on the finest level, in halo rows
// On the coarsest level, the temperature and the number of sweeps are drawn from these lists. On the levels between, the
// temperature falls from FALL times the one that was drawn.
constexpr double COARSE_TEMPERATURES[] = {1.0, 5.0, 20.0}, FALL = 0.2;
constexpr int64_t COARSE_SWEEPS[] = {20, 100};
constexpr int64_t MIN_COARSENING = 4;  // nodes per coarsest vertex; with fewer, many sweeps would take too long

struct Level {
    Hypergraph graph;
    std::vector<int64_t> pin_begin;      // (num_nets + 1,)
    std::vector<int32_t> pins;           // net n has the pins pins[pin_begin[n]:pin_begin[n + 1]]
    std::vector<int64_t> weights;        // (num_vertices, kinds)
    std::vector<int64_t> groups;         // (num_vertices,): only vertices of one group may become one
    std::vector<int32_t> owner;          // (num_vertices,)
    std::vector<int32_t> coarse_vertex;  // (vertices of the finer level,): what each has become on this level

    int64_t num_pins(int64_t net) const { return pin_begin[net + 1] - pin_begin[net]; }
};

// Transposes lists in CSR form: from targets[begin[i]:begin[i + 1]] of each source i to the sources of each target.
void transpose(int64_t num_sources, const std::vector<int64_t>& begin, const std::vector<int32_t>& targets,
               int64_t num_targets, std::vector<int64_t>& target_begin, std::vector<int32_t>& sources) {
    target_begin.assign(num_targets + 1, 0);
    for (const int32_t target : targets) ++target_begin[target + 1];
    std::partial_sum(target_begin.begin(), target_begin.end(), target_begin.begin());
    sources.resize(targets.size());
    std::vector<int64_t> next(target_begin.begin(), target_begin.end() - 1);
    for (int64_t i = 0; i < num_sources; ++i)
        for (int64_t at = begin[i]; at < begin[i + 1]; ++at) sources[next[targets[at]]++] = int32_t(i);
}

// Joins each vertex, in random order, to the cluster of its group with which it shares most nets for their weight.
// Writes the cluster of each vertex to `cluster`, and returns how many clusters there are.
int64_t find_clusters(const Level& level, int64_t kinds, const std::vector<int64_t>& heaviest, Xorshift64Star& random,
                      std::vector<int32_t>& cluster) {
    const int64_t num_vertices = level.graph.num_vertices;
    std::vector<int32_t> leader(num_vertices), neighbours;
    std::vector<int64_t> order(num_vertices), weights(level.weights);
    std::vector<char> is_settled(num_vertices, 0);
    std::vector<double> affinity(num_vertices, 0);
    std::iota(leader.begin(), leader.end(), 0);
    std::iota(order.begin(), order.end(), 0);
    random.shuffle(order);
    int64_t left = num_vertices;
    for (const int64_t vertex : order) {
        if (is_settled[vertex]) continue;
        if (double(left) * SHRINKAGE < double(num_vertices)) break;
        neighbours.clear();
        for (int64_t at = level.graph.begin[vertex]; at < level.graph.begin[vertex + 1]; ++at) {
            const int64_t net = level.graph.nets[at], num_pins = level.num_pins(net);
            if (num_pins < 2 || num_pins > MAX_PINS) continue;
            const double weight = double(level.graph.net_weight(net));
            for (int64_t pin = level.pin_begin[net]; pin < level.pin_begin[net + 1]; ++pin) {
                const int32_t to = leader[level.pins[pin]];
                if (to == vertex || level.groups[to] != level.groups[vertex]) continue;
                if (affinity[to] == 0) neighbours.push_back(to);
                affinity[to] += weight / double(num_pins - 1);
            }
        }
        int64_t best = -1;
        double best_score = 0;
        for (const int32_t to : neighbours) {
            const double score = affinity[to] / double((1 + weights[to * kinds]) * (1 + weights[vertex * kinds]));
            affinity[to] = 0;
            bool fits = true;
            for (int64_t kind = 0; kind < kinds; ++kind)
                fits &= weights[to * kinds + kind] + weights[vertex * kinds + kind] <= heaviest[kind];
            if (fits && score > best_score) best_score = score, best = to;
        }
        if (best < 0) continue;
        leader[vertex] = int32_t(best);
        is_settled[vertex] = is_settled[best] = 1;
        --left;
        for (int64_t kind = 0; kind < kinds; ++kind) weights[best * kinds + kind] += weights[vertex * kinds + kind];
    }
    cluster.resize(num_vertices);
    int64_t count = 0;
    for (int64_t vertex = 0; vertex < num_vertices; ++vertex)
        if (leader[vertex] == vertex) cluster[vertex] = int32_t(count++);
    for (int64_t vertex = 0; vertex < num_vertices; ++vertex) cluster[vertex] = cluster[leader[vertex]];
    return count;
}

// Makes one net of all nets with the same pins; their weights are summed.
void merge_identical_nets(std::vector<int64_t>& pin_begin, std::vector<int32_t>& pins, std::vector<int64_t>& weights) {
    const int64_t num_nets = int64_t(weights.size());
    std::vector<int64_t> order(num_nets);
    std::vector<uint64_t> hash(num_nets);
    for (int64_t net = 0; net < num_nets; ++net) {
        uint64_t mixed = 1469598103934665603u;  // FNV-1a
        for (int64_t at = pin_begin[net]; at < pin_begin[net + 1]; ++at)
            mixed = (mixed ^ uint64_t(pins[at])) * 1099511628211u;
        hash[net] = mixed;
    }
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int64_t a, int64_t b) { return std::tie(hash[a], a) < std::tie(hash[b], b); });
    const auto are_same = [&](int64_t a, int64_t b) {
        return hash[a] == hash[b] && std::equal(pins.begin() + pin_begin[a], pins.begin() + pin_begin[a + 1],
                                                pins.begin() + pin_begin[b], pins.begin() + pin_begin[b + 1]);
    };
    for (int64_t i = 0, first = 0; i < num_nets; ++i) {
        const int64_t a = order[first], b = order[i];
        if (i > first && are_same(a, b)) {
            weights[a] += weights[b];
            weights[b] = 0;
        } else {
            first = i;
        }
    }
    int64_t kept = 0, end = 0;
    for (int64_t net = 0; net < num_nets; ++net) {
        if (!weights[net]) continue;
        const int64_t begin = pin_begin[net], count = pin_begin[net + 1] - begin;
        std::copy_n(pins.begin() + begin, count, pins.begin() + end);
        weights[kept] = weights[net];
        pin_begin[kept++] = end;
        end += count;
    }
    pin_begin.resize(kept + 1);
    pin_begin[kept] = end;
    pins.resize(end);
    weights.resize(kept);
}

// The level above `fine`, whose vertices are the given clusters.
Level coarsen(const Level& fine, int64_t kinds, int64_t num_clusters, std::vector<int32_t> cluster) {
    Level level;
    level.weights.assign(num_clusters * kinds, 0);
    level.groups.resize(num_clusters);
    level.owner.resize(num_clusters);
    for (int64_t vertex = 0; vertex < fine.graph.num_vertices; ++vertex) {
        for (int64_t kind = 0; kind < kinds; ++kind)
            level.weights[cluster[vertex] * kinds + kind] += fine.weights[vertex * kinds + kind];
        level.groups[cluster[vertex]] = fine.groups[vertex];
        level.owner[cluster[vertex]] = fine.owner[vertex];
    }
    std::vector<int64_t> last_net(num_clusters, -1);  // of each cluster
    level.pin_begin.push_back(0);
    for (int64_t net = 0; net < fine.graph.num_nets; ++net) {
        const size_t begin = level.pins.size();
        for (int64_t at = fine.pin_begin[net]; at < fine.pin_begin[net + 1]; ++at) {
            const int32_t pin = cluster[fine.pins[at]];
            if (last_net[pin] == net) continue;
            last_net[pin] = net;
            level.pins.push_back(pin);
        }
        if (level.pins.size() - begin < 2) {  // wherever the one pin goes, one part holds the row
            level.pins.resize(begin);
            continue;
        }
        std::sort(level.pins.begin() + int64_t(begin), level.pins.end());
        level.pin_begin.push_back(int64_t(level.pins.size()));
        level.graph.net_weights.push_back(fine.graph.net_weight(net));
    }
    merge_identical_nets(level.pin_begin, level.pins, level.graph.net_weights);
    level.graph.num_vertices = num_clusters;
    level.graph.num_nets = int64_t(level.graph.net_weights.size());
    transpose(level.graph.num_nets, level.pin_begin, level.pins, num_clusters, level.graph.begin, level.graph.nets);
    for (int64_t vertex = 0; vertex < num_clusters; ++vertex)
        level.graph.may_be_isolated.push_back(level.graph.begin[vertex] == level.graph.begin[vertex + 1]);
    level.coarse_vertex = std::move(cluster);
    return level;
}

// The levels from the graph itself to the coarsest one.
std::vector<Level> make_levels(Level finest, int64_t parts, int64_t kinds, Xorshift64Star& random) {
    std::vector<int64_t> heaviest(kinds, 0);
    for (size_t at = 0; at < finest.weights.size(); ++at) heaviest[at % kinds] += finest.weights[at];
    for (int64_t& weight : heaviest)
        weight = std::max<int64_t>(1, int64_t(HEAVIEST * double(weight) / double(COARSEST_VERTICES * parts)));
    std::vector<Level> levels;
    levels.push_back(std::move(finest));
    while (levels.back().graph.num_vertices > COARSEST_VERTICES * parts) {
        std::vector<int32_t> cluster;
        const int64_t num_clusters = find_clusters(levels.back(), kinds, heaviest, random, cluster);
        if (double(num_clusters) * MIN_SHRINKAGE > double(levels.back().graph.num_vertices)) break;
        levels.push_back(coarsen(levels.back(), kinds, num_clusters, std::move(cluster)));
    }
    return levels;
}

}  // namespace

// Searches a cut anew, clusters of nodes first; changes owner (N,). Only nodes with the same number in groups (N,) may
// share a cluster. The other arguments are those of dgl_gt_refine_some.
EXPORT void dgl_gt_refine_multilevel(int64_t num_nodes, const int64_t* indptr, const int32_t* sources, int64_t parts,
                                     int64_t kinds, const int64_t* weights, const int64_t* floors,
                                     const int64_t* capacities, int32_t* pin_counts, int32_t* owner,
                                     const int64_t* groups, int64_t seed) {
    Xorshift64Star random{uint64_t(seed)};
    Level finest;
    finest.graph = Hypergraph::of_graph(num_nodes, indptr, sources);
    transpose(num_nodes, finest.graph.begin, finest.graph.nets, num_nodes, finest.pin_begin, finest.pins);
    finest.weights.assign(weights, weights + num_nodes * kinds);
    finest.owner.assign(owner, owner + num_nodes);
    finest.groups.assign(groups, groups + num_nodes);
    std::vector<Level> levels = make_levels(std::move(finest), parts, kinds, random);
    const double coarse_temperature = COARSE_TEMPERATURES[random.below(3)];
    const int64_t coarse_sweeps = COARSE_SWEEPS[random.below(2)];
    const int64_t coarsest = int64_t(levels.size()) - 1;
    for (int64_t number = coarsest; number >= 0; --number) {
        Level& level = levels[number];
        const int64_t num_vertices = level.graph.num_vertices;
        if (number < coarsest)
            for (int64_t vertex = 0; vertex < num_vertices; ++vertex)
                level.owner[vertex] = levels[number + 1].owner[levels[number + 1].coarse_vertex[vertex]];
        const bool is_thorough = number == coarsest && num_vertices * MIN_COARSENING <= num_nodes;
        const double height = coarsest > 0 ? double(number) / double(coarsest) : 0;
        const double temperature =
            TEMPERATURE * std::pow(std::max(1.0, FALL * coarse_temperature / TEMPERATURE), height);
        Connectivity connectivity(level.graph, parts, pin_counts, level.owner.data());
        PartLoads loads(num_vertices, parts, kinds, level.weights.data(), floors, capacities, level.owner.data());
        Search search(connectivity, loads, num_vertices, level.owner.data());
        search.run(is_thorough ? coarse_sweeps : SWEEPS, is_thorough ? coarse_temperature : temperature, random);
    }
    std::copy(levels[0].owner.begin(), levels[0].owner.end(), owner);
}
