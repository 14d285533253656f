// Branch and bound over the outputs of a marginal MAP problem, and the bounds that it prunes with.
//
// The conditional bound: hidden variables are eliminated given the outputs decided so far; tables of open outputs are
// replaced by their maxima over these (a version of the table for every number of decided outputs). After a decision
// only the messages between its tables and the roots are computed again. The bound is exact once all outputs are
// decided.
#include <algorithm>
#include <cmath>

#include "elimination.hpp"

using namespace mssvm;

namespace {

constexpr double UNDERFLOW_AT = -640.0;  // products whose logarithms sum to less than this may underflow

// Layout of the buckets. Input i of a step reads table `source[i]`, or the message of step -1 - source[i]; entry k of a
// step's clique, the eliminated variable last, is its entry gather[gather_at[i] + k].
struct Buckets {
    int64_t bytes;
    Ints input_ptr, source, gather_at, gather, card, message_at, message_size;
    Ints path_ptr, path;                   // steps that a variable's state changes
    Ints near_ptr, near, stride, version;  // tables of a variable, its stride in them, and their sizes
    Ints whole;                            // tables without hidden variables
    Floats log, prob, floor;               // scores, probabilities, log of a table's smallest positive probability
};

// The state of a search: places in the tables; messages, the logarithms of their scales and smallest entries; which
// messages are stale.
struct State {
    int64_t bytes;
    Ints place;
    Floats messages, scale, least, clique;
    Ints stale;
};

class ConditionalBound {
public:
    ConditionalBound(const Buckets &buckets, const State &state, double eps) : b_(buckets), s_(state), eps_(eps) {
        int64_t steps = b_.card.size;
        bool sound = b_.input_ptr.size == steps + 1 && b_.message_at.size >= steps && b_.message_size.size == steps;
        sound = sound && s_.scale.size == steps && s_.least.size == steps && s_.stale.size == steps;
        sound = sound && b_.stride.size == b_.near.size && b_.version.size == b_.near.size;
        sound = sound && b_.log.size == b_.prob.size && b_.path_ptr.size == b_.near_ptr.size;
        require(sound, "buckets and their state have other sizes.");
    }

    // Decides the state of an output (sign 1), or undoes the decision (-1).
    void decide(int64_t v, int64_t value, int64_t sign) {
        for (int64_t e = b_.near_ptr[v]; e < b_.near_ptr[v + 1]; ++e)
            s_.place[b_.near[e]] += sign * (b_.version[e] + b_.stride[e] * value);
        for (int64_t k = b_.path_ptr[v]; k < b_.path_ptr[v + 1]; ++k) s_.stale[b_.path[k]] = 1;
    }

    // The bound given the decided outputs; infinite where a product might underflow.
    double value() {
        double total = 0.0, direct = 0.0;
        bool safe = true;
        for (int64_t s = 0; s < b_.card.size; ++s) {
            if (s_.stale[s]) {
                s_.stale[s] = 0;
                eliminate(s);
            }
            total += s_.scale[s];
            safe = safe && s_.least[s] > -INF;
        }
        if (!safe) return INF;
        for (int64_t f : b_.whole) direct += b_.log[s_.place[f]];
        return direct + (eps_ > 0.0 ? eps_ : 1.0) * total;
    }

private:
    void eliminate(int64_t s) {
        int64_t card = b_.card[s], size = b_.message_size[s], first = b_.input_ptr[s];
        double *x = s_.clique.data, *message = s_.messages.data + b_.message_at[s];
        double least = 0.0;
        for (int64_t i = first; i < b_.input_ptr[s + 1]; ++i) {
            int64_t source = b_.source[i];
            const int64_t *gather = b_.gather.data + b_.gather_at[i];
            bool table = source >= 0;
            const double *from =
                table ? b_.prob.data + s_.place[source] : s_.messages.data + b_.message_at[-1 - source];
            least += table ? b_.floor[source] : s_.least[-1 - source];
            if (i == first) {
                for (int64_t k = 0; k < size * card; ++k) x[k] = from[gather[k]];
            } else {
                for (int64_t k = 0; k < size * card; ++k) x[k] *= from[gather[k]];
            }
        }
        double top = 0.0, low = 1.0;
        for (int64_t k = 0; k < size; ++k) {
            double total = 0.0;
            for (int64_t j = 0; j < card; ++j) {
                double entry = x[k * card + j];
                total = eps_ == 0.0 ? std::max(total, entry) : total + entry;
            }
            message[k] = total;
            top = std::max(top, total);
        }
        for (int64_t k = 0; top > 0.0 && k < size; ++k) {
            message[k] /= top;
            if (message[k] > 0.0) low = std::min(low, message[k]);
        }
        s_.scale[s] = top > 0.0 ? std::log(top) : -INF;
        s_.least[s] = least > UNDERFLOW_AT ? std::log(low) : -INF;
    }

    const Buckets &b_;
    const State &s_;
    double eps_;
};

// The places of step s's inputs at an entry of its message.
void locate_inputs(const Program &p, int64_t s, int64_t entry, std::vector<int64_t> &at) {
    int64_t first = p.input_ptr[s], inputs = p.input_ptr[s + 1] - first;
    for (int64_t i = 0; i < inputs; ++i) at[i] = p.input_at[first + i];
    int64_t axes = p.axis_ptr[s + 1] - p.axis_ptr[s];
    for (int64_t axis = axes - 1; axis >= 0; --axis) {
        int64_t size = p.axis_size[p.axis_ptr[s] + axis], digit = entry % size;
        entry /= size;
        for (int64_t i = 0; i < inputs; ++i) at[i] += digit * p.stride[p.stride_ptr[first + i] + axis];
    }
}

// The place of step s's message at the states of its separator; `at` gets the places of its inputs there.
int64_t locate(const Program &p, int64_t s, const Ints &states, std::vector<int64_t> &at) {
    int64_t entry = 0;
    for (int64_t k = p.separator_ptr[s]; k < p.separator_ptr[s + 1]; ++k)
        entry += states[p.separator[k]] * p.separator_stride[k];
    locate_inputs(p, s, entry, at);
    return p.message_at[s] + entry;
}

struct Descend {
    int64_t bytes;
    const Program *program;
    Floats work;
    Ints states;
    Floats bound, open;  // by depth: bound of the assignment so far; a row with the bounds of the untried states
    int64_t width;       // width of a row of `open`
    double lower;
    int64_t budget;
    const Buckets *buckets;
    const State *state;
    double eps;
    int64_t known;  // whether the conditional bound is available
    Ints depth;     // depth of the search, read and written
};

// Depth-first, last eliminated first, best state first. Returns 1 at a leaf, where all outputs are assigned; depth -1
// without a leaf means that the tree is exhausted.
class Descent {
public:
    explicit Descent(const Descend &call)
        : c_(call),
          p_(*call.program),
          conditional_(*call.buckets, *call.state, call.eps),
          at_(p_.max_inputs),
          last_(p_.positions() - 1),
          levels_(p_.positions() - p_.n_hidden) {}

    bool run() {
        int64_t &depth = c_.depth[0];
        if (levels_ == 0) {
            depth = 0;
            return true;
        }
        if (depth < 0) {
            depth = 0;
            extend(depth, c_.bound[0]);
        } else if (depth == levels_) {
            undo(--depth);
        }
        for (int64_t step = 0; step < c_.budget; ++step) {
            double *row = c_.open.data + depth * c_.width;
            int64_t best = std::max_element(row, row + c_.width) - row;
            double bound = row[best];
            if (!(bound > c_.lower)) {
                if (--depth < 0) return false;
                undo(depth);
                continue;
            }
            int64_t v = variable(depth);
            row[best] = -INF;
            c_.states[v] = best;
            conditional_.decide(v, best, 1);
            if (c_.known) {
                bound = std::min(bound, conditional_.value());
                if (!(bound > c_.lower)) {
                    conditional_.decide(v, best, -1);
                    continue;
                }
            }
            c_.bound[++depth] = bound;
            if (depth == levels_) return true;
            extend(depth, bound);
        }
        return false;
    }

private:
    int64_t variable(int64_t depth) const { return p_.var[p_.position_ptr[last_ - depth]]; }

    void undo(int64_t depth) {
        int64_t v = variable(depth);
        conditional_.decide(v, c_.states[v], -1);
    }

    // Bounds of the assignment down to a depth, extended by each state of the variable there.
    void extend(int64_t depth, double bound) {
        int64_t position = last_ - depth, first = p_.position_ptr[position], card = p_.card[first];
        double *row = c_.open.data + depth * c_.width;
        std::fill(row, row + c_.width, -INF);
        std::fill(row, row + card, bound);
        for (int64_t s = first; s < p_.position_ptr[position + 1]; ++s) {
            int64_t message = locate(p_, s, c_.states, at_);
            int64_t inputs = p_.input_ptr[s + 1] - p_.input_ptr[s];
            for (int64_t i = 0; i < inputs; ++i)
                for (int64_t j = 0; j < card; ++j) row[j] += c_.work[at_[i] + j];
            for (int64_t j = 0; j < card; ++j) row[j] -= c_.work[message];
        }
    }

    const Descend &c_;
    const Program &p_;
    ConditionalBound conditional_;
    std::vector<int64_t> at_;
    int64_t last_, levels_;
};

struct Evaluate {
    int64_t bytes;
    const Buckets *buckets;
    const State *state;
    double eps;
    Floats value;
};

struct Decide {
    int64_t bytes;
    const Buckets *buckets;
    const State *state;
    int64_t variable, value, sign;
};

struct StateBounds {
    int64_t bytes;
    const Program *program;
    Floats work;
    Ints unary_ptr;
    Floats bounds;
};

// After a run with the outputs at temperature zero: lowers the bounds of their states to those that the run implies.
// The steps of outputs are visited from last to first; the bound of an entry of a step, over everything else, follows
// from the bound of its message's entry. An output with several steps gets the least of their bounds.
int64_t state_bounds(const StateBounds &c) {
    const Program &p = nested(c.program);
    require(c.work.size >= std::max<int64_t>(p.n_work, 1), "the work vector is too short.");
    std::vector<double> rest(c.work.size, -INF), best(p.max_card);
    std::vector<int64_t> at(p.max_inputs);
    double total = c.work[0];
    for (int64_t s = 0; s < p.steps(); ++s) {
        if (p.separator_ptr[s] == p.separator_ptr[s + 1]) total += c.work[p.message_at[s]];
    }
    for (int64_t s = p.steps() - 1; s >= 0 && p.output[s]; --s) {
        int64_t message = p.message_at[s], inputs = p.input_ptr[s + 1] - p.input_ptr[s];
        if (p.separator_ptr[s] == p.separator_ptr[s + 1]) rest[message] = total - c.work[message];
        std::fill(best.begin(), best.end(), -INF);
        for (int64_t k = 0; k < p.message_size[s]; ++k) {
            if (rest[message + k] == -INF) continue;
            locate_inputs(p, s, k, at);
            for (int64_t j = 0; j < p.card[s]; ++j) {
                double value = rest[message + k];
                for (int64_t i = 0; i < inputs; ++i) value += c.work[at[i] + j];
                if (!(value > -INF)) continue;
                best[j] = std::max(best[j], value);
                for (int64_t i = 0; i < inputs; ++i) {
                    double &other = rest[at[i] + j];
                    other = std::max(other, value - c.work[at[i] + j]);
                }
            }
        }
        int64_t v = p.var[s];
        require(v + 1 < c.unary_ptr.size && c.unary_ptr[v] + p.card[s] <= c.bounds.size, "bounds have another size.");
        for (int64_t j = 0; j < p.card[s]; ++j) {
            double &bound = c.bounds[c.unary_ptr[v] + j];
            bound = std::min(bound, best[j]);
        }
    }
    return 0;
}

}  // namespace

MSSVM_API mssvm_branching_descend(const Descend *call) {
    return guarded(call, [](const Descend &c) -> int64_t {
        const Program &p = nested(c.program);
        nested(c.buckets);
        nested(c.state);
        int64_t levels = p.positions() - p.n_hidden;
        require(c.work.size >= p.n_work && c.depth.size == 1, "the work vector is too short.");
        require(c.width >= p.max_card || levels == 0, "rows of open bounds are too short.");
        require(c.bound.size > levels && c.open.size >= levels * c.width, "there are too few rows of bounds.");
        require(c.depth[0] >= -1 && c.depth[0] <= levels, "the tree has no such depth.");
        return Descent(c).run();
    });
}

MSSVM_API mssvm_branching_value(const Evaluate *call) {
    return guarded(call, [](const Evaluate &c) -> int64_t {
        require(c.value.size == 1, "one number is returned.");
        c.value[0] = ConditionalBound(nested(c.buckets), nested(c.state), c.eps).value();
        return 0;
    });
}

MSSVM_API mssvm_branching_decide(const Decide *call) {
    return guarded(call, [](const Decide &c) -> int64_t {
        const Buckets &buckets = nested(c.buckets);
        bool known = c.variable >= 0 && c.variable < buckets.near_ptr.size - 1;
        require(known && (c.sign == 1 || c.sign == -1), "only the state of a variable can be decided or undone.");
        ConditionalBound(buckets, nested(c.state), 1.0).decide(c.variable, c.value, c.sign);
        return 0;
    });
}

MSSVM_API mssvm_branching_state_bounds(const StateBounds *call) { return guarded(call, state_bounds); }
