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
// `root` and `left` are by group and lane; the last eight by slot and lane.
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
    Bytes8 other_hidden;  // by slot
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

// Where the marginals of a slot are summed.
inline double *sums_at(const ChainCall &c, int64_t mu) {
    return mu < c.mu_tables.size ? c.mu_tables.data + mu : c.partial.data + (mu - c.mu_tables.size);
}

// Adds the marginals of a slot's factors to their sums.
class PairSums {
public:
    PairSums(const ChainCall &c, int64_t slot, int64_t group)
        : call_(c), to_(c.layout->mu.data + slot * L), together_(true) {
        std::memcpy(&variable_, c.layout->variable.data + group * L, sizeof variable_);
        for (int i = 1; i < L; ++i) together_ = together_ && (to_[i] == to_[0] || to_[i] < 0);
        if (together_) all_ = sums_at(c, to_[0]);
    }

    INLINE void add(int64_t entry, Vec pair) const {
        if (together_) {
            Vec used = variable_ >= 0 ? pair : Vec{};
            double sum = 0.0;
            for (int i = 0; i < L; ++i) sum += used[i];
            all_[entry] += sum;
            return;
        }
        for (int i = 0; i < L; ++i)
            if (to_[i] >= 0) sums_at(call_, to_[i])[entry] += pair[i];
    }

private:
    const ChainCall &call_;
    const int32_t *to_;
    bool together_;  // the sum is the same for all lanes with a variable, among which is always the first lane
    double *all_ = nullptr;
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
            Vec *from = sender(g, s, total, nullptr);
            Vec *sent = message(g, s, from);
            normalise(s, sent);
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
            Vec *from = sender(g, s, total, nullptr);
            Vec *sent = message(g, s, from);
            bound += normalise(s, sent);
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
            Vec *sent = message(g, s, from);
            Vec top = normalise(s, sent);
            for (int x = 0; x < k; ++x) from[x] -= top;
            put(s, a_.reverse_read, call_.read.data, other(s), sent);
            put(s, a_.reverse_read, call_.read.data + other(s) * L, k, from);
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
                if (score > best) best = score, state = x;
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

    Vec *message(int64_t g, int64_t s, const Vec *from) {
        Vec *out = buffer_ + 2 * a_.widest;
        const int32_t *at = (rule == Rule::scaled ? a_.scaled.data : a_.table.data) + s * L;
        const double *tables = rule == Rule::scaled ? call_.scaled.data : call_.tables.data;
        auto tied = [&](int64_t entry) ALWAYS { return all<Vec>(tables[at[0] + entry]); };
        auto gathered = [&](int64_t entry) ALWAYS {
            Vec v;
            for (int i = 0; i < L; ++i) v[i] = tables[at[i] + entry];
            return v;
        };
        if (a_.tied[s]) send(card(g), s, from, tied, out);
        else send(card(g), s, from, gathered, out);
        return out;
    }

    template <class Table> INLINE void send(int k, int64_t s, const Vec *from, Table table, Vec *out) {
        int n = other(s);
        if constexpr (rule == Rule::maxima) {
            for (int z = 0; z < n; ++z) {
                Vec top = all<Vec>(-INF);
                for (int x = 0; x < k; ++x) top = larger(top, from[x] + table(place(s, k, x, z)));
                out[z] = top;
            }
            return;
        }
        Vec tau = eps_ * lanes(a_.rho, s), unit = 1.0 / tau;
        Vec *weight = buffer_ + 3 * a_.widest;
        if constexpr (rule == Rule::scaled) {
            Vec top = largest_of(from, k);
            for (int x = 0; x < k; ++x) weight[x] = exp((from[x] - finite(top)) * unit);
            for (int z = 0; z < n; ++z) {
                Vec sum{};
                for (int x = 0; x < k; ++x) sum += weight[x] * table(1 + place(s, k, x, z));
                out[z] = logarithm(sum, tau) + (top + table(0));
            }
        } else {
            for (int z = 0; z < n; ++z) {
                for (int x = 0; x < k; ++x) weight[x] = from[x] + table(place(s, k, x, z));
                out[z] = power_sum(weight, k, tau);
            }
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
        Vec low = finite(largest_of(v, k)), sum{};
        for (int x = 0; x < k; ++x) out[x] = exp((v[x] - low) * unit), sum += out[x];
        Vec scale = sum > 0.0 ? 1.0 / sum : Vec{};
        for (int x = 0; x < k; ++x) out[x] *= scale;
    }

    // Normalises to a largest entry of zero; returns what was subtracted.
    Vec normalise(int64_t s, Vec *sent) {
        int n = other(s);
        Vec top = largest_of(sent, n), low = finite(top);
        for (int z = 0; z < n; ++z) sent[z] -= low;
        return top;
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
        const int32_t *at = a_.table.data + s * L;
        Vec unit = 1.0 / (eps_ * rho);
        PairSums sums(call_, s, g);
        for (int z = 0; z < other(s); ++z)
            for (int x = 0; x < k; ++x) {
                int64_t entry = place(s, k, x, z);
                Vec score;
                for (int i = 0; i < L; ++i) score[i] = call_.tables[at[a_.tied[s] ? 0 : i] + entry];
                // Positive only in lanes whose result is not used.
                Vec gap = smaller((sent[z] + score - reading[x]) * unit, Vec{});
                sums.add(entry, reading[x] > -INF ? exp(gap) * marginal[x] : Vec{});
            }
    }

    const ChainCall &call_;
    const ChainLayout &a_;
    double eps_;
    Vec *buffer_;
};

}  // namespace mssvm
