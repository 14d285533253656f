// A pairwise graph as monotone chains (Kolmogorov 2006): every factor in one chain, variables rising along each.
//
// Weights of chains through a variable add up to one at most, so that the sum over chains of power sums at temperatures
// eps * weight, together with the remaining weights of variables, bounds the power sum of the whole (Hoelder). On a
// grid the chains are its rows and columns, of weight 1/2 each.
#include <algorithm>
#include <vector>

#include "boundary.hpp"

using namespace mssvm;

namespace {

constexpr int ROUNDS = 16;  // rounds of adding the remaining weights of variables to their chains

struct ChainsCall {
    int64_t bytes;
    Ints ends;      // (factor, 2): the variables of every factor
    Ints level;     // by variable: the longest chain that ends there
    Ints chain;     // by factor: its chain
    Floats weight;  // by factor: the weight of its chain
    Floats left;    // by variable: one minus the weights of the chains through it
};

// Factors by one of their ends, in order.
struct Incidence {
    std::vector<int64_t> start, factor;

    template <class End> Incidence(int64_t n, int64_t factors, End end) : start(n + 1, 0), factor(factors) {
        for (int64_t f = 0; f < factors; ++f) ++start[end(f) + 1];
        for (int64_t v = 0; v < n; ++v) start[v + 1] += start[v];
        std::vector<int64_t> next(start.begin(), start.end() - 1);
        for (int64_t f = 0; f < factors; ++f) factor[next[end(f)]++] = f;
    }
};

class ChainCover {
public:
    explicit ChainCover(const ChainsCall &call)
        : call_(call),
          n_(call.level.size),
          factors_(call.chain.size),
          in_(n_, factors_, [&](int64_t f) { return high(f); }),
          out_(n_, factors_, [&](int64_t f) { return low(f); }),
          next_(factors_, -1),
          through_(n_, 0) {}

    int64_t run() {
        for (int64_t v = 0; v < n_; ++v) visit(v);
        int64_t chains = number();
        weigh(chains);
        return chains;
    }

private:
    int64_t low(int64_t f) const { return std::min(call_.ends[2 * f], call_.ends[2 * f + 1]); }
    int64_t high(int64_t f) const { return std::max(call_.ends[2 * f], call_.ends[2 * f + 1]); }
    int64_t reach(int64_t f) const { return high(f) - low(f); }

    // Sets the level of a variable, and continues factors that end here in factors that begin here: preferably in one
    // of the same direction, so that rows stay rows.
    void visit(int64_t v) {
        int64_t level = 0;
        std::vector<int64_t> begin(out_.factor.begin() + out_.start[v], out_.factor.begin() + out_.start[v + 1]);
        through_[v] = int64_t(begin.size());
        for (bool same : {true, false})
            for (int64_t k = in_.start[v]; k < in_.start[v + 1]; ++k) {
                int64_t f = in_.factor[k];
                if (same) level = std::max(level, call_.level[low(f)] + 1);
                if (next_[f] >= 0) continue;
                auto goes_on = [&](int64_t g) { return !same || reach(g) == reach(f); };
                auto found = std::find_if(begin.begin(), begin.end(), goes_on);
                if (found != begin.end()) {
                    next_[f] = *found;
                    begin.erase(found);
                } else if (!same) {
                    ++through_[v];
                }
            }
        call_.level[v] = level;
    }

    int64_t number() {
        std::vector<bool> begins(factors_, true);
        for (int64_t f = 0; f < factors_; ++f)
            if (next_[f] >= 0) begins[next_[f]] = false;
        int64_t chains = 0;
        for (int64_t f = 0; f < factors_; ++f) {
            if (!begins[f]) continue;
            for (int64_t g = f; g >= 0; g = next_[g]) call_.chain[g] = chains;
            ++chains;
        }
        return chains;
    }

    // First every chain gets an equal share at its busiest variable, then shares of what the variables have left.
    void weigh(int64_t chains) {
        std::vector<double> weight(chains, 0.0), more(chains);
        for (int64_t v = 0; v < n_; ++v) call_.left[v] = 1.0;
        for (int round = 0; round < ROUNDS && chains; ++round) {
            std::fill(more.begin(), more.end(), 1.0);
            for (int64_t f = 0; f < factors_; ++f)
                for (int64_t v : {low(f), high(f)}) {
                    double share = call_.left[v] / double(through_[v]);
                    more[call_.chain[f]] = std::min(more[call_.chain[f]], share);
                }
            for (int64_t f = 0; f < factors_; ++f) {
                call_.left[high(f)] -= more[call_.chain[f]];
                bool begins = true;
                for (int64_t k = in_.start[low(f)]; k < in_.start[low(f) + 1]; ++k)
                    begins = begins && next_[in_.factor[k]] != f;
                if (begins) call_.left[low(f)] -= more[call_.chain[f]];
            }
            for (int64_t v = 0; v < n_; ++v) call_.left[v] = call_.left[v] > 1e-12 ? call_.left[v] : 0.0;
            for (int64_t c = 0; c < chains; ++c) weight[c] += more[c];
        }
        for (int64_t f = 0; f < factors_; ++f) call_.weight[f] = weight[call_.chain[f]];
    }

    const ChainsCall &call_;
    int64_t n_, factors_;
    Incidence in_, out_;
    std::vector<int64_t> next_, through_;
};

}  // namespace

// The number of chains.
MSSVM_API mssvm_chains(const ChainsCall *call) {
    return guarded(call, [](const ChainsCall &c) -> int64_t {
        int64_t n = c.level.size, factors = c.chain.size;
        require(c.ends.size == 2 * factors && c.weight.size == factors && c.left.size == n,
                "the columns of a graph have different lengths.");
        for (int64_t v : c.ends) require(v >= 0 && v < n, "a factor has a variable outside the graph.");
        for (int64_t f = 0; f < factors; ++f)
            require(c.ends[2 * f] != c.ends[2 * f + 1], "a factor joins a variable to itself.");
        return ChainCover(c).run();
    });
}
