// Sequential tree-reweighted messages (TRW-S) on monotone chains: block coordinate descent on the decomposition bound
//
//     PS[eps] theta  <=  sum_c PS[eps rho_c] theta_c  +  sum_i PS[eps l_i] theta_i
//     l_i = 1 - sum_{c through i} rho_c
//
// of any pairwise graph at one temperature: sums at eps > 0, maxima at 0. Messages are scores. With G_i = u_i plus all
// messages to i, the scores of variable i in chain c are rho_c G_i minus the two messages to i along c; the bound holds
// for any messages. A sweep visits variables in order; at each
//
//     M_ij(z) = PS[eps rho] over x of (rho G_i(x) - M_ji(x) + theta_ij(x, z))
//
// goes to its later neighbours (forwards) or to its earlier ones (backwards). That makes the marginals of i equal in
// all chains through it, which is the minimum over the scores of i, so the bound never rises (Kolmogorov 2006; sums:
// Meltzer, Globerson and Weiss 2009). Messages are normalised to a largest entry of zero; the bound after a backward
// sweep is the sum of the constants subtracted and of PS at the first variables of all chains.
//
// The level of a variable is the length of the longest chain that ends there; variables of one level are never
// neighbours. L of them, of one or several instances, are a group that runs in the lanes of a vector; a task has the
// groups of some instances, in the order of their levels. The groups of a level are distributed over bands, which
// threads run; the groups of one level and band are a cell.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "boundary.hpp"
#include "simd.hpp"

namespace mssvm {

// How messages are computed: maxima; sums of scaled tables exp((theta - top) / (eps rho)), for tables of small range;
// log-sums of scores, for any tables.
enum class Rule { maxima, scaled, scores };

// Groups, and their slots: one for every factor of their variables, those of earlier neighbours first. `variable`,
// `root` and `left` are by group and lane; `reverse` to `rho` by slot and lane.
struct ChainLayout {
    int64_t bytes;
    Ints task_ptr;         // cells of a task, by level and band
    Ints bands;            // of a task
    int64_t side_by_side;  // neighbours are in one band or in adjacent ones
    Ints cell_ptr;         // groups of a cell
    // Marginals that factors of several bands share are summed by band first: by task, where these partial sums are,
    // and where they are added.
    Ints partial_ptr, partial_at, partial_to;
    Ints state_at, slot_ptr, in_count, variable;
    Floats root;      // weight of PS[eps] G_i in the bound: of the chains that begin at i, and l_i
    Floats left;      // l_i
    Ints message_at;  // vector of the message's first state
    Ints read_at;     // vectors of a slot to an earlier neighbour while marginals are read: message, then sender
    Ints partner;     // slot through which the chain continues at this variable, or -1
    Shorts other_card;
    Bytes8 transposed;  // the variable is the second of the factor
    Bytes8 aligned;     // the reverse messages of all lanes lie side by side
    Bytes8 tied;        // all lanes have the same tables
    Shorts reverse;     // index of the first entry of the opposite message
    Shorts reverse_read, table, scaled, other;
    Shorts mu;  // index of the first marginal; indices beyond the batch's are those of partial sums
    Floats rho;
    // For two temperatures (nested.hpp):
    Bytes8 hidden;        // by group
    Bytes8 other_hidden;  // by slot: lanes whose neighbour is hidden, as bits
    Ints shift_at;        // by slot: vector of its chain's shift at this variable
    int64_t widest, degree;
};

struct ChainCall {
    int64_t bytes;
    const ChainLayout *layout;
    Floats unary;     // by group and state, in lanes; -inf where forbidden
    Floats tables;    // theta
    Floats scaled;    // top, then exp((theta - top) / (eps rho)), of every table and weight
    Floats messages;  // changed by sweeps; the last vectors are where lanes without a variable write
    Floats read;      // workspace of marginals
    Ints unary_ptr, owner;
    Floats value;  // by instance
    Floats mu_unary, mu_tables;
    Floats partial;   // sums of marginals by band
    Floats by_lane;   // by group and lane: its contribution to the bound, or to the residual
    Floats residual;  // by instance: the largest difference between marginals of a variable in two chains
    Ints states;      // by variable
    Floats shifts;    // for two temperatures: shifts of the variables' scores, by chain
    double eps, eps_h;
    int64_t rule, sweeps, threads;
    int64_t ready;  // for two temperatures: messages from later variables are up to date with the shifts
};

// work(table) with the tables that begin at at[lane]; `tied` lanes have the same one.
template <class Work> INLINE void with_lanes(const double *tables, const int32_t *at, bool tied, Work work) {
    if (tied) work([=](int64_t entry) ALWAYS { return all<Vec>(tables[at[0] + entry]); });
    else
        work([=](int64_t entry) ALWAYS {
            Vec v;
            for (int i = 0; i < L; ++i) v[i] = tables[at[i] + entry];
            return v;
        });
}

// Where the marginals of a slot are summed.
inline double *sums_at(const ChainCall &c, int64_t mu) {
    return mu < c.mu_tables.size ? c.mu_tables.data + mu : c.partial.data + (mu - c.mu_tables.size);
}

// exp((v - top) unit) of scores, and their largest (zero where none is possible); two numbers need one exponential.
template <int K> INLINE Vec exponentials(const Vec *v, int k, Vec unit, Vec *out) {
    Vec top = v[0];
    for (int x = 1; x < k; ++x) top = larger(top, v[x]);
    top = top > -INF ? top : Vec{};
    if constexpr (K == 2) {
        Vec first = v[0], second = v[1], lower = exp((smaller(first, second) - top) * unit);
        out[0] = first >= second ? (first > -INF ? all<Vec>(1.0) : Vec{}) : lower;
        out[1] = second > first ? all<Vec>(1.0) : lower;
    } else {
        for (int x = 0; x < k; ++x) out[x] = exp((v[x] - top) * unit);
    }
    return top;
}

// Adds the marginals of a slot's factors to their sums; lanes without a variable add zero to the sum of the first lane,
// which always has one.
class PairSums {
public:
    PairSums(const ChainCall &c, int64_t slot, int64_t group) {
        const int32_t *to = c.layout->mu.data + slot * L;
        std::memcpy(&variable_, c.layout->variable.data + group * L, sizeof variable_);
        for (int i = 0; i < L; ++i) {
            sums_[i] = sums_at(c, to[i] < 0 ? to[0] : to[i]);
            together_ = together_ && sums_[i] == sums_[0];
        }
    }

    INLINE void add(int64_t entry, Vec pair) const {
        Vec used = variable_ >= 0 ? pair : Vec{};
        if (together_) {
            double sum = 0.0;
            for (int i = 0; i < L; ++i) sum += used[i];
            sums_[0][entry] += sum;
        } else {
            for (int i = 0; i < L; ++i) sums_[i][entry] += used[i];
        }
    }

private:
    double *sums_[L];
    bool together_ = true;
    IVec variable_;
};

// K > 0: the number of states of the group's variables and of all their neighbours; 0: any.
template <int K, Rule rule> class Chains {
    using Cells = const Unaligned *;

public:
    Chains(const ChainCall &call, Vec *buffer) : call_(call), a_(*call.layout), eps_(call.eps), buffer_(buffer) {}

    void forward(int64_t g) {
        const Vec *total = totals(g);
        for (int64_t s = a_.slot_ptr[g] + a_.in_count[g]; s < a_.slot_ptr[g + 1]; ++s) {
            Vec *sent = sending();
            message(g, s, sender(g, s, total, nullptr), sent, false);
            put(s, a_.reverse, call_.messages.data, other(s), sent);
        }
    }

    // Returns the group's contribution to the bound if `measure`, else zero.
    Vec backward(int64_t g, bool measure) {
        const Vec *total = totals(g);
        Vec bound{};
        if (measure) {
            Vec root = lanes(a_.root, g);
            bound = root > 0.0 ? root * power_sum(total, card(g), all<Vec>(eps_)) : bound;
        }
        for (int64_t s = a_.slot_ptr[g]; s < a_.slot_ptr[g] + a_.in_count[g]; ++s) {
            Vec *sent = sending();
            bound += message(g, s, sender(g, s, total, nullptr), sent, measure);
            put(s, a_.reverse, call_.messages.data, other(s), sent);
        }
        return bound;
    }

    // Marginals of the chains after a backward sweep, by a forward pass that leaves the messages as they are.
    void read(int64_t g) {
        const Vec *total = totals(g);
        int k = card(g);
        int64_t first = a_.slot_ptr[g], middle = first + a_.in_count[g];
        Vec *belief = buffer_ + 4 * a_.widest, *mu = belief + a_.widest, *chain = mu + a_.widest;
        softmax(total, k, all<Vec>(1.0 / eps_), belief);
        Vec own = lanes(a_.left, g), apart{};
        for (int x = 0; x < k; ++x) mu[x] = own * belief[x];
        for (int64_t s = first; s < middle; ++s) {
            Vec rho = lanes(a_.rho, s);
            chain_scores(s, k, total, rho, chain);
            softmax(chain, k, 1.0 / (eps_ * rho), chain);
            for (int x = 0; x < k; ++x) {
                mu[x] += rho * chain[x];
                apart = larger(apart, larger(chain[x] - belief[x], belief[x] - chain[x]));
            }
            pairs(g, s, k, rho, chain);
        }
        for (int64_t s = middle; s < a_.slot_ptr[g + 1]; ++s) {
            int64_t before = a_.partner[s];
            if (before < 0)
                for (int x = 0; x < k; ++x) mu[x] += lanes(a_.rho, s) * belief[x];
            Vec *from = sender(g, s, total, before < 0 ? nullptr : readings(before));
            Vec *sent = sending(), top = message(g, s, from, sent, rule != Rule::scaled);
            for (int x = 0; x < k; ++x) from[x] -= top;
            put(s, a_.reverse_read, call_.read.data, other(s), sent);
            put(s, a_.reverse_read, call_.read.data + other(s) * L, k, rule == Rule::scaled ? weights() : from);
        }
        for (int i = 0; i < L; ++i) {
            int64_t v = a_.variable[g * L + i];
            if (v < 0) continue;
            for (int x = 0; x < k; ++x) call_.mu_unary[call_.unary_ptr[v] + x] = mu[x][i];
            call_.by_lane[g * L + i] = apart[i];
        }
    }

    // States one by one in order: the best given the earlier neighbours' states and the messages of later ones.
    void decode(int64_t g) {
        int k = card(g);
        Cells u = vectors(call_.unary) + a_.state_at[g];
        int64_t first = a_.slot_ptr[g], middle = first + a_.in_count[g];
        for (int i = 0; i < L; ++i) {
            int64_t v = a_.variable[g * L + i];
            if (v < 0) continue;
            double best = -INF;
            int64_t state = 0;
            for (int x = 0; x < k; ++x) {
                double score = u[x][i];
                for (int64_t s = first; s < middle; ++s) {
                    int64_t z = call_.states[a_.other[s * L + i]];
                    score += call_.tables[a_.table[s * L + i] + place(s, k, x, int(z))];
                }
                for (int64_t s = middle; s < a_.slot_ptr[g + 1]; ++s)
                    score += vectors(call_.messages)[a_.message_at[s] + x][i];
                if (score > best) {
                    best = score;
                    state = x;
                }
            }
            call_.states[v] = state;
        }
    }

private:
    static Cells vectors(const Floats &numbers) { return (Cells)numbers.data; }
    static Vec lanes(const Floats &numbers, int64_t at) { return *(const Unaligned *)(numbers.data + at * L); }
    int card(int64_t g) const { return K ? K : int(a_.state_at[g + 1] - a_.state_at[g]); }
    int other(int64_t s) const { return K ? K : a_.other_card[s]; }
    // The position of an entry in the table of slot s: own state x of k, the other's state z.
    int64_t place(int64_t s, int k, int x, int z) const {
        return a_.transposed[s] ? int64_t(z) * k + x : int64_t(x) * other(s) + z;
    }
    Cells readings(int64_t s) const { return vectors(call_.read) + a_.read_at[s]; }

    const Vec *totals(int64_t g) {
        int k = card(g);
        Cells u = vectors(call_.unary) + a_.state_at[g];
        Cells m = vectors(call_.messages) + (a_.slot_ptr[g] < a_.slot_ptr[g + 1] ? a_.message_at[a_.slot_ptr[g]] : 0);
        for (int x = 0; x < k; ++x) buffer_[x] = u[x];
        for (int64_t s = a_.slot_ptr[g]; s < a_.slot_ptr[g + 1]; ++s, m += k)
            for (int x = 0; x < k; ++x) buffer_[x] += m[x];
        return buffer_;
    }

    // rho G minus the message opposite to the one that slot s sends. A reading, if given, replaces the message along
    // the chain from earlier variables.
    Vec *sender(int64_t g, int64_t s, const Vec *total, Cells reading) {
        int k = card(g);
        Vec *out = buffer_ + a_.widest, rho = lanes(a_.rho, s);
        Cells back = vectors(call_.messages) + a_.message_at[s];
        for (int x = 0; x < k; ++x) out[x] = total[x] > -INF ? rho * total[x] - back[x] : all<Vec>(-INF);
        if (reading) {
            Cells swept = vectors(call_.messages) + a_.message_at[a_.partner[s]];
            for (int x = 0; x < k; ++x) out[x] = out[x] > -INF ? out[x] + (reading[x] - swept[x]) : out[x];
        }
        return out;
    }

    Vec *sending() const { return buffer_ + 2 * a_.widest; }
    Vec *weights() const { return buffer_ + 3 * a_.widest; }

    // work(table) with the table of a slot, scaled by the rule `scaled`.
    template <class Work> INLINE void with_table(int64_t s, Work work) const {
        const int32_t *at = (rule == Rule::scaled ? a_.scaled.data : a_.table.data) + s * L;
        const double *tables = rule == Rule::scaled ? call_.scaled.data : call_.tables.data;
        with_lanes(tables, at, a_.tied[s], work);
    }

    // The message of slot s, normalised to a largest entry of zero; returns what was subtracted if `measure`, else any
    // number. By the rule `scaled` weights() are left, the exponentials of `from`.
    Vec message(int64_t g, int64_t s, const Vec *from, Vec *out, bool measure) const {
        int k = card(g), n = other(s);
        Vec top{};
        with_table(s, [&](auto table) ALWAYS {
            if constexpr (rule == Rule::scaled) top = send_scaled(k, s, from, table, out, measure);
            else {
                send(k, s, from, table, out);
                top = largest_of(out, n);
                for (int z = 0; z < n; ++z) out[z] -= finite(top);
            }
        });
        return top;
    }

    template <class Table>
    INLINE Vec send_scaled(int k, int64_t s, const Vec *from, Table table, Vec *out, bool measure) const {
        int n = other(s);
        Vec tau = eps_ * lanes(a_.rho, s), *weight = weights();
        Vec base = exponentials<K>(from, k, 1.0 / tau, weight) + table(0);
        for (int z = 0; z < n; ++z) {
            Vec sum{};
            for (int x = 0; x < k; ++x) sum += weight[x] * table(1 + place(s, k, x, z));
            out[z] = sum;
        }
        Vec most = largest_of(out, n);
        if constexpr (K == 2) {
            // Tables are positive: both sums are, or the sender has no possible state.
            Vec less = tau * log(most > 0.0 ? smaller(out[0], out[1]) / most : all<Vec>(1.0));
            Vec first = out[0] >= out[1] ? Vec{} : less, second = out[1] >= out[0] ? Vec{} : less;
            out[0] = most > 0.0 ? first : all<Vec>(-INF);
            out[1] = most > 0.0 ? second : all<Vec>(-INF);
            if (!measure) return base;
            return base + logarithm(most, tau);
        }
        Vec top = logarithm(most, tau);
        for (int z = 0; z < n; ++z) out[z] = logarithm(out[z], tau) - finite(top);
        return base + top;
    }

    template <class Table> INLINE void send(int k, int64_t s, const Vec *from, Table table, Vec *out) const {
        int n = other(s);
        if constexpr (rule == Rule::maxima) {
            for (int z = 0; z < n; ++z) {
                Vec top = all<Vec>(-INF);
                for (int x = 0; x < k; ++x) top = larger(top, from[x] + table(place(s, k, x, z)));
                out[z] = top;
            }
            return;
        }
        Vec tau = eps_ * lanes(a_.rho, s), *weight = weights();
        for (int z = 0; z < n; ++z) {
            for (int x = 0; x < k; ++x) weight[x] = from[x] + table(place(s, k, x, z));
            out[z] = power_sum(weight, k, tau);
        }
    }

    static INLINE Vec largest_of(const Vec *v, int k) {
        Vec top = v[0];
        for (int x = 1; x < k; ++x) top = larger(top, v[x]);
        return top;
    }
    static INLINE Vec finite(Vec x) { return x > -INF ? x : Vec{}; }
    static INLINE Vec logarithm(Vec sum, Vec tau) {
        return sum > 0.0 ? tau * log(sum > 0.0 ? sum : all<Vec>(1.0)) : all<Vec>(-INF);
    }
    static INLINE Vec power_sum(const Vec *v, int k, Vec tau) {
        Vec top = largest_of(v, k);
        if constexpr (rule == Rule::maxima) return top;
        Vec low = finite(top), unit = 1.0 / tau, sum{};
        for (int x = 0; x < k; ++x) sum += exp((v[x] - low) * unit);
        return low + logarithm(sum, tau);
    }
    static INLINE void softmax(const Vec *v, int k, Vec unit, Vec *out) {
        Vec sum{};
        exponentials<K>(v, k, unit, out);
        for (int x = 0; x < k; ++x) sum += out[x];
        Vec scale = sum > 0.0 ? 1.0 / sum : Vec{};
        for (int x = 0; x < k; ++x) out[x] *= scale;
    }

    void put(int64_t s, const Shorts &places, double *to, int n, const Vec *sent) {
        const int32_t *at = places.data + s * L;
        if (a_.aligned[s])
            for (int z = 0; z < n; ++z) *(Unaligned *)(to + at[0] + z * L) = sent[z];
        else
            for (int z = 0; z < n; ++z)
                for (int i = 0; i < L; ++i) to[at[i] + z * L] = sent[z][i];
    }

    // rho G with the reading of slot s in place of its message: the scores of the chain's marginal.
    void chain_scores(int64_t s, int k, const Vec *total, Vec rho, Vec *out) {
        Cells swept = vectors(call_.messages) + a_.message_at[s], reading = readings(s);
        for (int x = 0; x < k; ++x)
            out[x] = total[x] > -INF ? rho * total[x] + (reading[x] - swept[x]) : all<Vec>(-INF);
    }

    // Marginals of the factor of a slot to an earlier neighbour: those of the variable times the sender's given it.
    void pairs(int64_t g, int64_t s, int k, Vec rho, const Vec *marginal) {
        Cells reading = readings(s), sent = reading + k;
        PairSums sums(call_, s, g);
        Vec unit = 1.0 / (eps_ * rho);
        with_table(s, [&](auto table) ALWAYS {
            for (int x = 0; x < k; ++x) {
                if constexpr (rule == Rule::scaled) {
                    Vec *joint = weights(), sum{};
                    for (int z = 0; z < other(s); ++z) {
                        joint[z] = sent[z] * table(1 + place(s, k, x, z));
                        sum += joint[z];
                    }
                    Vec share = sum > 0.0 ? marginal[x] / sum : Vec{};
                    for (int z = 0; z < other(s); ++z) sums.add(place(s, k, x, z), share * joint[z]);
                } else {
                    for (int z = 0; z < other(s); ++z) {
                        int64_t entry = place(s, k, x, z);
                        // The bound of 0 acts only in lanes whose result is not used.
                        Vec gap = smaller((sent[z] + table(entry) - reading[x]) * unit, Vec{});
                        sums.add(entry, reading[x] > -INF ? exp(gap) * marginal[x] : Vec{});
                    }
                }
            }
        });
    }

    const ChainCall &call_;
    const ChainLayout &a_;
    double eps_;
    Vec *buffer_;
};

}  // namespace mssvm
