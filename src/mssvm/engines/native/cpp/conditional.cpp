// Q(y) = PS_{eps_h} over h of theta(y, h), exactly, where the hidden variables fall into trees once y is given.
//
// Every connected component of the hidden variables contributes a term of its own, so changing one output changes only
// the components it touches: coordinate ascent and annealed Gibbs sampling over y evaluate those alone. Tabulated over
// the outputs at its border, a component becomes a factor over them:
//
//     V_c(y_border) = PS_{eps_h} over component c of (theta of its unaries and factors)
//
// Variables with one allowed state count as given, whatever their role.
#include "scores.hpp"

using namespace mssvm;

namespace {

// `HiddenComponents`, and the scores.
struct Hidden {
    int64_t bytes;
    const Wiring *wiring;
    Bytes8 outside, forest;
    Ints component, ptr, member_ptr, visit, up, parent, inside;
    Floats unary, tables;
    double eps;

    void check() const {
        require(bytes == int64_t(sizeof(Hidden)), "the record has another size: Python files and library differ.");
        require(wiring != nullptr, "no wiring was given.");
        wiring->check();
        int64_t n_vars = wiring->state_ptr.size - 1;
        require(outside.size == n_vars && component.size == n_vars, "one flag for every variable.");
        require(up.size == n_vars && parent.size == n_vars, "one parent for every variable.");
        require(forest.size == wiring->instances() && ptr.size == forest.size + 1, "one number for every instance.");
        require(inside.size == wiring->order.size, "one number for every factor.");
        require(unary.size == wiring->state_ptr[n_vars], "one score for every state.");
        require(member_ptr.size == ptr[ptr.size - 1] + 1, "one number for every component.");
    }
};

struct Cut {
    int64_t entry, step_i, step_j;
};

constexpr double LEAST_GAIN = 1e-11;  // relative; smaller gains could be undone by the next visit, without end

// Evaluates components; one for every thread.
class Trees {
public:
    explicit Trees(const Hidden &hidden) : h_(hidden), w_(*hidden.wiring), work_(w_.widest), options_(w_.widest) {}

    // Entry of factor f's table with i and j at state 0 and all others at y, and the strides of i and j.
    Cut cut(int64_t f, const int64_t *y, int64_t i, int64_t j) const {
        Cut out{0, 0, 0};
        int64_t stride = 1;
        for (int64_t s = w_.scope_ptr[f + 1] - 1; s >= w_.scope_ptr[f]; --s) {
            int64_t v = w_.scope[s];
            if (v == i) out.step_i = stride;
            else if (v == j) out.step_j = stride;
            else out.entry += stride * y[v];
            stride *= w_.slot_card(s);
        }
        return out;
    }

    // Selects an instance: sums over states are stored from its first state on.
    void enter(int64_t b) {
        first_ = w_.first_state(b);
        int64_t n = w_.end_state(b) - first_;
        if (int64_t(up_.size()) < n) up_.resize(n);
    }

    // PS_{eps_h} over component c given y; leaves the upward sums of every member in `up_`.
    double component_value(int64_t c, const int64_t *y) {
        for (int64_t k = h_.member_ptr[c]; k < h_.member_ptr[c + 1]; ++k) {
            int64_t h = h_.visit[k], card = w_.card(h);
            double *sum = up_.data() + (w_.state_ptr[h] - first_);
            for (int64_t x = 0; x < card; ++x) sum[x] = h_.unary[w_.state_ptr[h] + x];
            for (int64_t n = w_.near_ptr[h]; n < w_.near_ptr[h + 1]; ++n) {
                int64_t f = w_.slot_factor[w_.near[n]];
                if (h_.inside[f] != 1) continue;
                Cut at = cut(f, y, h, -1);
                for (int64_t x = 0; x < card; ++x) sum[x] += h_.tables[w_.table_at[f] + at.entry + x * at.step_i];
            }
        }
        for (int64_t k = h_.member_ptr[c + 1] - 1; k > h_.member_ptr[c]; --k) {
            int64_t h = h_.visit[k], p = h_.parent[h], f = h_.up[h], card = w_.card(h);
            const double *sum = up_.data() + (w_.state_ptr[h] - first_);
            double *above = up_.data() + (w_.state_ptr[p] - first_);
            Cut at = cut(f, y, h, p);
            for (int64_t z = 0; z < w_.card(p); ++z) {
                const double *table = h_.tables.data + w_.table_at[f] + at.entry + z * at.step_j;
                for (int64_t x = 0; x < card; ++x) work_[x] = sum[x] + table[x * at.step_i];
                above[z] += power_sum(work_.data(), card, h_.eps);
            }
        }
        int64_t root = h_.visit[h_.member_ptr[c]];
        return power_sum(up_.data() + (w_.state_ptr[root] - first_), w_.card(root), h_.eps);
    }

    // Q(y) of one instance.
    double value(int64_t b, const int64_t *y) {
        double total = 0.0;
        for (int64_t i = w_.var_ptr[b]; i < w_.var_ptr[b + 1]; ++i)
            if (h_.outside[i]) total += h_.unary[w_.state_ptr[i] + y[i]];
        for (int64_t f = w_.factor_ptr[b]; f < w_.factor_ptr[b + 1]; ++f)
            if (h_.inside[f] == 0) total += h_.tables[w_.table_at[f] + cut(f, y, -1, -1).entry];
        for (int64_t c = h_.ptr[b]; c < h_.ptr[b + 1]; ++c) total += component_value(c, y);
        return total;
    }

    // Adds `weight` times the marginals of component c given y.
    void add_marginals(int64_t c, const int64_t *y, double weight, const Floats &mu_unary, const Floats &mu_tables) {
        if (component_value(c, y) == -INF) return;
        if (belief_.size() < up_.size()) belief_.resize(up_.size());
        for (int64_t k = h_.member_ptr[c]; k < h_.member_ptr[c + 1]; ++k) {
            int64_t h = h_.visit[k], card = w_.card(h);
            double *belief = belief_.data() + (w_.state_ptr[h] - first_);
            if (h_.up[h] < 0) {
                std::copy_n(up_.data() + (w_.state_ptr[h] - first_), card, belief);
                softmax(belief, card, weight);
            } else {
                descend(h, y, mu_tables);
            }
            for (int64_t x = 0; x < card; ++x) mu_unary[w_.state_ptr[h] + x] += belief[x];
            for (int64_t n = w_.near_ptr[h]; n < w_.near_ptr[h + 1]; ++n) {
                int64_t f = w_.slot_factor[w_.near[n]];
                if (h_.inside[f] != 1) continue;
                Cut at = cut(f, y, h, -1);
                for (int64_t x = 0; x < card; ++x) mu_tables[w_.mu_at[f] + at.entry + x * at.step_i] += belief[x];
            }
        }
    }

    // Q(y with y_i = x) for every state x, up to a constant; -inf where x is not allowed.
    const double *options(int64_t i, int64_t *y) {
        if (stamps_.empty()) stamps_.resize(h_.member_ptr.size, 0);
        int64_t kept = y[i];
        for (int64_t x = 0; x < w_.card(i); ++x) {
            options_[x] = h_.unary[w_.state_ptr[i] + x];
            if (options_[x] == -INF) continue;
            y[i] = x;
            ++stamp_;
            for (int64_t k = w_.near_ptr[i]; k < w_.near_ptr[i + 1]; ++k)
                options_[x] += near_value(w_.slot_factor[w_.near[k]], y);
        }
        y[i] = kept;
        return options_.data();
    }

    // Set free outputs in turn to their best state until none gains.
    void ascend(int64_t b, const Bytes8 &free, int64_t *y) {
        int64_t first = w_.var_ptr[b], n = w_.var_ptr[b + 1] - first;
        for (int64_t quiet = 0, k = 0; quiet < n; k = (k + 1) % n) {
            ++quiet;
            int64_t i = first + k;
            if (!free[i]) continue;
            const double *option = options(i, y);
            int64_t best = y[i];
            for (int64_t x = 0; x < w_.card(i); ++x)
                if (option[x] > option[best]) best = x;
            if (option[best] > option[y[i]] + LEAST_GAIN * (1.0 + std::abs(option[best]))) {
                y[i] = best;
                quiet = 0;
            }
        }
    }

    // Operations of one round over all outputs, roughly: states tried times members of the components touched.
    double round_cost(int64_t b, const Bytes8 &free) const {
        double total = 1.0;
        for (int64_t i = w_.var_ptr[b]; i < w_.var_ptr[b + 1]; ++i) {
            if (!free[i]) continue;
            double card = double(w_.card(i));
            for (int64_t k = w_.near_ptr[i]; k < w_.near_ptr[i + 1]; ++k) {
                int64_t f = w_.slot_factor[w_.near[k]];
                total += card;
                for (int64_t s = w_.scope_ptr[f]; s < w_.scope_ptr[f + 1]; ++s) {
                    int64_t v = w_.scope[s];
                    if (h_.outside[v]) continue;
                    int64_t c = h_.component[v];
                    double n = double(h_.member_ptr[c + 1] - h_.member_ptr[c]), states = double(w_.card(v));
                    total += 8.0 * card * n * (n == 1.0 ? states : states * states);
                }
            }
        }
        return total;
    }

    // A state with probability ~ exp(option / t).
    int64_t draw(int64_t card, double t, double uniform) {
        double top = -INF, total = 0.0;
        for (int64_t x = 0; x < card; ++x) top = std::max(top, options_[x]);
        for (int64_t x = 0; x < card; ++x) {
            options_[x] = std::exp((options_[x] - top) / t);
            total += options_[x];
        }
        double left = uniform * total;
        for (int64_t x = 0; x < card; ++x) {
            left -= options_[x];
            if (left <= 0.0 && options_[x] > 0.0) return x;
        }
        return std::max_element(options_.begin(), options_.begin() + card) - options_.begin();
    }

private:
    // Scores are compared with the largest, not with their power sum, whose rounding a tiny eps would magnify.
    void softmax(double *values, int64_t n, double weight) const {
        double top = -INF, total = 0.0;
        for (int64_t x = 0; x < n; ++x) top = std::max(top, values[x]);
        for (int64_t x = 0; x < n; ++x) {
            values[x] = std::exp((values[x] - top) / h_.eps);
            total += values[x];
        }
        for (int64_t x = 0; x < n; ++x) values[x] *= weight / total;
    }

    // The belief of h from that of its parent.
    void descend(int64_t h, const int64_t *y, const Floats &mu_tables) {
        int64_t p = h_.parent[h], f = h_.up[h], card = w_.card(h);
        const double *sum = up_.data() + (w_.state_ptr[h] - first_),
                     *above = belief_.data() + (w_.state_ptr[p] - first_);
        double *belief = belief_.data() + (w_.state_ptr[h] - first_);
        std::fill_n(belief, card, 0.0);
        Cut at = cut(f, y, h, p);
        for (int64_t z = 0; z < w_.card(p); ++z) {
            if (above[z] == 0.0) continue;
            int64_t entry = at.entry + z * at.step_j;
            for (int64_t x = 0; x < card; ++x) work_[x] = sum[x] + h_.tables[w_.table_at[f] + entry + x * at.step_i];
            softmax(work_.data(), card, above[z]);
            for (int64_t x = 0; x < card; ++x) {
                belief[x] += work_[x];
                mu_tables[w_.mu_at[f] + entry + x * at.step_i] += work_[x];
            }
        }
    }

    // What a factor adds to Q(y), with all of the components it touches that have not been counted yet.
    double near_value(int64_t f, const int64_t *y) {
        if (h_.inside[f] == 0) return h_.tables[w_.table_at[f] + cut(f, y, -1, -1).entry];
        double total = 0.0;
        for (int64_t s = w_.scope_ptr[f]; s < w_.scope_ptr[f + 1]; ++s) {
            int64_t v = w_.scope[s];
            if (h_.outside[v] || stamps_[h_.component[v]] == stamp_) continue;
            stamps_[h_.component[v]] = stamp_;
            total += component_value(h_.component[v], y);
        }
        return total;
    }

    const Hidden &h_;
    const Wiring &w_;
    int64_t first_ = 0, stamp_ = 0;
    std::vector<double> up_, belief_, work_, options_;
    std::vector<int64_t> stamps_;
};

// `work(trees, b)` for every instance, blocks on several threads; with `forest_only`, for those whose components are
// trees.
template <class Work> void each_tree(const Hidden &hidden, const Ints &instances, int64_t threads, bool forest_only,
                                     Work work) {
    constexpr int64_t SIZE = 8;
    parallel_for((instances.size + SIZE - 1) / SIZE, int(threads), [&](int64_t block) {
        Trees trees(hidden);
        for (int64_t k = block * SIZE; k < std::min(instances.size, (block + 1) * SIZE); ++k) {
            int64_t b = instances[k];
            if (forest_only && !hidden.forest[b]) continue;
            trees.enter(b);
            work(trees, b);
        }
    });
}

struct EvaluateCall {
    int64_t bytes;
    const Hidden *hidden;
    Ints instances, y;
    Floats value;
    int64_t threads;
};

struct MarginalCall {
    int64_t bytes;
    const Hidden *hidden;
    Ints instances, y;
    Floats mu_unary, mu_tables;
    int64_t threads;
};

struct AnnealCall {
    int64_t bytes;
    const Hidden *hidden;
    Ints instances, y;
    Bytes8 free;
    Floats hot, cold, draws;
    int64_t rounds;
    double budget;
    int64_t threads;
};

// `Borders`. If there are marginals to add to, `weights` are read; otherwise `values` are written.
struct BorderCall {
    int64_t bytes;
    const Hidden *hidden;
    Ints ptr, var, entry_ptr, instances, y;
    Floats values, weights, mu_unary, mu_tables;
    int64_t threads;
};

void checked(const Hidden *hidden, const Ints &instances, const Ints &y) {
    require(hidden != nullptr, "no components were given.");
    hidden->check();
    check_instances(*hidden->wiring, instances);
    require(y.size == hidden->outside.size, "one state for every variable.");
}

void anneal(const AnnealCall &call, Trees &trees, int64_t b) {
    const Wiring &w = *call.hidden->wiring;
    int64_t n = 0, drawn = 0;
    if (call.rounds > 0) n = std::min(call.rounds, int64_t(call.budget / trees.round_cost(b, call.free)));
    for (int64_t k = 0; k < n; ++k) {
        double done = double(k) / double(std::max<int64_t>(n - 1, 1));
        double t = call.hot[b] * std::pow(call.cold[b] / call.hot[b], done);
        for (int64_t i = w.var_ptr[b]; i < w.var_ptr[b + 1]; ++i) {
            if (!call.free[i]) continue;
            trees.options(i, call.y.data);
            call.y[i] = trees.draw(w.card(i), t, call.draws[drawn++]);
        }
    }
    trees.ascend(b, call.free, call.y.data);
}

// visit(entry, members) at every joint state of the border of component c, in C order; `members` are its variables.
template <class Visit> void each_border_state(const BorderCall &call, int64_t c, int64_t *y, Visit visit) {
    const Wiring &w = *call.hidden->wiring;
    Ints members = call.var.part(call.ptr[c], call.ptr[c + 1] - call.ptr[c]);
    for (int64_t v : members) y[v] = 0;
    for (int64_t entry = call.entry_ptr[c]; entry < call.entry_ptr[c + 1]; ++entry) {
        visit(entry, members);
        for (int64_t k = members.size - 1; k >= 0; --k) {
            int64_t v = members[k];
            if (++y[v] < w.card(v)) break;
            y[v] = 0;
        }
    }
}

// At every state of the borders of an instance: the value of the component, or without `values` its weighted marginals.
void evaluate_borders(const BorderCall &call, Trees &trees, int64_t b, int64_t *y) {
    const Wiring &w = *call.hidden->wiring;
    const Hidden &hidden = *call.hidden;
    for (int64_t c = hidden.ptr[b]; c < hidden.ptr[b + 1]; ++c)
        each_border_state(call, c, y, [&](int64_t entry, const Ints &members) {
            if (call.values.empty()) {
                if (call.weights[entry] > 0.0)
                    trees.add_marginals(c, y, call.weights[entry], call.mu_unary, call.mu_tables);
                return;
            }
            bool allowed = true;
            for (int64_t v : members) allowed &= hidden.unary[w.state_ptr[v] + y[v]] > -INF;
            call.values[entry] = allowed ? trees.component_value(c, y) : 0.0;
        });
}

}  // namespace

MSSVM_API mssvm_conditional_evaluate(const EvaluateCall *record) {
    return guarded(record, [](const EvaluateCall &call) -> int64_t {
        checked(call.hidden, call.instances, call.y);
        require(call.value.size == call.hidden->forest.size, "one value for every instance.");
        for (int64_t b : call.instances) call.value[b] = std::nan("");
        each_tree(*call.hidden, call.instances, call.threads, true,
                  [&](Trees &trees, int64_t b) { call.value[b] = trees.value(b, call.y.data); });
        return 0;
    });
}

MSSVM_API mssvm_conditional_marginals(const MarginalCall *record) {
    return guarded(record, [](const MarginalCall &call) -> int64_t {
        checked(call.hidden, call.instances, call.y);
        require(call.mu_unary.size == call.hidden->unary.size, "one marginal for every state.");
        const Wiring &w = *call.hidden->wiring;
        each_tree(*call.hidden, call.instances, call.threads, true, [&](Trees &trees, int64_t b) {
            for (int64_t i = w.var_ptr[b]; i < w.var_ptr[b + 1]; ++i)
                if (call.hidden->outside[i]) call.mu_unary[w.state_ptr[i] + call.y[i]] += 1.0;
            for (int64_t f = w.factor_ptr[b]; f < w.factor_ptr[b + 1]; ++f)
                if (call.hidden->inside[f] == 0)
                    call.mu_tables[w.mu_at[f] + trees.cut(f, call.y.data, -1, -1).entry] += 1.0;
            for (int64_t c = call.hidden->ptr[b]; c < call.hidden->ptr[b + 1]; ++c)
                trees.add_marginals(c, call.y.data, 1.0, call.mu_unary, call.mu_tables);
        });
        return 0;
    });
}

MSSVM_API mssvm_conditional_anneal(const AnnealCall *record) {
    return guarded(record, [](const AnnealCall &call) -> int64_t {
        checked(call.hidden, call.instances, call.y);
        require(call.free.size == call.y.size, "one flag for every variable.");
        int64_t n = call.hidden->forest.size;
        require(call.rounds == 0 || (call.hot.size == n && call.cold.size == n), "one temperature for every instance.");
        for (int64_t b : call.instances) {
            int64_t outputs = 0;
            for (int64_t i = call.hidden->wiring->var_ptr[b]; i < call.hidden->wiring->var_ptr[b + 1]; ++i)
                outputs += call.free[i];
            require(call.draws.size >= call.rounds * outputs, "there are too few random numbers.");
        }
        each_tree(*call.hidden, call.instances, call.threads, true,
                  [&](Trees &trees, int64_t b) { anneal(call, trees, b); });
        return 0;
    });
}

// V_c into `values`, or marginals given the border by `weights`.
MSSVM_API mssvm_conditional_borders(const BorderCall *record) {
    return guarded(record, [](const BorderCall &call) -> int64_t {
        checked(call.hidden, call.instances, call.y);
        require(call.ptr.size == call.hidden->member_ptr.size && call.entry_ptr.size == call.ptr.size,
                "borders differ in number.");
        int64_t entries = call.entry_ptr[call.entry_ptr.size - 1];
        require(call.values.size == entries || (call.values.empty() && call.weights.size == entries),
                "one number for every state of a border.");
        each_tree(*call.hidden, call.instances, call.threads, false, [&](Trees &trees, int64_t b) {
            // Other blocks have borders of their own: only the variables of this instance are written.
            evaluate_borders(call, trees, b, call.y.data);
        });
        return 0;
    });
}
