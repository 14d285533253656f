// Elimination orders: greedy min-fill with random ties, the cost of a given order, and bounds on the cost of any.
//
// A graph is `neighbours[first[v] .. first[v + 1])` for every variable v, each edge in both directions; `weight` is the
// log2 of a variable's cardinality and `kind` its place among the distinct cardinalities.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <vector>

#include "boundary.hpp"

using namespace mssvm;

namespace {

constexpr double INFINITE = std::numeric_limits<double>::infinity();

struct Graph {
    int64_t bytes;
    Ints first, neighbours;
    Floats weight;
    Ints kind;
    Floats kinds;

    int64_t size() const { return first.size - 1; }
    View<int64_t> around(int64_t v) const { return neighbours.part(first[v], first[v + 1] - first[v]); }
};

void check(const Graph &g) {
    require(g.first.size >= 1 && g.first[0] == 0, "a graph needs pointers that begin at 0.");
    int64_t n = g.size();
    for (int64_t v = 0; v < n; ++v) require(g.first[v] <= g.first[v + 1], "a graph's pointers must not fall.");
    require(g.first[n] == g.neighbours.size, "a graph's last pointer must be the number of its neighbours.");
    for (int64_t v : g.neighbours) require(v >= 0 && v < n, "a neighbour is no variable.");
    require(g.weight.size == n && g.kind.size == n, "a graph needs a weight and a kind for every variable.");
    for (int64_t k : g.kind) require(k >= 0 && k < g.kinds.size, "a variable's kind is not listed.");
}

// --- rows of a graph from edges ---

// Edges in both directions, counted by `first`, become rows without repetitions.
struct Rows {
    int64_t bytes;
    Ints from, to, first, neighbours;
};

int64_t rows(const Rows &r) {
    int64_t n = r.first.size - 1;
    require(n >= 0 && r.from.size == r.to.size && r.neighbours.size == r.to.size, "edges and rows have other sizes.");
    std::vector<int64_t> place(r.first.begin(), r.first.end() - 1);
    for (int64_t e = 0; e < r.from.size; ++e) {
        require(r.from[e] >= 0 && r.from[e] < n && r.to[e] >= 0 && r.to[e] < n, "an edge joins no variables.");
        int64_t at = place[r.from[e]]++;
        require(at >= 0 && at < r.neighbours.size, "rows are counted wrong.");
        r.neighbours[at] = r.to[e];
    }
    std::vector<int64_t> seen(n, -1);
    int64_t kept = 0;
    for (int64_t v = 0; v < n; ++v) {
        int64_t begin = r.first[v];
        r.first[v] = kept;
        for (int64_t e = begin; e < place[v]; ++e) {
            int64_t u = r.neighbours[e];
            if (seen[u] == v) continue;
            seen[u] = v;
            r.neighbours[kept++] = u;
        }
    }
    r.first[n] = kept;
    return kept;
}

// --- the cost of a given order ---

// `later` has all variables in order: the eliminated ones first, then the others. `place` is its inverse (-1: not
// there).
struct Separators {
    int64_t bytes;
    const Graph *graph;
    Ints later, place, counts;  // counts: by eliminated variable and kind, the variables of this kind in its message
    Floats bits;                // by eliminated variable: bits of its clique
    double most;                // an order with a clique of more bits is abandoned
};

// A variable's message goes to the next variable in it (its parent). Variable w is in the messages of its earlier
// neighbours and of their ancestors before w, so that no edge has to be added (Gilbert, Ng and Peyton, 1994).
int64_t separators(const Separators &s) {
    const Graph &g = nested(s.graph);
    check(g);
    int64_t eliminated = s.bits.size, kinds = g.kinds.size;
    require(s.counts.size == eliminated * kinds, "counts of separators have another size.");
    require(s.place.size == g.size() && s.later.size >= eliminated, "an order has another size than its graph.");
    std::vector<int64_t> parent(eliminated, -1), above(eliminated, -1), seen(eliminated, -1);
    for (int64_t i = 0; i < s.later.size; ++i) {
        int64_t v = s.later[i];
        require(v >= 0 && v < g.size(), "an order names no variable.");
        for (int64_t u : g.around(v)) {
            int64_t j = s.place[u];
            while (j >= 0 && j < eliminated && j < i) {  // to the root of its tree so far, with path compression
                int64_t up = above[j];
                above[j] = i;
                if (up < 0) parent[j] = i;
                j = up;
            }
        }
        for (int64_t u : g.around(v)) {
            int64_t j = s.place[u];
            while (j >= 0 && j < eliminated && j < i && seen[j] != i) {
                seen[j] = i;
                ++s.counts[j * kinds + g.kind[v]];
                s.bits[j] += g.weight[v];
                if (s.bits[j] > s.most) return 0;
                j = parent[j];
            }
        }
    }
    return 1;
}

// --- bounds on every order ---

struct LeastClique {
    int64_t bytes;
    const Graph *graph;
    Floats least;
};

// A lower bound on the bits of the largest clique of any order: the most that a variable and its remaining neighbours
// have when the variable with the smallest such clique is removed each time (degeneracy).
int64_t least_clique(const LeastClique &c) {
    const Graph &g = nested(c.graph);
    check(g);
    require(c.least.size == 1, "one number is returned.");
    int64_t n = g.size();
    using Entry = std::pair<double, int64_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    std::vector<double> bits(g.weight.begin(), g.weight.end());
    std::vector<char> gone(n, 0);
    for (int64_t v = 0; v < n; ++v) {
        for (int64_t u : g.around(v)) bits[v] += g.weight[u];
        queue.push({bits[v], v});
    }
    double least = 0.0;
    while (!queue.empty()) {
        auto [value, v] = queue.top();
        queue.pop();
        if (gone[v] || value != bits[v]) continue;
        gone[v] = 1;
        least = std::max(least, value);
        for (int64_t u : g.around(v)) {
            if (gone[u]) continue;
            bits[u] -= g.weight[v];
            queue.push({bits[u], u});
        }
    }
    c.least[0] = least;
    return 0;
}

struct Ball {
    int64_t bytes;
    const Graph *graph;
    int64_t centre;
    Ints found;
};

// Variables around one, breadth first, as many as fit into `found`; returns their number.
int64_t ball(const Ball &b) {
    const Graph &g = nested(b.graph);
    check(g);
    require(b.centre >= 0 && b.centre < g.size() && b.found.size > 0, "a ball needs a centre and a size.");
    std::vector<char> seen(g.size(), 0);
    b.found[0] = b.centre;
    seen[b.centre] = 1;
    int64_t head = 0, tail = 1;
    for (; head < tail; ++head) {
        for (int64_t u : g.around(b.found[head])) {
            if (tail == b.found.size || seen[u]) continue;
            seen[u] = 1;
            b.found[tail++] = u;
        }
    }
    return tail;
}

// Components of the variables `inside`: `border[ptr[c] .. ptr[c + 1])` are the variables next to component c, and
// least[c] the fewest bits of its members. Returns the number of components.
struct Borders {
    int64_t bytes;
    const Graph *graph;
    Bytes8 inside;
    Ints ptr, border;
    Floats least;
};

int64_t borders(const Borders &b) {
    const Graph &g = nested(b.graph);
    check(g);
    int64_t n = g.size(), count = 0, at = 0;
    require(b.inside.size == n && b.ptr.size == n + 1 && b.least.size == n, "arrays of borders have other sizes.");
    require(b.border.size == g.neighbours.size, "arrays of borders have other sizes.");
    std::vector<char> seen(n, 0);
    std::vector<int64_t> touched(n, 0), queue;
    b.ptr[0] = 0;
    for (int64_t root = 0; root < n; ++root) {
        if (!b.inside[root] || seen[root]) continue;
        seen[root] = 1;
        queue.assign(1, root);
        double least = g.weight[root];
        ++count;
        for (size_t head = 0; head < queue.size(); ++head) {
            int64_t v = queue[head];
            least = std::min(least, g.weight[v]);
            for (int64_t u : g.around(v)) {
                if (b.inside[u] && !seen[u]) {
                    seen[u] = 1;
                    queue.push_back(u);
                } else if (!b.inside[u] && touched[u] != count) {
                    touched[u] = count;
                    b.border[at++] = u;
                }
            }
        }
        b.least[count - 1] = least;
        b.ptr[count] = at;
    }
    return count;
}

struct Cliques {
    int64_t bytes;
    Ints ptr, border, from, to;
};

// The edges, in both directions, that join all variables of every border.
int64_t cliques(const Cliques &c) {
    int64_t at = 0;
    for (int64_t k = 0; k + 1 < c.ptr.size; ++k) {
        int64_t size = c.ptr[k + 1] - c.ptr[k];
        require(size >= 0 && c.ptr[k] >= 0 && c.ptr[k + 1] <= c.border.size, "pointers of borders are wrong.");
        require(at + size * (size - 1) <= std::min(c.from.size, c.to.size), "there are too many edges.");
        for (int64_t i = c.ptr[k]; i < c.ptr[k + 1]; ++i) {
            for (int64_t j = c.ptr[k]; j < c.ptr[k + 1]; ++j) {
                if (i == j) continue;
                c.from[at] = c.border[i];
                c.to[at] = c.border[j];
                ++at;
            }
        }
    }
    return at;
}

// --- greedy search ---

// Orders the variables of `group`, always the cheapest next: by fill, or by the size of its clique; ties by index or,
// with a `shuffle` that is not 0, at random. Returns the length of the order: 0 once it is worse than the best one
// known (`bar_largest`, `bar_total`) or beyond the limits.
struct Greedy {
    int64_t bytes;
    const Graph *graph;
    Ints group, order;
    int64_t by_size, shuffle;
    double bar_largest, bar_total;     // cost of the best order known
    double most_total, most_messages;  // limits
    double hopeless;                   // after a clique of more entries than this, the rest is taken in the given order
    Ints filled;                       // whether edges were added
};

// A graph that grows and shrinks while variables are eliminated.
class Elimination {
public:
    explicit Elimination(const Greedy &call)
        : graph_(*call.graph),
          by_size_(call.by_size),
          near_(graph_.size()),
          stamp_(graph_.size(), 0),
          have_(graph_.kinds.size),
          hits_(graph_.kinds.size),
          bits_(graph_.kinds.size) {
        for (int64_t v = 0; v < graph_.size(); ++v) {
            View<int64_t> around = graph_.around(v);
            near_[v].assign(around.begin(), around.end());
        }
        for (int64_t k = 0; k < graph_.kinds.size; ++k) bits_[k] = std::log2(graph_.kinds[k]);
    }

    const std::vector<int32_t> &near(int64_t v) const { return near_[v]; }

    double clique(int64_t v) const {
        double entries = graph_.kinds[graph_.kind[v]];
        for (int32_t u : near_[v]) entries *= graph_.kinds[graph_.kind[u]];
        return entries;
    }

    // Bits of the clique of v, or the weight products of the pairs of its neighbours that are not joined yet, each
    // twice.
    double price(int64_t v) {
        const std::vector<int32_t> &around = near_[v];
        if (by_size_) {
            double clique = graph_.weight[v];
            for (int32_t u : around) clique += graph_.weight[u];
            return clique;
        }
        ++token_;
        std::fill(have_.begin(), have_.end(), 0);
        for (int32_t u : around) {
            stamp_[u] = token_;
            ++have_[graph_.kind[u]];
        }
        double total = 0.0;
        for (int32_t u : around) {
            std::fill(hits_.begin(), hits_.end(), 0);
            for (int32_t other : near_[u]) {
                if (stamp_[other] == token_) ++hits_[graph_.kind[other]];
            }
            ++hits_[graph_.kind[u]];
            double missing = 0.0;
            for (size_t k = 0; k < have_.size(); ++k) missing += bits_[k] * double(have_[k] - hits_[k]);
            total += graph_.weight[u] * missing;
        }
        return total;
    }

    // Takes v from the neighbours of u and adds those `around` v; returns how many are new.
    int64_t join(int64_t u, int64_t v, const std::vector<int32_t> &around) {
        ++token_;
        std::vector<int32_t> &mine = near_[u];
        auto found = std::find(mine.begin(), mine.end(), int32_t(v));
        require(found != mine.end(), "a graph's edges must be given in both directions.");
        mine.erase(found);
        for (int32_t other : mine) stamp_[other] = token_;
        stamp_[u] = token_;
        size_t before = mine.size();
        for (int32_t other : around) {
            if (stamp_[other] != token_) mine.push_back(other);
        }
        return int64_t(mine.size() - before);
    }

private:
    const Graph &graph_;
    bool by_size_;
    std::vector<std::vector<int32_t>> near_;
    std::vector<int64_t> stamp_, have_, hits_;
    std::vector<double> bits_;
    int64_t token_ = 0;
};

int64_t greedy(const Greedy &c) {
    const Graph &g = nested(c.graph);
    check(g);
    int64_t n = g.size(), done = 0, length = c.group.size;
    require(c.order.size == length && c.filled.size == 1, "an order has another size than its group.");
    Elimination graph(c);
    std::vector<char> waiting(n, 0);
    std::vector<double> current(n, -1.0);
    std::vector<int64_t> met(n, 0), times(n, 0), stamp(n, 0), changed;
    using Entry = std::tuple<double, uint64_t, int64_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    uint64_t random = uint64_t(c.shuffle);
    double largest = 0.0, total = 0.0, messages = 0.0;
    c.filled[0] = 0;
    for (int64_t v : c.group) {
        require(v >= 0 && v < n, "a group names no variable.");
        waiting[v] = 1;
        changed.push_back(v);
    }
    for (;;) {
        for (int64_t v : changed) {
            double price = graph.price(v);
            if (price == current[v]) continue;
            current[v] = price;
            if (c.shuffle) random = random * 6364136223846793005u + 1442695040888963407u;
            queue.push({price, c.shuffle ? random >> 33 : 0, v});
        }
        changed.clear();
        if (done == length) return length;
        auto [price, tie, v] = queue.top();
        queue.pop();
        if (!waiting[v] || price != current[v]) continue;
        waiting[v] = 0;
        c.order[done++] = v;
        double clique = graph.clique(v);
        largest = std::max(largest, clique);
        total += clique;
        messages += clique / g.kinds[g.kind[v]];
        bool worse =
            largest > c.bar_largest || (largest == c.bar_largest && total >= c.bar_total && largest < INFINITE);
        if (worse || total > c.most_total || messages > c.most_messages) return 0;
        if (largest > c.hopeless) {
            for (int64_t u : c.group) {
                if (waiting[u]) c.order[done++] = u;
            }
            c.filled[0] = 1;
            return length;
        }
        std::vector<int32_t> around = graph.near(v);
        int64_t grown = 0;
        for (int32_t u : around) {
            grown += graph.join(u, v, around);
            if (waiting[u]) changed.push_back(u);
            met[u] = done;
        }
        if (grown == 0) continue;
        c.filled[0] = 1;
        // A new edge also changes the fill of every variable next to both its ends.
        for (int32_t u : around) {
            for (int32_t other : graph.near(u)) {
                if (met[other] == done || !waiting[other]) continue;
                times[other] = stamp[other] == done ? times[other] + 1 : 1;
                stamp[other] = done;
                if (times[other] == 2) changed.push_back(other);
            }
        }
    }
}

}  // namespace

MSSVM_API mssvm_order_rows(const Rows *call) { return guarded(call, rows); }
MSSVM_API mssvm_order_separators(const Separators *call) { return guarded(call, separators); }
MSSVM_API mssvm_order_least_clique(const LeastClique *call) { return guarded(call, least_clique); }
MSSVM_API mssvm_order_ball(const Ball *call) { return guarded(call, ball); }
MSSVM_API mssvm_order_borders(const Borders *call) { return guarded(call, borders); }
MSSVM_API mssvm_order_cliques(const Cliques *call) { return guarded(call, cliques); }
MSSVM_API mssvm_order_greedy(const Greedy *call) { return guarded(call, greedy); }
