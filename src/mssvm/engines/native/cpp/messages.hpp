// Belief propagation: the layout of messages, and the loop that sweeps instances until they have converged.
//
// A factor has slots, one for each of its variables; a slot holds the message from the factor to that variable. Two
// algebras hold messages: `Probabilities` (scaled.hpp; pairwise factors, sums at one temperature and maxima, for one
// instance or L side by side) and `Scores` (scores.hpp; any factors, any two temperatures, any range). Both are swept
// by `sweep_all` below. Probabilities record the smallest number that a sweep relied on. If it is too small to be
// trusted, the instance returns to the messages it had before the call, and continues in scores.
//
// The change of a message is measured in logarithms, in units of the temperature. For probabilities that is expensive,
// so the change of the probabilities themselves is tested first; where tables are so strong that a probability can be
// tiny (`weak` says where they are not), an instance has converged only when a further sweep shows that logarithms have
// converged as well.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <vector>

#include "boundary.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace mssvm {

// Index arrays of a batch. `order[factor_ptr[b] .. factor_ptr[b + 1]]` is the order of a sweep; `near[near_ptr[i] ..
// near_ptr[i + 1]]` are the slots of variable i. `table_at` points into the given tables, `scaled_at` into the
// exponentiated ones, which are stored in order of first use; `table_of` numbers them. Instances of one family (-1:
// none) have the same graph and the same tables. Graphs derived from a wiring are cached under the number of its
// `plan`.
struct Wiring {
    int64_t bytes;
    Ints var_ptr, factor_ptr, state_ptr, scope_ptr, scope, message_at, order, near_ptr, near, slot_factor;
    Ints table_at, scaled_at, table_of, mu_at, family_of;
    int64_t widest, plan;

    int64_t instances() const { return var_ptr.size - 1; }
    int64_t card(int64_t i) const { return state_ptr[i + 1] - state_ptr[i]; }
    int64_t degree(int64_t i) const { return near_ptr[i + 1] - near_ptr[i]; }
    int64_t first_state(int64_t b) const { return state_ptr[var_ptr[b]]; }
    int64_t end_state(int64_t b) const { return state_ptr[var_ptr[b + 1]]; }
    int64_t first_slot(int64_t b) const { return scope_ptr[factor_ptr[b]]; }
    int64_t end_slot(int64_t b) const { return scope_ptr[factor_ptr[b + 1]]; }
    int64_t first_message(int64_t b) const { return message_at[first_slot(b)]; }
    int64_t end_message(int64_t b) const { return message_at[end_slot(b)]; }
    int64_t slot_card(int64_t s) const { return message_at[s + 1] - message_at[s]; }

    // Entries of the tables of an instance: what a sweep costs.
    int64_t entries(int64_t b) const {
        int64_t total = 0;
        for (int64_t f = factor_ptr[b]; f < factor_ptr[b + 1]; ++f) total += table_size(f);
        return total;
    }
    int64_t table_size(int64_t f) const {
        int64_t size = 1;
        for (int64_t s = scope_ptr[f]; s < scope_ptr[f + 1]; ++s) size *= slot_card(s);
        return size;
    }

    void check() const {
        require(bytes == int64_t(sizeof(Wiring)), "the wiring has another size: Python files and library differ.");
        require(var_ptr.size >= 1 && factor_ptr.size == var_ptr.size, "var_ptr and factor_ptr differ in length.");
        int64_t n_vars = var_ptr[instances()], n_factors = factor_ptr[instances()];
        require(state_ptr.size == n_vars + 1 && near_ptr.size == n_vars + 1,
                "state_ptr or near_ptr has another length.");
        require(scope_ptr.size == n_factors + 1 && order.size == n_factors, "scope_ptr or order has another length.");
        require(scope.size == scope_ptr[n_factors] && near.size == scope.size, "scope or near has another length.");
        require(message_at.size == scope.size + 1 && slot_factor.size == scope.size, "slots differ in number.");
        require(table_at.size == n_factors && scaled_at.size == n_factors, "tables differ in number from factors.");
        require(table_of.size == n_factors && mu_at.size == n_factors, "tables differ in number from factors.");
        require(family_of.size == instances(), "family_of needs a number for every instance.");
    }
};

// Messages in progress, see `NativeRun`. `scaled`: which instances hold probabilities (`potential` then has their
// exponentiated scores). Variables that are `held` (none if empty) have the one state `held_at`.
//
// The other fields are constant: tables as scores and as exponentials at the temperature `unit`, which instances are
// `eligible` for probabilities, and which have `weak` tables, so that no probability is tiny.
struct RunArrays {
    int64_t bytes;
    Floats unary, open_unary, potential, messages, residual;
    Ints sweeps, held_at;
    Bytes8 scaled, measuring, held;
    Floats tables, scaled_tables;
    Bytes8 eligible, weak;
    double unit;

    bool is_held(int64_t i) const { return !held.empty() && held[i]; }

    void check(const Wiring &w) const {
        require(bytes == int64_t(sizeof(RunArrays)), "the run has another size: Python files and library differ.");
        int64_t n_vars = w.state_ptr.size - 1, n_states = w.state_ptr[n_vars];
        require(unary.size == n_states && open_unary.size == n_states, "unary needs a score for every state.");
        require(potential.size == n_states || potential.empty(), "potential has another length.");
        require(messages.size == w.message_at[w.scope.size], "messages have another length.");
        require(residual.size == w.instances() && sweeps.size == w.instances(), "one residual for every instance.");
        require(scaled.size == w.instances() && measuring.size == w.instances(), "one flag for every instance.");
        require(eligible.size == w.instances() && weak.size == w.instances(), "one flag for every instance.");
        require(unit > 0.0, "the temperature of probabilities must be positive.");
        require(held.empty() || (held.size == n_vars && held_at.size == n_vars),
                "held needs a flag for every variable.");
    }
};

inline void check_instances(const Wiring &w, const Ints &instances) {
    for (int64_t b : instances) require(b >= 0 && b < w.instances(), "an instance is not in the batch.");
}

// A factor is settled if at most one of its variables is not held: its messages will not change.
inline bool settled(const Wiring &w, const RunArrays &run, int64_t f) {
    if (run.held.empty()) return false;
    int64_t free = 0;
    for (int64_t s = w.scope_ptr[f]; s < w.scope_ptr[f + 1]; ++s) free += !run.held[w.scope[s]];
    return free <= 1;
}

// How sweeps are made; `outputs` are at eps_y, the other variables at eps_h. `unit`: the temperature of probabilities.
struct Sweeping {
    Bytes8 outputs;
    double eps_y, eps_h, unit, damping, tolerance;
    bool flooding;
    Ints until;     // sweeps that an instance may have made at the end
    Bytes8 weak;    // instances whose messages have no tiny probabilities
    Floats tables;  // scores
    Floats scaled_tables;

    bool maximal(int64_t i) const { return eps_y == 0.0 && outputs[i]; }
    // The unit in which changes of scores are measured.
    double change_unit() const {
        if (eps_y > 0.0 && eps_h > 0.0) return eps_y < eps_h ? eps_y : eps_h;
        if (eps_y > 0.0 || eps_h > 0.0) return eps_y + eps_h;
        return unit;
    }
};

// Where values and beliefs go; marginals only if `mu_unary` is not empty. `table_tops`: the largest entries of tables.
struct BeliefArrays {
    Floats value, mu_unary, mu_tables, table_tops;
};

// The largest score of a variable that is not forbidden.
inline double top_of(const Wiring &w, const RunArrays &run, int64_t i) {
    if (run.is_held(i)) return run.unary[w.state_ptr[i] + run.held_at[i]];
    double top = -INF;
    for (int64_t e = w.state_ptr[i]; e < w.state_ptr[i + 1]; ++e) top = std::max(top, run.unary[e]);
    return top;
}

// The score of a state, -inf where it is forbidden.
inline double score_of(const Wiring &w, const RunArrays &run, int64_t i, int64_t x) {
    if (run.is_held(i) && x != run.held_at[i]) return -INF;
    return run.unary[w.state_ptr[i] + x];
}

// The time at which a call should return, so that the caller can check for interrupts.
class Deadline {
public:
    explicit Deadline(double seconds) : end_(now() + seconds) {}
    bool passed() const { return now() > end_; }

private:
    static double now() {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    double end_;
};
constexpr double SLICE = 0.2;  // seconds

// Instances that wait for a lane; threads share one queue.
struct Queue {
    std::vector<int64_t> instances;
    std::atomic<int64_t> next{0};
    int share = 1;  // lanes that a thread may fill at a time

    bool take(int64_t &b) {
        int64_t place = next.fetch_add(1);
        if (place >= int64_t(instances.size())) return false;
        b = instances[place];
        return true;
    }
};

// Sweeps the instances of a queue, as many at a time as there are lanes. Lanes are independent: an instance has the
// same messages in any lane, beside any others, and however calls are cut. A finished instance leaves its lane to the
// next.
template <class Messages>
void sweep_all(Messages &messages, const RunArrays &run, const Sweeping &how, Queue &queue, const Deadline &end) {
    constexpr int lanes = Messages::lanes;
    int64_t who[lanes], made[lanes] = {}, most[lanes] = {};
    for (int64_t &b : who) b = -1;
    int64_t waiting = -1;  // the next one, which may have to wait for a sweep in its direction
    int live = 0;
    bool reverse = false, late = false;
    for (;;) {
        unsigned joined = 0;
        for (int k = 0; k < lanes && live < queue.share && !late; ++k) {
            if (who[k] >= 0) continue;
            if (waiting < 0 && !queue.take(waiting)) break;
            bool odd = run.sweeps[waiting] % 2 == 1;
            if (live == 0) reverse = odd;
            if (odd != reverse) break;
            who[k] = waiting;
            made[k] = 0;
            most[k] = std::min(how.until[waiting] - run.sweeps[waiting], messages.at_a_time(waiting));
            waiting = -1;
            joined |= 1u << k;
            ++live;
        }
        if (live == 0) return;
        if (joined) messages.load(joined, who);
        bool measure = false;
        for (int64_t b : who) measure |= b >= 0 && run.measuring[b];
        messages.sweep(reverse, measure);
        reverse = !reverse;
        unsigned done = 0;
        for (int k = 0; k < lanes; ++k) {
            int64_t b = who[k];
            if (b < 0) continue;
            ++made[k];
            if (!messages.trusted(k)) {
                messages.to_scores(b);
                messages.leave(1u << k);
                who[k] = -1;
                --live;
                continue;
            }
            double residual = messages.change(k, run.measuring[b]);
            if (residual <= how.tolerance && !run.measuring[b] && !messages.shows_logarithms(b)) {
                run.measuring[b] = 1;
                residual = INF;
            }
            if (residual <= how.tolerance || made[k] == most[k]) {
                run.residual[b] = residual;
                run.sweeps[b] += made[k];
                done |= 1u << k;
            }
        }
        if (!done) continue;
        messages.store(done, who);
        messages.leave(done);
        for (int k = 0; k < lanes; ++k) {
            if (!(done >> k & 1)) continue;
            who[k] = -1;
            --live;
        }
        late = end.passed();
    }
}

}  // namespace mssvm
