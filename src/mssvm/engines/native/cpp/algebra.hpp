// The arithmetic of message passing in two algebras: scaled probabilities and scores. A belief b is a product, a
// message s a power sum of products; d and t are the derivatives of the value with respect to s and to b:
//
//              belief      times   through             push: s(r, z) =                    pull: t(r, x) =
//   Scaled     exp(u/eps)    *     t * other factors   sum_x b(r, x) E(x, z)              sum_z E(x, z) d(r, z)
//   Scores     u             +     t                   PS_x b(r, x) + theta(x, z)         sum_z softmax_x(..) d(r, z)
//
// `through` is the derivative with respect to one factor of a product, given the product of the others. `Scores` is the
// definition: exact at any temperature, zero included, and for any scores. `Scaled` takes logarithms only in `close`,
// and reports the smallest number that it relied on (`least`). If this is not above `Forest::trusted`, the instance
// runs again in Scores.
//
// The functions of an algebra, in the order in which a forest calls them (k states x of a child, c states z of its
// parent; `role` says what the position does in each lane; at most positions of most forests it is a constant):
//
//   enter       e(x) from the scores u(x); returns what was subtracted from these
//   size        the sum of a belief; in Scores its maximum
//   normalise   factors a scale out of the belief; returns the score of that scale. Scaled applies it to the message,
//               Scores to the belief
//   push        the message s from the belief b
//   close       where a message is added to the parent's scores: the power sum at eps_y over its rows
//   pull        t from d (which is in the array of s), and the marginals of states. Marginals of pairs are computed
//               here or by `Forest::outer_products`. At eps_y = 0 Scaled goes back by `descend` instead: best states
//               and rows
#pragma once
#include "roles.hpp"
#include "simd.hpp"

namespace mssvm {

// Splits 0 .. n into pieces of nearly equal size, at most `most`: f(size, start), where the size is a compile-time
// constant.
template <int most, class F> INLINE void in_pieces(int n, F f) {
    auto piece = [&]<int size>(int at) ALWAYS {
        if constexpr (size <= most) f(std::integral_constant<int, size>(), at);
    };
    int at = 0;
    for (int left = (n + most - 1) / most; left; --left) {
        int rest = n - at;
        int size = rest;
        if (left == 2) size = (rest + 1) / 2;  // a shift instead of a division, which is slow
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

// The sum of n numbers, as two independent sums: additions overlap.
template <class V> INLINE V sum_of(const V *x, int n) {
    V even = x[0];
    V odd = V{};
    int i = 1;
    for (; i + 2 <= n; i += 2) {
        odd += x[i];
        even += x[i + 1];
    }
    if (i < n) odd += x[i];
    return even + odd;
}

// sum(z) = plus_x b(x) times a(x, z) for `size` columns z. If there are few columns, each is computed as two
// independent sums, so that additions overlap.
template <class Semiring, int size, class V>
INLINE void product_of_row(const V *b, int k, const double *a, int c, V (&sum)[size]) {
    for (int j = 0; j < size; ++j) sum[j] = Semiring::times(b[0], all<V>(a[j]));
    int x = 1;
    if constexpr (size <= 4) {
        if (k > 3) {
            V other[size];
            for (int j = 0; j < size; ++j) other[j] = Semiring::times(b[1], all<V>(a[c + j]));
            for (x = 2; x + 2 <= k; x += 2)
                for (int j = 0; j < size; ++j) {
                    sum[j] = Semiring::plus(sum[j], Semiring::times(b[x], all<V>(a[x * c + j])));
                    other[j] = Semiring::plus(other[j], Semiring::times(b[x + 1], all<V>(a[(x + 1) * c + j])));
                }
            for (int j = 0; j < size; ++j) sum[j] = Semiring::plus(sum[j], other[j]);
        }
    }
    for (; x < k; ++x)
        for (int j = 0; j < size; ++j) sum[j] = Semiring::plus(sum[j], Semiring::times(b[x], all<V>(a[x * c + j])));
}

// put(r c + z, plus_x b(r, x) times a(x, z)), up to 8 columns z at a time in registers.
template <class Semiring, class V, class Put>
INLINE void product(const V *b, int rows, int k, const double *a, int c, Put put) {
    in_pieces<8>(c, [&](auto size, int z) ALWAYS {
        for (int r = 0; r < rows; ++r) {
            V sum[size];
            product_of_row<Semiring>(b + r * k, k, a + z, c, sum);
            for (int j = 0; j < size; ++j) put(r * c + z + j, sum[j]);
        }
    });
}
template <class Semiring, class V> INLINE void product(const V *b, int rows, int k, const double *a, int c, V *to) {
    product<Semiring>(b, rows, k, a, c, [to](int at, V sum) ALWAYS { to[at] = sum; });
}
// put(z, max_r plus_x b(r, x) times a(x, z)).
template <class Semiring, class V, class Put>
INLINE void best_product(const V *b, int rows, int k, const double *a, int c, Put put) {
    in_pieces<8>(c, [&](auto size, int z) ALWAYS {
        V top[size], sum[size];
        product_of_row<Semiring>(b, k, a + z, c, top);
        for (int r = 1; r < rows; ++r) {
            product_of_row<Semiring>(b + r * k, k, a + z, c, sum);
            for (int j = 0; j < size; ++j) top[j] = larger(top[j], sum[j]);
        }
        for (int j = 0; j < size; ++j) put(z + j, top[j]);
    });
}

// Two vectors of an outer product: one for the rows of a table, one for its columns.
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

// put(x, back(z, x)) for the state z = `at` of every lane. (L numbers beyond the end of a table may be read: `Tables`.)
template <class V, class Put> INLINE void row_at(const double *back, int k, V at, Put put) {
    constexpr int lanes = Of<V>::lanes;
    const double *rows[lanes];
    for_lanes(at * double(k), [&](int i, int64_t first) ALWAYS { rows[i] = back + first; });
    in_pieces<lanes>(k, [&](auto size, int x) ALWAYS {
        V row[lanes];
        for (int i = 0; i < lanes; ++i) row[i] = *(const Loose<V> *)(rows[i] + x);
        transpose(row);
        for (int j = 0; j < size; ++j) put(x + j, row[j]);
    });
}

// At temperature zero: the best state of a child with scores u given that of its parent, in the lanes of a lane_mask.
// `mass` is 1, or 0 where nothing is possible.
template <class V>
INLINE void choose_state(Node<V> &node, const V *u, const Node<V> &above, V mass, unsigned lane_mask, V *pairs) {
    V best = V{};
    V top = all<V>(-INF);
    row_at(node.table->scores.back, node.k, above.state, [&](int x, V theta) ALWAYS {
        V v = u[x] + theta;
        best = v > top ? all<V>(x) : best;
        top = larger(top, v);
    });
    node.state = pick(lane_mask, best, node.state);
    in_lanes<V>(lane_mask, [&](auto chosen) {
        for (int x = 0; x < node.k; ++x) node.u[x] = chosen(best == double(x) ? mass : V{}, node.u[x]);
    });
    if (!pairs) return;
    for_lanes(node.pair_at(best, above.state), [&](int i, int64_t at) ALWAYS {
        if (lane_mask >> i & 1) add_to(pairs[at], i, lane(mass, i));
    });
}

template <class V> struct Scaled {
    static constexpr bool scaled = true;
    static INLINE V one() { return all<V>(1.0); }
    static INLINE V zero() { return V{}; }
    static INLINE V times(V a, V b) { return a * b; }
    static INLINE V plus(V a, V b) { return a + b; }
    static INLINE V size(const V *b, int n) { return sum_of(b, n); }
    // The derivative with respect to a factor, from that with respect to the product.
    static INLINE V through(V t, V other) { return t * other; }
    // Lanes in which the position stays in scores: at eps_y = 0 the message of an output to an output is a maximum.
    static INLINE unsigned by_maxima(const Role<V> &role, Temperatures eps) {
        return eps.y == 0 ? role.output_edge : 0;
    }
    static constexpr bool maxima(Temperatures) { return false; }
    // Whether rows end and only the best is wanted.
    static INLINE bool only_best_row(const Role<V> &role, Temperatures eps) {
        return eps.y == 0 && role.ends == full<V>;
    }
    static INLINE V unit(const Role<V> &role, Temperatures eps) {
        return pick(role.output_edge, all<V>(eps.y), all<V>(eps.h));
    }

    // e = exp((u - max) / unit).
    static INLINE V enter(Node<V> &node, const Role<V> &role, Temperatures eps) {
        V inverse = pick(role.output_edge, all<V>(eps.inverse_y), all<V>(eps.inverse_h));
        V top = all<V>(-1e300);
        for (int x = 0; x < node.k; ++x) top = larger(top, node.u[x]);
        for (int x = 0; x < node.k; ++x) node.e[x] = exp((node.u[x] - top) * inverse);
        return top;
    }

    // The power of two that brings the sum of the belief into [1, 2) scales the message, not the belief.
    static INLINE V normalise(Node<V> &node, const Role<V> &role, Temperatures eps, V total, bool strict, V &least) {
        least = pick(role.present, smaller(total, least), least);
        if (strict) smallest_number(node, role, least);
        node.scale = two_to_minus_exponent(total);
        return exponent(total) * LN2 * unit(role, eps);
    }
    static INLINE void smallest_number(const Node<V> &node, const Role<V> &role, V &least) {
        V found = least;
        for (int j = 0; j < role.rows * node.k; ++j) found = node.b[j] > 0.0 ? smaller(node.b[j], found) : found;
        for (int x = 0; x < node.k; ++x) found = node.u[x] > -INF ? smaller(node.e[x], found) : found;
        least = pick(role.present, found, least);
    }

    static INLINE void push(Node<V> &node, const Role<V> &role, Temperatures eps, V *) {
        const Edge &at_eps_h = node.table->at_eps_h, &at_eps_y = node.table->at_eps_y;
        int k = node.k, c = node.c;
        V scale = node.scale;
        auto send = [s = node.s, scale](int at, V sum) ALWAYS { s[at] = sum * scale; };
        if (only_best_row(role, eps)) return best_product<SumProduct>(node.b, role.rows, k, at_eps_h.forth, c, send);
        if (role.opens != full<V> && role.output_edge != full<V>)
            product<SumProduct>(node.b, role.rows, k, at_eps_h.forth, c, send);
        if (role.output_edge && eps.y > 0)
            in_lanes<V>(role.output_edge, [&](auto on_output_edge) {
                product<SumProduct>(node.b, 1, k, at_eps_y.forth, c,
                                    [&, s = node.s](int z, V sum) ALWAYS { s[z] = on_output_edge(sum * scale, s[z]); });
            });
        if (role.opens) open(node, role);
    }
    // Rows begin: s(r, z) = b(r) E(r, z), in the lanes that open.
    static INLINE void open(Node<V> &node, const Role<V> &role) {
        int c = node.c;
        for (int r = 0; r < role.message_rows; ++r)
            for (int z = 0; z < c; ++z) {
                V other = r < role.rows && role.opens != full<V> ? node.s[r * c + z] : V{};
                V mine = r < node.k ? node.b[r] * node.scale * node.table->at_eps_h.forth[r * c + z] : V{};
                node.s[r * c + z] = pick(role.opens, mine, other);
            }
    }

    // up(z) += eps_y log sum_r s(r, z)^(eps_h / eps_y); s and norm are replaced so that d(r, z) = q(z) norm(z) s(r, z),
    // except at eps_y = 0, where one row will be the best.
    static APART void close(Node<V> &node, const Role<V> &role, Temperatures eps, V *up, V &least, V *) {
        unsigned lane_mask = role.present & ~role.multiplies;
        if (unsigned maxima = by_maxima(role, eps)) {
            in_lanes<V>(maxima, [&](auto chosen) ALWAYS {
                product<MaxSum>(node.u, 1, node.k, node.table->scores.forth, node.c,
                                [&](int z, V top) ALWAYS { up[z] += chosen(top, V{}); });
            });
            lane_mask &= ~maxima;
            if (!lane_mask) return;
        }
        // further rows of the message belong to lanes in which rows begin
        int rows = only_best_row(role, eps) ? 1 : role.rows;
        in_lanes<V>(lane_mask, [&](auto closing) ALWAYS {
            if (rows > 1 && eps.y > 0) close_rows(node, role, eps, up, least, closing);
            else close_best(node, rows, unit(role, eps), eps.y > 0, up, least, closing);
        });
    }
    // up(z) += eps log max_r s(r, z): of the only row, or of the best.
    template <class Blend>
    static INLINE void close_best(Node<V> &node, int rows, V eps, bool derived, V *up, V &least, Blend closing) {
        V one = all<V>(1.0);
        for (int z = 0; z < node.c; ++z) {
            V top = node.s[z];
            for (int r = 1; r < rows; ++r) top = larger(top, node.s[r * node.c + z]);
            V safe = top > 1e-300 ? top : one;
            least = closing(top > 0.0 ? smaller(top, least) : least, least);
            if (derived) {
                node.s[z] = closing(one, node.s[z]);
                node.norm[z] = top > 1e-300 ? one / safe : V{};
            }
            up[z] += closing(top > 1e-300 ? eps * log(safe) : all<V>(-INF), V{});
        }
    }
    // Several rows, and eps_y > 0.
    template <class Blend>
    static INLINE void close_rows(Node<V> &node, const Role<V> &role, Temperatures eps, V *up, V &least,
                                  Blend closing) {
        V one = all<V>(1.0);
        V eps_edge = unit(role, eps);
        in_pieces<5>(node.c, [&](auto size, int z) ALWAYS {
            V top[size], inverse[size], sum[size] = {};
            for (int j = 0; j < size; ++j) top[j] = node.s[z + j];
            for (int r = 1; r < role.rows; ++r)
                for (int j = 0; j < size; ++j) top[j] = larger(top[j], node.s[r * node.c + z + j]);
            for (int j = 0; j < size; ++j) {
                inverse[j] = two_to_minus_exponent(top[j] > 1e-300 ? top[j] : one);
                least = closing(top[j] > 0.0 ? smaller(top[j], least) : least, least);
            }
            for (int r = 0; r < role.rows; ++r) {
                V *s = node.s + r * node.c + z;
                V v[size], x[size], y[size];
                for (int j = 0; j < size; ++j) v[j] = x[j] = s[j] * inverse[j];
                power(x, eps.h / eps.y - 1, y);
                if (role.output_edge)
                    for (int j = 0; j < size; ++j) y[j] = pick(role.output_edge, one, y[j]);
                for (int j = 0; j < size; ++j) {
                    sum[j] += v[j] * y[j];
                    s[j] = closing(y[j], s[j]);
                }
            }
            for (int j = 0; j < size; ++j) {
                V safe = top[j] > 1e-300 ? top[j] : one;
                V score = eps_edge * exponent(safe) * LN2 + eps.y * log(sum[j]);
                node.norm[z + j] = top[j] > 1e-300 ? inverse[j] / sum[j] : V{};
                up[z + j] += closing(top[j] > 1e-300 ? score : all<V>(-INF), V{});
            }
        });
    }

    // t(r, x) = sum_z E(x, z) d(r, z); marginals q = sum_r b t. Where lanes differ in role, marginals of pairs
    // are added here; elsewhere `Forest::outer_products` adds them for all lanes at once. With `strict`, derivatives of
    // impossible states, which may have any size, are zero.
    static INLINE void pull(Node<V> &node, const Role<V> &role, Temperatures eps, const Node<V> &above, V, bool strict,
                            V *pairs, V *work) {
        if (eps.y == 0) return descend(node, role, above, pairs, work);
        const Edge &at_eps_h = node.table->at_eps_h, &at_eps_y = node.table->at_eps_y;
        if (role.opens && role.rows == 1 && !role.output_edge) pull_opened(node, role);
        else if (role.opens || (role.output_edge && role.output_edge != full<V>)) pull_mixed(node, role, pairs);
        else {
            const double *back = role.output_edge ? at_eps_y.back : at_eps_h.back;
            auto derive_one_row = [t = node.t, u = node.u, b = node.b](int x, V sum) ALWAYS {
                t[x] = sum;
                u[x] = b[x] * sum;
            };
            if (role.rows == 1 && !strict) return product<SumProduct>(node.s, 1, node.c, back, node.k, derive_one_row);
            product<SumProduct>(node.s, role.rows, node.c, back, node.k, node.t);
        }
        if (strict)
            for (int j = 0; j < role.rows * node.k; ++j) node.t[j] = node.b[j] > 0.0 ? node.t[j] : V{};
        for (int x = 0; x < node.k; ++x) {
            V q = node.b[x] * node.t[x];
            for (int r = 1; r < role.rows; ++r) q += node.b[r * node.k + x] * node.t[r * node.k + x];
            node.u[x] = q;
        }
    }
    // `pull` of a plain position at eps_y > 0 together with `Forest::derive_all`, the derivatives with respect to the
    // messages of its one or two children: t stays in registers.
    static INLINE void pull_through(Node<V> &node, Node<V> &child) {
        pull_plain(node,
                   [e = node.e, s = child.s, scale = child.scale](int x, V t) ALWAYS { s[x] = t * e[x] * scale; });
    }
    static INLINE void pull_through(Node<V> &node, Node<V> &one, Node<V> &two) {
        pull_plain(node, [e = node.e, s = one.s, other = two.s, scale = one.scale, other_scale = two.scale](int x, V t)
                             ALWAYS {
                                 V message = s[x];
                                 s[x] = t * other[x] * e[x] * scale;
                                 other[x] = t * (e[x] * message) * other_scale;
                             });
    }
    template <class Derive> static INLINE void pull_plain(Node<V> &node, Derive derive) {
        product<SumProduct>(node.s, 1, node.c, node.table->at_eps_h.back, node.k,
                            [u = node.u, b = node.b, derive](int x, V t) ALWAYS {
                                u[x] = b[x] * t;
                                derive(x, t);
                            });
    }
    // One row of belief, and one row of message for every state in the lanes that open: t(x) = sum_z E(x, z) d(x, z).
    static INLINE void pull_opened(Node<V> &node, const Role<V> &role) {
        int c = node.c;
        for (int x = 0; x < node.k; ++x) {
            V sum = V{};
            for (int z = 0; z < c; ++z) {
                V &d = node.s[x * c + z];
                d = pick(role.opens, d, node.s[z]);
                sum += d * node.table->at_eps_h.forth[x * c + z];
            }
            node.t[x] = sum;
        }
    }
    // Where rows begin in some lanes only, or lanes have both temperatures.
    static INLINE void pull_mixed(Node<V> &node, const Role<V> &role, V *pairs) {
        int k = node.k, c = node.c;
        const double *at_eps_h = node.table->at_eps_h.forth, *at_eps_y = node.table->at_eps_y.forth;
        std::fill(node.t, node.t + role.rows * k, V{});
        for (int x = 0; x < k; ++x)
            in_pieces<4>(c, [&](auto size, int z) ALWAYS {
                V E[size], pair[size] = {};
                for (int j = 0; j < size; ++j) {
                    int at = x * c + z + j;
                    E[j] = pick(role.output_edge, all<V>(at_eps_y[at]), all<V>(at_eps_h[at]));
                }
                for (int r = 0; r < role.message_rows; ++r) {
                    unsigned lane_mask = r == x ? role.opens : 0;
                    if (r < role.rows) lane_mask |= ~role.opens & full<V>;
                    if (!lane_mask) continue;
                    V sum = V{};
                    V b = pick(role.opens, node.b[x], node.b[(r < role.rows ? r : 0) * k + x]);
                    for (int j = 0; j < size; ++j) {
                        V d = pick(lane_mask, node.s[r * c + z + j] * E[j], V{});
                        sum += d;
                        pair[j] += d * b;
                    }
                    if (r < role.rows) node.t[r * k + x] += pick(role.opens, V{}, sum);
                    if (r == x) node.t[x] += pick(role.opens, sum, V{});
                }
                for (int j = 0; pairs && j < size; ++j) *node.pair(pairs, x, z + j) += pair[j];
            });
    }

    // `pull` at eps_y = 0: outputs are point masses, and the parent has chosen a row for every child whose message
    // multiplies its belief. A hidden variable has its distribution in one row, q(x) = b(x) sum_z E(x, z) q(z) / s(z).
    static void descend(Node<V> &node, const Role<V> &role, const Node<V> &above, V *pairs, V *work) {
        unsigned hidden = role.present & ~role.output_edge & ~role.opens;
        if (role.output_edge) choose_state(node, node.u, above, all<V>(1.0), role.output_edge, pairs);
        if (role.opens) descend_opened(node, role, above.u, pairs);
        if (role.ends) choose_row(node, role, above, pairs, work);
        if (hidden && role.ends != full<V>) descend_hidden(node, role, above, hidden, pairs, work);
        if (role.given)
            for (int x = 0; x < node.k; ++x)
                node.state = pick(role.given, node.u[x] > 0.5 ? all<V>(x) : node.state, node.state);
    }
    // For every lane, the entry in row `row` of the column that begins at `column`; rows are `step` apart.
    static INLINE V in_rows(const V *column, int step, V row) {
        int64_t at[Of<V>::lanes];
        for_lanes(row * double(step), [&](int i, int64_t first) ALWAYS { at[i] = first; });
        return by_lane<V>([&](int i) ALWAYS { return lane(column[at[i]], i); });
    }
    static INLINE void descend_hidden(Node<V> &node, const Role<V> &role, const Node<V> &above, unsigned hidden,
                                      V *pairs, V *work) {
        int k = node.k, c = node.c;
        V *d = work;
        V row = pick(hidden, node.row, V{});
        for (int z = 0; z < c; ++z) {
            V s = role.message_rows > 1 ? in_rows(node.s + z, c, row) : node.s[z];
            V q = above.u[z];
            d[z] = pick(hidden, q > 0.0 ? q / s * node.scale : V{}, V{});
        }
        for (int x = 0; x < k; ++x) {
            V b = role.rows > 1 ? in_rows(node.b + x, k, row) : node.b[x];
            V sum = V{};
            for (int z = 0; z < c; ++z) {
                V v = pick(hidden, b * d[z] * node.table->at_eps_h.forth[x * c + z], V{});
                sum += v;
                if (pairs) *node.pair(pairs, x, z) += v;
            }
            node.u[x] = pick(hidden, sum, node.u[x]);
        }
    }
    // An output whose rows begin here has the state of the row that was chosen.
    static INLINE void descend_opened(Node<V> &node, const Role<V> &role, const V *above, V *pairs) {
        node.state = pick(role.opens, node.row, node.state);
        for (int x = 0; x < node.k; ++x)
            node.u[x] = pick(role.opens, node.row == double(x) ? all<V>(1.0) : V{}, node.u[x]);
        if (!pairs) return;
        for (int i = 0; i < Of<V>::lanes; ++i) {
            if (!(role.opens >> i & 1)) continue;
            int x = int(lane(node.row, i));
            for (int z = 0; z < node.c; ++z) add_to(*node.pair(pairs, x, z), i, lane(above[z], i));
        }
    }
    // Where rows end: the best row given the parent's state; if rows end in all lanes, also the marginals.
    static INLINE void choose_row(Node<V> &node, const Role<V> &role, const Node<V> &above, V *pairs, V *work) {
        int k = node.k;
        V at = above.state;
        V top = all<V>(-1.0), row = V{};
        V *e = work;
        row_at(node.table->at_eps_h.back, k, at, [&](int x, V v) ALWAYS { e[x] = v; });
        for (int r = 0; r < role.rows; ++r) {
            V v = node.b[r * k] * e[0];
            for (int x = 1; x < k; ++x) v += node.b[r * k + x] * e[x];
            auto better = v > top;
            row = better ? all<V>(r) : row;
            top = better ? v : top;
        }
        node.row = pick(role.ends, row, node.row);
        if (role.ends != full<V>) return;
        for (int x = 0; x < k; ++x) {
            V b = role.rows > 1 ? in_rows(node.b + x, k, row) : node.b[x];
            node.u[x] = b * e[x] / top;
            if (!pairs) continue;
            for (int i = 0; i < Of<V>::lanes; ++i)
                add_to(*node.pair(pairs, x, int(lane(at, i))), i, lane(node.u[x], i));
        }
    }
};

template <class V> struct Scores {
    static constexpr bool scaled = false;
    static INLINE V one() { return V{}; }
    static INLINE V zero() { return all<V>(-INF); }
    static INLINE V times(V a, V b) { return a + b; }
    static INLINE V plus(V a, V b) { return larger(a, b); }
    static INLINE V size(const V *b, int n) {
        V top = b[0];
        for (int j = 1; j < n; ++j) top = larger(top, b[j]);
        return top;
    }
    static INLINE V through(V t, V) { return t; }
    static INLINE unsigned by_maxima(const Role<V> &, Temperatures) { return 0; }
    static INLINE V unit(const Role<V> &role, Temperatures eps) {
        return pick(role.output_edge, all<V>(eps.y), all<V>(eps.h));
    }
    static INLINE bool maxima(Temperatures eps) { return eps.h == 0 && eps.y == 0; }
    static INLINE V term(const Node<V> &node, int r, int x, int z) {
        return node.b[r * node.k + x] + node.table->scores.forth[x * node.c + z];
    }

    // u and e share one array: there is nothing to compute.
    static INLINE V enter(Node<V> &, const Role<V> &, Temperatures) { return V{}; }

    static INLINE V normalise(Node<V> &node, const Role<V> &role, Temperatures eps, V top, bool, V &) {
        node.scale = all<V>(1.0);
        if (maxima(eps) && node.parent >= 0) return V{};  // maxima lose no precision, so no scale is needed
        for (int j = 0; j < role.rows * node.k; ++j) node.b[j] -= top > -INF ? top : V{};
        return top;
    }

    static INLINE void push(Node<V> &node, const Role<V> &role, Temperatures eps, V *work) {
        int c = node.c;
        if (eps.h == 0 && (eps.y == 0 || !role.output_edge)) {
            product<MaxSum>(node.b, role.rows, node.k, node.table->scores.forth, c, node.s);
        } else {
            V eps_edge = unit(role, eps);
            for (int r = 0; r < role.rows; ++r)
                for (int z = 0; z < c; ++z)
                    node.s[r * c + z] = power_sum(node.k, eps_edge, [&](int x) { return term(node, r, x, z); }, work);
        }
        if (!role.opens) return;
        for (int r = 0; r < role.message_rows; ++r)
            for (int z = 0; z < c; ++z) {
                V mine = r < node.k ? term(node, 0, r, z) : zero();
                V other = r < role.rows ? node.s[r * c + z] : zero();
                node.s[r * c + z] = pick(role.opens, mine, other);
            }
    }

    static INLINE void close(Node<V> &node, const Role<V> &role, Temperatures eps, V *up, V &, V *work) {
        unsigned lane_mask = role.present & ~role.multiplies;
        int c = node.c;
        for (int z = 0; z < c; ++z) {
            V score = power_sum(role.message_rows, all<V>(eps.y), [&](int r) { return node.s[r * c + z]; }, work);
            for (int r = 0; r < role.message_rows; ++r) node.s[r * c + z] = pick(lane_mask, work[r], node.s[r * c + z]);
            node.norm[z] = all<V>(1.0);
            up[z] += pick(lane_mask, score, V{});
        }
    }

    static INLINE void pull(Node<V> &node, const Role<V> &role, Temperatures eps, const Node<V> &above, V mass, bool,
                            V *pairs, V *work) {
        if (maxima(eps)) return choose_state(node, node.b, above, mass, role.present, pairs);
        int k = node.k, c = node.c;
        V eps_edge = unit(role, eps);
        for (int j = 0; j < role.rows * k; ++j) node.t[j] = V{};
        for (int r = 0; r < role.message_rows; ++r)
            for (int z = 0; z < c; ++z) {
                V d = node.s[r * c + z];
                auto put = [&](int row, int x, V weight) {
                    node.t[row * k + x] += weight;
                    if (pairs) *node.pair(pairs, x, z) += weight;
                };
                if (r < role.rows) {
                    V summed = pick(role.opens, V{}, d);
                    power_sum(k, eps_edge, [&](int x) { return term(node, r, x, z); }, work);
                    for (int x = 0; x < k; ++x) put(r, x, summed * work[x]);
                }
                if (role.opens && r < k) put(0, r, pick(role.opens, d, V{}));
            }
        for (int x = 0; x < k; ++x) {
            node.u[x] = node.t[x];
            for (int r = 1; r < role.rows; ++r) node.u[x] += node.t[r * k + x];
        }
    }
};

}  // namespace mssvm
