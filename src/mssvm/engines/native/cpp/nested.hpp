// The decomposition bound at two temperatures: sum_c PS_y[eps_y rho_c] PS_h[eps_h rho_c] theta_c, every chain exact.
//
// Layout and order are those of trws.hpp. The scores of variable i in chain c are u_c = rho_c u_i + d_c with shifts d_c
// that add up to zero over the chains and the remaining weight of i; sweeps change the shifts. Hidden variables are
// summed before the outputs around them are, so messages to a hidden variable have a row for every state a of the last
// output passed:
//
//     F(a, x): the power sum (eps_y) over everything before that output, which is in state a, and (eps_h) over the
//              hidden variables between it and x. One row where there is no output; messages to an output have their
//              rows summed.
//
// With F from one side and B from the other a hidden variable of chain c has
//
//     Z(a, b) = PS[eps_h rho] over x of F(a, x) + u_c(x) + B(b, x),    p(a, b) ~ exp(Z / (eps_y rho))
//     mu_c(x) = sum_{a, b} p(a, b) p(x | a, b)
//
// and an output mu_c ~ exp((F + u_c + B) / (eps_y rho)). A sweep visits variables in order and moves their shifts
// towards equal marginals in all chains: for outputs to the minimum. For hidden variables, with eps = min(eps_y,
// eps_h),
//
//     PS(u_c + d) - PS(u_c)  <=  eps rho_c log sum_x mu_c(x) exp(d(x) / (eps rho_c))        (power means rise)
//
// and the minimum of the sum of the right sides is taken: d_c = eps rho_c (log b - log mu_c), log b = sum_c rho_c log
// mu_c. So the bound never rises; with equal temperatures this is TRW-S.
//
// A row of a message is its level and its entries. By the rule `scores` both are scores. By `scaled`, where tables are
// safe, entries are probabilities exp((F(a, x) - level) / (eps_h rho)) with a largest of a few, and levels are whole
// numbers of ln 2 in units of eps_h rho: rows are normalised without logarithms, and powers of levels are exact.
#pragma once
#include "trws.hpp"

namespace mssvm {

constexpr double LEAST = 1e-40;  // smaller probabilities are replaced by this one before their logarithms move shifts
constexpr double LOG_LEAST = -92.1;
constexpr double TRUSTED = 1e-200;  // smallest sum of powers to divide by, the largest base being one

// K > 0: the number of states of every variable, and so of rows; 0: any.
template <int K, Rule rule> class NestedChains {
    using Cells = const Unaligned *;

public:
    NestedChains(const ChainCall &call, Vec *buffer)
        : call_(call), a_(*call.layout), rows_(K ? K : int(a_.widest)), eps_y_(call.eps), eps_h_(call.eps_h) {
        if (eps_y_ > 0) ratio_ = eps_h_ / eps_y_;
        whole_ = ratio_ == double(int(ratio_));
        int64_t w = a_.widest;
        unary_ = buffer;
        own_ = unary_ + w;
        rest_ = own_ + w;
        marginal_ = rest_ + w;
        weight_ = marginal_ + w;
        mean_ = weight_ + w;
        logs_ = mean_ + w;
        joint_ = logs_ + (a_.degree + 1) * w;
        from_ = joint_ + w * w;
        sent_ = from_ + w * (w + 1);
        given_ = sent_ + w * (w + 1);
        total_ = given_ + w * w * w;
    }
    static int64_t buffer(const ChainLayout &a) {
        int64_t w = a.widest;
        return (9 + a.degree) * w + 4 * w * w + w * w * w;
    }

    void forward(int64_t g) {
        enter(g);
        balance();
        for (int64_t s = middle_; s < end_; ++s) send(s);
    }

    Vec backward(int64_t g, bool update, bool measure) {
        enter(g);
        if (update) balance();
        Vec bound{};
        if (measure) {
            for (int64_t s = middle_; s < end_; ++s)
                if (a_.partner[s] < 0) bound += chain_value(-1, s);
            if (any_left()) {
                Vec left = lanes(a_.left, g_);
                remaining_scores();
                Vec tau = left * (hidden_ ? eps_h_ : eps_y_);
                bound = left > 0.0 ? bound + power_sum(rest_, k_, tau) : bound;
            }
        }
        for (int64_t s = first_; s < middle_; ++s) bound += send(s);
        return bound;
    }

    // Marginals, forwards with all shifts held; messages of earlier variables are those of this pass.
    void read(int64_t g) {
        enter(g);
        Vec left = lanes(a_.left, g_), apart{};
        for (int x = 0; x < k_; ++x) mean_[x] = Vec{};
        if (any_left()) {
            remaining_scores();
            softmax(rest_, k_, left * (hidden_ ? eps_h_ : eps_y_), weight_);
            for (int x = 0; x < k_; ++x) mean_[x] = left > 0.0 ? left * weight_[x] : Vec{};
        }
        Vec *seen = logs_;  // the first chain's marginals
        bool any = false;
        for (int64_t s = first_; s < end_; ++s) {
            bool lower = s < middle_;
            if (!lower && a_.partner[s] >= 0) continue;
            marginals(lower ? s : -1, lower ? a_.partner[s] : s);
            Vec rho = lanes(a_.rho, s);
            for (int x = 0; x < k_; ++x) {
                mean_[x] += rho * marginal_[x];
                if (!any) seen[x] = marginal_[x];
                apart = larger(apart, larger(marginal_[x] - seen[x], seen[x] - marginal_[x]));
            }
            any = true;
            if (lower) pairs(s);
        }
        for (int64_t s = middle_; s < end_; ++s) {
            Vec top = finite(send(s));
            int filled = sender_rows(s), width = hidden_ ? k_ + 1 : k_, n = hidden_ ? rows_ : 1;
            for (int r = 0; r < filled; ++r) {
                if (hidden_) from_[r * width] -= top;
                else
                    for (int x = 0; x < k_; ++x) from_[x] -= top;
            }
            for (int r = filled; r < n; ++r) no_row(from_ + r * width, k_);
            put(s, a_.reverse_read, call_.read.data, n * width, from_);
        }
        for (int i = 0; i < L; ++i) {
            int64_t v = a_.variable[g_ * L + i];
            if (v < 0) continue;
            for (int x = 0; x < k_; ++x) call_.mu_unary[call_.unary_ptr[v] + x] = mean_[x][i];
            call_.by_lane[g_ * L + i] = apart[i];
        }
    }

private:
    static Cells vectors(const Floats &numbers) { return (Cells)numbers.data; }
    static Vec lanes(const Floats &numbers, int64_t at) { return *(const Unaligned *)(numbers.data + at * L); }
    int other(int64_t s) const { return K ? K : a_.other_card[s]; }
    int64_t place(int64_t s, int x, int z) const {
        int k = K ? K : k_;
        return a_.transposed[s] ? int64_t(z) * k + x : int64_t(x) * other(s) + z;
    }
    Cells message(int64_t s) const { return vectors(call_.messages) + a_.message_at[s]; }
    Unaligned *shift(int64_t s) const { return (Unaligned *)call_.shifts.data + a_.shift_at[s]; }
    static constexpr bool scaled = rule == Rule::scaled;
    // Number of rows of the message of a slot; without a slot there is one row, of a uniform message.
    int rows(int64_t s) const { return s >= 0 && hidden_ ? rows_ : 1; }
    Vec entry(int64_t s, Cells m, int x) const { return s < 0 ? Vec{} : Vec(m[x]); }
    // The level of a row as a score.
    Vec level(int64_t s, Cells m, int row, Vec tau) const {
        return s < 0 ? Vec{} : Vec(m[row * (k_ + 1)]) * level_unit(tau);
    }
    static INLINE Vec level_unit(Vec tau) { return scaled ? tau * LN2 : all<Vec>(1.0); }
    Vec row_entry(int64_t s, Cells m, int row, int x) const {
        if (s < 0) return all<Vec>(scaled ? 1.0 : 0.0);
        return m[row * (k_ + 1) + 1 + x];
    }
    // A row that is impossible.
    static INLINE void no_row(Vec *row, int k) {
        for (int x = 0; x <= k; ++x) row[x] = all<Vec>(scaled && x > 0 ? 1.0 : -INF);
    }
    Vec tau_y(Vec rho) const { return eps_y_ * rho; }
    Vec tau_h(Vec rho) const { return eps_h_ * rho; }

    void enter(int64_t g) {
        g_ = g;
        k_ = K ? K : int(a_.state_at[g + 1] - a_.state_at[g]);
        hidden_ = a_.hidden[g];
        first_ = a_.slot_ptr[g];
        middle_ = first_ + a_.in_count[g];
        end_ = a_.slot_ptr[g + 1];
        Cells u = vectors(call_.unary) + a_.state_at[g];
        for (int x = 0; x < k_; ++x) unary_[x] = u[x];
    }

    // u_c of the chain of slot s.
    void take_own(int64_t s) {
        Vec rho = lanes(a_.rho, s);
        const Unaligned *d = shift(s);
        for (int x = 0; x < k_; ++x) own_[x] = unary_[x] > -INF ? rho * unary_[x] + d[x] : all<Vec>(-INF);
    }

    // Whether a variable has weight left beside its chains; on grids it has none.
    bool any_left() const {
        const double *left = a_.left.data + g_ * L;
        for (int i = 0; i < L; ++i)
            if (left[i] > 0.0) return true;
        return false;
    }

    // The scores of the variable's remaining weight, into rest_.
    void remaining_scores() {
        Vec left = lanes(a_.left, g_);
        for (int x = 0; x < k_; ++x) rest_[x] = left > 0.0 ? left * unary_[x] : Vec{};
        for (int64_t s = first_; s < end_; ++s) {
            if (s >= middle_ && a_.partner[s] >= 0) continue;
            for (int x = 0; x < k_; ++x) rest_[x] -= shift(s)[x];
        }
        for (int x = 0; x < k_; ++x) rest_[x] = unary_[x] > -INF ? rest_[x] : all<Vec>(-INF);
    }

    // F + u_c + B of an output, into marginal_.
    void scores(int64_t lower, int64_t upper) {
        take_own(lower >= 0 ? lower : upper);
        Cells f = lower >= 0 ? message(lower) : nullptr, b = upper >= 0 ? message(upper) : nullptr;
        for (int x = 0; x < k_; ++x) marginal_[x] = own_[x] + entry(lower, f, x) + entry(upper, b, x);
    }

    // u_c in the form of entries of rows, into weight_; its level.
    Vec own_row(Vec tau) {
        if constexpr (scaled) {
            return relative(own_, k_, tau, weight_);
        }
        for (int x = 0; x < k_; ++x) weight_[x] = own_[x];
        return Vec{};
    }

    // exp((v - top) / tau) of scores, and their largest.
    static INLINE Vec relative(const Vec *v, int k, Vec tau, Vec *out) { return exponentials<K>(v, k, 1.0 / tau, out); }

    // Replaces the entries of a row by p(x); returns PS[eps_h rho] of them, relative to their level.
    static INLINE Vec close(Vec *p, int k, Vec tau) {
        Vec sum{}, low{};
        if constexpr (scaled) {
            for (int x = 0; x < k; ++x) sum += p[x];
        } else {
            low = finite(largest_of(p, k));
            Vec unit = 1.0 / tau;
            for (int x = 0; x < k; ++x) {
                p[x] = exp((p[x] - low) * unit);
                sum += p[x];
            }
        }
        Vec scale = sum > 0.0 ? 1.0 / sum : Vec{};
        for (int x = 0; x < k; ++x) p[x] *= scale;
        return low + logarithm(sum, tau);
    }
    static INLINE Vec times(Vec a, Vec b) { return scaled ? a * b : a + b; }

    // Z(a, b) of a hidden variable, into total_, and p(x | a, b) into given_.
    void condition(int64_t lower, int64_t upper) {
        take_own(lower >= 0 ? lower : upper);
        Vec tau = tau_h(lanes(a_.rho, lower >= 0 ? lower : upper)), base = own_row(tau);
        Cells f = lower >= 0 ? message(lower) : nullptr, b = upper >= 0 ? message(upper) : nullptr;
        int n = rows(upper);
        for (int r = 0; r < rows(lower); ++r) {
            for (int x = 0; x < k_; ++x) own_[x] = times(weight_[x], row_entry(lower, f, r, x));
            for (int q = 0; q < n; ++q) {
                Vec *p = given_ + (r * n + q) * k_;
                for (int x = 0; x < k_; ++x) p[x] = times(own_[x], row_entry(upper, b, q, x));
                Vec sum = close(p, k_, tau);
                total_[r * n + q] = sum + (base + level(lower, f, r, tau) + level(upper, b, q, tau));
            }
        }
    }

    Vec chain_value(int64_t lower, int64_t upper) {
        Vec tau = tau_y(lanes(a_.rho, lower >= 0 ? lower : upper));
        if (!hidden_) {
            scores(lower, upper);
            return power_sum(marginal_, k_, tau);
        }
        condition(lower, upper);
        return power_sum(total_, rows(lower) * rows(upper), tau);
    }

    // Marginals of the chain through two slots, and for hidden variables joint_(a, x) with the rows of the lower slot.
    void marginals(int64_t lower, int64_t upper) {
        Vec tau = tau_y(lanes(a_.rho, lower >= 0 ? lower : upper));
        if (!hidden_) {
            scores(lower, upper);
            softmax(marginal_, k_, tau, marginal_);
            return;
        }
        if constexpr (K > 0 && scaled)
            if (marginals_by_powers<true>(lower, upper, marginal_)) return;
        condition(lower, upper);
        int m = rows(lower), n = rows(upper);
        softmax(total_, m * n, tau, total_);
        for (int x = 0; x < k_; ++x) marginal_[x] = Vec{};
        for (int r = 0; r < m; ++r)
            for (int x = 0; x < k_; ++x) {
                Vec sum{};
                for (int q = 0; q < n; ++q) sum += total_[r * n + q] * given_[(r * n + q) * k_ + x];
                joint_[r * k_ + x] = sum;
                marginal_[x] += sum;
            }
    }

    // The same without logarithms, for entries that are probabilities. With S(a, b) = sum_x u(x) F(a, x) B(b, x),
    // levels as factors l(a) = 2^(n level) and n = eps_h / eps_y,
    //
    //     p(a, b) ~ l(a) l(b) S^n,    mu(a, x) ~ u(x) F(a, x) sum_b l(a) l(b) S^(n - 1) B(b, x)
    //
    // with S relative to its largest entry. False where a total is too small to divide by.
    template <int m, int n, bool with_joint>
    INLINE bool marginals_by_powers(int64_t lower, int64_t upper, Vec *marginal) {
        int64_t s = lower >= 0 ? lower : upper;
        Vec rho = lanes(a_.rho, s), own[K], before[m], after[n], front[m * K], back[n * K];
        own_weights(s, tau_h(rho), own);
        rows_of<m>(lower, before, front);
        rows_of<n>(upper, after, back);
        Vec sums[m * n], bases[m * n], powers[m * n], top{}, total{};
        for (int r = 0; r < m; ++r) {
            for (int x = 0; x < K; ++x) front[r * K + x] *= own[x];
            for (int q = 0; q < n; ++q) {
                Vec sum{};
                for (int x = 0; x < K; ++x) sum += front[r * K + x] * back[q * K + x];
                sums[r * n + q] = sum;
                top = larger(top, sum);
            }
        }
        Vec unit = top > 0.0 ? 1.0 / top : Vec{};
        for (int j = 0; j < m * n; ++j) bases[j] = sums[j] = sums[j] * unit;
        power(bases, ratio_ - 1.0, powers);
        for (int r = 0; r < m; ++r)
            for (int q = 0; q < n; ++q) {
                powers[r * n + q] *= before[r] * after[q];
                total += powers[r * n + q] * sums[r * n + q];
            }
        if (!trusted(total)) return false;
        Vec scale = total > 0.0 ? unit / total : Vec{};
        for (int x = 0; x < K; ++x) marginal[x] = Vec{};
        for (int r = 0; r < m; ++r)
            for (int x = 0; x < K; ++x) {
                Vec sum{};
                for (int q = 0; q < n; ++q) sum += powers[r * n + q] * back[q * K + x];
                sum *= front[r * K + x] * scale;
                if constexpr (with_joint) joint_[r * K + x] = sum;
                marginal[x] += sum;
            }
        return true;
    }
    template <bool with_joint> INLINE bool marginals_by_powers(int64_t lower, int64_t upper, Vec *marginal) {
        if (lower < 0) return marginals_by_powers<1, K, with_joint>(lower, upper, marginal);
        if (upper < 0) return marginals_by_powers<K, 1, with_joint>(lower, upper, marginal);
        return marginals_by_powers<K, K, with_joint>(lower, upper, marginal);
    }

    // exp((u_c - top) / tau) of the chain of slot s; top.
    INLINE Vec own_weights(int64_t s, Vec tau, Vec *out) const {
        Vec rho = lanes(a_.rho, s), own[K];
        const Unaligned *d = shift(s);
        for (int x = 0; x < K; ++x) own[x] = unary_[x] > -INF ? rho * unary_[x] + d[x] : all<Vec>(-INF);
        return relative(own, K, tau, out);
    }

    // Levels as factors, the largest of which is one, and entries of a message; ones where there is none.
    template <int m> INLINE void rows_of(int64_t s, Vec *factors, Vec *entries) const {
        if constexpr (m == 1) {
            factors[0] = all<Vec>(1.0);
            for (int x = 0; x < K; ++x) entries[x] = all<Vec>(1.0);
        } else {
            Cells from = message(s);
            for (int r = 0; r < m; ++r) {
                Vec power = from[r * (K + 1)] * ratio_;
                factors[r] = whole_ ? power_of_two(power) : exp(power * LN2);
                for (int x = 0; x < K; ++x) entries[r * K + x] = from[r * (K + 1) + 1 + x];
            }
        }
    }

    // 2^n of whole numbers n <= 0; zero where it is not normal.
    static INLINE Vec power_of_two(Vec n) {
        Vec one = all<Vec>(1.0), low = all<Vec>(-1022.0);
        Vec power = real<Vec>(bits(one) + (bits(larger(n, low) + MAGIC) << 52));
        return n > low ? power : Vec{};
    }

    // Whether the numbers of all lanes with a variable can be divided by.
    bool trusted(Vec total) const {
        IVec variable, small = ~(total > TRUSTED);
        std::memcpy(&variable, a_.variable.data + g_ * L, sizeof variable);
        small &= variable >= 0;
        int64_t any = 0;
        for (int i = 0; i < L; ++i) any |= small[i];
        return any == 0;
    }

    void balance() {
        if (hidden_) balance_hidden();
        else balance_output();
    }

    void balance_output() {
        remaining_scores();
        for (int x = 0; x < k_; ++x) mean_[x] = rest_[x];
        each_chain([&](int64_t lower, int64_t upper) {
            scores(lower, upper);
            for (int x = 0; x < k_; ++x) mean_[x] += marginal_[x];
        });
        each_chain([&](int64_t lower, int64_t upper) {
            int64_t s = lower >= 0 ? lower : upper;
            Vec rho = lanes(a_.rho, s);
            scores(lower, upper);
            Unaligned *d = shift(s);
            for (int x = 0; x < k_; ++x) d[x] = mean_[x] > -INF ? d[x] + (rho * mean_[x] - marginal_[x]) : Vec(d[x]);
        });
        lower_impossible();
    }

    // A state that is impossible in one chain falls to a probability of LEAST in the others, and the impossible chain
    // takes the difference. Shifts stay finite, so that they remain valid for scores that are loaded later. Where no
    // state is possible, the variable's scores are -inf.
    void lower_impossible() {
        Vec top = largest_of(mean_, k_), least = finite(top) + eps_y_ * LOG_LEAST, left = lanes(a_.left, g_);
        bool any = false;
        for (int x = 0; x < k_; ++x)
            for (int i = 0; i < L; ++i) any = any || (mean_[x][i] == -INF && unary_[x][i] > -INF);
        if (!any) return;
        auto excess = [&](int x, Vec score, Vec weight) ALWAYS {
            Vec above = larger(score - weight * least, Vec{});
            return ((mean_[x] == -INF) & (score > -INF) & (top > -INF)) ? above : Vec{};
        };
        Vec *taken = weight_;
        for (int x = 0; x < k_; ++x) taken[x] = left > 0.0 ? excess(x, rest_[x], left) : Vec{};
        each_chain([&](int64_t lower, int64_t upper) {
            int64_t s = lower >= 0 ? lower : upper;
            scores(lower, upper);
            for (int x = 0; x < k_; ++x) {
                Vec fall = excess(x, marginal_[x], lanes(a_.rho, s));
                shift(s)[x] -= fall;
                taken[x] += fall;
            }
        });
        each_chain([&](int64_t lower, int64_t upper) {
            int64_t s = lower >= 0 ? lower : upper;
            scores(lower, upper);
            for (int x = 0; x < k_; ++x) {
                Vec gain = marginal_[x] == -INF ? taken[x] : Vec{};
                shift(s)[x] += gain;
                taken[x] -= gain;
            }
        });
        Unaligned *u = (Unaligned *)call_.unary.data + a_.state_at[g_];
        for (int x = 0; x < k_; ++x) {
            unary_[x] = top > -INF ? unary_[x] : all<Vec>(-INF);
            u[x] = unary_[x];
        }
    }

    void balance_hidden() {
        double eps = std::min(eps_y_, eps_h_);
        if (!(eps > 0)) return;
        for (int x = 0; x < k_; ++x) mean_[x] = Vec{};
        if (any_left()) {
            Vec left = lanes(a_.left, g_);
            remaining_scores();
            softmax(rest_, k_, left * eps_h_, weight_);
            logarithms_of(weight_, logs_);
            for (int x = 0; x < k_; ++x) mean_[x] = left > 0.0 ? left * logs_[x] : Vec{};
        }
        int chain = 0;
        each_chain([&](int64_t lower, int64_t upper) {
            Vec rho = lanes(a_.rho, lower >= 0 ? lower : upper), *logs = logs_ + chain * k_;
            bool known = false;
            if constexpr (K > 0 && scaled) known = marginals_by_powers<false>(lower, upper, marginal_);
            if (!known) marginals(lower, upper);
            logarithms_of(marginal_, logs);
            for (int x = 0; x < k_; ++x) mean_[x] += rho * logs[x];
            ++chain;
        });
        chain = 0;
        each_chain([&](int64_t lower, int64_t upper) {
            int64_t s = lower >= 0 ? lower : upper;
            Vec step = eps * lanes(a_.rho, s);
            Unaligned *d = shift(s);
            for (int x = 0; x < k_; ++x) d[x] += step * (mean_[x] - logs_[chain * k_ + x]);
            ++chain;
        });
    }

    // Logarithms of marginals. Of two states only their difference counts, since a number that is added to all states
    // in one chain and subtracted in another changes no bound: one logarithm is enough.
    INLINE void logarithms_of(const Vec *p, Vec *out) const {
        Vec least = all<Vec>(LEAST);
        if constexpr (K == 2) {
            out[0] = Vec{};
            out[1] = log(larger(p[1], least) / larger(p[0], least));
        } else {
            for (int x = 0; x < k_; ++x) out[x] = log(larger(p[x], least));
        }
    }

    template <class Work> INLINE void each_chain(Work work) {
        for (int64_t s = first_; s < middle_; ++s) work(s, a_.partner[s]);
        for (int64_t s = middle_; s < end_; ++s)
            if (a_.partner[s] < 0) work(int64_t(-1), s);
    }

    int sender_rows(int64_t s) const { return rows(a_.partner[s]); }

    // Sends the messages along slot s, from the other slot of its chain and the variable; returns the normalisers that
    // were subtracted. Neighbours of a group may have different roles: messages with and without rows are computed
    // then, and each goes to the lanes that it is for.
    Vec send(int64_t s) {
        unsigned to_hidden = a_.other_hidden[s];
        if (to_hidden == 0 || to_hidden == full<Vec>) return send_to(s, to_hidden != 0, full<Vec>);
        Vec of_rows = send_to(s, true, to_hidden);
        return pick(to_hidden, of_rows, send_to(s, false, full<Vec> & ~to_hidden));
    }

    // To neighbours of one role, in some lanes; messages to hidden variables have rows.
    Vec send_to(int64_t s, bool to_hidden, unsigned in) {
        take_own(s);
        int64_t behind = a_.partner[s];
        Cells m = behind >= 0 ? message(behind) : nullptr;
        int n = other(s);
        Vec common{};
        if (hidden_) common = send_hidden(s, behind, m, to_hidden);
        else {
            for (int x = 0; x < k_; ++x) from_[x] = own_[x] + entry(behind, m, x);
            if (to_hidden) common = open_rows(s);
            else send_output(s);
        }
        int count = to_hidden ? rows_ * (n + 1) : n;
        Vec top = all<Vec>(-INF);
        for (int j = 0; j < count; j += to_hidden ? n + 1 : 1) top = larger(top, sent_[j]);
        Vec low = finite(top);
        for (int j = 0; j < count; j += to_hidden ? n + 1 : 1) sent_[j] -= low;
        put(s, a_.reverse, call_.messages.data, count, sent_, in);
        return to_hidden ? common + top * level_unit(tau_h(lanes(a_.rho, s))) : top;
    }

    // From an output to an output.
    void send_output(int64_t s) {
        Vec tau = tau_y(lanes(a_.rho, s));
        with_table(s, [&](auto table) ALWAYS {
            for (int z = 0; z < other(s); ++z) {
                for (int x = 0; x < k_; ++x) weight_[x] = from_[x] + table(place(s, x, z));
                sent_[z] = power_sum(weight_, k_, tau);
            }
        });
    }

    // From an output to a hidden variable: a row for every state. Returns the score that all levels leave out.
    Vec open_rows(int64_t s) {
        Vec tau = tau_h(lanes(a_.rho, s)), common{};
        int n = other(s);
        with_entries(s, [&](auto table, Vec base) ALWAYS {
            common = base;
            for (int x = 0; x < k_; ++x) {
                Vec *row = sent_ + x * (n + 1), level = from_[x] / level_unit(tau);
                for (int z = 0; z < n; ++z) row[1 + z] = table(place(s, x, z));
                if constexpr (scaled) {
                    Vec known = larger(smaller(level, all<Vec>(0x1p50)), all<Vec>(-0x1p50));
                    Vec whole = (known + MAGIC) - MAGIC, rest = exp((known - whole) * LN2);
                    for (int z = 0; z < n; ++z) row[1 + z] *= rest;
                    level = level > -INF ? whole : level;
                }
                row[0] = level + settle(row + 1, n);
            }
        });
        for (int r = k_; r < rows_; ++r) no_row(sent_ + r * (n + 1), n);
        return common;
    }

    // From a hidden variable, row by row; rows are summed for an output. Returns the score that levels leave out.
    Vec send_hidden(int64_t s, int64_t behind, Cells m, bool to_hidden) {
        if constexpr (K > 0 && scaled)
            if (to_hidden) return behind >= 0 ? send_rows<K>(s, behind) : send_rows<1>(s, behind);
        Vec rho = lanes(a_.rho, s), tau = tau_h(rho), base = own_row(tau);
        int n = other(s), mine = sender_rows(s);
        for (int r = 0; r < mine; ++r) {
            Vec *from = from_ + r * (k_ + 1);
            from[0] = base + level(behind, m, r, tau);
            for (int x = 0; x < k_; ++x) from[1 + x] = times(weight_[x], row_entry(behind, m, r, x));
        }
        Vec common = base;
        with_entries(s, [&](auto table, Vec top) ALWAYS {
            common += top;
            for (int r = 0; r < mine; ++r) {
                Vec *from = from_ + r * (k_ + 1), *row = sent_ + r * (n + 1);
                for (int z = 0; z < n; ++z) row[1 + z] = summed(s, from + 1, table, z, tau);
                row[0] = level_or_none(behind, m, r) + settle(row + 1, n);
            }
        });
        if (to_hidden) {
            for (int r = mine; r < rows_; ++r) no_row(sent_ + r * (n + 1), n);
            return common;
        }
        Vec unit = level_unit(tau);
        for (int z = 0; z < n; ++z) {
            for (int r = 0; r < mine; ++r) {
                const Vec *row = sent_ + r * (n + 1);
                weight_[r] = common + unit * row[0] + (scaled ? logarithm(row[1 + z], tau) : row[1 + z]);
            }
            given_[z] = power_sum(weight_, mine, tau_y(rho));
        }
        for (int z = 0; z < n; ++z) sent_[z] = given_[z];
        return common;
    }
    // The level of a row as it is stored; zero without a message.
    Vec level_or_none(int64_t s, Cells m, int row) const { return s < 0 ? Vec{} : Vec(m[row * (k_ + 1)]); }

    // From a hidden variable to a hidden one in scaled form, of m rows.
    template <int m> INLINE Vec send_rows(int64_t s, int64_t behind) {
        Vec tau = tau_h(lanes(a_.rho, s)), own[K];
        Vec base = own_weights(s, tau, own), common = base;
        Cells from = behind >= 0 ? message(behind) : nullptr;
        with_entries(s, [&](auto table, Vec top) ALWAYS {
            common += top;
            for (int r = 0; r < m; ++r) {
                Vec row[K], sent[K];
                for (int x = 0; x < K; ++x) row[x] = own[x] * row_entry(behind, from, r, x);
                Vec *kept = from_ + r * (K + 1);
                kept[0] = base + level(behind, from, r, tau);
                for (int x = 0; x < K; ++x) kept[1 + x] = row[x];
                for (int z = 0; z < K; ++z) {
                    sent[z] = Vec{};
                    for (int x = 0; x < K; ++x) sent[z] += row[x] * table(place(s, x, z));
                }
                Vec *out = sent_ + r * (K + 1), settled = settle(sent, K);
                for (int z = 0; z < K; ++z) out[1 + z] = sent[z];
                out[0] = level_or_none(behind, from, r) + settled;
            }
        });
        for (int r = m; r < rows_; ++r) no_row(sent_ + r * (K + 1), K);
        return common;
    }

    // PS[eps_h rho] over x of a row's entries and a column of the table, as an entry.
    template <class Table> INLINE Vec summed(int64_t s, const Vec *from, Table table, int z, Vec tau) {
        if constexpr (scaled) {
            Vec sum{};
            for (int x = 0; x < k_; ++x) sum += from[x] * table(place(s, x, z));
            return sum;
        }
        for (int x = 0; x < k_; ++x) own_[x] = from[x] + table(place(s, x, z));
        return power_sum(own_, k_, tau);
    }

    // Normalises entries to a largest between one and two (scaled) or of zero; returns the level subtracted.
    static INLINE Vec settle(Vec *entries, int n) {
        Vec top = largest_of(entries, n);
        if constexpr (scaled) {
            Vec scale = top > 0.0 ? two_to_minus_exponent(top) : all<Vec>(1.0);
            for (int z = 0; z < n; ++z) entries[z] *= scale;
            return top > 0.0 ? exponent(top) : all<Vec>(-INF);
        }
        Vec low = finite(top);
        for (int z = 0; z < n; ++z) entries[z] -= low;
        return top;
    }

    // work(table, level) with the table of a slot in the form of entries.
    template <class Work> INLINE void with_entries(int64_t s, Work work) {
        if constexpr (scaled) {
            const int32_t *at = a_.scaled.data + s * L;
            const double *tables = call_.scaled.data;
            if (a_.tied[s]) {
                work([=](int64_t entry) ALWAYS { return all<Vec>(tables[at[0] + 1 + entry]); },
                     all<Vec>(tables[at[0]]));
            } else {
                auto gathered = [=](int64_t entry) ALWAYS {
                    Vec v;
                    for (int i = 0; i < L; ++i) v[i] = tables[at[i] + 1 + entry];
                    return v;
                };
                work(gathered, gathered(-1));
            }
        } else {
            with_table(s, [&](auto table) ALWAYS { work(table, Vec{}); });
        }
    }

    template <class Work> INLINE void with_table(int64_t s, Work work) {
        with_lanes(call_.tables.data, a_.table.data + s * L, a_.tied[s], work);
    }

    // Marginals of the factor to an earlier neighbour, after marginals() of its chain here.
    void pairs(int64_t s) {
        Cells from = vectors(call_.read) + a_.read_at[s], m = message(s);
        unsigned of_hidden = a_.other_hidden[s];
        if (of_hidden != 0) pairs_of_hidden(s, from, m, of_hidden);
        if (of_hidden != full<Vec>) pairs_of_outputs(s, from, m, full<Vec> & ~of_hidden);
    }

    // With an output, in some lanes.
    void pairs_of_outputs(int64_t s, Cells from, Cells m, unsigned in) {
        Vec tau = tau_y(lanes(a_.rho, s));
        PairSums sums(call_, s, g_);
        with_table(s, [&](auto table) ALWAYS {
            for (int x = 0; x < k_; ++x)
                for (int z = 0; z < other(s); ++z) {
                    Vec pair;
                    if (hidden_) pair = joint_[z * k_ + x];
                    else pair = ratio(from[z] + table(place(s, x, z)), m[x], tau) * marginal_[x];
                    sums.add(place(s, x, z), pick(in, pair, Vec{}));
                }
        });
    }

    // With a hidden variable, in some lanes.
    void pairs_of_hidden(int64_t s, Cells from, Cells m, unsigned in) {
        int n = other(s);
        Vec rho = lanes(a_.rho, s), tau = tau_h(rho);
        PairSums sums(call_, s, g_);
        with_entries(s, [&](auto table, Vec top) ALWAYS {
            for (int x = 0; x < k_; ++x) {
                for (int z = 0; z < n; ++z) sent_[z] = Vec{};
                for (int r = 0; r < rows_; ++r) {
                    Cells row = from + r * (n + 1);
                    for (int z = 0; z < n; ++z) weight_[z] = times(row[1 + z], table(place(s, x, z)));
                    if (scaled && hidden_) {
                        Vec whole{};
                        for (int z = 0; z < n; ++z) whole += weight_[z];
                        Vec share = whole > 0.0 ? joint_[r * k_ + x] / whole : Vec{};
                        for (int z = 0; z < n; ++z) sent_[z] += share * weight_[z];
                        continue;
                    }
                    Vec sum = row[0] + top + close(weight_, n, tau);
                    Vec share = hidden_ ? joint_[r * k_ + x] : ratio(sum, m[x], tau_y(rho)) * marginal_[x];
                    for (int z = 0; z < n; ++z) sent_[z] += share * weight_[z];
                }
                for (int z = 0; z < n; ++z) sums.add(place(s, x, z), pick(in, sent_[z], Vec{}));
            }
        });
    }

    static INLINE Vec ratio(Vec part, Vec whole, Vec tau) {
        // the bound of 0 acts only in lanes that are not used
        Vec p = exp(smaller((part - finite(whole)) / tau, Vec{}));
        return part > -INF && whole > -INF ? p : Vec{};
    }

    // Writes n numbers of some lanes to the places of the neighbours.
    void put(int64_t s, const Shorts &places, double *to, int n, const Vec *sent, unsigned in = full<Vec>) {
        const int32_t *at = places.data + s * L;
        if (in != full<Vec>) {
            for (int i = 0; i < L; ++i)
                for (int j = 0; in >> i & 1 && j < n; ++j) to[at[i] + j * L] = sent[j][i];
        } else if (a_.aligned[s]) {
            for (int j = 0; j < n; ++j) *(Unaligned *)(to + at[0] + j * L) = sent[j];
        } else {
            for (int j = 0; j < n; ++j)
                for (int i = 0; i < L; ++i) to[at[i] + j * L] = sent[j][i];
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
    // At temperature zero the maximum.
    static INLINE Vec power_sum(const Vec *v, int k, Vec tau) {
        Vec top = largest_of(v, k), low = finite(top), sum{};
        Vec unit = tau > 0.0 ? 1.0 / tau : Vec{};
        for (int x = 0; x < k; ++x) sum += exp((v[x] - low) * unit);
        return tau > 0.0 ? low + logarithm(sum, tau) : top;
    }
    static INLINE void softmax(const Vec *v, int k, Vec tau, Vec *out) {
        Vec low = finite(largest_of(v, k)), sum{}, unit = tau > 0.0 ? 1.0 / tau : Vec{};
        for (int x = 0; x < k; ++x) {
            out[x] = exp((v[x] - low) * unit);
            sum += out[x];
        }
        Vec scale = sum > 0.0 ? 1.0 / sum : Vec{};
        for (int x = 0; x < k; ++x) out[x] *= scale;
    }

    const ChainCall &call_;
    const ChainLayout &a_;
    int rows_, k_ = 0;
    double eps_y_, eps_h_, ratio_ = 0.0;   // eps_h / eps_y
    bool hidden_ = false, whole_ = false;  // the variable's role; whether the ratio is a whole number
    int64_t g_ = 0, first_ = 0, middle_ = 0, end_ = 0;
    Vec *unary_, *own_, *rest_, *marginal_, *weight_, *mean_, *logs_, *joint_, *from_, *sent_, *given_, *total_;
};

}  // namespace mssvm
