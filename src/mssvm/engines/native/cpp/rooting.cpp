// Rooted forests: an order of children before parents, and the roles for which the recursion is exact.
#include <vector>

#include "boundary.hpp"

using namespace mssvm;

namespace {

struct RootingCall {
    int64_t bytes;
    Ints ends;                 // (factor, 2): the variables of every factor
    Bytes8 preferred;          // variables that are preferred as roots
    Ints order, parent, edge;  // by variable: all, children first; parent and the factor to it, -1 at a root
    Bytes8 flip;               // by variable: its parent is the factor's first variable
    Ints degree;               // by variable
};

// Roots every component at the last of its preferred variables, or of all if it has none. Returns 1, or 0 if there is a
// cycle.
int64_t root(const RootingCall &call) {
    int64_t n = call.order.size, factors = call.ends.size / 2;
    require(call.ends.size == 2 * factors && call.parent.size == n && call.edge.size == n && call.flip.size == n &&
                call.degree.size == n && call.preferred.size == n,
            "the columns of a rooting have different lengths.");
    for (int64_t v : call.ends) require(v >= 0 && v < n, "a factor has a variable outside the topology.");
    std::vector<int64_t> start(n + 1, 0), incident(2 * factors);
    for (int64_t v : call.ends) ++start[v + 1];
    for (int64_t v = 0; v < n; ++v) {
        call.degree[v] = start[v + 1];
        start[v + 1] += start[v];
    }
    std::vector<int64_t> next(start.begin(), start.end() - 1);
    for (int64_t i = 0; i < 2 * factors; ++i) incident[next[call.ends[i]]++] = i / 2;
    std::vector<bool> seen(n, false);
    int64_t tail = 0;
    auto visit = [&](int64_t v, int64_t parent, int64_t edge) {
        seen[v] = true;
        call.parent[v] = parent;
        call.edge[v] = edge;
        call.flip[v] = edge >= 0 && call.ends[2 * edge] == parent;
        call.order[tail++] = v;
    };
    for (bool preferred : {true, false})
        for (int64_t v = n - 1; v >= 0; --v) {
            if (seen[v] || (preferred && !call.preferred[v])) continue;
            int64_t head = tail;
            visit(v, -1, -1);
            for (; head < tail; ++head) {
                int64_t i = call.order[head];
                // Leaves first: a chain with leaves, read from its root, is then a prefix of a longer one.
                for (bool inner : {false, true})
                    for (int64_t at = start[i]; at < start[i + 1]; ++at) {
                        int64_t f = incident[at], j = call.ends[2 * f] + call.ends[2 * f + 1] - i;
                        if (f == call.edge[i] || (call.degree[j] > 1) != inner) continue;
                        if (seen[j]) return 0;
                        visit(j, i, f);
                    }
            }
        }
    for (int64_t i = 0; i < n / 2; ++i) std::swap(call.order[i], call.order[n - 1 - i]);
    return 1;
}

struct TouchCall {
    int64_t bytes;
    Ints order, parent;   // the forest of one topology, from `root`
    Ints first;           // by instance: its first variable
    Bytes8 output, free;  // by variable of the batch
    Bytes8 ok;            // by instance: the result, written by the call
};

// Whether every hidden component of an instance touches at most two free outputs.
int64_t check_touches(const TouchCall &call) {
    int64_t n = call.order.size;
    require(call.parent.size == n && call.ok.size == call.first.size && call.output.size == call.free.size,
            "the columns of a check of roles have different lengths.");
    std::vector<int64_t> touches(n);  // free outputs next to the part of a hidden component at and below a variable
    for (int64_t b = 0; b < call.first.size; ++b) {
        int64_t first = call.first[b];
        require(first >= 0 && first + n <= call.output.size, "an instance lies outside the batch.");
        auto is_output = [&](int64_t v) { return call.free[first + v] && call.output[first + v]; };
        auto is_hidden = [&](int64_t v) { return call.free[first + v] && !call.output[first + v]; };
        std::fill(touches.begin(), touches.end(), 0);
        bool ok = true;
        for (int64_t v : call.order) {
            int64_t up = call.parent[v];
            if (up >= 0 && is_hidden(v) && is_output(up)) ++touches[v];
            if (is_hidden(v)) ok &= touches[v] <= 2;
            if (up >= 0 && is_hidden(up)) touches[up] += is_hidden(v) ? touches[v] : is_output(v);
        }
        call.ok[b] = ok;
    }
    return 0;
}

}  // namespace

MSSVM_API mssvm_forest_root(const RootingCall *record) { return guarded(record, root); }

MSSVM_API mssvm_forest_touches(const TouchCall *record) { return guarded(record, check_touches); }
