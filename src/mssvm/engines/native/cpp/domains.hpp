// Domains of tables: scores, or probabilities at a temperature.
#pragma once
#include <algorithm>
#include <type_traits>

#include "entries.hpp"

namespace mssvm {

// The greatest and the least of n entries, impossible ones (equal to `floor`) left out: floor and INF if all are.
template <class V> INLINE void extent(const V *x, int64_t n, double floor, V &top, V &bottom) {
    top = all<V>(floor);
    bottom = all<V>(INF);
    int64_t k = 0;
    if constexpr (Of<V>::lanes == 1) {
        Vec high = all<Vec>(floor), low = all<Vec>(INF);
        for (; k + L <= n; k += L) {
            Vec a = wide(const_cast<double *>(x) + k);
            high = larger(high, a);
            low = smaller(low, a > floor ? a : all<Vec>(INF));
        }
        for (int i = 0; i < L; ++i) top = std::max(top, high[i]);
        bottom = across_min(low);
    }
    for (; k < n; ++k) {
        top = larger(top, x[k]);
        bottom = smaller(bottom, x[k] > floor ? x[k] : all<V>(INF));
    }
}

// Rewrites an input of domain `from` in domain `to`, not both 0, relative to its greatest entry `top`, whose score it
// adds to `shift`. Domain 0: scores x + shift; domain t > 0: scores t log x + shift. Lanes without a feasible entry
// hold zeros or -inf.
template <class V> void convert(V *x, int64_t n, double from, double to, V top, V &shift) {
    if (from == 0.0) {
        V base = top > -INF ? top : V{};
        shift += base;
        transform(x, n, base, [=](auto a, auto base) { return exp((a - base) / to); });
        return;
    }
    V base = top > 0.0 ? top : all<V>(1.0);
    shift += from * log(base);
    V inverse = 1.0 / base;
    if (from == to) {
        transform(x, n, inverse, [](auto a, auto factor) { return a * factor; });
        return;
    }
    double ratio = to > 0.0 ? from / to : from;
    transform(x, n, inverse, [=](auto a, auto factor) {
        using W = decltype(a);
        W share = a * factor;
        W score = ratio * log(share > 0.0 ? share : all<W>(1.0));
        if (to > 0.0) return share > 0.0 ? W(exp(score)) : W{};
        return share > 0.0 ? score : all<W>(-INF);
    });
}

// Moves to `shift` the score that all entries of a message share, where entries are within a factor of two of each
// other: then the subtraction is exact, and what is left keeps more digits in the sums to come.
template <class V> void take_shared_score(V *x, int64_t n, V top, V bottom, V &shift) {
    V least = smaller(larger(top, -top), larger(bottom, -bottom));
    V shared = top - bottom <= least ? top : V{};
    shared = top > -INF ? shared : V{};
    shift += shared;
    transform(x, n, shared, [](auto a, auto shared) { return a - shared; });
}

}  // namespace mssvm
