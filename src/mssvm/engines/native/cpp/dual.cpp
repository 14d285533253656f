// Pairwise Frank-Wolfe steps for min 1/2 alpha'H alpha - q'alpha over a product of simplices.
#include <algorithm>

#include "boundary.hpp"

using namespace mssvm;

namespace {

struct Pairwise {
    int64_t bytes;
    Floats hessian, gradient, alpha;  // H; H alpha - q, kept up to date; weights of planes, changed in place
    Ints group;                       // by plane: its group
    int64_t groups, most_rounds;
    double share;
};

// Moves weight from the worst plane in use to the best one of its group, with exact line search. Ends when no group's
// difference of gradients exceeds `share` of the largest one met in the first round. Returns the rounds made.
int64_t pairwise(const Pairwise &c) {
    int64_t n = c.alpha.size;
    require(c.hessian.size == n * n && c.gradient.size == n && c.group.size == n, "sizes of planes differ.");
    const double *h = c.hessian.data;
    double first = 0.0;
    int64_t round = 0;
    for (; round < c.most_rounds; ++round) {
        double largest = 0.0;
        for (int64_t g = 0; g < c.groups; ++g) {
            int64_t best = -1, worst = -1;
            for (int64_t k = 0; k < n; ++k) {
                if (c.group[k] != g) continue;
                if (best < 0 || c.gradient[k] < c.gradient[best]) best = k;
                if (c.alpha[k] > 0.0 && (worst < 0 || c.gradient[k] > c.gradient[worst])) worst = k;
            }
            if (worst < 0) continue;
            double drop = c.gradient[worst] - c.gradient[best];
            if (!(drop > 0.0)) continue;
            largest = std::max(largest, drop);
            double curvature = h[best * n + best] + h[worst * n + worst] - 2.0 * h[best * n + worst];
            bool whole = drop >= c.alpha[worst] * curvature;
            double move = whole ? c.alpha[worst] : drop / curvature;
            c.alpha[best] += move;
            c.alpha[worst] = whole ? 0.0 : c.alpha[worst] - move;
            for (int64_t k = 0; k < n; ++k) c.gradient[k] += move * (h[k * n + best] - h[k * n + worst]);
        }
        if (round == 0) first = largest;
        if (largest <= c.share * first) break;
    }
    return round;
}

}  // namespace

MSSVM_API mssvm_dual_pairwise(const Pairwise *call) { return guarded(call, pairwise); }
