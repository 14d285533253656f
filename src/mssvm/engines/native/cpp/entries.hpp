// Power sums over rows of a bucket's entries, and their weights: of probabilities, or of scores.
#pragma once
#include <cmath>
#include <type_traits>

#include "program.hpp"
#include "simd.hpp"

namespace mssvm {

template <Algebra algebra, class V> INLINE V combined(V a, V b) {
    if constexpr (algebra == SCALED) return a * b;
    else return a + b;
}

INLINE Unaligned &wide(double *x) { return *reinterpret_cast<Unaligned *>(x); }

// x = f(x, a) for n entries; a is the same for all of them.
template <class V, class F> INLINE void transform(V *x, int64_t n, V a, F f) {
    int64_t k = 0;
    if constexpr (Of<V>::lanes == 1) {
        Vec all_a = all<Vec>(a);
        for (; k + L <= n; k += L) wide(x + k) = f(Vec(wide(x + k)), all_a);
    }
    for (; k < n; ++k) x[k] = f(x[k], a);
}

template <class V> INLINE void exponentials(V *x, int64_t n) {
    transform(x, n, V{}, [](auto score, auto) { return exp(score); });
}

template <class V> INLINE void logarithms(V *x, int64_t n) {
    transform(x, n, V{}, [](auto sum, auto) { return log(sum); });
}

// f(card) with the number of states as a constant where it is small, for loops that are unrolled.
template <class F> INLINE void with_card(int64_t card, F f) {
    switch (card) {
        case 2: return f(std::integral_constant<int64_t, 2>());
        case 3: return f(std::integral_constant<int64_t, 3>());
        case 4: return f(std::integral_constant<int64_t, 4>());
        case 5: return f(std::integral_constant<int64_t, 5>());
        default: return f(card);
    }
}

// Rows of scores become exp((score - top) / eps); tops[r] is the greatest score of row r. A row without a feasible
// state becomes zeros.
template <class V> INLINE void weigh_scores(V *x, int64_t n, int64_t card, double eps, V *tops) {
    for (int64_t r = 0; r < n; ++r) {
        V *row = x + r * card;
        V top = row[0];
        for (int64_t j = 1; j < card; ++j) top = larger(top, row[j]);
        V base = top > -INF ? top : V{};
        for (int64_t j = 0; j < card; ++j) row[j] = (row[j] - base) / eps;
        tops[r] = top;
    }
    exponentials(x, n * card);
}

template <class V> INLINE V sum_of(const V *x, int64_t n) {
    V total = x[0];
    for (int64_t j = 1; j < n; ++j) total += x[j];
    return total;
}

// The power sums of n rows, `out[r] = PS_eps(row r)`; plain sums of probabilities. `tops` and x are overwritten.
template <Algebra algebra, class V>
INLINE void reduce_rows(V *x, int64_t n, int64_t card, double eps, V *tops, V *out) {
    with_card(card, [=](auto card) {
        if constexpr (algebra == SCALED) {
            for (int64_t r = 0; r < n; ++r) out[r] = sum_of(x + r * card, card);
        } else if constexpr (algebra == MAX) {
            for (int64_t r = 0; r < n; ++r) {
                V top = x[r * card];
                for (int64_t j = 1; j < card; ++j) top = larger(top, x[r * card + j]);
                out[r] = top;
            }
        } else {
            weigh_scores(x, n, card, eps, tops);
            for (int64_t r = 0; r < n; ++r) {
                V total = sum_of(x + r * card, card);
                out[r] = tops[r] > -INF ? total : all<V>(1.0);
            }
            logarithms(out, n);
            for (int64_t r = 0; r < n; ++r) out[r] = tops[r] + eps * out[r];
        }
    });
}

// Rows become the gradients of their power sums times g[r]: at eps = 0 all of it goes to the first maximiser.
template <Algebra algebra, class V>
INLINE void weigh_rows(V *x, int64_t n, int64_t card, double eps, V *tops, const V *g) {
    with_card(card, [=](auto card) {
        if constexpr (algebra == MAX) {
            for (int64_t r = 0; r < n; ++r) {
                V *row = x + r * card;
                V top = row[0], left = g[r];
                for (int64_t j = 1; j < card; ++j) top = larger(top, row[j]);
                for (int64_t j = 0; j < card; ++j) {
                    auto best = row[j] == top;
                    row[j] = best ? left : V{};
                    left = best ? V{} : left;
                }
            }
        } else {
            if constexpr (algebra == LOG) weigh_scores(x, n, card, eps, tops);
            for (int64_t r = 0; r < n; ++r) {
                V *row = x + r * card;
                V total = sum_of(row, card);
                V factor = g[r] != 0.0 ? g[r] / total : V{};  // an impossible row has no gradient and no sum
                for (int64_t j = 0; j < card; ++j) row[j] *= factor;
            }
        }
    });
}

}  // namespace mssvm
