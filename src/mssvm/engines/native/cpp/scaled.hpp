// Messages as probabilities, for pairwise factors at one temperature: sum-, max- and mixed-product (Liu and Ihler).
//
//     sum i to any j       m_j(x_j) ~ sum_{x_i} E(x_i, x_j) n_i(x_i)        n_i = psi_i times all other messages to i
//     max i to max j       m_j(x_j) ~ max_{x_i} E(x_i, x_j) n_i(x_i)
//     max i to sum j       m_j(x_j) ~ E(x_i*, x_j),   x_i* = argmax n_i times the new message to i
//
// with E = exp((theta - max theta) / unit), psi_i = exp((theta_i - max theta_i) / unit), and messages that sum to one.
// No number is above one, so a product that underflows is below 1e-307 and is missing from a sum. A sweep relies on the
// entries of new messages before they are normalised, and on the largest product by which a maximised variable chooses
// its state. While all of these are above TRUSTED, the missing products are below rounding. Otherwise the instance
// continues in scores.
//
// The vector type V has L instances of one graph with the same tables in its lanes, or is a double for one instance.
// Roles and held variables may differ between lanes; lane masks say where.
#pragma once
#include <new>
#include <type_traits>

#include "messages.hpp"

namespace mssvm {

constexpr double TRUSTED = 1e-290;
// Up to this number of other messages, a cavity is computed as their product. With more, the product of all messages is
// stored, and the cavity is that product divided by one message.
constexpr int MOST_OTHERS = 5;
// Largest number of states for which updates are compiled with that number as a constant. Beyond it, the update of one
// instance has vectors along the rows of a table, and the number of vectors is the constant.
template <class V> constexpr int largest_square = std::is_same_v<V, double> ? 7 : 8;
template <class V> constexpr int most_vectors = std::is_same_v<V, double> ? 4 : 0;
// The same limit for one instance whose variables have many factors, where products of messages take most of the time.
constexpr int LARGEST_SQUARE_OF_MANY = 3, MANY_FACTORS = 4;
constexpr double WORK_AT_A_TIME = 2e8;  // table entries of the sweeps of one instance in one call

// An allocator of memory aligned to vectors, so that no vector straddles two cache lines.
template <class T> struct Aligned {
    using value_type = T;
    Aligned() = default;
    template <class U> Aligned(const Aligned<U> &) {}
    T *allocate(size_t n) { return static_cast<T *>(::operator new(n * sizeof(T), std::align_val_t(sizeof(Vec)))); }
    void deallocate(T *memory, size_t) { ::operator delete(memory, std::align_val_t(sizeof(Vec))); }
    bool operator==(const Aligned &) const { return true; }
};

template <class V> INLINE V absolute(V x) { return real<V>(bits(x) & int64_t(0x7fffffffffffffff)); }

// One end of a pairwise factor: the variable, where its states and its message begin, its number of states, and where
// the other messages to it are listed (`others`, `count` of them; -1 where the product of all messages is stored).
struct End {
    int32_t variable, state, message, card, others, count;
};

struct Step {
    End i, j;
    int64_t table, factor;
    int32_t shape;  // K > 0: both variables have K states; -C: theirs fill C vectors; 0: any others, see `update_for`
};

// A variable with more factors than MOST_OTHERS allows: the product of all messages to it is stored.
struct Hub {
    int32_t state, card, messages, count;
};

// The pairwise factors of one instance in the order of a sweep; places are counted within the instance. Where vectors
// run along rows, the states of a variable and of a message are padded to whole vectors, with zeros.
struct Graph {
    std::vector<Step> steps;
    std::vector<Hub> hubs;
    std::vector<int32_t> others, state_place, message_place;
    int64_t n_vars = 0, n_states = 0, n_messages = 0, widest = 1, entries = 0;
    bool padded = false;
    int largest = 0;  // the largest square

    template <class V> void build(const Wiring &w, int64_t b) {
        int64_t first = w.var_ptr[b], first_slot = w.first_slot(b);
        n_vars = w.var_ptr[b + 1] - first;
        lay_out<V>(w, b);
        steps.reserve(w.factor_ptr[b + 1] - w.factor_ptr[b]);
        for (int64_t i = first; i < first + n_vars; ++i) {
            if (w.degree(i) - 1 <= MOST_OTHERS) continue;
            hubs.push_back({state_place[i - first], int32_t(w.card(i)), int32_t(others.size()), int32_t(w.degree(i))});
            for (int64_t k = w.near_ptr[i]; k < w.near_ptr[i + 1]; ++k)
                others.push_back(message_place[w.near[k] - first_slot]);
        }
        for (int64_t e = w.factor_ptr[b]; e < w.factor_ptr[b + 1]; ++e) {
            int64_t f = w.order[e], s = w.scope_ptr[f];
            steps.push_back({end(w, s, first, first_slot), end(w, s + 1, first, first_slot), w.scaled_at[f],
                             f - w.factor_ptr[b], shape_of<V>(w, s)});
        }
    }

private:
    template <class V> int32_t shape_of(const Wiring &w, int64_t s) const {
        int64_t ki = w.slot_card(s), kj = w.slot_card(s + 1);
        if (ki == kj && ki >= 2 && ki <= largest) return int32_t(ki);
        int64_t vectors = (ki + L - 1) / L;
        if ((kj + L - 1) / L == vectors && vectors <= most_vectors<V>) return -int32_t(vectors);
        return 0;
    }

    template <class V> void lay_out(const Wiring &w, int64_t b) {
        bool many = std::is_same_v<V, double> && w.end_slot(b) - w.first_slot(b) > MANY_FACTORS * n_vars;
        largest = many ? LARGEST_SQUARE_OF_MANY : largest_square<V>;
        for (int64_t f = w.factor_ptr[b]; f < w.factor_ptr[b + 1]; ++f) {
            entries += w.table_size(f);
            padded |= std::is_same_v<V, double> && shape_of<V>(w, w.scope_ptr[f]) <= 0;
        }
        int64_t unit = padded ? L : 1;
        for (int64_t i = w.var_ptr[b]; i < w.var_ptr[b + 1]; ++i) {
            widest = std::max(widest, w.card(i));
            state_place.push_back(int32_t(n_states));
            n_states += (w.card(i) + unit - 1) / unit * unit;
        }
        for (int64_t s = w.first_slot(b); s < w.end_slot(b); ++s) {
            message_place.push_back(int32_t(n_messages));
            n_messages += (w.slot_card(s) + unit - 1) / unit * unit;
        }
    }

    End end(const Wiring &w, int64_t s, int64_t first, int64_t first_slot) {
        int64_t i = w.scope[s];
        End out{int32_t(i - first), state_place[i - first], message_place[s - first_slot],
                int32_t(w.card(i)), int32_t(others.size()), -1};
        if (w.degree(i) - 1 > MOST_OTHERS) return out;
        // Without a branch, which would be hard to predict.
        size_t end = others.size();
        others.resize(end + w.degree(i));
        for (int64_t k = w.near_ptr[i]; k < w.near_ptr[i + 1]; ++k) {
            others[end] = message_place[w.near[k] - first_slot];
            end += w.near[k] != s;
        }
        others.resize(end);
        out.count = int32_t(w.degree(i) - 1);
        return out;
    }
};

// --- one factor ---

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
        } else {  // of vectors of states
            rise = larger(-across_min(-other.rise), rise);
            fall = smaller(across_min(other.fall), fall);
            log_change = larger(-across_min(-other.log_change), log_change);
            least = smaller(across_min(other.least), least);
        }
    }
};

// Numbers of states are read one by one in lanes, and L at a time of one instance with many states: W is V or Vec.
// Entries beyond the last state are zero, or, after a product with a table, arbitrary but finite: `only` makes them
// `other`.
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

// to[k] = sum or maximum over r of table[r * down + k * across] from[r].
template <Product kind, int K, class V>
INLINE void multiply(const double *table, const V *from, int n, int down, int across, V *to, int m) {
    if constexpr (K > 0) {
        asm("" : "+r"(table));  // the table is read where it is used: registers are few
#pragma GCC unroll 8
        for (int k = 0; k < K; ++k) {
            V total = all<V>(table[k * across]) * from[0];
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
            for (int c = 0; c < BLOCK; ++c) total[c] = all<V>(column[c * across]) * from[0];
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
            V total = all<V>(column[0]) * from[0];
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

template <class V> INLINE V damped(V v, V old, double damping) {
    if constexpr (std::is_same_v<V, double>) {
        if (damping == 0.5) return std::sqrt(v * old);
    } else if (damping == 0.5) {
        V root = v * old;
        for (int k = 0; k < L; ++k) root[k] = __builtin_sqrt(root[k]);
        return root;
    }
    return exp(log(v) * (1.0 - damping) + log(old) * damping);
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

// --- one factor of one instance, in registers ---

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
            n[c] = only_states<C>(c, end.card, read<Vec>(all_of_them + x) / read<Vec>(own + x), Vec{});  // 0 / 0
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

// --- many factors in a row ---

// Which variables are maximal or held, a lane mask each (`held` may be null); lanes that are `idle`.
struct MessageMasks {
    const uint8_t *role, *held;
    unsigned idle;
};

// Updates factors from `step` on while they are of shape K with such roles; returns the first one that is not.
template <class V, class Item, int K, Roles roles, bool plain>
const Step *update_while(const Lanes<V, Item> &given, Marks<V> &sofar, const Step *step, const Step *end, int direction,
                         const MessageMasks &masks) {
    Lanes<V, Item> lanes = given;
    Marks<Wide<K, V>> marks;
    for (; step != end; step += direction) {
        unsigned role_i = masks.role[step->i.variable], role_j = masks.role[step->j.variable], fixed = 0;
        if (step->shape != K || roles_of<V>(role_i, role_j) != roles) break;
        if constexpr (!plain) {
            if (masks.held) fixed = masks.held[step->i.variable] | masks.held[step->j.variable];
            if ((fixed | masks.idle) == full<V> && fixed) continue;
        }
        if constexpr (K < 0) update<-K, roles>(lanes, marks, *step, role_i != 0);
        else update<V, K, roles, plain>(lanes, marks, *step, role_i, role_j, fixed);
    }
    sofar.add(marks);
    return step;
}

template <class V, class Item>
using Update = const Step *(*)(const Lanes<V, Item> &, Marks<V> &, const Step *, const Step *, int,
                               const MessageMasks &);

template <class V, class Item, Roles roles, bool plain, int K = largest_square<V>> Update<V, Item> update_for(
    int shape) {
    if constexpr (K < -most_vectors<V>) {
        return nullptr;
    } else {
        // With vectors along rows, `plain` saves little.
        if (shape == K) return update_while < V, Item, K, roles, plain && K >= 0 > ;
        return update_for < V, Item, roles, plain, K == 2 ? 0 : K - 1 > (shape);
    }
}

template <class V, class Item, bool plain> Update<V, Item> update_for(int shape, Roles roles) {
    if (roles == Roles::SUMS) return update_for<V, Item, Roles::SUMS, plain>(shape);
    if (roles == Roles::MAXIMA) return update_for<V, Item, Roles::MAXIMA, plain>(shape);
    return update_for<V, Item, Roles::MIXED, plain>(shape);
}

// --- many factors ---

template <class V> class Probabilities {
public:
    static constexpr int lanes = Of<V>::lanes;

    Probabilities() {
        for (Roles roles : {Roles::SUMS, Roles::MAXIMA, Roles::MIXED})
            for (int shape = -most_vectors<V>; shape <= largest_square<V>; ++shape) {
                updates_[0][int(roles)][shape + most_vectors<V>] = update_for<V, V, false>(shape, roles);
                updates_[1][int(roles)][shape + most_vectors<V>] = update_for<V, V, true>(shape, roles);
            }
    }

    // Memory stays with the thread from call to call.
    void prepare(const Wiring &wiring, const Graph &graph, const RunArrays &run, const Sweeping &how) {
        w_ = &wiring;
        graph_ = &graph;
        run_ = &run;
        how_ = &how;
        // Vectors of states may end beyond the last one.
        psi_.resize(graph_->n_states + L);
        messages_.resize(graph_->n_messages + L);
        next_.resize(how.flooding ? graph_->n_messages + L : 0);
        product_.resize(graph_->hubs.empty() ? 0 : graph_->n_states + L);
        room_.resize(8 * (graph_->widest + L));
        if (graph_->padded) {
            std::fill(psi_.begin(), psi_.end(), V{});
            std::fill(messages_.begin(), messages_.end(), V{});
            std::fill(product_.begin(), product_.end(), V{});
        }
        roles_.assign(graph_->n_vars, 0);
        held_.assign(run.held.empty() ? 0 : graph_->n_vars, 0);
        idle_ = full<V>;
        first_ = true;
    }

    int64_t at_a_time(int64_t) const {
        return std::max<int64_t>(1, int64_t(WORK_AT_A_TIME / double(graph_->entries + 1)));
    }

    void load(unsigned joined, const int64_t *who) {
        const double *psi[lanes], *messages[lanes];
        int64_t some = 0;
        for (int k = 0; k < lanes; ++k)
            if (joined >> k & 1) some = who[k];
        // Lanes without an instance start as copies of another one; their later contents do not matter.
        unsigned filled = first_ ? full<V> : joined;
        first_ = false;
        for (int k = 0; k < lanes; ++k) {
            int64_t b = joined >> k & 1 ? who[k] : some;
            psi[k] = run_->potential.data + w_->first_state(b);
            messages[k] = run_->messages.data + w_->first_message(b);
            if (!(filled >> k & 1)) continue;
            for (int64_t i = 0; i < graph_->n_vars; ++i) {
                int64_t v = w_->var_ptr[b] + i;
                mark(roles_[i], k, how_->maximal(v));
                if (!held_.empty()) mark(held_[i], k, run_->held[v]);
            }
        }
        if constexpr (lanes == 1) {
            spread_out(psi[0], graph_->state_place, graph_->n_states, w_->state_ptr.data + w_->var_ptr[who[0]],
                       psi_.data());
            const int64_t *at = w_->message_at.data + w_->first_slot(who[0]);
            spread_out(messages[0], graph_->message_place, graph_->n_messages, at, messages_.data());
        } else {
            gather_some(psi, graph_->n_states, psi_.data(), filled);
            gather_some(messages, graph_->n_messages, messages_.data(), filled);
        }
        if (how_->flooding) next_ = messages_;
        idle_ &= ~joined;
    }

    void sweep(bool reverse, bool measure) {
        const int64_t n = int64_t(graph_->steps.size());
        bool flooding = how_->flooding;
        Marks<V> marks;
        marks.least = collect();
        Lanes<V> state{how_->scaled_tables.data,
                       psi_.data(),
                       messages_.data(),
                       flooding ? next_.data() : messages_.data(),
                       product_.data(),
                       room_.data(),
                       graph_->others.data(),
                       how_->damping,
                       !flooding,
                       measure};
        bool plain = how_->damping == 0.0 && !measure && graph_->hubs.empty() && held_.empty();
        MessageMasks masks{roles_.data(), held_.empty() ? nullptr : held_.data(), idle_};
        const Step *first = graph_->steps.data(), *last = first + n - 1;
        const Step *step = reverse ? last : first, *end = reverse ? first - 1 : last + 1;
        while (step != end) {
            Roles roles = roles_of<V>(roles_[step->i.variable], roles_[step->j.variable]);
            Update<V, V> update = updates_[plain][int(roles)][step->shape + most_vectors<V>];
            step = update(state, marks, step, end, reverse ? -1 : 1, masks);
        }
        if (flooding) std::swap(messages_, next_);
        change_ = larger(marks.rise, -marks.fall);
        log_change_ = marks.log_change;
        least_ = marks.least;
    }

    bool trusted(int k) const { return lane(least_, k) >= TRUSTED; }
    double change(int k, bool measuring) const { return measuring ? lane(log_change_, k) : lane(change_, k); }
    bool shows_logarithms(int64_t b) const { return how_->weak[b]; }

    void store(unsigned done, const int64_t *who) {
        double *messages[lanes];
        for (int k = 0; k < lanes; ++k)
            messages[k] = done >> k & 1 ? run_->messages.data + w_->first_message(who[k]) : nullptr;
        if constexpr (lanes == 1) {
            const int64_t *at = w_->message_at.data + w_->first_slot(who[0]);
            for (size_t s = 0; s < graph_->message_place.size(); ++s)
                std::copy_n(messages_.data() + graph_->message_place[s], at[s + 1] - at[s],
                            messages[0] + at[s] - at[0]);
        } else {
            scatter_some(messages_.data(), graph_->n_messages, messages, done);
        }
    }

    void leave(unsigned done) { idle_ |= done; }

    // From the messages in memory, those before this call.
    void to_scores(int64_t b) {
        messages_to_scores(*w_, *run_, how_->unit, b);
        run_->scaled[b] = 0;
    }

    // Bethe values sum_a PS(S_a) + sum_i (1 - degree_i) PS(g_i) of the loaded instances, and marginals, if wanted,
    // which are added to `out`. An instance that cannot be trusted has NaN and adds nothing.
    void beliefs(unsigned who_of, const int64_t *who, const BeliefArrays &out) {
        bool wanted = !out.mu_unary.empty();
        int64_t some = 0;
        for (int k = 0; k < lanes; ++k)
            if (who_of >> k & 1) some = who[k];
        int64_t n_mu = 0;
        for (const Step &step : graph_->steps)
            n_mu = std::max(n_mu, mu_at(step, some) + int64_t(step.i.card) * step.j.card);
        mu_unary_.assign(wanted ? graph_->n_states : 0, V{});
        mu_tables_.assign(wanted ? n_mu : 0, V{});
        least_ = all<V>(1.0);
        V total = variable_beliefs(some) + factor_beliefs(some);
        for (int k = 0; k < lanes; ++k) {
            if (!(who_of >> k & 1)) continue;
            int64_t b = who[k];
            out.value[b] = trusted(k) ? lane(total, k) + tops(b, out) : std::nan("");
            if (!wanted || !trusted(k)) continue;
            for (int64_t i = 0; i < graph_->n_vars; ++i) {
                double *to = out.mu_unary.data + w_->state_ptr[w_->var_ptr[b] + i];
                for (int64_t x = 0; x < w_->card(w_->var_ptr[b] + i); ++x)
                    to[x] += lane(mu_unary_[graph_->state_place[i] + x], k);
            }
            double *to = out.mu_tables.data + w_->mu_at[w_->factor_ptr[b]];
            for (int64_t e = 0; e < n_mu; ++e) to[e] += lane(mu_tables_[e], k);
        }
    }

    static void messages_to_scores(const Wiring &w, const RunArrays &run, double unit, int64_t b) {
        for (int64_t s = w.first_slot(b); s < w.end_slot(b); ++s) {
            double top = 0.0;
            for (int64_t e = w.message_at[s]; e < w.message_at[s + 1]; ++e) top = std::max(top, run.messages[e]);
            for (int64_t e = w.message_at[s]; e < w.message_at[s + 1]; ++e)
                run.messages[e] = unit * std::log(run.messages[e] / top);
        }
    }

private:
    int64_t mu_at(const Step &step, int64_t b) const {
        int64_t first = w_->factor_ptr[b];
        return w_->mu_at[first + step.factor] - w_->mu_at[first];
    }

    // The scores that were subtracted before exponentials.
    double tops(int64_t b, const BeliefArrays &out) const {
        double total = 0.0;
        for (int64_t i = w_->var_ptr[b]; i < w_->var_ptr[b + 1]; ++i) total += top_of(*w_, *run_, i);
        for (int64_t f = w_->factor_ptr[b]; f < w_->factor_ptr[b + 1]; ++f) total += out.table_tops[w_->table_of[f]];
        return total;
    }

    V variable_beliefs(int64_t b) {
        V total{};
        for (int64_t i = w_->var_ptr[b]; i < w_->var_ptr[b + 1]; ++i) {
            int64_t card = w_->card(i), at = graph_->state_place[i - w_->var_ptr[b]];
            V z{};
            for (int64_t x = 0; x < card; ++x) {
                V g = psi_[at + x];
                for (int64_t k = w_->near_ptr[i]; k < w_->near_ptr[i + 1]; ++k)
                    g *= messages_[graph_->message_place[w_->near[k] - w_->first_slot(b)] + x];
                room_[x] = g;
                z += g;
            }
            least_ = smaller(z, least_);
            total += how_->unit * double(1 - w_->degree(i)) * log(z);
            if (!mu_unary_.empty())
                for (int64_t x = 0; x < card; ++x) mu_unary_[at + x] = room_[x] / z;
        }
        return total;
    }

    V factor_beliefs(int64_t b) {
        V total{};
        least_ = smaller(collect(), least_);
        Lanes<V> state{};
        state.psi = psi_.data();
        state.from = messages_.data();
        state.product = product_.data();
        state.others = graph_->others.data();
        for (const Step &step : graph_->steps) {
            int ki = step.i.card, kj = step.j.card;
            V *n_i = room_.data(), *n_j = n_i + (ki + L - 1) / L * L;
            cavity<0, false>(state, step.i, ki, n_i);
            cavity<0, false>(state, step.j, kj, n_j);
            const double *table = how_->scaled_tables.data + step.table;
            V z{}, *to_j = n_j + (kj + L - 1) / L * L;  // column by column: sums that do not wait for one another
            for (int c = 0; c < kj; ++c) to_j[c] = table[c] * n_i[0];
            for (int r = 1; r < ki; ++r)
                for (int c = 0; c < kj; ++c) to_j[c] += table[r * kj + c] * n_i[r];
            for (int c = 0; c < kj; ++c) z += to_j[c] * n_j[c];
            least_ = smaller(z, least_);
            total += how_->unit * log(z);
            if (mu_unary_.empty()) continue;
            V *to = mu_tables_.data() + mu_at(step, b), scale = 1.0 / z;
            for (int r = 0; r < ki; ++r)
                for (int c = 0; c < kj; ++c, ++to) {
                    V joint = table[r * kj + c] * n_j[c] * n_i[r];
                    *to += joint == z ? all<V>(1.0) : joint * scale;
                }
        }
        return total;
    }

    static void mark(uint8_t &lane_mask, int k, bool set) {
        lane_mask = uint8_t((lane_mask & ~(1u << k)) | unsigned(set) << k);
    }

    // The products of all messages to hubs, afresh for every sweep so that nothing drifts; returns the smallest.
    V collect() {
        V least = all<V>(1.0);
        for (const Hub &hub : graph_->hubs) {
            if (graph_->padded) collect<Wide<0, V>>(hub, least);
            else collect<V>(hub, least);
        }
        return least;
    }
    template <class W> void collect(const Hub &hub, V &least) {
        constexpr int step = std::is_same_v<W, V> ? 1 : L;
        W low = all<W>(1.0);
        for (int x = 0; x < hub.card; x += step) {
            W psi = read<W>(psi_.data() + hub.state + x), total = psi;
            for (int o = 0; o < hub.count; ++o)
                total *= read<W>(messages_.data() + graph_->others[hub.messages + o] + x);
            write(product_.data() + hub.state + x, total);
            low = smaller(psi > 0.0 ? total : all<W>(1.0), low);
        }
        if constexpr (std::is_same_v<W, V>) least = smaller(low, least);
        else least = smaller(across_min(low), least);
    }

    // Numbers of one instance to their places; `at` says where those of every part begin.
    void spread_out(const double *from, const std::vector<int32_t> &place, int64_t n, const int64_t *at,
                    double *to) const {
        if (!graph_->padded) {
            std::copy_n(from, n, to);
            return;
        }
        for (size_t k = 0; k < place.size(); ++k) std::copy_n(from + at[k] - at[0], at[k + 1] - at[k], to + place[k]);
    }

    static void gather_some(const double *const *from, int64_t n, V *to, unsigned lanes_of) {
        int64_t j = 0;
        if constexpr (lanes > 1)
            for (; j + L <= n; j += L) {
                V r[L];
                for (int i = 0; i < L; ++i) r[i] = *(const Unaligned *)(from[i] + j);
                transpose(r);
                for (int i = 0; i < L; ++i) to[j + i] = pick(lanes_of, r[i], to[j + i]);
            }
        for (; j < n; ++j)
            for (int i = 0; i < lanes; ++i)
                if (lanes_of >> i & 1) set_lane(to[j], i, from[i][j]);
    }
    static void scatter_some(const V *from, int64_t n, double *const *to, unsigned lanes_of) {
        int64_t j = 0;
        if constexpr (lanes > 1)
            for (; j + L <= n; j += L) {
                V r[L];
                for (int i = 0; i < L; ++i) r[i] = from[j + i];
                transpose(r);
                for (int i = 0; i < L; ++i)
                    if (lanes_of >> i & 1) *(Unaligned *)(to[i] + j) = r[i];
            }
        for (; j < n; ++j)
            for (int i = 0; i < lanes; ++i)
                if (lanes_of >> i & 1) to[i][j] = lane(from[j], i);
    }

    const Wiring *w_ = nullptr;
    const RunArrays *run_ = nullptr;
    const Sweeping *how_ = nullptr;
    const Graph *graph_ = nullptr;
    std::vector<V, Aligned<V>> psi_, messages_, next_, product_, room_, mu_unary_, mu_tables_;
    std::vector<uint8_t> roles_, held_;
    Update<V, V> updates_[2][3][most_vectors<V> + largest_square<V> + 1];
    V change_{}, log_change_{}, least_{};
    unsigned idle_ = 0;
    bool first_ = true;
};

}  // namespace mssvm
