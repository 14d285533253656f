// Large-neighbourhood search for marginal MAP: a move sets the outputs of a small region to their best states given the
// outputs outside. Hidden variables of the region are summed out exactly, by elimination in small arrays.
//
// Tables are probabilities, exp(scores / eps_h), and every message is divided by its largest entry. Random noise on the
// scores of outputs, whose size falls from `hot` to `cold`, lets the walk leave local optima.
#include <array>
#include <bit>
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
    double most_outputs, least_power;  // a region has most_outputs^p outputs, p at random from least_power to 1
    double eps;
    Floats progress;  // the value of the states, and the best one seen
    Ints best;        // states of the best value
};

// A table over local variables: entries at `at` of the arena, in C order of its scope (in `scopes_`, from `first` on).
struct Function {
    int64_t first, axes, at;
};

// A set of local variables.
using Set = std::array<uint64_t, MOST_VARIABLES / 64>;

class Region {
public:
    explicit Region(const Walk &walk)
        : walk_(walk),
          w_(*walk.wiring),
          local_(w_.variables(), -1),
          left_(w_.states()),
          domains_(w_, walk.hard, walk.scores, all_held()),
          seen_(w_.variables()),
          seen_factor_(w_.factors(), -1),
          adjacent_(MOST_VARIABLES),
          values_(MOST_VARIABLES),
          noise_(MOST_VARIABLES),
          bucket_(MOST_VARIABLES),
          arena_(ARENA),
          choice_(ARENA) {
        for (int64_t v = 0; v < w_.variables(); ++v) {
            if (walk.free[v]) centres_.push_back(v);
        }
        find_components();
        for (int64_t f = 0; f < w_.factors(); ++f) domains_.enqueue(f);
        walkable_ = !centres_.empty() && domains_.propagate() < 0;
    }

    // Whether there are outputs to move, and the states given are possible.
    bool walkable() const { return walkable_; }

    // One move, the k-th, with its row of random numbers, at a temperature.
    void move(int64_t k, const double *draws, double temperature) {
        draws_ = draws;
        double power = walk_.least_power + (1.0 - walk_.least_power) * draws[1];
        find_outputs(centres_[int64_t(draws[0] * double(centres_.size()))],
                     int64_t(std::pow(walk_.most_outputs, power)));
        find_affected();
        release();
        old_states_.clear();
        for (int64_t v : region_) old_states_.push_back(walk_.states[v]);
        double gain = 0.0;
        bool moved = collect() && outputs_ > 0 && optimise(k, temperature, gain);
        for (int64_t v : name_) local_[v] = -1;
        if (!hold()) {  // numbers were too small to tell what is possible
            for (size_t j = 0; j < region_.size(); ++j) walk_.states[region_[j]] = old_states_[j];
            release();
            hold();
            return;
        }
        if (!moved) return;
        walk_.progress[0] += gain * (walk_.eps > 0.0 ? walk_.eps : 1.0);
        if (walk_.progress[0] > walk_.progress[1] + 1e-9) {
            walk_.progress[1] = walk_.progress[0];
            std::copy(walk_.states.begin(), walk_.states.end(), walk_.best.begin());
        }
    }

private:
    int64_t size(int64_t v) const { return int64_t(values_[v].size()); }

    // Sets the open outputs of the region to their best states; false, and no state changed, if that takes too much.
    bool optimise(int64_t k, double temperature, double &gain) {
        for (int64_t v = 0; v < outputs_; ++v) old_[v] = index_of(v, walk_.states[name_[v]]);
        if (!find_order()) return false;
        draw_noise(temperature);
        if (!cut_functions(k) || !solve(gain)) return false;
        for (int64_t v = 0; v < outputs_; ++v) walk_.states[name_[v]] = values_[v][new_[v]];
        return true;
    }

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

    // The possible states, but of outputs only the present ones.
    Bytes8 all_held() {
        for (int64_t v = 0; v < w_.variables(); ++v) {
            for (int64_t s = w_.unary_ptr[v]; s < w_.unary_ptr[v + 1]; ++s) {
                left_[s] = walk_.free[v] ? s - w_.unary_ptr[v] == walk_.states[v] : walk_.possible[s];
            }
        }
        return {left_.data(), int64_t(left_.size())};
    }

    // Outputs that are held have one state, so that arc consistency never passes them: what it removes from the states
    // of other variables depends only on the outputs around their component.
    void find_components() {
        component_.assign(w_.variables(), -1);
        for (int64_t root = 0; root < w_.variables(); ++root) {
            if (component_[root] >= 0 || !is_inner(root)) continue;
            int64_t name = int64_t(members_of_.size());
            component_[root] = name;
            members_of_.push_back({root});
            for (size_t head = 0; head < members_of_[name].size(); ++head) {
                for (int64_t f : w_.factors_of(members_of_[name][head])) {
                    for (int64_t a = w_.scope_ptr[f]; a < w_.scope_ptr[f + 1]; ++a) {
                        int64_t u = w_.scope[a];
                        if (component_[u] >= 0 || !is_inner(u)) continue;
                        component_[u] = name;
                        members_of_[name].push_back(u);
                    }
                }
            }
        }
        is_affected_.assign(members_of_.size(), 0);
    }

    // Whether a variable is no output and has several possible states.
    bool is_inner(int64_t v) const {
        if (walk_.free[v]) return false;
        const uint8_t *first = &walk_.possible[w_.unary_ptr[v]];
        return std::count(first, first + w_.card(v), 1) > 1;
    }

    // The components around the outputs of the region.
    void find_affected() {
        affected_.clear();
        for (int64_t v : region_) {
            for (int64_t f : w_.factors_of(v)) {
                for (int64_t a = w_.scope_ptr[f]; a < w_.scope_ptr[f + 1]; ++a) {
                    int64_t name = component_[w_.scope[a]];
                    if (name < 0 || is_affected_[name]) continue;
                    is_affected_[name] = 1;
                    affected_.push_back(name);
                }
            }
        }
        for (int64_t name : affected_) is_affected_[name] = 0;
    }

    // The states that are left when all outputs but the region's are held.
    void release() {
        for (int64_t v : region_) restore(v);
        for (int64_t name : affected_) {
            for (int64_t v : members_of_[name]) restore(v);
        }
        domains_.propagate();
    }

    void restore(int64_t v) {
        for (int64_t s = w_.unary_ptr[v]; s < w_.unary_ptr[v + 1]; ++s) {
            if (walk_.possible[s]) domains_.restore(s);
        }
        for (int64_t f : w_.factors_of(v)) domains_.enqueue(f);
    }

    // Holds the outputs of the region again; false if their states turn out impossible.
    bool hold() {
        for (int64_t v : region_) {
            for (int64_t s = w_.unary_ptr[v]; s < w_.unary_ptr[v + 1]; ++s) {
                if (left_[s] && s - w_.unary_ptr[v] != walk_.states[v]) domains_.remove(s);
            }
        }
        bool possible = domains_.propagate() < 0;
        domains_.forget();
        return possible;
    }

    bool is_open(int64_t v) const { return domains_.sizes()[v] > 1; }

    // The state of a variable outside the elimination.
    int64_t state_of(int64_t v) const {
        if (walk_.free[v]) return walk_.states[v];
        const uint8_t *first = &left_[w_.unary_ptr[v]];
        return std::find(first, first + w_.card(v) - 1, 1) - first;
    }

    // Names the open outputs of the region and the open hidden variables that they reach; false if there are too many.
    bool collect() {
        name_.clear();
        for (int64_t v : region_) {
            if (is_open(v)) add_local(v);
        }
        outputs_ = int64_t(name_.size());
        for (size_t head = 0; head < name_.size(); ++head) {
            for (int64_t f : w_.factors_of(name_[head])) {
                for (int64_t a = w_.scope_ptr[f]; a < w_.scope_ptr[f + 1]; ++a) {
                    int64_t u = w_.scope[a];
                    if (local_[u] >= 0 || !is_open(u)) continue;
                    if (int64_t(name_.size()) == MOST_VARIABLES) return false;
                    add_local(u);
                }
            }
        }
        n_ = int64_t(name_.size());
        if (n_ > MOST_VARIABLES) return false;
        for (int64_t k = 0; k < n_; ++k) {
            int64_t first = w_.unary_ptr[name_[k]];
            values_[k].clear();
            for (int64_t s = first; s < w_.unary_ptr[name_[k] + 1]; ++s) {
                if (left_[s]) values_[k].push_back(s - first);
            }
        }
        old_.assign(n_, 0);
        new_.assign(n_, 0);
        return true;
    }

    void add_local(int64_t v) {
        local_[v] = int64_t(name_.size());
        name_.push_back(v);
    }

    bool has(const Set &set, int64_t v) const { return set[v / 64] >> (v % 64) & 1; }
    void add(Set &set, int64_t v) const { set[v / 64] |= uint64_t(1) << (v % 64); }
    void drop(Set &set, int64_t v) const { set[v / 64] &= ~(uint64_t(1) << (v % 64)); }
    int64_t words() const { return (n_ + 63) / 64; }

    // Calls `action` with every local variable of a set, in increasing order.
    template <class Action> void for_each(const Set &set, Action action) const {
        for (int64_t word = 0; word < words(); ++word) {
            for (uint64_t bits = set[word]; bits; bits &= bits - 1) action(64 * word + std::countr_zero(bits));
        }
    }

    // Greedily the smallest clique first, hidden variables before outputs. Outputs of a clique that is too large are
    // held at their old states, at random, until it fits; false if that is not enough.
    bool find_order() {
        clique_.assign(n_, 1.0);
        for (int64_t v = 0; v < n_; ++v) {
            Set &around = adjacent_[v];
            std::fill_n(around.begin(), words(), 0);
            add(around, v);
            for (int64_t f : w_.factors_of(name_[v])) {
                for (int64_t a = w_.scope_ptr[f]; a < w_.scope_ptr[f + 1]; ++a) {
                    if (local_[w_.scope[a]] >= 0) add(around, local_[w_.scope[a]]);
                }
            }
            for_each(around, [&](int64_t u) { clique_[v] *= double(size(u)); });
        }
        position_.assign(n_, -1);
        inverse_.assign(n_, -1);
        waiting_.clear();
        for (int64_t v = outputs_; v < n_; ++v) waiting_.push_back(v);
        for (int64_t p = 0; p < n_; ++p) {
            if (waiting_.empty()) {
                for (int64_t v = 0; v < outputs_; ++v) waiting_.push_back(v);
            }
            auto smaller = [&](int64_t u, int64_t v) { return clique_[u] < clique_[v]; };
            auto least = std::min_element(waiting_.begin(), waiting_.end(), smaller);
            int64_t best = *least;
            waiting_.erase(least);
            hold_outputs(best, draws_[p % walk_.columns]);
            if (clique_[best] > walk_.most_entries) return false;
            position_[best] = p;
            inverse_[p] = best;
            remove_from_graph(best);
        }
        return true;
    }

    // Connects the neighbours of a variable with each other, and with it no more.
    void remove_from_graph(int64_t best) {
        Set members = adjacent_[best];
        drop(members, best);
        for_each(members, [&](int64_t v) {
            Set &around = adjacent_[v];
            drop(around, best);
            clique_[v] /= double(size(best));
            for (int64_t word = 0; word < words(); ++word) {
                for (uint64_t bits = members[word] & ~around[word]; bits; bits &= bits - 1) {
                    clique_[v] *= double(size(64 * word + std::countr_zero(bits)));
                }
                around[word] |= members[word];
            }
        });
    }

    void hold_outputs(int64_t best, double draw) {
        if (clique_[best] <= walk_.most_entries) return;
        clique_members_.clear();
        for_each(adjacent_[best], [&](int64_t u) { clique_members_.push_back(u); });
        size_t count = clique_members_.size(), start = size_t(draw * double(count));
        for (size_t k = 0; k < count; ++k) {
            int64_t u = clique_members_[(start + k) % count];
            if (clique_[best] <= walk_.most_entries || u >= outputs_ || size(u) == 1) continue;
            for_each(adjacent_[u], [&](int64_t v) { clique_[v] /= double(size(u)); });
            values_[u] = {values_[u][old_[u]]};
            old_[u] = 0;
        }
    }

    // Factors exp(temperature * Gumbel noise / eps) of the states of outputs; outputs that are held leave the region.
    void draw_noise(double temperature) {
        double power = walk_.eps > 0.0 ? 1.0 / walk_.eps : 1.0;
        gumbel_.clear();
        for (int64_t k = 2; k < walk_.columns; ++k) {
            gumbel_.push_back(std::exp(-power * temperature * std::log(-std::log(draws_[k] * 0.999998 + 1e-6))));
        }
        for (int64_t v = 0; v < outputs_; ++v) {
            noise_[v].resize(size(v));
            for (int64_t j = 0; j < size(v); ++j) noise_[v][j] = gumbel_[(7 * v + 3 * j) % int64_t(gumbel_.size())];
            if (size(v) == 1) local_[name_[v]] = -1;
        }
    }

    // Adds a function whose scope is the end of `scopes_`, from `first` on; false if it does not fit.
    bool add_function(int64_t first, int64_t entries) {
        int64_t axes = int64_t(scopes_.size()) - first;
        if (int64_t(functions_.size()) == MOST_FUNCTIONS || used_ + entries > ARENA || axes > MOST_AXES) return false;
        functions_.push_back({first, axes, used_});
        used_ += entries;
        return true;
    }

    View<int64_t> scope_of(int64_t f) { return {&scopes_[functions_[f].first], functions_[f].axes}; }

    // Tables around the local variables, cut down to what is left and open; false if they do not fit.
    bool cut_functions(int64_t stamp) {
        functions_.clear();
        scopes_.clear();
        used_ = 0;
        for (int64_t k = 0; k < n_; ++k) {
            scopes_.push_back(k);
            if (!add_function(k, size(k))) return false;
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
        int64_t base = w_.table_at[f], entries = 1, first = int64_t(scopes_.size());
        axis_stride_.clear();
        for (int64_t a = w_.scope_ptr[f]; a < w_.scope_ptr[f + 1]; ++a) {
            int64_t u = local_[w_.scope[a]];
            if (u < 0) {
                base += w_.stride[a] * state_of(w_.scope[a]);
            } else {
                scopes_.push_back(u);
                axis_stride_.push_back(w_.stride[a]);
                entries *= size(u);
            }
        }
        if (!add_function(first, entries)) return false;
        double *to = &arena_[functions_.back().at];
        for (int64_t entry = 0; entry < entries; ++entry) {
            int64_t rest = entry, source = base;
            for (int64_t a = int64_t(axis_stride_.size()) - 1; a >= 0; --a) {
                const std::vector<int64_t> &values = values_[scopes_[first + a]];
                source += axis_stride_[a] * values[rest % int64_t(values.size())];
                rest /= int64_t(values.size());
            }
            to[entry] = walk_.prob[source];
        }
        return true;
    }

    // Eliminates everything: the best outputs come to `new_`, and `gain` is by how much they are better than the old
    // ones, noise aside (in units of eps_h). False if the functions do not fit.
    bool solve(double &gain) {
        for (int64_t p = 0; p < n_; ++p) bucket_[p].clear();
        for (int64_t f = 0; f < int64_t(functions_.size()); ++f) {
            int64_t first = n_;
            for (int64_t v : scope_of(f)) first = std::min(first, position_[v]);
            if (first < n_) bucket_[first].push_back(f);
        }
        message_.resize(n_);
        remaining_.clear();
        for (int64_t p = 0; p < n_; ++p) {
            if (p == n_ - outputs_) {  // what is left are functions of outputs alone
                for (int64_t q = p; q < n_; ++q) {
                    remaining_.insert(remaining_.end(), bucket_[q].begin(), bucket_[q].end());
                }
            }
            bool maximise = inverse_[p] < outputs_ || walk_.eps == 0.0;
            message_[p] = int64_t(functions_.size());
            if (!eliminate(p, bucket_[p], maximise)) return false;
            View<int64_t> scope = scope_of(message_[p]);
            if (!scope.empty()) bucket_[position_[scope[scope.size - 1]]].push_back(message_[p]);
        }
        for (int64_t p = n_ - 1; p >= n_ - outputs_; --p) new_[inverse_[p]] = choice_[entry_at(message_[p], new_)];
        gain = 0.0;
        for (int64_t f : remaining_) gain += score(f, new_) - score(f, old_);
        for (int64_t v = 0; v < outputs_; ++v) gain -= std::log(noise_[v][new_[v]]) - std::log(noise_[v][old_[v]]);
        return true;
    }

    int64_t entry_at(int64_t f, const std::vector<int64_t> &assigned) {
        int64_t entry = 0;
        for (int64_t v : scope_of(f)) entry = entry * size(v) + assigned[v];
        return functions_[f].at + entry;
    }

    double score(int64_t f, const std::vector<int64_t> &assigned) {
        return std::log(std::max(arena_[entry_at(f, assigned)], SMALLEST));
    }

    // A new function without the variable at position p, from the functions of its bucket; where it maximises, the
    // best states are noted.
    bool eliminate(int64_t p, const std::vector<int64_t> &members, bool maximise) {
        int64_t v = inverse_[p], entries = 1, first = int64_t(scopes_.size());
        find_clique(v, members);
        int64_t axes = int64_t(scopes_.size()) - first, count = int64_t(members.size());
        if (axes + 1 > MOST_AXES || count > MOST_MEMBERS) return false;
        for (int64_t a = 0; a < axes; ++a) entries *= size(scopes_[first + a]);
        if (!add_function(first, entries)) return false;
        scopes_.push_back(v);
        find_strides(first, axes + 1, members);
        scopes_.pop_back();
        place_.clear();
        for (int64_t f : members) place_.push_back(functions_[f].at);
        digit_.assign(axes, 0);
        int64_t at = functions_.back().at, card = size(v);
        const int64_t *step = &stride_[axes * count];
        double top = SMALLEST;
        for (int64_t k = 0; k < entries; ++k) {
            double total = 0.0;
            int64_t best = 0;
            for (int64_t j = 0; j < card; ++j) {
                double product = 1.0;
                for (int64_t i = 0; i < count; ++i) product *= arena_[place_[i] + j * step[i]];
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
                int64_t last = size(scopes_[first + a]) - 1;
                bool turns = digit_[a] == last;
                int64_t steps = turns ? -last : 1;
                for (int64_t i = 0; i < count; ++i) place_[i] += steps * stride_[a * count + i];
                digit_[a] += steps;
                if (!turns) break;
            }
        }
        for (int64_t k = 0; k < entries; ++k) arena_[at + k] /= top;
        return true;
    }

    // Appends the other variables of these functions to `scopes_`, last eliminated first.
    void find_clique(int64_t v, const std::vector<int64_t> &members) {
        size_t first = scopes_.size();
        Set inside{};
        add(inside, v);
        for (int64_t f : members) {
            for (int64_t a = 0; a < functions_[f].axes; ++a) {
                int64_t u = scopes_[functions_[f].first + a];
                if (has(inside, u)) continue;
                add(inside, u);
                scopes_.push_back(u);
            }
        }
        std::sort(scopes_.begin() + first, scopes_.end(),
                  [&](int64_t u, int64_t w) { return position_[u] > position_[w]; });
    }

    // How far a step along each axis of a clique (a part of `scopes_`) moves in each function, axis by axis.
    void find_strides(int64_t first, int64_t axes, const std::vector<int64_t> &members) {
        int64_t count = int64_t(members.size());
        stride_.assign(axes * count, 0);
        for (int64_t a = 0; a < axes; ++a) axis_of_[scopes_[first + a]] = a;
        for (int64_t i = 0; i < count; ++i) {
            View<int64_t> scope = scope_of(members[i]);
            int64_t step = 1;
            for (int64_t b = scope.size; b-- > 0;) {
                stride_[axis_of_[scope[b]] * count + i] = step;
                step *= size(scope[b]);
            }
        }
    }

    const Walk &walk_;
    const ConstraintGraph &w_;
    const double *draws_ = nullptr;
    bool walkable_ = false;
    std::vector<int64_t> centres_, region_, queue_, old_states_;
    std::vector<int64_t> local_;  // by variable: its local name or -1
    std::vector<uint8_t> left_;   // between moves with all outputs held
    Domains domains_;
    std::vector<int64_t> component_, affected_;
    std::vector<std::vector<int64_t>> members_of_;
    std::vector<char> is_affected_, seen_;
    std::vector<int64_t> seen_factor_;
    int64_t n_ = 0, outputs_ = 0;  // local variables, outputs first
    std::vector<int64_t> name_, old_, new_, position_, inverse_, waiting_, clique_members_;
    std::vector<double> clique_;  // by local variable: entries of its clique
    std::vector<Set> adjacent_;
    std::vector<std::vector<int64_t>> values_;  // by local variable: its remaining states
    std::vector<std::vector<double>> noise_;
    std::vector<double> gumbel_;
    std::vector<Function> functions_;
    std::vector<int64_t> scopes_;  // of all functions, one after the other
    std::vector<std::vector<int64_t>> bucket_;
    std::vector<int64_t> message_, remaining_, place_, digit_, stride_, axis_stride_;
    std::array<int64_t, MOST_VARIABLES> axis_of_{};
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
        if (!region.walkable()) return 0;
        int64_t rows = c.draws.size / c.columns;
        for (int64_t k = 0; k < rows; ++k) {
            region.move(k, c.draws.data + k * c.columns, c.hot + (c.cold - c.hot) * double(k) / double(rows));
        }
        return rows;
    });
}
