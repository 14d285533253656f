// Arc consistency and the search for a complete assignment, as Python calls them.
#include "support.hpp"

using namespace mssvm;

namespace {

struct Consistency {
    int64_t bytes;
    const ConstraintGraph *wiring;
    Bytes8 hard;
    Floats tables;
    Bytes8 left;
};

struct Search {
    int64_t bytes;
    const ConstraintGraph *wiring;
    Bytes8 hard;
    Floats tables, promise;  // promise: by state, its score with a bonus and noise
    Bytes8 left;             // the states that arc consistency leaves
    Ints fails;              // by variable: its failures, which a call counts
    int64_t most;            // failures after which the search gives up
};

template <class Call> void check_call(const Call &c) {
    check(nested(c.wiring), c.tables);
    require(c.hard.size == c.wiring->factors() && c.left.size == c.wiring->states(), "masks have other sizes.");
}

// The open variable with the smallest ratio of states to failures, or -1 if all are decided. Until the first failure
// (`cursor` >= 0) it is the next one in the order of numbers.
int64_t next_variable(const std::vector<int64_t> &size, const Ints &fails, int64_t &cursor) {
    int64_t n = int64_t(size.size());
    if (cursor >= 0) {
        while (cursor < n && size[cursor] == 1) ++cursor;
        return cursor < n ? cursor : -1;
    }
    int64_t best = -1;
    double least = -NOTHING;
    for (int64_t v = 0; v < n; ++v) {
        double weighted = double(size[v]) / (1.0 + double(fails[v]));
        if (size[v] > 1 && weighted < least) {
            best = v;
            least = weighted;
        }
    }
    return best;
}

// The state of v with the largest sum of its promise and the best possible entries of the tables around.
int64_t best_state(int64_t v, const Search &c, const Domains &domains) {
    const ConstraintGraph &w = *c.wiring;
    int64_t first = w.unary_ptr[v], card = w.card(v), chosen = -1;
    std::vector<double> total(&c.promise[first], &c.promise[first] + card), best(card);
    for (int64_t f : w.factors_of(v)) {
        int64_t step = 1;
        for (int64_t a = w.scope_ptr[f]; a < w.scope_ptr[f + 1]; ++a) {
            if (w.scope[a] == v) step = w.stride[a];
        }
        std::fill(best.begin(), best.end(), NOTHING);
        for (int64_t entry = 0; entry < w.table_size[f]; ++entry) {
            int64_t j = entry / step % card;
            double score = c.tables[w.table_at[f] + entry];
            if (score > best[j] && domains.possible(f, entry)) best[j] = score;
        }
        for (int64_t j = 0; j < card; ++j) total[j] += best[j];
    }
    for (int64_t j = 0; j < card; ++j) {
        if (c.left[first + j] && (chosen < 0 || total[j] > total[chosen])) chosen = j;
    }
    return first + chosen;
}

struct Decision {
    int64_t state;
    size_t removed;  // states that were removed before
};

constexpr int64_t IMPOSSIBLE = 0, FOUND = 1, GIVEN_UP = 2;

// Leaves every variable one state.
int64_t search(const Search &c) {
    check_call(c);
    const ConstraintGraph &w = *c.wiring;
    require(c.promise.size == w.states() && c.fails.size == w.variables(), "promises or failures have other sizes.");
    Domains domains(w, c.hard, c.tables, c.left);
    std::vector<Decision> decisions;
    bool fresh = std::all_of(c.fails.begin(), c.fails.end(), [](int64_t count) { return count == 0; });
    int64_t failures = 0, cursor = fresh ? 0 : -1;
    for (;;) {
        int64_t v = next_variable(domains.sizes(), c.fails, cursor);
        if (v < 0) return FOUND;
        int64_t chosen = best_state(v, c, domains);
        decisions.push_back({chosen, domains.removed()});
        for (int64_t state = w.unary_ptr[v]; state < w.unary_ptr[v + 1]; ++state) {
            if (c.left[state] && state != chosen) domains.remove(state);
        }
        for (int64_t failed = domains.propagate(); failed >= 0; failed = domains.propagate()) {
            ++failures;
            cursor = -1;
            for (int64_t a = w.scope_ptr[failed]; a < w.scope_ptr[failed + 1]; ++a) ++c.fails[w.scope[a]];
            if (decisions.empty()) return IMPOSSIBLE;
            if (failures >= c.most) return GIVEN_UP;
            Decision last = decisions.back();
            decisions.pop_back();
            domains.undo(last.removed);
            // The state is refuted; its variable has others, or it would not have been decided.
            domains.remove(last.state);
        }
    }
}

}  // namespace

// 1 if every variable has a state left, else 0.
MSSVM_API mssvm_support_arcs(const Consistency *call) {
    return guarded(call, [](const Consistency &c) -> int64_t {
        check_call(c);
        return arc_consistent(*c.wiring, c.hard, c.tables, c.left);
    });
}

// 1 if found, 0 if impossible, 2 if there were too many failures.
MSSVM_API mssvm_support_search(const Search *call) { return guarded(call, search); }
