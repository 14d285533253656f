// The update of one pairwise factor in probabilities: both messages from both cavities, by sums or maxima over the
// table. `scaled.hpp` has the mathematics.
//
// All functions have a template argument K. If K > 0, both variables have K states, and loops over states have constant
// bounds. K <= 0 stands for any numbers of states; of a single instance, vectors then run along the rows of its tables.
#pragma once
#include <type_traits>

#include "steps.hpp"

namespace mssvm {

template <class V> INLINE V absolute(V x) { return real<V>(bits(x) & int64_t(0x7fffffffffffffff)); }

// What an update reads and writes. `from` and `to` are the same messages unless all change at once. Numbers are stored
// as Items: as vectors V, or one by one, with those of consecutive states `apart` numbers from each other.
template <class V, class Item = V> struct Lanes {
    const double *tables;
    const Item *psi, *from;
    Item *to, *product;
    V *work;
    const int32_t *others;
    double damping;
    bool keep_products, measure;
    int64_t apart = 1;

    template <class Number> Number *of_state(Number *first, int x) const {
        if constexpr (std::is_same_v<V, Item>) return first + x;
        else return first + x * apart;
    }
};

// The largest rise and fall of a probability, the largest change of a logarithm, the smallest number relied on.
template <class W> struct Marks {
    W rise{}, fall{}, log_change{}, least = all<W>(1.0);

    template <class Other> void add(const Other &other) {
        if constexpr (std::is_same_v<Other, Marks>) {
            rise = larger(other.rise, rise);
            fall = smaller(other.fall, fall);
            log_change = larger(other.log_change, log_change);
            least = smaller(other.least, least);
        } else {  // the other marks are vectors over states
            rise = larger(-across_min(-other.rise), rise);
            fall = smaller(across_min(other.fall), fall);
            log_change = larger(-across_min(-other.log_change), log_change);
            least = smaller(across_min(other.least), least);
        }
    }
};

// Reads the numbers of states: one state at a time for several instances in lanes (W is V), L states at a time for one
// instance with many states (W is Vec). Entries beyond the last state are zero or, after a product with a table,
// arbitrary but finite: `only` replaces them by `other`.
template <class W, class V> INLINE W read(const V *from) {
    if constexpr (std::is_same_v<W, V>) return *from;
    else return *(const Unaligned *)from;
}
template <class W> INLINE W only(int count, W value, W other) {
    if constexpr (std::is_same_v<W, Vec>)
        if (count < L) return first_lanes(count, value, other);
    return value;
}
template <class W, class V> INLINE void write(V *to, W value) {
    if constexpr (std::is_same_v<W, V>) *to = value;
    else *(Unaligned *)to = value;
}
template <int K, class V> constexpr bool along_rows = std::is_same_v<V, double> && K <= 0;
template <int K, class V> using Wide = std::conditional_t<along_rows<K, V>, Vec, V>;

// part(x, count): all states from x on, `count` of them at a time at most.
template <int K, class V, class Part> INLINE void each_state(int k, Part part) {
    if constexpr (along_rows<K, V>) {
        for (int x = 0; x < k; x += L) part(x, k - x);
    } else {
#pragma GCC unroll 8
        for (int x = 0; x < k; ++x) part(x, L);
    }
}

template <int K, bool plain, class V, class Item>
INLINE void cavity(const Lanes<V, Item> &lanes, const End &end, int k, V *n) {
    using W = Wide<K, V>;
    auto of_state = [&](const Item *first, int x) ALWAYS { return read<W>(lanes.of_state(first, x)); };
    if (!plain && end.count < 0) {
        const Item *all_of_them = lanes.product + end.state, *own = lanes.from + end.message;
        each_state<K, V>(k, [&](int x, int count) {
            write(n + x, only(count, of_state(all_of_them, x) / of_state(own, x), W{}));  // 0 / 0 beyond the last state
        });
        return;
    }
    const Item *psi = lanes.psi + end.state;
    const int32_t *others = lanes.others + end.others;
    if constexpr (along_rows<K, V>) {
        each_state<K, V>(k, [&](int x, int) {
            W product = of_state(psi, x);
            for (int o = 0; o < end.count; ++o) product *= of_state(lanes.from + others[o], x);
            write(n + x, product);
        });
    } else {
        each_state<K, V>(k, [&](int x, int) { n[x] = of_state(psi, x); });
        for (int o = 0; o < end.count; ++o) {
            const Item *other = lanes.from + others[o];
            each_state<K, V>(k, [&](int x, int) { n[x] *= of_state(other, x); });
        }
    }
}

enum class Product { SUM, MAX };

template <Product kind, class V> INLINE V joined(V before, V entry, V number) {
    if constexpr (kind == Product::SUM) return entry * number + before;
    else return larger(before, entry * number);
}

// to[k] = sum or maximum over r of table[r * down + k * across] from[r], with the same bits for every K.
template <Product kind, int K, class V>
INLINE void multiply(const double *table, const V *from, int n, int down, int across, V *to, int m) {
    if constexpr (K > 0) {
        asm("" : "+r"(table));  // keeps the compiler from loading the table into registers beforehand: they are few
#pragma GCC unroll 8
        for (int k = 0; k < K; ++k) {
            V total = rounded<V>(all<V>(table[k * across]) * from[0]);
#pragma GCC unroll 8
            for (int r = 1; r < K; ++r) total = joined<kind>(total, all<V>(table[r * down + k * across]), from[r]);
            to[k] = total;
        }
    } else {
        constexpr int BLOCK = 5;
        int k = 0;
        for (; k + BLOCK <= m; k += BLOCK) {
            const double *column = table + k * across;
            V total[BLOCK];
#pragma GCC unroll 8
            for (int c = 0; c < BLOCK; ++c) total[c] = rounded<V>(all<V>(column[c * across]) * from[0]);
            for (int r = 1; r < n; ++r) {
                const double *entry = column + r * down;
                V number = from[r];
#pragma GCC unroll 8
                for (int c = 0; c < BLOCK; ++c) total[c] = joined<kind>(total[c], all<V>(entry[c * across]), number);
            }
#pragma GCC unroll 8
            for (int c = 0; c < BLOCK; ++c) to[k + c] = total[c];
        }
        for (; k < m; ++k) {
            const double *column = table + k * across;
            V total = rounded<V>(all<V>(column[0]) * from[0]);
            for (int r = 1; r < n; ++r) total = joined<kind>(total, all<V>(column[r * down]), from[r]);
            to[k] = total;
        }
    }
}

// The same for one instance with many states (L or more): vectors run along the rows of the table, and over their ends;
// `from` is zero there.
template <Product kind, int chunks>
INLINE void multiply_down(const double *table, const double *from, int n, double *to, int m) {
    Vec total[chunks];
#pragma GCC unroll 4
    for (int c = 0; c < chunks; ++c) total[c] = *(const Unaligned *)(table + c * L) * from[0];
    for (int r = 1; r < n; ++r) {
        Vec number = all<Vec>(from[r]);
        const double *row = table + int64_t(r) * m;
#pragma GCC unroll 4
        for (int c = 0; c < chunks; ++c)
            total[c] = joined<kind>(total[c], Vec(*(const Unaligned *)(row + c * L)), number);
    }
#pragma GCC unroll 4
    for (int c = 0; c < chunks; ++c) *(Unaligned *)(to + c * L) = total[c];
}
template <Product kind> inline void multiply_down(const double *table, const double *from, int n, double *to, int m) {
    int left = (m + L - 1) / L;
    for (; left >= 4; left -= 4, table += 4 * L, to += 4 * L) multiply_down<kind, 4>(table, from, n, to, m);
    if (left == 3) multiply_down<kind, 3>(table, from, n, to, m);
    if (left == 2) multiply_down<kind, 2>(table, from, n, to, m);
    if (left == 1) multiply_down<kind, 1>(table, from, n, to, m);
}
template <Product kind> inline void multiply_across(const double *table, const double *from, int n, double *to, int m) {
    for (int r = 0; r < m; r += L) {
        int at = std::min(r, m - L);
        Vec rows[L];
#pragma GCC unroll 8
        for (int k = 0; k < L; ++k) rows[k] = Vec{};
        for (int c = 0; c < n; c += L) {
            Vec number = *(const Unaligned *)(from + c);
#pragma GCC unroll 8
            for (int k = 0; k < L; ++k)
                rows[k] = joined<kind>(rows[k], Vec(*(const Unaligned *)(table + (at + k) * n + c)), number);
        }
        transpose(rows);
#pragma GCC unroll 8
        for (int k = 1; k < L; ++k) rows[0] = kind == Product::SUM ? rows[0] + rows[k] : larger(rows[0], rows[k]);
        *(Unaligned *)(to + at) = rows[0];
    }
}

template <Product kind, int K, bool first, class V>
INLINE void toward(const double *table, const V *from, int ki, int kj, V *to) {
    if constexpr (along_rows<K, V>) {
        if (ki >= L && kj >= L) {
            if (first) multiply_across<kind>(table, from, kj, to, ki);
            else multiply_down<kind>(table, from, ki, to, kj);
            return;
        }
    }
    if (first) multiply<kind, K>(table, from, kj, 1, kj, to, ki);
    else multiply<kind, K>(table, from, ki, kj, 1, to, kj);
}

// A message to i (`first`) or j: sums, with maxima in some lanes or all. The bits of a lane do not depend on the other
// lanes.
template <int K, bool first, class V>
INLINE void send(const double *table, const V *from, int ki, int kj, unsigned maximal, V *to, V *spare) {
    if (maximal == full<V>) {
        toward<Product::MAX, K, first>(table, from, ki, kj, to);
        return;
    }
    toward<Product::SUM, K, first>(table, from, ki, kj, to);
    if (maximal == 0) return;
    toward<Product::MAX, K, first>(table, from, ki, kj, spare);
    for (int x = 0; x < (first ? ki : kj); ++x) to[x] = pick(maximal, spare[x], to[x]);
}

// In some lanes one at the first largest cavity times message and zero elsewhere; the cavity in the others.
template <class V, class W>
INLINE void point(Marks<W> &marks, unsigned chosen, const V *n, const V *message, int k, V *out) {
    V top = n[0] * message[0];
    for (int x = 1; x < k; ++x) top = larger(n[x] * message[x], top);
    if constexpr (std::is_same_v<W, V>) marks.least = pick(chosen, smaller(top, marks.least), marks.least);
    else marks.least = smaller(all<W>(top), marks.least);
    V left = all<V>(1.0);
    for (int x = 0; x < k; ++x) {
        V hit = n[x] * message[x] == top ? left : V{};
        left = left - hit;
        out[x] = pick(chosen, hit, n[x]);
    }
    if constexpr (!std::is_same_v<W, V>)
        for (int x = k; x % L; ++x) out[x] = 0.0;
}

// Any weighted geometric mean: a function, as it is long and few sweeps need it.
template <class V> APART V geometric_mean(V v, V old, double damping) {
    return exp(log(v) * (1.0 - damping) + log(old) * damping);
}

template <class V> INLINE V damped(V v, V old, double damping) {
    if constexpr (std::is_same_v<V, double>) {
        if (damping == 0.5) return std::sqrt(v * old);
    } else if (damping == 0.5) {
        V root = v * old;
        for (int k = 0; k < L; ++k) root[k] = __builtin_sqrt(root[k]);
        return root;
    }
    return geometric_mean(v, old, damping);
}

// The sum of the lanes that are states; of lanes that are instances there is nothing to add up.
template <class V, class W> INLINE V summed(W x) {
    if constexpr (std::is_same_v<W, V>) return x;
    else {
        double part[L];
        *(Unaligned *)part = x;
        for (int half = L / 2; half > 0; half /= 2)
            for (int k = 0; k < half; ++k) part[k] += part[k + half];
        return part[0];
    }
}

// Normalise, damp and write one message, except in the lanes where it is `fixed`. `plain`: no damping, no such lanes,
// no products to store, no changes of logarithms to measure.
template <bool plain, int K, class V, class Item>
INLINE void finish(Lanes<V, Item> &lanes, Marks<Wide<K, V>> &marks, const End &end, const V *n, V *to, int card,
                   unsigned fixed) {
    using W = Wide<K, V>;
    const int k = K ? K : card;
    const Item *old = lanes.from + end.message;
    Item *out = lanes.to + end.message;
    auto of_state = [&](const Item *first, int x) ALWAYS { return read<W>(lanes.of_state(first, x)); };
    W total{}, low = all<W>(1.0);
    each_state<K, V>(k, [&](int x, int count) {
        W v = only(count, read<W>(to + x), W{});
        if constexpr (along_rows<K, V>) write(to + x, v);
        total += v;
        low = smaller(only(count, v, all<W>(1.0)), low);
    });
    V scale = 1.0 / summed<V>(total);
    if (!plain && lanes.damping > 0.0) {
        total = W{};
        each_state<K, V>(k, [&](int x, int count) {
            W v = read<W>(to + x) * scale, before = of_state(old, x);
            low = smaller(only(count, v * before, all<W>(1.0)), low);
            W mean = only(count, damped(v, before, lanes.damping), W{});
            total += mean;
            write(to + x, mean);
        });
        scale = 1.0 / summed<V>(total);
    }
    if constexpr (!plain && std::is_same_v<W, V>)
        if (fixed) low = pick(fixed, marks.least, low);
    marks.least = smaller(low, marks.least);
    bool keep_product = !plain && lanes.keep_products && end.count < 0;
    W rise = marks.rise, fall = marks.fall;
    each_state<K, V>(k, [&](int x, int count) {
        W v = read<W>(to + x) * scale, before = of_state(old, x);
        if constexpr (!plain && std::is_same_v<W, V>)
            if (fixed) v = pick(fixed, before, v);
        W moved = v - before;
        write(lanes.of_state(out, x), v);
        rise = larger(moved, rise);
        fall = smaller(moved, fall);
        if (plain) return;
        if (lanes.measure)  // 0 / 1 beyond the last state
            marks.log_change = larger(absolute(moved) / only(count, smaller(v, before), all<W>(1.0)), marks.log_change);
        if (!keep_product) return;
        Item *product = lanes.of_state(lanes.product + end.state, x);
        W all_of_them = read<W>(n + x) * v;
        // A product that underflows would later be divided by a small message.
        marks.least = smaller(of_state(lanes.psi + end.state, x) > 0.0 ? all_of_them : all<W>(1.0), marks.least);
        if constexpr (std::is_same_v<W, V>)
            if (fixed) all_of_them = pick(fixed, read<W>(product), all_of_them);
        write(product, all_of_them);
    });
    marks.rise = rise;
    marks.fall = fall;
}

enum class Roles { SUMS, MAXIMA, MIXED };

template <class V> INLINE Roles roles_of(unsigned role_i, unsigned role_j) {
    if ((role_i | role_j) == 0) return Roles::SUMS;
    return (role_i & role_j) == full<V> ? Roles::MAXIMA : Roles::MIXED;
}

// The size of `Lanes::work`: the arrays of an update with K = 0, each rounded up to whole vectors.
constexpr int64_t work_size(int64_t widest) { return 7 * (widest + L - 1); }

// Both messages of a factor. `role_i`, `role_j`: lanes in which i and j are maximal.
template <class V, int K, Roles roles, bool plain, class Item>
INLINE void update(Lanes<V, Item> &lanes, Marks<Wide<K, V>> &marks, const Step &step, unsigned role_i, unsigned role_j,
                   unsigned fixed) {
    const int ki = K ? K : step.i.card, kj = K ? K : step.j.card, size = K ? K : (std::max(ki, kj) + L - 1) / L * L;
    V local[K ? 4 * K : 1];
    V *n_i = K ? local : lanes.work;
    V *n_j = n_i + size, *to = n_j + size, *told = to + size;
    const double *table = lanes.tables + step.table;
    cavity<K, plain>(lanes, step.i, ki, n_i);
    cavity<K, plain>(lanes, step.j, kj, n_j);
    if constexpr (roles != Roles::MIXED) {
        constexpr unsigned maximal = roles == Roles::MAXIMA ? full<V> : 0;
        send<K, true>(table, n_j, ki, kj, maximal, to, told);
        finish<plain, K>(lanes, marks, step.i, n_i, to, ki, fixed);
        send<K, false>(table, n_i, ki, kj, maximal, to, told);
        finish<plain, K>(lanes, marks, step.j, n_j, to, kj, fixed);
    } else {
        V more[K ? 3 * K : 1];
        V *to_j = K ? more : told + size, *told_j = to_j + size, *spare = told_j + size;
        unsigned both = role_i & role_j, only_i = role_i & ~role_j, only_j = role_j & ~role_i;
        const V *from_i = n_i, *from_j = n_j;
        // A maximised variable receives the message of a summed one before it sends that of its best state.
        if (only_i) {
            send<K, true>(table, n_j, ki, kj, both, to, spare);
            point(marks, only_i, n_i, to, ki, told);
            from_i = told;
        }
        send<K, false>(table, from_i, ki, kj, both, to_j, spare);
        if (only_j) {
            point(marks, only_j, n_j, to_j, kj, told_j);
            from_j = told_j;
        }
        if (only_j || !only_i) send<K, true>(table, from_j, ki, kj, both, to, spare);
        finish<plain, K>(lanes, marks, step.i, n_i, to, ki, fixed);
        finish<plain, K>(lanes, marks, step.j, n_j, to_j, kj, fixed);
    }
}

}  // namespace mssvm
