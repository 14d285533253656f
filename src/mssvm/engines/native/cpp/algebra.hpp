// The arithmetic of message passing in two algebras: scaled probabilities and scores. A belief b is a product, a message
// s a power sum of products; d and t are the derivatives of the value with respect to s and to b:
//
//              belief      times   through             push: s(r, z) =                    pull: t(r, x) =
//   Scaled     exp(u/eps)    *     t * other factors   sum_x b(r, x) E(x, z)              sum_z E(x, z) d(r, z)
//   Scores     u             +     t                   PS_x b(r, x) + theta(x, z)         sum_z softmax_x(..) d(r, z)
//
// `through` is the derivative with respect to one factor of a product, given the product of the others. `Scores` is the
// definition: exact at any temperature, zero included, and for any scores. `Scaled` takes logarithms only in `close`,
// and reports the smallest number that it relied on (`least`): an instance for which that is not above
// `Forest::trusted` runs again in Scores.
//
// The functions of an algebra, in the order in which a forest calls them (k states x of a child, c states z of its parent):
//
//   enter       e(x) from the scores u(x); returns what was subtracted from these
//   normalise   factors a scale out of the belief; returns the score of that scale. Scaled applies it to the message,
//               Scores to the belief
//   push        the message s from the belief b
//   close       where a message is added to the parent's scores: the power sum at eps_y over its rows
//   pull        from d (in the array of s): t, and the marginals of states. Marginals of pairs come here or from
//               `Forest::outer_products`. At eps_y = 0 Scaled goes back by `descend` instead: best states and rows
#pragma once
#include "roles.hpp"
#include "simd.hpp"

namespace mssvm {

// Splits 0 .. n into pieces of nearly equal size, at most `most`: f(size, start), where the size is a compile-time constant.
template <int most, class F> INLINE void in_pieces(int n, F f) {
    auto piece = [&]<int size>(int at) {
        if constexpr (size <= most) f(std::integral_constant<int, size>(), at);
    };
    int at = 0;
    for (int left = (n + most - 1) / most; left; --left) {
        int rest = n - at;
        int size = rest;
        if (left == 2) size = (rest + 1) / 2;  // without a slow division
        else if (left > 2) size = (rest + left - 1) / left;
        switch (size) {
            case 1: piece.template operator()<1>(at); break;
            case 2: piece.template operator()<2>(at); break;
            case 3: piece.template operator()<3>(at); break;
            case 4: piece.template operator()<4>(at); break;
            case 5: piece.template operator()<5>(at); break;
            case 6: piece.template operator()<6>(at); break;
            case 7: piece.template operator()<7>(at); break;
            case 8: piece.template operator()<8>(at); break;
        }
        at += size;
    }
}

struct SumProduct {
    template <class V> static INLINE V times(V a, V b) { return a * b; }
    template <class V> static INLINE V plus(V a, V b) { return a + b; }
};
struct MaxSum {
    template <class V> static INLINE V times(V a, V b) { return a + b; }
    template <class V> static INLINE V plus(V a, V b) { return larger(a, b); }
};

// s(r, z) = scale times plus_x b(r, x) times a(x, z), some z at a time in registers; with `best`, s(z) = max_r of it.
template <class Semiring, bool best = false, class V>
INLINE void product(const V *b, int rows, int k, const double *a, int c, V scale, V *s) {
    in_pieces<8>(c, [&](auto size, int z) {
        V top[size] = {};
        for (int r = 0; r < rows; ++r) {
            V sum[size];
            for (int j = 0; j < size; ++j) sum[j] = Semiring::times(b[r * k], all<V>(a[z + j]));
            for (int x = 1; x < k; ++x)
                for (int j = 0; j < size; ++j)
                    sum[j] = Semiring::plus(sum[j], Semiring::times(b[r * k + x], all<V>(a[x * c + z + j])));
            for (int j = 0; j < size; ++j) {
                if (best) top[j] = r ? larger(top[j], sum[j]) : sum[j];
                else s[r * c + z + j] = Semiring::times(sum[j], scale);
            }
        }
        if (best)
            for (int j = 0; j < size; ++j) s[z + j] = Semiring::times(top[j], scale);
    });
}

// Two vectors whose outer product is wanted: one for the rows of a table, one for its columns.
template <class V> using FactorPair = std::pair<const V *, const V *>;

// to += E * sum of outer products, some entries at a time in registers.
template <class V>
void add_outer_products(const std::vector<FactorPair<V>> &list, const Shape &shape, const double *E, V *to) {
    int columns = int(shape.columns);
    in_pieces<2>(int(shape.rows), [&](auto height, int x) {
        in_pieces<8>(columns, [&](auto width, int z) {
            constexpr int m = decltype(height)::value, n = decltype(width)::value;
            V sum[m][n] = {};
            for (auto [rows, cols] : list)
                for (int i = 0; i < m; ++i)
                    for (int j = 0; j < n; ++j) sum[i][j] += rows[x + i] * cols[z + j];
            for (int i = 0; i < m; ++i)
                for (int j = 0; j < n; ++j) {
                    int at = (x + i) * columns + z + j;
                    to[at] += sum[i][j] * E[at];
                }
        });
    });
}

// PS_eps of n terms, and their weights, its derivatives; at eps = 0 the first of the largest has weight 1.
template <class V, class Term> INLINE V power_sum(int n, V eps, Term term, V *weights) {
    V one = all<V>(1.0);
    V top = all<V>(-INF);
    V total = V{};
    V unit = eps > 0.0 ? eps : one;
    for (int i = 0; i < n; ++i) top = larger(top, term(i));
    V shift = top > -INF ? top : V{};
    for (int i = 0; i < n; ++i) {
        V v = term(i) - shift;
        V first = v == 0.0 ? (total > 0.0 ? V{} : one) : V{};
        weights[i] = eps > 0.0 ? exp(v / unit) : first;
        total += weights[i];
    }
    V safe = total > 0.0 ? total : one;
    for (int i = 0; i < n; ++i) weights[i] /= safe;
    return top + eps * log(safe);
}

// to(x) = back(z, x) for the state z = `at` of every lane.
template <class V> INLINE void row_at(const double *back, int k, V at, V *to) {
    const double *row[Of<V>::lanes];
    for (int i = 0; i < Of<V>::lanes; ++i) row[i] = back + int(lane(at, i)) * k;
    gather(row, k, to);
}

// At temperature zero: the best state of a child with scores u given that of its parent, in the lanes of a word. `mass`
// is 1, or 0 where nothing is possible.
template <class V>
INLINE void walk(Node<V> &node, const V *u, const Node<V> &above, V mass, unsigned word, V *pairs, V *work) {
    V best = V{};
    V top = all<V>(-INF);
    row_at(node.table.scores.back, node.k, above.state, work);
    for (int x = 0; x < node.k; ++x) {
        V v = u[x] + work[x];
        best = v > top ? all<V>(x) : best;
        top = larger(top, v);
    }
    node.state = pick(word, best, node.state);
    for (int x = 0; x < node.k; ++x) node.u[x] = pick(word, best == double(x) ? mass : V{}, node.u[x]);
    if (!pairs) return;
    for (int i = 0; i < Of<V>::lanes; ++i)
        if (word >> i & 1) add_to(*node.pair(pairs, int(lane(best, i)), int(lane(above.state, i))), i, lane(mass, i));
}

template <class V> struct Scaled {
    static constexpr bool scaled = true;
    static INLINE V one() { return all<V>(1.0); }
    static INLINE V zero() { return V{}; }
    static INLINE V times(V a, V b) { return a * b; }
    // The derivative by a factor, from that by the product.
    static INLINE V through(V t, V other) { return t * other; }
    // Lanes in which the position stays in scores: at eps_y = 0 an output that tells an output is a matter of maxima.
    static INLINE unsigned walks(const Node<V> &node, Temperatures eps) { return eps.y == 0 ? node.cold : 0; }
    // Whether rows end and only the best is wanted.
    static INLINE bool one_row(const Node<V> &node, Temperatures eps) { return eps.y == 0 && node.ends == full<V>; }
    static INLINE V unit(const Node<V> &node, Temperatures eps) {
        return pick(node.cold, all<V>(eps.y), all<V>(eps.h));
    }

    // e = exp((u - max) / unit).
    static INLINE V enter(Node<V> &node, Temperatures eps) {
        V inverse = pick(node.cold, all<V>(eps.y > 0 ? 1 / eps.y : 1.0), all<V>(1 / eps.h));
        V top = all<V>(-1e300);
        for (int x = 0; x < node.k; ++x) top = larger(top, node.u[x]);
        for (int x = 0; x < node.k; ++x) node.e[x] = exp((node.u[x] - top) * inverse);
        return top;
    }

    // The power of two that brings the sum of the belief into [1, 2) scales the message, not the belief.
    static INLINE V normalise(Node<V> &node, Temperatures eps, bool strict, V &least) {
        V total = node.b[0];
        for (int j = 1; j < node.rows * node.k; ++j) total += node.b[j];
        least = pick(node.here, smaller(total, least), least);
        if (strict) smallest_number(node, least);
        node.scale = two_to_minus_exponent(total);
        return exponent(total) * LN2 * unit(node, eps);
    }
    static INLINE void smallest_number(const Node<V> &node, V &least) {
        V found = least;
        for (int j = 0; j < node.rows * node.k; ++j) found = node.b[j] > 0.0 ? smaller(node.b[j], found) : found;
        for (int x = 0; x < node.k; ++x) found = node.u[x] > -INF ? smaller(node.e[x], found) : found;
        least = pick(node.here, found, least);
    }

    static INLINE void push(Node<V> &node, Temperatures eps, V *) {
        const Edge &hot = node.table.hot, &cold = node.table.cold;
        int k = node.k, c = node.c;
        if (one_row(node, eps)) return product<SumProduct, true>(node.b, node.rows, k, hot.forth, c, node.scale, node.s);
        if (node.opens != full<V> && node.cold != full<V>)
            product<SumProduct>(node.b, node.rows, k, hot.forth, c, node.scale, node.s);
        if (node.cold && eps.y > 0) {
            V *to = node.cold == full<V> ? node.s : node.norm;
            product<SumProduct>(node.b, 1, k, cold.forth, c, node.scale, to);
            if (node.cold != full<V>)
                for (int z = 0; z < c; ++z) node.s[z] = pick(node.cold, node.norm[z], node.s[z]);
        }
        if (node.opens) open(node);
    }
    // Rows begin: s(r, z) = b(r) E(r, z), in the lanes that open.
    static INLINE void open(Node<V> &node) {
        int c = node.c;
        for (int r = 0; r < node.sent; ++r)
            for (int z = 0; z < c; ++z) {
                V other = r < node.rows && node.opens != full<V> ? node.s[r * c + z] : V{};
                V mine = r < node.k ? node.b[r] * node.scale * node.table.hot.forth[r * c + z] : V{};
                node.s[r * c + z] = pick(node.opens, mine, other);
            }
    }

    // up(z) += eps_y log sum_r s(r, z)^(eps_h / eps_y); s and norm become what makes d(r, z) = q(z) norm(z) s(r, z),
    // except at eps_y = 0, where one row will be the best.
    static INLINE void close(Node<V> &node, Temperatures eps, V *up, V &least, V *) {
        unsigned word = node.here & ~node.times;
        if (unsigned cold = walks(node, eps)) {
            product<MaxSum>(node.u, 1, node.k, node.table.scores.forth, node.c, V{}, node.norm);
            for (int z = 0; z < node.c; ++z) up[z] += pick(cold, node.norm[z], V{});
            word &= ~cold;
            if (!word) return;
        }
        int rows = one_row(node, eps) ? 1 : node.rows;  // others begin in lanes that do not end them
        bool several = rows > 1 && eps.y > 0;
        V one = all<V>(1.0);
        V score_unit = unit(node, eps);
        in_pieces<5>(node.c, [&](auto size, int z) {
            in_lanes<V>(word, [&](auto closing) {
                constexpr int n = decltype(size)::value;
                V top[n], safe[n], inverse[n], sum[n] = {};
                for (int j = 0; j < n; ++j) top[j] = node.s[z + j];
                for (int r = 1; r < rows; ++r)
                    for (int j = 0; j < n; ++j) top[j] = larger(top[j], node.s[r * node.c + z + j]);
                for (int j = 0; j < n; ++j) {
                    safe[j] = top[j] > 1e-300 ? top[j] : one;
                    inverse[j] = two_to_minus_exponent(safe[j]);
                    least = closing(top[j] > 0.0 ? smaller(top[j], least) : least, least);
                }
                for (int r = 0; several && r < rows; ++r) {
                    V *s = node.s + r * node.c + z;
                    V v[n], x[n], y[n];
                    for (int j = 0; j < n; ++j) v[j] = x[j] = s[j] * inverse[j];
                    power(x, eps.h / eps.y - 1, y);
                    if (node.cold)
                        for (int j = 0; j < n; ++j) y[j] = pick(node.cold, one, y[j]);
                    for (int j = 0; j < n; ++j) {
                        sum[j] += v[j] * y[j];
                        s[j] = closing(y[j], s[j]);
                    }
                }
                for (int j = 0; j < n; ++j) {
                    V score, norm;
                    if (several) {
                        score = score_unit * exponent(safe[j]) * LN2 + eps.y * log(sum[j]);
                        norm = inverse[j] / sum[j];
                    } else {
                        score = score_unit * log(safe[j]);
                        norm = one / safe[j];
                    }
                    if (rows == 1 && eps.y > 0) node.s[z + j] = closing(one, node.s[z + j]);
                    node.norm[z + j] = top[j] > 1e-300 ? norm : V{};
                    up[z + j] += closing(top[j] > 1e-300 ? score : all<V>(-INF), V{});
                }
            });
        });
    }

    // t(r, x) = sum_z E(x, z) d(r, z); marginals q = sum_r b t. Pairs of some lanes here, of all lanes later
    // (`Forest::outer_products`). With `strict`, derivatives by what is impossible, which may be of any size, are zero.
    static INLINE void pull(Node<V> &node, Temperatures eps, const Node<V> &above, V, bool strict, V *pairs, V *work) {
        if (eps.y == 0) return descend(node, above, pairs, work);
        const Edge &hot = node.table.hot, &cold = node.table.cold;
        if (node.opens && node.rows == 1 && !node.cold) pull_opened(node);
        else if (node.opens || (node.cold && node.cold != full<V>)) pull_mixed(node, pairs);
        else {
            const double *back = node.cold ? cold.back : hot.back;
            product<SumProduct>(node.s, node.rows, node.c, back, node.k, all<V>(1.0), node.t);
        }
        if (strict)
            for (int j = 0; j < node.rows * node.k; ++j) node.t[j] = node.b[j] > 0.0 ? node.t[j] : V{};
        for (int x = 0; x < node.k; ++x) {
            V q = node.b[x] * node.t[x];
            for (int r = 1; r < node.rows; ++r) q += node.b[r * node.k + x] * node.t[r * node.k + x];
            node.u[x] = q;
        }
    }
    // One row of belief, and one row of message for every state in the lanes that open: t(x) = sum_z E(x, z) d(x, z).
    static INLINE void pull_opened(Node<V> &node) {
        int c = node.c;
        for (int x = 0; x < node.k; ++x) {
            V sum = V{};
            for (int z = 0; z < c; ++z) {
                V &d = node.s[x * c + z];
                d = pick(node.opens, d, node.s[z]);
                sum += d * node.table.hot.forth[x * c + z];
            }
            node.t[x] = sum;
        }
    }
    // Lanes that open beside lanes with rows, or lanes at both temperatures.
    static INLINE void pull_mixed(Node<V> &node, V *pairs) {
        int k = node.k, c = node.c;
        const double *hot = node.table.hot.forth, *cold = node.table.cold.forth;
        std::fill(node.t, node.t + node.rows * k, V{});
        for (int x = 0; x < k; ++x)
            in_pieces<4>(c, [&](auto size, int z) {
                V E[size], pair[size] = {};
                for (int j = 0; j < size; ++j) {
                    int at = x * c + z + j;
                    E[j] = pick(node.cold, all<V>(cold[at]), all<V>(hot[at]));
                }
                for (int r = 0; r < node.sent; ++r) {
                    unsigned word = r == x ? node.opens : 0;
                    if (r < node.rows) word |= ~node.opens & full<V>;
                    if (!word) continue;
                    V sum = V{};
                    V b = pick(node.opens, node.b[x], node.b[(r < node.rows ? r : 0) * k + x]);
                    for (int j = 0; j < size; ++j) {
                        V d = pick(word, node.s[r * c + z + j] * E[j], V{});
                        sum += d;
                        pair[j] += d * b;
                    }
                    if (r < node.rows) node.t[r * k + x] += pick(node.opens, V{}, sum);
                    if (r == x) node.t[x] += pick(node.opens, sum, V{});
                }
                for (int j = 0; pairs && j < size; ++j) *node.pair(pairs, x, z + j) += pair[j];
            });
    }

    // `pull` at eps_y = 0, given the row that its parent chose for it where it multiplies: outputs are point masses, and
    // a hidden variable has its distribution in one row, q(x) = b(x) sum_z E(x, z) q(z) / s(z).
    static void descend(Node<V> &node, const Node<V> &above, V *pairs, V *work) {
        unsigned hidden = node.here & ~node.cold & ~node.opens;
        if (node.cold) walk(node, node.u, above, all<V>(1.0), node.cold, pairs, work);
        if (node.opens) descend_opened(node, above.u, pairs);
        if (node.ends) choose_row(node, above, pairs, work);
        if (hidden && node.ends != full<V>) descend_hidden(node, above, hidden, pairs, work);
        if (node.given)
            for (int x = 0; x < node.k; ++x)
                node.state = pick(node.given, node.u[x] > 0.5 ? all<V>(x) : node.state, node.state);
    }
    static INLINE void descend_hidden(Node<V> &node, const Node<V> &above, unsigned hidden, V *pairs, V *work) {
        constexpr int lanes = Of<V>::lanes;
        int k = node.k, c = node.c;
        V *b = work, *d = work + k;
        for (int z = 0; z < c; ++z) {
            for (int i = 0; i < lanes; ++i) {
                int row = node.sent > 1 ? int(lane(node.row, i)) : 0;
                set_lane(d[z], i, lane(node.s[row * c + z], i));
            }
            V q = above.u[z];
            d[z] = pick(hidden, q > 0.0 ? q / d[z] * node.scale : V{}, V{});
        }
        for (int x = 0; x < k; ++x) {
            for (int i = 0; i < lanes; ++i) {
                int row = node.rows > 1 && hidden >> i & 1 ? int(lane(node.row, i)) : 0;
                set_lane(b[x], i, lane(node.b[row * k + x], i));
            }
            V sum = V{};
            for (int z = 0; z < c; ++z) {
                V v = pick(hidden, b[x] * d[z] * node.table.hot.forth[x * c + z], V{});
                sum += v;
                if (pairs) *node.pair(pairs, x, z) += v;
            }
            node.u[x] = pick(hidden, sum, node.u[x]);
        }
    }
    // An output whose rows begin here has the state of the row that was chosen.
    static INLINE void descend_opened(Node<V> &node, const V *above, V *pairs) {
        node.state = pick(node.opens, node.row, node.state);
        for (int x = 0; x < node.k; ++x)
            node.u[x] = pick(node.opens, node.row == double(x) ? all<V>(1.0) : V{}, node.u[x]);
        if (!pairs) return;
        for (int i = 0; i < Of<V>::lanes; ++i) {
            if (!(node.opens >> i & 1)) continue;
            int x = int(lane(node.row, i));
            for (int z = 0; z < node.c; ++z) add_to(*node.pair(pairs, x, z), i, lane(above[z], i));
        }
    }
    // Rows end: the best, given the parent's state. Where they end in all lanes, marginals as well.
    static INLINE void choose_row(Node<V> &node, const Node<V> &above, V *pairs, V *work) {
        int k = node.k;
        V at = above.state;
        V top = all<V>(-1.0), row = V{};
        V *b = work, *e = work + k;
        row_at(node.table.hot.back, k, at, e);
        for (int r = 0; r < node.rows; ++r) {
            V v = node.b[r * k] * e[0];
            for (int x = 1; x < k; ++x) v += node.b[r * k + x] * e[x];
            auto better = v > top;
            row = better ? all<V>(r) : row;
            top = better ? v : top;
            for (int x = 0; x < k; ++x) b[x] = better ? node.b[r * k + x] : b[x];
        }
        node.row = pick(node.ends, row, node.row);
        if (node.ends != full<V>) return;
        for (int x = 0; x < k; ++x) {
            node.u[x] = b[x] * e[x] / top;
            if (!pairs) continue;
            for (int i = 0; i < Of<V>::lanes; ++i) add_to(*node.pair(pairs, x, int(lane(at, i))), i, lane(node.u[x], i));
        }
    }
};

template <class V> struct Scores {
    static constexpr bool scaled = false;
    static INLINE V one() { return V{}; }
    static INLINE V zero() { return all<V>(-INF); }
    static INLINE V times(V a, V b) { return a + b; }
    static INLINE V through(V t, V) { return t; }
    static INLINE unsigned walks(const Node<V> &, Temperatures) { return 0; }
    static INLINE V unit(const Node<V> &node, Temperatures eps) { return pick(node.cold, all<V>(eps.y), all<V>(eps.h)); }
    static INLINE bool maxima(Temperatures eps) { return eps.h == 0 && eps.y == 0; }
    static INLINE V term(const Node<V> &node, int r, int x, int z) {
        return node.b[r * node.k + x] + node.table.scores.forth[x * node.c + z];
    }

    static INLINE V enter(Node<V> &node, Temperatures) {
        for (int x = 0; x < node.k; ++x) node.e[x] = node.u[x];
        return V{};
    }

    static INLINE V normalise(Node<V> &node, Temperatures eps, bool, V &) {
        node.scale = all<V>(1.0);
        if (maxima(eps) && node.parent >= 0) return V{};  // nothing is lost where nothing is summed
        V top = node.b[0];
        for (int j = 1; j < node.rows * node.k; ++j) top = larger(top, node.b[j]);
        for (int j = 0; j < node.rows * node.k; ++j) node.b[j] -= top > -INF ? top : V{};
        return top;
    }

    static INLINE void push(Node<V> &node, Temperatures eps, V *work) {
        int c = node.c;
        if (eps.h == 0 && (eps.y == 0 || !node.cold)) {
            product<MaxSum>(node.b, node.rows, node.k, node.table.scores.forth, c, V{}, node.s);
        } else {
            V eps_here = unit(node, eps);
            for (int r = 0; r < node.rows; ++r)
                for (int z = 0; z < c; ++z)
                    node.s[r * c + z] = power_sum(node.k, eps_here, [&](int x) { return term(node, r, x, z); }, work);
        }
        if (!node.opens) return;
        for (int r = 0; r < node.sent; ++r)
            for (int z = 0; z < c; ++z) {
                V mine = r < node.k ? term(node, 0, r, z) : zero();
                V other = r < node.rows ? node.s[r * c + z] : zero();
                node.s[r * c + z] = pick(node.opens, mine, other);
            }
    }

    static INLINE void close(Node<V> &node, Temperatures eps, V *up, V &, V *work) {
        unsigned word = node.here & ~node.times;
        int c = node.c;
        for (int z = 0; z < c; ++z) {
            V score = power_sum(node.sent, all<V>(eps.y), [&](int r) { return node.s[r * c + z]; }, work);
            for (int r = 0; r < node.sent; ++r) node.s[r * c + z] = pick(word, work[r], node.s[r * c + z]);
            node.norm[z] = all<V>(1.0);
            up[z] += pick(word, score, V{});
        }
    }

    static INLINE void pull(Node<V> &node, Temperatures eps, const Node<V> &above, V mass, bool, V *pairs, V *work) {
        if (maxima(eps)) return walk(node, node.b, above, mass, node.here, pairs, work);
        int k = node.k, c = node.c;
        V eps_here = unit(node, eps);
        for (int j = 0; j < node.rows * k; ++j) node.t[j] = V{};
        for (int r = 0; r < node.sent; ++r)
            for (int z = 0; z < c; ++z) {
                V d = node.s[r * c + z];
                auto put = [&](int row, int x, V weight) {
                    node.t[row * k + x] += weight;
                    if (pairs) *node.pair(pairs, x, z) += weight;
                };
                if (r < node.rows) {
                    V summed = pick(node.opens, V{}, d);
                    power_sum(k, eps_here, [&](int x) { return term(node, r, x, z); }, work);
                    for (int x = 0; x < k; ++x) put(r, x, summed * work[x]);
                }
                if (node.opens && r < k) put(0, r, pick(node.opens, d, V{}));
            }
        for (int x = 0; x < k; ++x) {
            node.u[x] = node.t[x];
            for (int r = 1; r < node.rows; ++r) node.u[x] += node.t[r * k + x];
        }
    }
};

}  // namespace mssvm
