// Scores of linear models and their transpose, term by term:
//
//     forward    theta[at(r) + k] += sum_j x(r, j) w[block(r) + j width + k]
//     adjoint    w[block(r) + j width + k] += sum_r x(r, j) theta[at(r) + k]
//
// Row r of a term adds to `width` scores from at(r) on (a negative at(r): to none). Rows are dense, constant (all
// ones) or compressed; a term whose rows share one block of weights is a matrix product and runs in registers.
// Rows are visited in order, so that sums have the same bits on every run.
#pragma once
#include <algorithm>
#include <vector>

#include "linear.hpp"
#include "simd.hpp"

namespace mssvm {

constexpr int ROWS = 8;   // rows (or features) whose sums stay in registers
constexpr int SPAN = 32;  // rows whose features stay in the nearest cache

INLINE Vec load(const double *from) { return *reinterpret_cast<const Unaligned *>(from); }
INLINE void store(double *to, Vec v) { *reinterpret_cast<Unaligned *>(to) = v; }

// theta += weight w, or w += weight theta.
template <bool adjoint> INLINE void axpy(double *w, double *theta, int64_t width, double weight) {
    double *__restrict to = adjoint ? w : theta;
    const double *__restrict from = adjoint ? theta : w;
    int64_t k = 0;
    for (; k + L <= width; k += L) store(to + k, load(to + k) + weight * load(from + k));
    for (; k < width; ++k) to[k] += weight * from[k];
}

template <bool adjoint, class At> void dense_rows(const Term &t, const At &at, double *w, double *theta) {
    for (int64_t r = 0; r < t.rows; ++r) {
        int64_t to = at[r];
        if (to < 0) continue;
        double *weights = w + t.block[t.one_block ? 0 : r];
        for (int64_t j = 0; j < t.features; ++j) {
            double value = t.layout == CONSTANT ? 1.0 : t.x[r * t.features + j];
            if (value != 0.0) axpy<adjoint>(weights + j * t.width, theta + to, t.width, value);
        }
    }
}

template <bool adjoint, class At, class I>
void sparse_rows(const Term &t, const At &at, const I &indices, const I &indptr, double *w, double *theta) {
    bool listed = !t.active_first.empty();
    for (int64_t r = 0; r < t.rows; ++r) {
        int64_t to = at[r];
        if (to < 0) continue;
        double *weights = w + t.block[t.one_block ? 0 : r];
        for (int64_t e = indptr[r]; e < indptr[r + 1]; ++e) {
            int64_t j = indices[e];
            if (!listed) {
                axpy<adjoint>(weights + j * t.width, theta + to, t.width, t.x[e]);
                continue;
            }
            int64_t first = t.active_first[j];
            int64_t count = t.active_first[j + 1] - first;
            if (count == t.width) {
                axpy<adjoint>(weights + first, theta + to, t.width, t.x[e]);
                continue;
            }
            for (int64_t q = first; q < first + count; ++q) {
                double &weight = weights[q];
                double &score = theta[to + t.active_states[q]];
                if constexpr (adjoint) weight += t.x[e] * score;
                else score += t.x[e] * weight;
            }
        }
    }
}

// Rows times one block of weights: ROWS rows and L states at a time in registers.
template <class At> void product_forward(const Term &t, const At &at, const double *w, double *theta) {
    int64_t d = t.features, width = t.width, panels = (width + L - 1) / L;
    std::vector<double> packed(panels * d * L);  // panel by panel, the last one filled up with zeros
    for (int64_t j = 0; j < d; ++j)
        for (int64_t k = 0; k < width; ++k) packed[(k / L * d + j) * L + k % L] = w[j * width + k];
    for (int64_t r = 0; r < t.rows; r += ROWS) {
        int count = int(std::min<int64_t>(ROWS, t.rows - r));
        const double *x[ROWS];
        for (int i = 0; i < ROWS; ++i) x[i] = t.x.data + (r + std::min(i, count - 1)) * d;
        for (int64_t p = 0; p < panels; ++p) {
            Vec sum[ROWS] = {};
            const double *weights = packed.data() + p * d * L;
            for (int64_t j = 0; j < d; ++j) {
                Vec v = load(weights + j * L);
                for (int i = 0; i < ROWS; ++i) sum[i] += x[i][j] * v;
            }
            int64_t states = std::min<int64_t>(L, width - p * L);
            for (int i = 0; i < count; ++i) {
                int64_t to = at[r + i];
                if (to < 0) continue;
                for (int64_t k = 0; k < states; ++k) theta[to + p * L + k] += sum[i][k];
            }
        }
    }
}

// The transpose: ROWS features and L states at a time, over SPAN rows.
template <class At> void product_adjoint(const Term &t, const At &at, double *w, const double *theta) {
    int64_t d = t.features, width = t.width, panels = (width + L - 1) / L, padded = d + ROWS;
    std::vector<double> total(panels * padded * L), rows(SPAN * L);
    for (int64_t begin = 0; begin < t.rows; begin += SPAN) {
        int64_t count = std::min<int64_t>(SPAN, t.rows - begin);
        for (int64_t p = 0; p < panels; ++p) {
            int64_t states = std::min<int64_t>(L, width - p * L);
            for (int64_t r = 0; r < count; ++r) {
                int64_t from = at[begin + r];
                for (int64_t k = 0; k < states; ++k) rows[r * L + k] = from < 0 ? 0.0 : theta[from + p * L + k];
            }
            for (int64_t j = 0; j < d; j += ROWS) {
                int64_t offset[ROWS];
                for (int i = 0; i < ROWS; ++i) offset[i] = std::min(j + i, d - 1);
                Vec sum[ROWS] = {};
                for (int64_t r = 0; r < count; ++r) {
                    Vec v = load(rows.data() + r * L);
                    const double *x = t.x.data + (begin + r) * d;
                    for (int i = 0; i < ROWS; ++i) sum[i] += x[offset[i]] * v;
                }
                double *to = total.data() + (p * padded + j) * L;
                for (int i = 0; i < ROWS; ++i) store(to + i * L, load(to + i * L) + sum[i]);
            }
        }
    }
    for (int64_t j = 0; j < d; ++j)
        for (int64_t k = 0; k < width; ++k) w[j * width + k] += total[(k / L * padded + j) * L + k % L];
}

template <int half, std::size_t... i> INLINE Vec add_half(Vec v, std::index_sequence<i...>) {
    return v + __builtin_shufflevector(v, v, ((i + half) % L)...);
}

INLINE double sum_of_lanes(Vec v) {
    auto lanes = std::make_index_sequence<L>();
    if constexpr (L > 4) v = add_half<4>(v, lanes);
    if constexpr (L > 2) v = add_half<2>(v, lanes);
    return add_half<1>(v, lanes)[0];
}

// Few states: features side by side in registers. The last vector of a row ends with the row and overlaps the one
// before; the weights of its `overlap` first lanes are zero there.
struct NarrowRows {
    int64_t whole, tail, overlap;
    explicit NarrowRows(int64_t d) : whole(d - d % L), tail(d - L), overlap(whole - tail) {
        if (d < L || whole == d) tail = -1;
    }
};

template <int width, class At> void narrow_forward(const Term &t, const At &at, const double *w, double *theta) {
    int64_t d = t.features;
    NarrowRows row(d);
    std::vector<double> turned(width * (d + L));  // state by state, then the last vectors
    double *last = turned.data() + width * d;
    for (int k = 0; k < width; ++k) {
        for (int64_t j = 0; j < d; ++j) turned[k * d + j] = w[j * width + k];
        for (int64_t i = row.overlap; row.tail >= 0 && i < L; ++i) last[k * L + i] = w[(row.tail + i) * width + k];
    }
    for (int64_t r = 0; r < t.rows; ++r) {
        int64_t to = at[r];
        if (to < 0) continue;
        const double *x = t.x.data + r * d;
        Vec sum[width] = {};
        for (int64_t j = 0; j < row.whole; j += L) {
            Vec v = load(x + j);
            for (int k = 0; k < width; ++k) sum[k] += v * load(turned.data() + k * d + j);
        }
        if (row.tail >= 0) {
            Vec v = load(x + row.tail);
            for (int k = 0; k < width; ++k) sum[k] += v * load(last + k * L);
        }
        for (int k = 0; k < width; ++k) {
            double total = sum_of_lanes(sum[k]);
            for (int64_t j = 0; d < L && j < d; ++j) total += x[j] * turned[k * d + j];
            theta[to + k] += total;
        }
    }
}

template <int width, class At> void narrow_adjoint(const Term &t, const At &at, double *w, const double *theta) {
    int64_t d = t.features;
    NarrowRows row(d);
    std::vector<double> total(width * (d + L));
    double *last = total.data() + width * d;  // sums of the last vectors, without their overlap
    for (int64_t r = 0; r < t.rows; ++r) {
        int64_t from = at[r];
        if (from < 0) continue;
        const double *x = t.x.data + r * d;
        for (int64_t j = 0; j < row.whole; j += L) {
            Vec v = load(x + j);
            for (int k = 0; k < width; ++k) {
                double *to = total.data() + k * d + j;
                store(to, load(to) + theta[from + k] * v);
            }
        }
        if (row.tail >= 0) {
            Vec v = load(x + row.tail);
            for (int k = 0; k < width; ++k) store(last + k * L, load(last + k * L) + theta[from + k] * v);
        }
        for (int64_t j = 0; d < L && j < d; ++j)
            for (int k = 0; k < width; ++k) total[k * d + j] += theta[from + k] * x[j];
    }
    for (int k = 0; k < width; ++k) {
        for (int64_t i = row.overlap; row.tail >= 0 && i < L; ++i) total[k * d + row.tail + i] = last[k * L + i];
        for (int64_t j = 0; j < d; ++j) w[j * width + k] += total[k * d + j];
    }
}

template <bool adjoint, int width, class At> void narrow_term(const Term &t, const At &at, double *w, double *theta) {
    if constexpr (adjoint) narrow_adjoint<width>(t, at, w, theta);
    else narrow_forward<width>(t, at, w, theta);
}

// A term in the direction `adjoint`, by the loop that suits its layout; packing the weights of a product pays from
// `packed_from` multiplications on.
template <bool adjoint, class At>
void add_term(const Term &t, int64_t packed_from, const At &at, double *w, double *theta) {
    if (t.layout == SPARSE) {
        if (t.indptr.wide.empty()) sparse_rows<adjoint>(t, at, t.indices.narrow, t.indptr.narrow, w, theta);
        else sparse_rows<adjoint>(t, at, t.indices.wide, t.indptr.wide, w, theta);
        return;
    }
    bool pays = t.layout == DENSE && t.one_block && t.features > 1 && t.rows * t.features * t.width >= packed_from;
    if (!pays) {
        dense_rows<adjoint>(t, at, w, theta);
        return;
    }
    double *weights = w + t.block[0];
    switch (t.width) {
        case 1: return narrow_term<adjoint, 1>(t, at, weights, theta);
        case 2: return narrow_term<adjoint, 2>(t, at, weights, theta);
        case 3: return narrow_term<adjoint, 3>(t, at, weights, theta);
        case 4: return narrow_term<adjoint, 4>(t, at, weights, theta);
    }
    if constexpr (adjoint) product_adjoint(t, at, weights, theta);
    else product_forward(t, at, weights, theta);
}

template <bool adjoint> void add_term(const Term &t, int64_t packed_from, double *w, double *theta) {
    if (t.at.wide.empty()) add_term<adjoint>(t, packed_from, t.at.narrow, w, theta);
    else add_term<adjoint>(t, packed_from, t.at.wide, w, theta);
}

}  // namespace mssvm
