// Maxima, sums and products of rows of numbers, and their exponentials, L numbers at a time.
#pragma once
#include "simd.hpp"

namespace mssvm {

// max_i x[i] + y[i]
inline double largest_sum(const double *x, const double *y, int64_t n) {
    Vec top = all<Vec>(-INF);
    int64_t i = 0;
    for (; i + L <= n; i += L) top = larger(top, *(const Unaligned *)(x + i) + *(const Unaligned *)(y + i));
    double out = largest(top);
    for (; i < n; ++i) out = larger(out, x[i] + y[i]);
    return out;
}
// The first i at which x[i] + y[i] is largest.
inline int64_t first_largest(const double *x, const double *y, int64_t n) {
    double top = largest_sum(x, y, n);
    for (int64_t i = 0; i < n; ++i)
        if (x[i] + y[i] == top) return i;
    return 0;
}
inline double across_sum(Vec x) {
    double sum = 0.0;
    for (int i = 0; i < L; ++i) sum += x[i];
    return sum;
}
// sum_i x[i] y[i], in four sums that overlap.
inline double dot(const double *x, const double *y, int64_t n) {
    Vec sum[4] = {};
    int64_t i = 0;
    for (; i + 4 * L <= n; i += 4 * L)
        for (int j = 0; j < 4; ++j) sum[j] += *(const Unaligned *)(x + i + j * L) * *(const Unaligned *)(y + i + j * L);
    for (; i + L <= n; i += L) sum[0] += *(const Unaligned *)(x + i) * *(const Unaligned *)(y + i);
    double out = across_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < n; ++i) out += x[i] * y[i];
    return out;
}
// p = scale x y; both targets += p
inline void add_products(const double *x, const double *y, double scale, int64_t n, double *to, double *also) {
    int64_t i = 0;
    for (; i + L <= n; i += L) {
        Vec p = scale * *(const Unaligned *)(x + i) * *(const Unaligned *)(y + i);
        *(Unaligned *)(to + i) += p;
        *(Unaligned *)(also + i) += p;
    }
    for (; i < n; ++i) {
        double p = scale * x[i] * y[i];
        to[i] += p;
        also[i] += p;
    }
}
// exp((x[i] + y[i] - shift) / eps) to w[i]; returns their sum.
inline double exponentials(const double *x, const double *y, double shift, double eps, int64_t n, double *w) {
    Vec sum = {};
    int64_t i = 0;
    for (; i + L <= n; i += L) {
        Vec e = exp((*(const Unaligned *)(x + i) + *(const Unaligned *)(y + i) - shift) / eps);
        *(Unaligned *)(w + i) = e;
        sum += e;
    }
    double out = across_sum(sum);
    for (; i < n; ++i) {
        w[i] = exp((x[i] + y[i] - shift) / eps);
        out += w[i];
    }
    return out;
}

}  // namespace mssvm
