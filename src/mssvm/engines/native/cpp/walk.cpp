// Large-neighbourhood search for marginal MAP: a move sets the outputs of a small region to their best states given the
// outputs outside. Hidden variables of the region are summed out exactly, by elimination in small arrays.
//
// Tables are probabilities, exp(scores / eps_h), and every message is divided by its largest entry. Random noise on the
// scores of outputs, whose size falls from `hot` to `cold`, lets the walk leave local optima.
#include <cmath>

#include "support.hpp"

using namespace mssvm;

namespace {

// Limits of one region; a larger region is skipped.
constexpr int64_t MOST_VARIABLES = 512, MOST_FUNCTIONS = 4096, MOST_AXES = 20, MOST_MEMBERS = 256;
constexpr int64_t ARENA = 1 << 19;  // entries of all functions together
constexpr double SKIPPED = 0.15;    // share of the outputs that a region leaves out at random, so that regions differ
constexpr double SMALLEST = 1e-300;

struct Walk {
    int64_t bytes;
    const ConstraintGraph *wiring;
    Bytes8 hard;
    Floats scores, prob;    // scores of states, then of tables (where `wiring` finds them); prob = exp(scores / eps_h)
    Bytes8 possible, free;  // states that are not forbidden; outputs that may move
    Ints states;            // by variable; those of outputs are changed in place
    Floats draws;           // rows of random numbers in (0, 1), one a region
    int64_t columns;        // random numbers in a row
    double hot, cold;       // temperatures of the noise at the first region and after the last
    double most_entries;    // entries of a clique
    double most_outputs, least_power;  // outputs of a region; the least number is the most to this power
    double eps;
    Floats progress;  // the value of the states, and the best one seen
    Ints best;        // states of the best value
};

// A table over local variables: entries at `at` of the arena, in C order of `scope`.
struct Function {
    std::vector<int64_t> scope;
    int64_t at;
};

class Region {
public:
    explicit Region(const Walk &walk)
        : walk_(walk),
          w_(*walk.wiring),
          local_(w_.variables()),
          chosen_(w_.variables()),
          left_(w_.states()),
          open_(w_.variables()),
          seen_(w_.variables()),
          held_(w_.variables()),
          seen_factor_(w_.factors(), -1),
          adjacent_(MOST_VARIABLES * MOST_VARIABLES),
          arena_(ARENA),
          choice_(ARENA) {
        for (int64_t v = 0; v < w_.variables(); ++v) {
            if (walk.free[v]) centres_.push_back(v);
        }
    }

    bool has_centres() const { return !centres_.empty(); }

    // One move, the k-th, with its row of random numbers, at a temperature.
    void move(int64_t k, const double *draws, double temperature) {
        draws_ = draws;
        double power = walk_.least_power + (1.0 - walk_.least_power) * draws[1];
        find_outputs(centres_[int64_t(draws[0] * double(centres_.size()))],
                     int64_t(std::pow(walk_.most_outputs, power)));
        propagate();
        if (!collect() || outputs_ == 0) return;
        for (int64_t v = 0; v < outputs_; ++v) old_[v] = index_of(v, walk_.states[name_[v]]);
        if (!find_order()) return;
        draw_noise(temperature);
        if (!cut_functions(k)) return;
        double gain = 0.0;
        if (!solve(gain)) return;
        for (int64_t v = 0; v < outputs_; ++v) walk_.states[name_[v]] = values_[v][new_[v]];
        walk_.progress[0] += gain * (walk_.eps > 0.0 ? walk_.eps : 1.0);
        if (walk_.progress[0] > walk_.progress[1] + 1e-9) {
            walk_.progress[1] = walk_.progress[0];
            std::copy(walk_.states.begin(), walk_.states.end(), walk_.best.begin());
        }
    }

private:
    int64_t size(int64_t v) const { return int64_t(values_[v].size()); }

    int64_t index_of(int64_t v, int64_t state) const {
        return std::find(values_[v].begin(), values_[v].end(), state) - values_[v].begin();
    }

    // Up to `most` free outputs near a centre, itself first, breadth first.
    void find_outputs(int64_t centre, int64_t most) {
        region_.clear();
        queue_.assign(1, centre);
        std::fill(seen_.begin(), seen_.end(), 0);
        seen_[centre] = 1;
        for (size_t head = 0; head < queue_.size() && int64_t(region_.size()) < most; ++head) {
            int64_t v = queue_[head];
            double draw = draws_[int64_t(head + 1) % walk_.columns];
            if (walk_.free[v] && (v == centre || draw > SKIPPED)) region_.push_back(v);
            for (int64_t f : w_.factors_of(v)) {
                for (int64_t a = w_.scope_ptr[f]; a < w_.scope_ptr[f + 1]; ++a) {
                    if (seen_[w_.scope[a]]) continue;
                    seen_[w_.scope[a]] = 1;
                    queue_.push_back(w_.scope[a]);
                }
            }
        }
    }

    // The states that are left when all outputs but the region's are held.
    void propagate() {
        std::copy(walk_.free.begin(), walk_.free.end(), held_.begin());
        for (int64_t v : region_) held_[v] = 0;
        for (int64_t v = 0; v < w_.variables(); ++v) {
            for (int64_t s = w_.unary_ptr[v]; s < w_.unary_ptr[v + 1]; ++s) {
                left_[s] = held_[v] ? s - w_.unary_ptr[v] == walk_.states[v] : walk_.possible[s];
            }
        }
        arc_consistent(w_, walk_.hard, walk_.scores, {left_.data(), int64_t(left_.size())});
        for (int64_t v = 0; v < w_.variables(); ++v) {
            int64_t count = 0;
            for (int64_t s = w_.unary_ptr[v]; s < w_.unary_ptr[v + 1]; ++s) {
                if (!left_[s]) continue;
                chosen_[v] = s - w_.unary_ptr[v];
                ++count;
            }
            open_[v] = count > 1;
        }
    }

    // Names the open outputs of the region and the open hidden variables that they reach; false if there are too many.
    bool collect() {
        std::fill(local_.begin(), local_.end(), -1);
        name_.clear();
        for (int64_t v : region_) {
            if (open_[v]) add_local(v);
        }
        outputs_ = int64_t(name_.size());
        for (size_t head = 0; head < name_.size(); ++head) {
            for (int64_t f : w_.factors_of(name_[head])) {
                for (int64_t a = w_.scope_ptr[f]; a < w_.scope_ptr[f + 1]; ++a) {
                    int64_t u = w_.scope[a];
                    if (!open_[u] || local_[u] >= 0) continue;
                    if (int64_t(name_.size()) == MOST_VARIABLES) return false;
                    add_local(u);
                }
            }
        }
        n_ = int64_t(name_.size());
        values_.resize(n_);
        for (int64_t k = 0; k < n_; ++k) {
            int64_t first = w_.unary_ptr[name_[k]];
            values_[k].clear();
            for (int64_t s = first; s < w_.unary_ptr[name_[k] + 1]; ++s) {
                if (left_[s]) values_[k].push_back(s - first);
            }
        }
        old_.assign(n_, 0);
        new_.assign(n_, 0);
        return n_ <= MOST_VARIABLES;
    }

    void add_local(int64_t v) {
        local_[v] = int64_t(name_.size());
        name_.push_back(v);
    }

    uint8_t &adjacent(int64_t u, int64_t v) { return adjacent_[u * n_ + v]; }

    // Greedily the smallest clique first, hidden variables before outputs. Outputs of a clique that is too large are
    // held at their old states, at random, until it fits; false if that is not enough.
    bool find_order() {
        std::fill(adjacent_.begin(), adjacent_.begin() + n_ * n_, 0);
        std::vector<double> clique(n_, 1.0);
        for (int64_t v = 0; v < n_; ++v) {
            for (int64_t f : w_.factors_of(name_[v])) {
                for (int64_t a = w_.scope_ptr[f]; a < w_.scope_ptr[f + 1]; ++a) {
                    if (local_[w_.scope[a]] >= 0) adjacent(v, local_[w_.scope[a]]) = 1;
                }
            }
            adjacent(v, v) = 1;
            for (int64_t u = 0; u < n_; ++u) {
                if (adjacent(v, u)) clique[v] *= double(size(u));
            }
        }
        position_.assign(n_, -1);
        inverse_.assign(n_, -1);
        std::vector<int64_t> members;
        for (int64_t p = 0; p < n_; ++p) {
            bool hidden = p < n_ - outputs_;
            int64_t best = -1;
            for (int64_t v = hidden ? outputs_ : 0; v < (hidden ? n_ : outputs_); ++v) {
                if (position_[v] < 0 && (best < 0 || clique[v] < clique[best])) best = v;
            }
            members.clear();
            for (int64_t u = 0; u < n_; ++u) {
                if (adjacent(best, u)) members.push_back(u);
            }
            hold_outputs(members, clique, best, draws_[p % walk_.columns]);
            if (clique[best] > walk_.most_entries) return false;
            position_[best] = p;
            inverse_[p] = best;
            for (int64_t v : members) {
                if (v == best) continue;
                adjacent(v, best) = 0;
                clique[v] /= double(size(best));
                for (int64_t u : members) {
                    if (u == best || adjacent(v, u)) continue;
                    adjacent(v, u) = 1;
                    clique[v] *= double(size(u));
                }
            }
        }
        return true;
    }

    void hold_outputs(const std::vector<int64_t> &members, std::vector<double> &clique, int64_t best, double draw) {
        size_t count = members.size(), start = size_t(draw * double(count));
        for (size_t k = 0; k < count; ++k) {
            int64_t u = members[(start + k) % count];
            if (clique[best] <= walk_.most_entries || u >= outputs_ || size(u) == 1) continue;
            for (int64_t v = 0; v < n_; ++v) {
                if (adjacent(u, v)) clique[v] /= double(size(u));
            }
            values_[u] = {values_[u][old_[u]]};
            old_[u] = 0;
        }
    }

    // Factors exp(temperature * Gumbel noise / eps) of the states of outputs; outputs that are held leave the region.
    void draw_noise(double temperature) {
        double power = walk_.eps > 0.0 ? 1.0 / walk_.eps : 1.0;
        noise_.resize(outputs_);
        for (int64_t v = 0; v < outputs_; ++v) {
            noise_[v].resize(size(v));
            for (int64_t j = 0; j < size(v); ++j) {
                double u = draws_[2 + (7 * v + 3 * j) % (walk_.columns - 2)];
                noise_[v][j] = std::exp(-power * temperature * std::log(-std::log(u * 0.999998 + 1e-6)));
            }
            if (size(v) > 1) continue;
            local_[name_[v]] = -1;
            chosen_[name_[v]] = walk_.states[name_[v]];
        }
    }

    bool add_function(std::vector<int64_t> scope, int64_t entries) {
        if (int64_t(functions_.size()) == MOST_FUNCTIONS || used_ + entries > ARENA) return false;
        if (int64_t(scope.size()) > MOST_AXES) return false;
        functions_.push_back({std::move(scope), used_});
        used_ += entries;
        return true;
    }

    // Tables around the local variables, cut down to what is left and open; false if they do not fit.
    bool cut_functions(int64_t stamp) {
        functions_.clear();
        used_ = 0;
        for (int64_t k = 0; k < n_; ++k) {
            if (!add_function({k}, size(k))) return false;
            double *to = &arena_[functions_.back().at];
            for (int64_t j = 0; j < size(k); ++j) {
                to[j] = walk_.prob[w_.unary_ptr[name_[k]] + values_[k][j]] * (k < outputs_ ? noise_[k][j] : 1.0);
            }
        }
        for (int64_t k = 0; k < n_; ++k) {
            for (int64_t f : w_.factors_of(name_[k])) {
                if (seen_factor_[f] == stamp) continue;
                seen_factor_[f] = stamp;
                if (!cut(f)) return false;
            }
        }
        return true;
    }

    bool cut(int64_t f) {
        int64_t base = w_.table_at[f], entries = 1;
        std::vector<int64_t> scope;
        for (int64_t a = w_.scope_ptr[f]; a < w_.scope_ptr[f + 1]; ++a) {
            int64_t u = local_[w_.scope[a]];
            if (u < 0) {
                base += w_.stride[a] * chosen_[w_.scope[a]];
            } else {
                scope.push_back(u);
                entries *= size(u);
            }
        }
        if (!add_function(std::move(scope), entries)) return false;
        double *to = &arena_[functions_.back().at];
        for (int64_t entry = 0; entry < entries; ++entry) {
            int64_t rest = entry, source = base;
            for (int64_t a = w_.scope_ptr[f + 1] - 1; a >= w_.scope_ptr[f]; --a) {
                int64_t u = local_[w_.scope[a]];
                if (u < 0) continue;
                source += w_.stride[a] * values_[u][rest % size(u)];
                rest /= size(u);
            }
            to[entry] = walk_.prob[source];
        }
        return true;
    }

    // Eliminates everything: the best outputs come to `new_`, and `gain` is by how much they are better than the old
    // ones, noise aside (in units of eps_h). False if the functions do not fit.
    bool solve(double &gain) {
        std::vector<std::vector<int64_t>> bucket(n_);
        for (size_t f = 0; f < functions_.size(); ++f) {
            int64_t first = n_;
            for (int64_t v : functions_[f].scope) first = std::min(first, position_[v]);
            if (first < n_) bucket[first].push_back(int64_t(f));
        }
        std::vector<int64_t> message(n_), remaining;
        for (int64_t p = 0; p < n_; ++p) {
            if (p == n_ - outputs_) {  // what is left are functions of outputs alone
                for (int64_t q = p; q < n_; ++q) remaining.insert(remaining.end(), bucket[q].begin(), bucket[q].end());
            }
            bool maximise = inverse_[p] < outputs_ || walk_.eps == 0.0;
            message[p] = int64_t(functions_.size());
            if (!eliminate(p, bucket[p], maximise)) return false;
            const std::vector<int64_t> &scope = functions_.back().scope;
            if (!scope.empty()) bucket[position_[scope.back()]].push_back(message[p]);
        }
        for (int64_t p = n_ - 1; p >= n_ - outputs_; --p) new_[inverse_[p]] = choice_[entry_at(message[p], new_)];
        gain = 0.0;
        for (int64_t f : remaining) gain += score(f, new_) - score(f, old_);
        for (int64_t v = 0; v < outputs_; ++v) gain -= std::log(noise_[v][new_[v]]) - std::log(noise_[v][old_[v]]);
        return true;
    }

    int64_t entry_at(int64_t f, const std::vector<int64_t> &assigned) const {
        int64_t entry = 0;
        for (int64_t v : functions_[f].scope) entry = entry * size(v) + assigned[v];
        return functions_[f].at + entry;
    }

    double score(int64_t f, const std::vector<int64_t> &assigned) const {
        return std::log(std::max(arena_[entry_at(f, assigned)], SMALLEST));
    }

    // A new function without the variable at position p, from the functions of its bucket; where it maximises, the
    // best states are noted.
    bool eliminate(int64_t p, const std::vector<int64_t> &members, bool maximise) {
        int64_t v = inverse_[p], entries = 1;
        std::vector<char> inside(n_, 0);
        for (int64_t f : members) {
            for (int64_t u : functions_[f].scope) inside[u] = 1;
        }
        std::vector<int64_t> clique;  // last eliminated first, without v
        for (int64_t q = n_ - 1; q > p; --q) {
            if (!inside[inverse_[q]]) continue;
            clique.push_back(inverse_[q]);
            entries *= size(inverse_[q]);
        }
        int64_t axes = int64_t(clique.size());
        if (axes + 1 > MOST_AXES || int64_t(members.size()) > MOST_MEMBERS) return false;
        if (!add_function(clique, entries)) return false;
        clique.push_back(v);
        std::vector<int64_t> place, digit(axes, 0);
        std::vector<std::vector<int64_t>> stride;
        for (int64_t f : members) {
            place.push_back(functions_[f].at);
            stride.push_back(strides(f, clique));
        }
        int64_t at = functions_.back().at;
        double top = SMALLEST;
        for (int64_t k = 0; k < entries; ++k) {
            double total = 0.0;
            int64_t best = 0;
            for (int64_t j = 0; j < size(v); ++j) {
                double product = 1.0;
                for (size_t i = 0; i < members.size(); ++i) product *= arena_[place[i] + j * stride[i][axes]];
                if (!maximise) {
                    total += product;
                } else if (product > total) {
                    total = product;
                    best = j;
                }
            }
            arena_[at + k] = total;
            if (maximise) choice_[at + k] = int32_t(best);
            top = std::max(top, total);
            for (int64_t a = axes - 1; a >= 0; --a) {  // the odometer's next position
                bool turns = ++digit[a] == size(clique[a]);
                for (size_t i = 0; i < members.size(); ++i) {
                    place[i] += turns ? -(size(clique[a]) - 1) * stride[i][a] : stride[i][a];
                }
                if (!turns) break;
                digit[a] = 0;
            }
        }
        for (int64_t k = 0; k < entries; ++k) arena_[at + k] /= top;
        return true;
    }

    // How far a step along each axis of a clique moves in function f.
    std::vector<int64_t> strides(int64_t f, const std::vector<int64_t> &clique) const {
        std::vector<int64_t> out(clique.size(), 0);
        const std::vector<int64_t> &scope = functions_[f].scope;
        int64_t step = 1;
        for (size_t b = scope.size(); b-- > 0;) {
            for (size_t a = 0; a < clique.size(); ++a) {
                if (clique[a] == scope[b]) out[a] = step;
            }
            step *= size(scope[b]);
        }
        return out;
    }

    const Walk &walk_;
    const ConstraintGraph &w_;
    const double *draws_ = nullptr;
    std::vector<int64_t> centres_, region_, queue_;
    std::vector<int64_t> local_, chosen_;  // by variable: its local name or -1; its state where it is not open
    std::vector<uint8_t> left_;
    std::vector<char> open_, seen_, held_;
    std::vector<int64_t> seen_factor_;
    int64_t n_ = 0, outputs_ = 0;  // local variables, outputs first
    std::vector<int64_t> name_, old_, new_, position_, inverse_;
    std::vector<std::vector<int64_t>> values_;  // by local variable: its remaining states
    std::vector<std::vector<double>> noise_;
    std::vector<uint8_t> adjacent_;
    std::vector<Function> functions_;
    int64_t used_ = 0;
    std::vector<double> arena_;
    std::vector<int32_t> choice_;
};

}  // namespace

// One region for every row of draws.
MSSVM_API mssvm_regions_walk(const Walk *call) {
    return guarded(call, [](const Walk &c) -> int64_t {
        const ConstraintGraph &w = nested(c.wiring);
        check(w, c.scores);
        require(c.prob.size == c.scores.size && c.scores.size >= w.states(), "scores have another size.");
        require(c.hard.size == w.factors() && c.possible.size == w.states(), "masks have other sizes.");
        require(c.free.size == w.variables() && c.states.size == w.variables(), "outputs have another size.");
        require(c.best.size == w.variables() && c.progress.size == 2, "results have another size.");
        require(c.columns > 2 && c.draws.size % c.columns == 0, "draws need rows of at least three columns.");
        for (int64_t v = 0; v < w.variables(); ++v) {
            require(!c.free[v] || (c.states[v] >= 0 && c.states[v] < w.card(v)), "an output has no such state.");
        }
        Region region(c);
        if (!region.has_centres()) return 0;
        int64_t rows = c.draws.size / c.columns;
        for (int64_t k = 0; k < rows; ++k) {
            region.move(k, c.draws.data + k * c.columns, c.hot + (c.cold - c.hot) * double(k) / double(rows));
        }
        return rows;
    });
}
