// Zeros of tables as hard constraints: arc consistency, for the searches of support.cpp and walk.cpp.
//
// A state is possible while every table around its variable has an entry above -inf whose states are all left.
// Arc consistency removes the others, again and again; `Domains` remembers what was removed, so that it can be undone.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "boundary.hpp"

namespace mssvm {

constexpr double NOTHING = -std::numeric_limits<double>::infinity();

// Factors of every variable (near), variables of every factor with their strides (scope), tables and states.
struct ConstraintGraph {
    int64_t bytes;
    Ints near_ptr, near, scope_ptr, scope, stride, table_at, table_size, owner, unary_ptr;

    int64_t variables() const { return unary_ptr.size - 1; }
    int64_t factors() const { return scope_ptr.size - 1; }
    int64_t states() const { return owner.size; }
    int64_t card(int64_t v) const { return unary_ptr[v + 1] - unary_ptr[v]; }
    View<int64_t> factors_of(int64_t v) const { return near.part(near_ptr[v], near_ptr[v + 1] - near_ptr[v]); }
    // The state (among those of all variables) of axis a at an entry of its factor's table.
    int64_t state_at(int64_t a, int64_t entry) const {
        int64_t v = scope[a];
        return unary_ptr[v] + entry / stride[a] % card(v);
    }
};

inline void check_pointers(const Ints &ptr, int64_t last, const char *message) {
    require(ptr.size >= 1 && ptr[0] == 0 && ptr[ptr.size - 1] == last, message);
    for (int64_t k = 0; k + 1 < ptr.size; ++k) require(ptr[k] <= ptr[k + 1], message);
}

inline void check(const ConstraintGraph &w, const Floats &tables) {
    check_pointers(w.near_ptr, w.near.size, "pointers of neighbours are wrong.");
    check_pointers(w.scope_ptr, w.scope.size, "pointers of scopes are wrong.");
    check_pointers(w.unary_ptr, w.owner.size, "pointers of states are wrong.");
    require(w.near_ptr.size == w.unary_ptr.size, "variables and their neighbours differ in number.");
    require(w.stride.size == w.scope.size, "every variable of a scope needs a stride.");
    require(w.table_at.size == w.factors() && w.table_size.size == w.factors(), "every factor needs a table.");
    for (int64_t v : w.scope) require(v >= 0 && v < w.variables(), "a scope names no variable.");
    for (int64_t f : w.near) require(f >= 0 && f < w.factors(), "a neighbour is no factor.");
    for (int64_t v : w.owner) require(v >= 0 && v < w.variables(), "a state belongs to no variable.");
    for (int64_t f = 0; f < w.factors(); ++f) {
        bool inside = w.table_at[f] >= 0 && w.table_size[f] >= 0 && w.table_at[f] + w.table_size[f] <= tables.size;
        require(inside, "a table lies beyond its array.");
    }
    for (int64_t stride : w.stride) require(stride >= 1, "a stride must be positive.");
}

// The states that are left, and what was removed in which order.
class Domains {
public:
    Domains(const ConstraintGraph &wiring, const Bytes8 &hard, const Floats &tables, const Bytes8 &left)
        : wiring_(wiring),
          hard_(hard),
          tables_(tables),
          left_(left),
          size_(wiring.variables(), 0),
          queued_(wiring.factors(), 0),
          supported_(wiring.states(), 0) {
        for (int64_t state = 0; state < wiring.states(); ++state) size_[wiring.owner[state]] += left[state];
    }

    const std::vector<int64_t> &sizes() const { return size_; }
    size_t removed() const { return trail_.size(); }

    bool possible(int64_t factor, int64_t entry) const {
        for (int64_t a = wiring_.scope_ptr[factor]; a < wiring_.scope_ptr[factor + 1]; ++a) {
            if (!left_[wiring_.state_at(a, entry)]) return false;
        }
        return true;
    }

    void remove(int64_t state) {
        int64_t v = wiring_.owner[state];
        left_[state] = 0;
        --size_[v];
        trail_.push_back(state);
        for (int64_t f : wiring_.factors_of(v)) enqueue(f);
    }

    // Brings a state back for good; its factors are to be revised again.
    void restore(int64_t state) {
        if (left_[state]) return;
        left_[state] = 1;
        ++size_[wiring_.owner[state]];
    }

    // What was removed until now cannot be undone any more.
    void forget() { trail_.clear(); }

    void undo(size_t removed) {
        while (trail_.size() > removed) {
            int64_t state = trail_.back();
            trail_.pop_back();
            left_[state] = 1;
            ++size_[wiring_.owner[state]];
        }
    }

    void enqueue(int64_t factor) {
        if (!hard_[factor] || queued_[factor]) return;
        queued_[factor] = 1;
        waiting_.push_back(factor);
    }

    // Removes unsupported states until none is left to remove; returns the factor that leaves a variable none, or -1.
    int64_t propagate() {
        int64_t failed = -1;
        for (size_t head = 0; head < waiting_.size(); ++head) {
            int64_t f = waiting_[head];
            if (failed < 0 && !revise(f)) failed = f;
            queued_[f] = 0;
        }
        waiting_.clear();
        return failed;
    }

private:
    // Removes the states of a factor's variables that none of its entries supports; false if one has none left.
    bool revise(int64_t f) {
        int64_t first = wiring_.scope_ptr[f], last = wiring_.scope_ptr[f + 1];
        find_supported(f);
        bool open = true;
        for (int64_t a = first; a < last; ++a) {
            int64_t v = wiring_.scope[a];
            for (int64_t state = wiring_.unary_ptr[v]; state < wiring_.unary_ptr[v + 1]; ++state) {
                if (left_[state] && !supported_[state]) remove(state);
            }
            open = open && size_[v] > 0;
        }
        return open;
    }

    // Marks the states of a factor's variables in one of its entries above -inf, of those whose states are all left.
    void find_supported(int64_t f) {
        int64_t first = wiring_.scope_ptr[f], axes = wiring_.scope_ptr[f + 1] - first, unsupported = 0;
        options_.clear();
        option_ptr_.assign(1, 0);
        for (int64_t a = 0; a < axes; ++a) {
            int64_t v = wiring_.scope[first + a], at = wiring_.unary_ptr[v];
            for (int64_t j = 0; j < wiring_.card(v); ++j) {
                if (!left_[at + j]) continue;
                supported_[at + j] = 0;
                options_.push_back({at + j, j * wiring_.stride[first + a]});
            }
            option_ptr_.push_back(int64_t(options_.size()));
            if (option_ptr_[a] == option_ptr_[a + 1]) return;
        }
        unsupported = int64_t(options_.size());
        digit_.assign(option_ptr_.begin(), option_ptr_.end() - 1);
        int64_t entry = wiring_.table_at[f];
        for (int64_t d : digit_) entry += options_[d].offset;
        for (;;) {
            if (tables_[entry] > NOTHING) {
                for (int64_t d : digit_) {
                    unsupported -= !supported_[options_[d].state];
                    supported_[options_[d].state] = 1;
                }
                if (unsupported == 0) return;
            }
            int64_t a = axes - 1;
            for (; a >= 0; --a) {  // the next entry: the last axis turns first
                entry -= options_[digit_[a]].offset;
                bool turns = ++digit_[a] == option_ptr_[a + 1];
                if (turns) digit_[a] = option_ptr_[a];
                entry += options_[digit_[a]].offset;
                if (!turns) break;
            }
            if (a < 0) return;
        }
    }

    // A state that is left, and how far it moves in the table.
    struct Option {
        int64_t state, offset;
    };

    const ConstraintGraph &wiring_;
    Bytes8 hard_;  // views are copied: that of the states left is made for this object in some callers
    Floats tables_;
    Bytes8 left_;
    std::vector<int64_t> size_, trail_, waiting_;
    std::vector<char> queued_, supported_;
    std::vector<Option> options_;  // of the factor under revision, axis by axis
    std::vector<int64_t> option_ptr_, digit_;
};

// Removes impossible states from `left`; returns whether every variable has a state left.
inline bool arc_consistent(const ConstraintGraph &wiring, const Bytes8 &hard, const Floats &tables,
                           const Bytes8 &left) {
    Domains domains(wiring, hard, tables, left);
    for (int64_t f = 0; f < wiring.factors(); ++f) domains.enqueue(f);
    if (domains.propagate() >= 0) return false;
    return std::all_of(domains.sizes().begin(), domains.sizes().end(), [](int64_t size) { return size > 0; });
}

}  // namespace mssvm
