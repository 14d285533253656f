// Simulated annealing of theta(z) on pairwise graphs, by best labellings of induced forests under noise.
//
// Variables that induce a forest have a best labelling given the others, found exactly by max-product along its edges.
// A move takes one of FORESTS random induced forests (more than half of the variables of a grid), restricts it to a
// window of the graph, and relabels it with its best labelling under scores plus Gumbel noise of some temperature. In
// every window the temperature falls from a share of the tables' range to zero; the new labelling is then kept unless
// it scores less than the old one. Windows are chosen at random, until those around a variable have made `rounds` moves
// on average.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "boundary.hpp"
#include "parallel.hpp"
#include "simd.hpp"

using namespace mssvm;

namespace {

constexpr int FORESTS = 24;
constexpr int64_t WINDOW = 30;        // least number of variables of a window
constexpr int64_t WINDOW_MORE = 150;  // a window has fewer than WINDOW + WINDOW_MORE variables
constexpr int64_t MOVES = 40;         // moves under noise in a window
constexpr int64_t COLD_MOVES = 4;     // moves without noise after these
constexpr double HOTTEST = 0.4;       // first temperature, as a share of the mean range of a table
constexpr double COLDEST = 0.02;      // last temperature, as a share of the first

struct AnnealCall {
    int64_t bytes;
    Ints instances, rounds;  // instances to be improved, and the rounds of each
    Ints var_ptr, factor_ptr, unary_ptr;
    Ints ends;   // the two variables of every factor
    Ints table;  // by factor: where its table begins
    Floats unary, tables;
    Ints states;
    int64_t threads;
};

// Whether ptr begins at 0 or later, never falls, and ends at `most` or before.
bool is_rising(const Ints &ptr, int64_t most) {
    if (ptr.empty() || ptr[0] < 0 || ptr[ptr.size - 1] > most) return false;
    return std::is_sorted(ptr.begin(), ptr.end());
}

// Every index that instance b uses is inside its array.
void check_instance(const AnnealCall &c, int64_t b) {
    require(b >= 0 && b + 1 < c.var_ptr.size, "there is no such instance.");
    int64_t first = c.var_ptr[b], end = c.var_ptr[b + 1];
    for (int64_t v = first; v < end; ++v) {
        int64_t card = c.unary_ptr[v + 1] - c.unary_ptr[v];
        require(c.states[v] >= 0 && c.states[v] < card, "a variable has no such state.");
    }
    for (int64_t f = c.factor_ptr[b]; f < c.factor_ptr[b + 1]; ++f) {
        int64_t i = c.ends[2 * f], j = c.ends[2 * f + 1];
        require(i >= first && i < end && j >= first && j < end, "a factor has variables of another instance.");
        int64_t rows = c.unary_ptr[i + 1] - c.unary_ptr[i], columns = c.unary_ptr[j + 1] - c.unary_ptr[j];
        require(c.table[f] >= 0 && c.table[f] + rows * columns <= c.tables.size, "a table lies outside the batch.");
    }
}

// A xorshift generator.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x2545F4914F6CDD1Du) {}
    uint64_t next() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return state_;
    }
    double uniform() { return (double(next() >> 12) + 0.5) * 0x1p-52; }
    int64_t below(int64_t n) { return int64_t(next() % uint64_t(n)); }

private:
    uint64_t state_;
};

struct Edge {
    int32_t other;
    bool transposed;  // the variable is the factor's second
    int64_t table;
};

// By variable: its place in an order in which parents come first, -1 outside the forest; the edge to its parent, -1 at
// roots.
struct Forest {
    std::vector<int32_t> place, edge;
};

class Annealing {
public:
    Annealing(const AnnealCall &call, int64_t k) : c_(call), random_(1), rounds_(call.rounds[k]) {
        int64_t b = call.instances[k];
        first_ = c_.var_ptr[b];
        n_ = c_.var_ptr[b + 1] - first_;
        connect(c_.factor_ptr[b], c_.factor_ptr[b + 1]);
        z_.assign(c_.states.data + first_, c_.states.data + first_ + n_);
        make_noise();
    }

    void run() {
        if (n_ == 0 || rounds_ < 1 || score(z_) == -INF) return;
        for (int f = 0; f < FORESTS; ++f) forests_.push_back(forest());
        int64_t left = rounds_ * n_;
        while (left > 0) {
            choose_window(WINDOW + random_.below(WINDOW_MORE));
            cool_window();
            left -= int64_t(members_.size()) * (MOVES + COLD_MOVES);
        }
        std::copy(z_.begin(), z_.end(), c_.states.data + first_);
    }

private:
    int card(int64_t v) const { return int(c_.unary_ptr[first_ + v + 1] - c_.unary_ptr[first_ + v]); }
    const double *unary(int64_t v) const { return c_.unary.data + c_.unary_ptr[first_ + v]; }

    // The edges of every variable, and the first temperature.
    void connect(int64_t begin, int64_t end) {
        ptr_.assign(n_ + 1, 0);
        for (int64_t j = 2 * begin; j < 2 * end; ++j) ++ptr_[c_.ends[j] - first_ + 1];
        std::partial_sum(ptr_.begin(), ptr_.end(), ptr_.begin());
        edges_.resize(2 * (end - begin));
        std::vector<int64_t> next(ptr_.begin(), ptr_.end() - 1);
        double ranges = 0.0;
        for (int64_t f = begin; f < end; ++f) {
            int64_t i = c_.ends[2 * f] - first_, j = c_.ends[2 * f + 1] - first_;
            edges_[next[i]++] = {int32_t(j), false, c_.table[f]};
            edges_[next[j]++] = {int32_t(i), true, c_.table[f]};
            double low = INF, top = -INF;
            for (int64_t x = 0; x < int64_t(card(i)) * card(j); ++x) {
                double entry = c_.tables[c_.table[f] + x];
                if (entry == -INF) continue;
                low = std::min(low, entry);
                top = std::max(top, entry);
            }
            if (top > low) ranges += top - low;
        }
        hottest_ = end > begin ? HOTTEST * ranges / double(end - begin) : 0.0;
        state_at_.assign(n_ + 1, 0);
        for (int64_t v = 0; v < n_; ++v) {
            state_at_[v + 1] = state_at_[v] + card(v);
            widest_ = std::max(widest_, card(v));
        }
        window_.assign(n_, 0);
        given_.resize(state_at_[n_]);
        choice_.resize(edges_.size() ? n_ * widest_ : 0);
    }

    // A random set of variables that induces a forest: variables join in random order, except those with two neighbours
    // in one tree.
    Forest forest() {
        std::vector<int32_t> candidates(n_), root(n_);
        std::iota(candidates.begin(), candidates.end(), 0);
        std::iota(root.begin(), root.end(), 0);
        for (int64_t k = n_ - 1; k > 0; --k) std::swap(candidates[k], candidates[random_.below(k + 1)]);
        auto find = [&](int32_t v) {
            while (root[v] != v) v = root[v] = root[root[v]];
            return v;
        };
        Forest out;
        out.place.assign(n_, -1);
        out.edge.assign(n_, -1);
        std::vector<uint8_t> inside(n_, 0);
        std::vector<int32_t> near;
        for (int32_t v : candidates) {
            near.clear();
            bool tree = true;
            for (int64_t e = ptr_[v]; e < ptr_[v + 1] && tree; ++e) {
                if (!inside[edges_[e].other]) continue;
                int32_t r = find(edges_[e].other);
                tree = std::find(near.begin(), near.end(), r) == near.end();
                near.push_back(r);
            }
            if (!tree) continue;
            inside[v] = 1;
            for (int32_t r : near) root[r] = v;
        }
        std::vector<int32_t> order;
        for (int32_t start : candidates) {
            if (!inside[start] || out.place[start] >= 0) continue;
            out.place[start] = int32_t(order.size());
            order.push_back(start);
            for (size_t k = order.size() - 1; k < order.size(); ++k) {
                int32_t v = order[k];
                for (int64_t e = ptr_[v]; e < ptr_[v + 1]; ++e) {
                    int32_t u = edges_[e].other;
                    if (!inside[u] || out.place[u] >= 0) continue;
                    out.place[u] = int32_t(order.size());
                    out.edge[u] = int32_t(reverse(u, v, edges_[e].table));
                    order.push_back(u);
                }
            }
        }
        return out;
    }

    int64_t reverse(int32_t u, int32_t v, int64_t table) const {
        for (int64_t e = ptr_[u]; e < ptr_[u + 1]; ++e)
            if (edges_[e].other == v && edges_[e].table == table) return e;
        return -1;
    }

    double entry(const Edge &e, int v_card, int x, int other) const {
        int64_t at = e.transposed ? int64_t(other) * v_card + x : int64_t(x) * card(e.other) + other;
        return c_.tables[e.table + at];
    }

    // Gumbel noise of unit temperature: the maximum of scores plus noise is a sample of their softmax.
    void make_noise() {
        for (double &number : noise_) number = -std::log(-std::log(random_.uniform()));
    }
    double noise() { return noise_[random_.next() & (NOISES - 1)]; }

    // Whether a move of forest f relabels variable v.
    bool moves(const Forest &f, int32_t v) const { return window_[v] && f.place[v] >= 0; }

    // The edge to a parent that is relabelled too, or -1.
    int32_t parent(const Forest &f, int32_t v) const {
        int32_t e = f.edge[v];
        return e >= 0 && window_[edges_[e].other] ? e : -1;
    }

    void move(double temperature) {
        const Forest &f = forests_[random_.below(FORESTS)];
        order_.clear();
        for (int32_t v : members_)
            if (f.place[v] >= 0) order_.push_back(v);
        std::sort(order_.begin(), order_.end(), [&](int32_t v, int32_t u) { return f.place[v] < f.place[u]; });
        for (int32_t v : order_) add_given(f, v, temperature);
        for (size_t at = order_.size(); at-- > 0;) {
            int32_t v = order_[at], e = parent(f, v);
            if (e >= 0) send_best(v, edges_[e]);
        }
        for (int32_t v : order_) {
            int32_t e = parent(f, v);
            const double *given = given_.data() + state_at_[v];
            if (e >= 0) z_[v] = choice_[v * widest_ + z_[edges_[e].other]];
            else z_[v] = std::max_element(given, given + card(v)) - given;
        }
    }

    // Scores of a variable given all neighbours that keep their states, with noise.
    void add_given(const Forest &f, int32_t v, double temperature) {
        double *given = given_.data() + state_at_[v];
        int k = card(v);
        for (int x = 0; x < k; ++x) given[x] = unary(v)[x] + (temperature > 0.0 ? temperature * noise() : 0.0);
        for (int64_t e = ptr_[v]; e < ptr_[v + 1]; ++e) {
            const Edge &edge = edges_[e];
            if (moves(f, edge.other)) continue;
            int other = int(z_[edge.other]);
            for (int x = 0; x < k; ++x) given[x] += entry(edge, k, x, other);
        }
    }

    // The max-product message of a variable to its parent, and the maximising states.
    void send_best(int32_t v, const Edge &edge) {
        const double *given = given_.data() + state_at_[v];
        double *to = given_.data() + state_at_[edge.other];
        int k = card(v);
        for (int y = 0; y < card(edge.other); ++y) {
            double top = -INF;
            int32_t chosen = 0;
            for (int x = 0; x < k; ++x) {
                double value = given[x] + entry(edge, k, x, y);
                if (value > top) {
                    top = value;
                    chosen = x;
                }
            }
            choice_[v * widest_ + y] = chosen;
            to[y] += top;
        }
    }

    // A random variable and those nearest to it, in breadth-first order.
    void choose_window(int64_t size) {
        for (int32_t v : members_) window_[v] = 0;
        members_.assign(1, int32_t(random_.below(n_)));
        window_[members_[0]] = 1;
        for (size_t k = 0; k < members_.size(); ++k)
            for (int64_t e = ptr_[members_[k]]; e < ptr_[members_[k] + 1] && int64_t(members_.size()) < size; ++e) {
                if (window_[edges_[e].other]) continue;
                window_[edges_[e].other] = 1;
                members_.push_back(edges_[e].other);
            }
    }

    // The part of the score that depends on the window.
    double local_score() const {
        double total = 0.0;
        for (int32_t v : members_) {
            total += unary(v)[z_[v]];
            for (int64_t e = ptr_[v]; e < ptr_[v + 1]; ++e)
                if (!window_[edges_[e].other] || edges_[e].other > v)
                    total += entry(edges_[e], card(v), int(z_[v]), int(z_[edges_[e].other]));
        }
        return total;
    }

    // Moves in the window from hot to cold, undone if the score is lower afterwards.
    void cool_window() {
        kept_.clear();
        for (int32_t v : members_) kept_.push_back(z_[v]);
        double before = local_score();
        for (int64_t r = 0; r < MOVES; ++r) move(hottest_ * std::pow(COLDEST, double(r) / double(MOVES)));
        for (int64_t r = 0; r < COLD_MOVES; ++r) move(0.0);
        if (local_score() >= before) return;
        for (size_t k = 0; k < members_.size(); ++k) z_[members_[k]] = kept_[k];
    }

    double score(const std::vector<int64_t> &z) const {
        double total = 0.0;
        for (int64_t v = 0; v < n_; ++v) {
            total += unary(v)[z[v]];
            for (int64_t e = ptr_[v]; e < ptr_[v + 1]; ++e)
                if (!edges_[e].transposed) total += entry(edges_[e], card(v), int(z[v]), int(z[edges_[e].other]));
        }
        return total;
    }

    static constexpr int NOISES = 1 << 12;
    const AnnealCall &c_;
    Random random_;
    int64_t rounds_, first_ = 0, n_ = 0;
    int widest_ = 1;
    double hottest_ = 0.0;
    std::vector<int64_t> ptr_, state_at_, z_, kept_;
    std::vector<uint8_t> window_;
    std::vector<int32_t> members_, order_;
    std::vector<Edge> edges_;
    std::vector<double> given_;
    std::vector<int32_t> choice_;
    std::vector<Forest> forests_;
    std::array<double, NOISES> noise_;
};

}  // namespace

// Replaces the states of the given instances by labellings that score no less.
MSSVM_API mssvm_anneal(const AnnealCall *call) {
    return guarded(call, [](const AnnealCall &c) -> int64_t {
        require(c.rounds.size == c.instances.size, "the columns of instances have different lengths.");
        require(c.ends.size == 2 * c.table.size, "every factor has two variables.");
        require(c.threads >= 1 && c.threads <= 4096, "threads are out of range.");
        require(c.unary_ptr.size == c.states.size + 1 && c.factor_ptr.size == c.var_ptr.size,
                "the columns of variables or of instances have different lengths.");
        require(is_rising(c.unary_ptr, c.unary.size) && is_rising(c.var_ptr, c.states.size) &&
                    is_rising(c.factor_ptr, c.table.size),
                "pointers do not rise, or end beyond their arrays.");
        for (int64_t b : c.instances) check_instance(c, b);
        parallel_for(c.instances.size, int(c.threads), [&](int64_t k) { Annealing(c, k).run(); });
        return 0;
    });
}
