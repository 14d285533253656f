// The update of one pairwise factor of one instance whose states fill C vectors: cavities and messages stay in
// registers.
#pragma once
#include "updates.hpp"

namespace mssvm {

// States in C vectors; entries beyond the last state are zero in potentials, messages and cavities.
template <int C> using States = Vec[C];

// `only` of vector c: all before the last one are full.
template <int C> INLINE Vec only_states(int c, int card, Vec value, Vec other) {
    return c + 1 < C ? value : first_lanes(card - c * L, value, other);
}

template <int C, class Part> INLINE void each_vector(Part part) {
    unrolled<C>([&](int c) ALWAYS { part(c, c * L); });
}

template <int C> INLINE void cavity(const Lanes<double> &lanes, const End &end, States<C> &n) {
    if (end.count < 0) {
        const double *all_of_them = lanes.product + end.state, *own = lanes.from + end.message;
        each_vector<C>([&](int c, int x) ALWAYS {
            // 0 / 0 beyond the last state
            n[c] = only_states<C>(c, end.card, read<Vec>(all_of_them + x) / read<Vec>(own + x), Vec{});
        });
        return;
    }
    const int32_t *others = lanes.others + end.others;
    each_vector<C>([&](int c, int x) ALWAYS { n[c] = read<Vec>(lanes.psi + end.state + x); });
    for (int o = 0; o < end.count; ++o) {
        const double *other = lanes.from + others[o];
        each_vector<C>([&](int c, int x) ALWAYS { n[c] *= read<Vec>(other + x); });
    }
}

// Messages before they are normalised, to i and to j if wanted: every row of the table is read once for both. i has no
// more than C * rows states.
template <Product kind, bool want_i, bool want_j, int C, int rows = L>
INLINE void products(const double *table, const Step &step, const States<C> &n_i, const States<C> &n_j, States<C> &to_i,
                     States<C> &to_j) {
    double number[C * L];  // a load spreads a number over a vector at no cost
    each_vector<C>([&](int c, int x) ALWAYS {
        write(number + x, n_i[c]);
        to_j[c] = Vec{};
    });
    const int ki = step.i.card, kj = step.j.card;
    const double *row = table;
#pragma GCC unroll 1
    for (int first = 0; first < C * L; first += L) {
        Vec along[L] = {};
        unrolled<rows>([&](int r) ALWAYS {
            if (first + r >= ki) return;
            Vec from_i = all<Vec>(number[first + r]);
            each_vector<C>([&](int c, int x) ALWAYS {
                Vec entries = read<Vec>(row + x);
                if (want_i) along[r] = joined<kind>(along[r], entries, n_j[c]);
                if (want_j) to_j[c] = joined<kind>(to_j[c], entries, from_i);
            });
            row += kj;
        });
        if (want_i) to_i[first / L] = kind == Product::SUM ? sums(along) : maxima(along);
    }
    each_vector<C>([&](int c, int) ALWAYS { to_j[c] = only_states<C>(c, kj, to_j[c], Vec{}); });
}

// The first state of the largest cavity times message.
template <int C> INLINE int best_state(Marks<Vec> &marks, const States<C> &n, const States<C> &message, int k) {
    Vec top{}, first = all<Vec>(k - 1), state;
    for (int l = 0; l < L; ++l) state[l] = l;
    each_vector<C>([&](int c, int) ALWAYS { top = larger(n[c] * message[c], top); });
    top = all<Vec>(largest(top));
    marks.least = smaller(top, marks.least);
    each_vector<C>([&](int c, int x) ALWAYS {
        Vec here = n[c] * message[c] == top ? state + double(x) : first;
        first = smaller(here, first);
    });
    return int(-largest(-first));
}

// Normalise, damp and write both messages.
template <int C> INLINE void finish(Lanes<double> &lanes, Marks<Vec> &marks, const End *const (&ends)[2],
                                    const States<C> *const (&n)[2], States<C> *const (&to)[2]) {
    Vec total[2] = {}, low = all<Vec>(1.0);
    for (int e : {0, 1})
        each_vector<C>([&](int c, int) ALWAYS {
            Vec v = (*to[e])[c];
            total[e] += v;
            low = smaller(only_states<C>(c, ends[e]->card, v, all<Vec>(1.0)), low);
        });
    Vec inverse = 1.0 / sums(total[0], total[1]), scale[2] = {doubled<0>(inverse), doubled<1>(inverse)};
    if (lanes.damping > 0.0) {
        for (int e : {0, 1}) {
            const double *old = lanes.from + ends[e]->message;
            Vec sum{};
            each_vector<C>([&](int c, int x) ALWAYS {
                Vec v = (*to[e])[c] * scale[e], before = read<Vec>(old + x);
                low = smaller(only_states<C>(c, ends[e]->card, v * before, all<Vec>(1.0)), low);
                (*to[e])[c] = only_states<C>(c, ends[e]->card, damped(v, before, lanes.damping), Vec{});
                sum += (*to[e])[c];
            });
            total[e] = sum;
        }
        inverse = 1.0 / sums(total[0], total[1]);
        scale[0] = doubled<0>(inverse);
        scale[1] = doubled<1>(inverse);
    }
    marks.least = smaller(low, marks.least);
    for (int e : {0, 1}) {
        const End &end = *ends[e];
        const double *old = lanes.from + end.message;
        each_vector<C>([&](int c, int x) ALWAYS {
            Vec v = (*to[e])[c] * scale[e], before = read<Vec>(old + x), moved = v - before;
            write(lanes.to + end.message + x, v);
            marks.rise = larger(moved, marks.rise);
            marks.fall = smaller(moved, marks.fall);
            if (lanes.measure) {
                Vec least = only_states<C>(c, end.card, smaller(v, before), all<Vec>(1.0));
                marks.log_change = larger(absolute(moved) / least, marks.log_change);
            }
            if (!lanes.keep_products || end.count >= 0) return;
            Vec all_of_them = (*n[e])[c] * v, possible = read<Vec>(lanes.psi + end.state + x);
            marks.least = smaller(possible > 0.0 ? all_of_them : all<Vec>(1.0), marks.least);
            write(lanes.product + end.state + x, all_of_them);
        });
    }
}

// Both messages of a factor between variables whose states fill C vectors each.
template <int C, Roles roles>
INLINE void update(Lanes<double> &lanes, Marks<Vec> &marks, const Step &step, bool i_is_maximal) {
    const double *table = lanes.tables + step.table;
    States<C> n_i, n_j, to_i, to_j;
    cavity<C>(lanes, step.i, n_i);
    cavity<C>(lanes, step.j, n_j);
    if constexpr (roles != Roles::MIXED) {
        constexpr Product kind = roles == Roles::SUMS ? Product::SUM : Product::MAX;
        if (C == 1 && step.i.card <= L / 2) products<kind, true, true, C, L / 2>(table, step, n_i, n_j, to_i, to_j);
        else products<kind, true, true, C>(table, step, n_i, n_j, to_i, to_j);
    } else if (i_is_maximal) {
        products<Product::SUM, true, false, C>(table, step, n_i, n_j, to_i, to_j);
        const double *row = table + best_state<C>(marks, n_i, to_i, step.i.card) * step.j.card;
        each_vector<C>([&](int c, int x)
                           ALWAYS { to_j[c] = only_states<C>(c, step.j.card, read<Vec>(row + x), Vec{}); });
    } else {
        products<Product::SUM, false, true, C>(table, step, n_i, n_j, to_i, to_j);
        const double *column = table + best_state<C>(marks, n_j, to_j, step.j.card);
        double entries[C * L] = {};
        for (int x = 0; x < step.i.card; ++x) entries[x] = column[x * step.j.card];
        each_vector<C>([&](int c, int x) ALWAYS { to_i[c] = read<Vec>(entries + x); });
    }
    finish<C>(lanes, marks, {&step.i, &step.j}, {&n_i, &n_j}, {&to_i, &to_j});
}

}  // namespace mssvm
