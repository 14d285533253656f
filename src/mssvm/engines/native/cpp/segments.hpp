// Semi-Markov models: nested power sums over all segmentations of a sequence, and their derivatives.
//
// A segmentation cuts 0 .. T into segments [a, b) of at most K sites, each with a label c. It is the output, eliminated
// at eps_y; the hidden states of a segment are eliminated at eps_h inside its score, so that every pair of temperatures
// is exact. With prefix sums P of the scores of sites,
//
//   score(a, b, c) = P(b, c) - P(a, c) + duration(b - a, c) + first(a, c) + last(b - 1, c) + hidden part
//   A(b, c) = PS_a [eps_y]  G(a, c) + duration(b - a, c)          G = E - P: what does not depend on b
//   alpha(b, c) = P(b, c) + last(b - 1, c) + A(b, c)              best or summed score of 0 .. b, c ending at b
//   E(b, c) = PS_c' [eps_y] alpha(b, c') + transition(c', c)      + first(b, c) + start(b)
//
// Where there is one temperature, or nothing hidden, pairs of label and hidden state are `kinds`, each with a G of its
// own; A is a convolution over lengths: T K multiplications per kind, and no exponential. With two temperatures, hidden
// states that move, scores of segments or of spans, A is computed from rows of scores.
//
// The backward pass is the derivative of the recursion: from d value / d alpha(b, .), the weights of the power sum over
// a give d value / d E(a, .). A site's marginal is the derivative of the segments that end after it minus that of the
// segments that begin after it. Memory: G, T numbers per kind, a window of K positions, and nothing of size T K.
//
// Masks of sites become run lengths: a segment may not be longer than the run of sites up to its end that allow its
// label, nor than the distance to the last known boundary.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "algebra.hpp"
#include "boundary.hpp"

namespace mssvm {

struct SegmentsCall {
    int64_t bytes;
    int64_t labels, longest, hidden, moving, borders, wide;
    double eps_y, eps_h;
    Ints instances, sites, unary_at, table_at, mu_at;  // table_at, mu_at: `tables_of` an instance
    Floats unary, tables;
    Bytes8 allowed;
    Ints span_ptr, span_start, span_stop, span_label;  // scores of single spans, by stop and label
    Floats span_score;
    Floats value, mu_unary, mu_tables, mu_span;  // no marginals where these are empty
    int64_t draws, seed;
    Ints drawn_at, drawn;  // samples: of every site its label, and + labels where a segment begins
    int64_t threads;

    int64_t kinds() const { return labels * std::max<int64_t>(hidden, 1); }
    int64_t tables_of() const { return 2 + (hidden > 0) + (moving > 0); }
};

// Numbers between 0 and 1 from a seed (splitmix64).
struct Draws {
    uint64_t state;
    double operator()() {
        uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        return double((z ^ (z >> 31)) >> 11) * 0x1p-53;
    }
};

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

// All segmentations of one instance after another.
class Segmentations {
public:
    explicit Segmentations(const SegmentsCall &call)
        : call_(call),
          C_(call.labels),
          K_(call.longest),
          H_(std::max<int64_t>(call.hidden, 1)),
          M_(call.kinds()),
          eps_(call.eps_y),
          eps_h_(call.eps_h),
          rows_(call.wide || call.moving || (call.hidden > 1 && call.eps_y != call.eps_h)) {}

    void run(int64_t instance) {
        load(instance);
        forward(instance);
        call_.value[instance] = value_ + base_;
        if (!(value_ > -INF)) {
            std::fill(A_, A_ + T_ * stride_, 0.0);
            return;
        }
        for (int64_t s = 0; s < call_.draws; ++s) draw(instance, s);
        if (!call_.mu_unary.empty()) backward(instance);
    }

private:
    // Positions from 0 to T of every kind: only those between `low` and `low + capacity` are stored.
    struct Window {
        std::vector<double> data;
        int64_t low = 0, capacity = 0;
        void reset(int64_t kinds, int64_t positions) {
            capacity = positions;
            data.assign(kinds * positions, 0.0);
        }
        double *at(int64_t kind, int64_t position) { return data.data() + kind * capacity + position - low; }
    };

    // ------------------------------------------------------------------------------------ loading

    void load(int64_t instance) {
        T_ = call_.sites[instance];
        const double *u = call_.unary.data + call_.unary_at[instance];
        const uint8_t *ok = call_.allowed.data + call_.unary_at[instance];
        int64_t at = 0;
        auto part = [&](int64_t size) {
            int64_t begin = at;
            at += size;
            return begin;
        };
        site_at_ = part(T_ * C_);
        bound_at_ = part(2 * T_);
        hidden_at_ = part(call_.hidden ? T_ * M_ : 0);
        first_at_ = part(call_.borders ? T_ * C_ : 0);
        last_at_ = part(call_.borders ? T_ * C_ : 0);
        wide_at_ = part(call_.wide ? T_ * K_ * C_ : 0);
        begin_at_ = part(C_);
        end_at_ = part(C_);
        u_ = u;
        ok_ = ok;
        const int64_t *tables = call_.table_at.data + instance * call_.tables_of();
        trans_ = call_.tables.data + tables[0];
        const double *duration = call_.tables.data + tables[1];
        attach_ = call_.hidden ? call_.tables.data + tables[2] : nullptr;
        moves_ = call_.moving ? call_.tables.data + tables[3] : nullptr;

        // Durations of a label from the longest to the shortest: a window of positions in order. Longest: per label.
        dur_.assign(C_ * K_, -INF);
        top_.assign(C_, 0.0);
        longest_.assign(C_, 0);
        for (int64_t c = 0; c < C_; ++c) {
            double top = -INF;
            for (int64_t d = 1; d <= K_; ++d) {
                double score = duration[(d - 1) * C_ + c];
                dur_[c * K_ + K_ - d] = score;
                if (score > -INF) longest_[c] = d;
                top = larger(top, score);
            }
            top_[c] = top > -INF ? top : 0.0;
        }
        if (eps_ > 0.0) {
            scaled_dur_.resize(C_ * K_);
            for (int64_t c = 0; c < C_; ++c)
                for (int64_t i = 0; i < K_; ++i) scaled_dur_[c * K_ + i] = exp((dur_[c * K_ + i] - top_[c]) / eps_);
        }
        load_masks();
        span_ = call_.span_ptr[instance];
        span_end_ = call_.span_ptr[instance + 1];
    }

    bool open(int64_t t, int64_t c) const {
        int64_t at = site_at_ + t * C_ + c;
        return ok_[at] && u_[at] > -INF;
    }
    bool may(int64_t t, int start) const {
        int64_t at = bound_at_ + 2 * t + start;
        return ok_[at] && u_[at] > -INF;
    }

    // Limits of lengths; `start_` is what beginning a segment at t adds over being inside one.
    void load_masks() {
        start_.resize(T_);
        base_ = 0.0;
        bool masked = false;
        for (int64_t t = 0; t < T_; ++t) {
            double start = may(t, 1) ? u_[bound_at_ + 2 * t + 1] : -INF;
            double inside = 0.0;
            if (t > 0 && may(t, 0)) inside = u_[bound_at_ + 2 * t];
            else if (t > 0) masked = true;
            base_ += inside;
            start_[t] = start - inside;
            for (int64_t c = 0; c < C_ && !masked; ++c) masked = !open(t, c);
        }
        limit_.clear();
        if (!masked) return;
        limit_.assign((T_ + 1) * C_, 0);
        std::vector<int64_t> run(C_, 0);
        int64_t last = 0;
        for (int64_t b = 1; b <= T_; ++b) {
            if (b > 1 && !may(b - 1, 0)) last = b - 1;
            for (int64_t c = 0; c < C_; ++c) {
                run[c] = open(b - 1, c) ? run[c] + 1 : 0;
                limit_[b * C_ + c] = int32_t(std::min({run[c], b - last, longest_[c]}));
            }
        }
    }
    int64_t limit(int64_t b, int64_t c) const {
        if (limit_.empty()) return std::min(b, longest_[c]);
        return limit_[b * C_ + c];
    }

    // Scores of a kind at a site, in rows of its label alone; 0 where no segment may cover it.
    double step(int64_t t, int64_t m) const {
        int64_t c = m / H_;
        if (!open(t, c)) return 0.0;
        double score = u_[site_at_ + t * C_ + c];
        if (call_.hidden && !rows_) score += u_[hidden_at_ + t * M_ + m];
        return score;
    }
    double first(int64_t a, int64_t c) const { return call_.borders ? u_[first_at_ + a * C_ + c] : 0.0; }
    double last(int64_t b, int64_t c) const { return call_.borders ? u_[last_at_ + (b - 1) * C_ + c] : 0.0; }
    double attached(int64_t m) const { return call_.hidden ? attach_[m] : 0.0; }

    double begin(int64_t c) const { return ok_[begin_at_ + c] ? u_[begin_at_ + c] : -INF; }
    double end(int64_t c) const { return ok_[end_at_ + c] ? u_[end_at_ + c] : -INF; }

    // ------------------------------------------------------------------------------------ forward

    // The backward pass recomputes rows of P from every `BLOCK`-th: additions in the same order give the same bits.
    static constexpr int64_t BLOCK = 128;

    void forward(int64_t instance) {
        int64_t kinds = rows_ ? C_ : M_;
        G_.resize(kinds * (T_ + 1));
        place_A(instance, kinds);
        alpha_.resize(C_);
        weights_.resize(std::max({C_, H_, K_}));
        row_.resize(K_);
        P_.assign(M_, 0.0);
        checkpoints_.resize((T_ / BLOCK + 1) * M_);
        std::copy(P_.begin(), P_.end(), checkpoints_.begin());
        if (rows_ && call_.hidden && !call_.moving) {
            Q_.resize(M_ * (T_ + 1));
            for (int64_t m = 0; m < M_; ++m) Q_[m * (T_ + 1)] = 0.0;
        }
        if (rows_ && call_.moving) phi_.resize(K_ * H_);
        begin_window(kinds);
        for (int64_t c = 0; c < C_; ++c) enter(0, c, begin(c));
        prepare_transitions();
        int64_t span = span_;
        for (int64_t b = 1; b <= T_; ++b) {
            advance(b);
            for (int64_t c = 0; c < C_; ++c) {
                int64_t n = limit(b, c);
                if (rows_) {
                    while (span < span_end_ && before(span, b, c)) ++span;
                    A(b)[c] = n ? power_row(b, c, n, span) : -INF;
                    alpha_[c] = P_[c * H_] + last(b, c) + A(b)[c];
                } else {
                    while (span < span_end_ && before(span, b, c)) ++span;
                    bool alone = span < span_end_ && call_.span_stop[span] == b && call_.span_label[span] == c;
                    for (int64_t h = 0; h < H_; ++h) {
                        int64_t m = c * H_ + h;
                        if (!n) A(b)[m] = -INF;
                        else if (alone) A(b)[m] = span_row(b, m, n, span);
                        else A(b)[m] = convolve(b, m, n);
                    }
                    alpha_[c] = last(b, c) + over_hidden(b, c, nullptr);
                }
            }
            if (b < T_) enter_all(b);
        }
        value_ = power_sum<double>(int(C_), eps_, [&](int c) { return alpha_[c] + end(c); }, weights_.data());
    }

    // A is stored where the marginals of sites (or of their kinds) will be: the backward pass reads a row of it for the
    // last time just before it writes that row's marginals.
    void place_A(int64_t instance, int64_t kinds) {
        stride_ = kinds;
        if (call_.mu_unary.empty()) {
            own_A_.resize(T_ * kinds);
            A_ = own_A_.data();
            return;
        }
        bool of_kinds = call_.hidden && !rows_;
        A_ = call_.mu_unary.data + call_.unary_at[instance] + (of_kinds ? hidden_at_ : site_at_);
    }
    double *A(int64_t b) const { return A_ + (b - 1) * stride_; }

    bool before(int64_t span, int64_t b, int64_t c) const {
        if (call_.span_stop[span] != b) return call_.span_stop[span] < b;
        return call_.span_label[span] < c;
    }

    // PS_h P + A of a label's kinds, which have one temperature.
    double over_hidden(int64_t b, int64_t c, double *weights) {
        if (H_ == 1) {
            if (weights) weights[0] = 1.0;
            return P_[c] + A(b)[c];
        }
        spare_.resize(H_);
        double *to = weights ? weights : spare_.data();
        return power_sum<double>(int(H_), eps_, [&](int h) { return P_[c * H_ + h] + A(b)[c * H_ + h]; }, to);
    }

    // P of position b.
    void advance(int64_t b) {
        for (int64_t m = 0; m < M_; ++m) P_[m] += step(b - 1, m);
        if (b % BLOCK == 0) std::copy(P_.begin(), P_.end(), checkpoints_.begin() + b / BLOCK * M_);
        if (rows_ && call_.hidden && !call_.moving)
            for (int64_t m = 0; m < M_; ++m) {
                int64_t c = m / H_;
                double score = open(b - 1, c) ? u_[hidden_at_ + (b - 1) * M_ + m] : 0.0;
                Q_[m * (T_ + 1) + b] = Q_[m * (T_ + 1) + b - 1] + score;
            }
    }

    // The scaled transitions, largest of a column taken out.
    void prepare_transitions() {
        scaled_trans_.clear();
        trans_top_.assign(C_, -INF);
        if (!(eps_ > 0.0)) return;
        scaled_trans_.resize(C_ * C_);
        for (int64_t i = 0; i < C_ * C_; ++i) trans_top_[i % C_] = larger(trans_top_[i % C_], trans_[i]);
        for (int64_t i = 0; i < C_ * C_; ++i) {
            double top = trans_top_[i % C_];
            scaled_trans_[i] = top > -INF ? exp((trans_[i] - top) / eps_) : 0.0;
        }
        from_.resize(C_);
        into_.resize(C_);
    }

    // Scaled sums over c' of alpha(c') + transition(c', c), to into_; returns what was taken out of alpha.
    double scaled_transitions() {
        double top = *std::max_element(alpha_.begin(), alpha_.end());
        double shift = top > -INF ? top : 0.0;
        for (int64_t c = 0; c < C_; ++c) from_[c] = exp((alpha_[c] - shift) / eps_);
        std::fill(into_.begin(), into_.end(), 0.0);
        for (int64_t p = 0; p < C_; ++p) {
            const double *row = scaled_trans_.data() + p * C_;
            double weight = from_[p];
            for (int64_t c = 0; c < C_; ++c) into_[c] += weight * row[c];
        }
        return shift;
    }
    // PS_c' alpha(c') + transition(c', c) of all labels c, to into_.
    void pass_transitions() {
        double top = scaled_transitions();
        for (int64_t c = 0; c < C_; ++c)
            into_[c] = into_[c] > TRUSTED ? top + trans_top_[c] + eps_ * log(into_[c]) : log_transition(c);
    }
    double log_transition(int64_t c) {
        return power_sum<double>(int(C_), eps_, [&](int p) { return alpha_[p] + trans_[p * C_ + c]; }, weights_.data());
    }

    void enter_all(int64_t b) {
        if (eps_ > 0.0) {
            pass_transitions();
            for (int64_t c = 0; c < C_; ++c) enter(b, c, into_[c]);
            return;
        }
        for (int64_t c = 0; c < C_; ++c) enter(b, c, log_transition(c));
    }

    // A segment of label c may begin at position a, after this score.
    void enter(int64_t a, int64_t c, double score) {
        double e = score + first(a, c) + start_[a];
        if (rows_) {
            G_[c * (T_ + 1) + a] = e - P_[c * H_];
            return;
        }
        for (int64_t m = c * H_; m < (c + 1) * H_; ++m) {
            double g = e - P_[m] + attached(m);
            G_[m * (T_ + 1) + a] = g;
            if (eps_ > 0.0) insert(m, a, g, a - K_ + 1, a + 1);
        }
    }

    // ------------------------------------------------------------------------------------ scaled windows

    // Scaled numbers are at most e^HIGH, and a sum of them above TRUSTED has lost nothing significant.
    static constexpr double HIGH = 200.0, TRUSTED = 1e-200, LOW = 400.0;

    void begin_window(int64_t kinds) {
        int64_t capacity = std::min(T_ + 1, 2 * K_ + 1);
        window_.reset(kinds, capacity);
        window_.low = 0;
        ref_.assign(kinds, -INF);
    }

    // Scaled G of positions low .. high of a kind from now on relative to `ref`.
    void recentre(int64_t m, double ref, int64_t low, int64_t high) {
        ref_[m] = ref;
        low = std::max(low, window_.low);
        high = std::min(high, window_.low + window_.capacity);
        const double *g = G_.data() + m * (T_ + 1);
        double *v = window_.at(m, 0);
        int64_t a = low;
        for (; a + L <= high; a += L) *(Unaligned *)(v + a) = exp((*(const Unaligned *)(g + a) - ref) / eps_);
        for (; a < high; ++a) v[a] = exp((g[a] - ref) / eps_);
    }

    // Position a enters the window, which then has low .. high.
    void insert(int64_t m, int64_t a, double g, int64_t low, int64_t high) {
        if (m == 0 && a >= window_.low + window_.capacity) slide_up(a);
        if (g > -INF && !((g - ref_[m]) / eps_ <= HIGH)) recentre(m, g, std::max<int64_t>(low, 0), high);
        else *window_.at(m, a) = g > -INF ? exp((g - ref_[m]) / eps_) : 0.0;
    }
    void slide_up(int64_t a) {
        int64_t low = a - K_;  // positions below are out of reach
        int64_t shift = low - window_.low;
        for (size_t m = 0; m < ref_.size(); ++m) {
            double *v = window_.data.data() + m * window_.capacity;
            std::memmove(v, v + shift, (window_.capacity - shift) * sizeof(double));
        }
        window_.low = low;
    }

    // A(b, m): the power sum over starts of lengths 1 .. n.
    double convolve(int64_t b, int64_t m, int64_t n) {
        int64_t c = m / H_;
        const double *g = G_.data() + m * (T_ + 1) + b - n;
        const double *d = dur_.data() + c * K_ + K_ - n;
        if (!(eps_ > 0.0)) return largest_sum(g, d, n);
        if (ref_[m] > -INF) {
            double sum = dot(window_.at(m, b - n), scaled_dur_.data() + c * K_ + K_ - n, n);
            if (sum > TRUSTED) return ref_[m] + top_[c] + eps_ * log(sum);
        }
        double top = *std::max_element(g, g + n);
        if (!(top > -INF)) return -INF;
        recentre(m, top, b - n, b);
        return power_pairs(g, d, n);
    }
    double power_pairs(const double *g, const double *d, int64_t n) {
        double top = largest_sum(g, d, n);
        if (!(eps_ > 0.0) || !(top > -INF)) return top;
        return top + eps_ * log(exponentials(g, d, top, eps_, n, weights_.data()));
    }

    // ------------------------------------------------------------------------------------ rows

    // What a row adds to G and durations: hidden part, scores of segments and of spans, of lengths n .. 1.
    void extras(int64_t b, int64_t c, int64_t n, int64_t span) {
        std::fill(row_.begin(), row_.begin() + n, 0.0);
        if (call_.moving) moving_row(b, c, n);
        else if (rows_ && call_.hidden) constant_row(b, c, n);
        if (call_.wide)
            for (int64_t i = 0; i < n; ++i) {
                int64_t a = b - n + i;
                row_[i] += u_[wide_at_ + (a * K_ + b - a - 1) * C_ + c];
            }
        add_spans(b, c, n, span);
    }
    void add_spans(int64_t b, int64_t c, int64_t n, int64_t span) {
        for (; span < span_end_ && call_.span_stop[span] == b && call_.span_label[span] == c; ++span) {
            int64_t i = call_.span_start[span] - (b - n);
            if (i >= 0 && i < n) row_[i] += call_.span_score[span];
        }
    }

    // PS_h [eps_h] attach + sum of the segment's hidden scores, the segment having one hidden state.
    void constant_row(int64_t b, int64_t c, int64_t n) {
        auto term = [&](int64_t h, auto zero, int64_t a) {
            using V = decltype(zero);
            const double *q = Q_.data() + (c * H_ + h) * (T_ + 1);
            return (q[b] + attach_[c * H_ + h]) - *(const Loose<V> *)(q + a);
        };
        auto sum = [&](auto zero, int64_t a) {
            using V = decltype(zero);
            V top = all<V>(-INF);
            for (int64_t h = 0; h < H_; ++h) top = larger(top, term(h, zero, a));
            if (!(eps_h_ > 0.0)) return top;
            V shift = top > -INF ? top : V{};
            V total = V{};
            for (int64_t h = 0; h < H_; ++h) total += exp((term(h, zero, a) - shift) / eps_h_);
            return top + eps_h_ * log(total > 0.0 ? total : all<V>(1.0));
        };
        int64_t i = 0;
        for (; i + L <= n; i += L) *(Unaligned *)(row_.data() + i) = sum(Vec{}, b - n + i);
        for (; i < n; ++i) row_[i] = sum(0.0, b - n + i);
    }

    // The same for a chain of hidden states inside the segment; phi(d, h): of the last d sites, the first being in h.
    void moving_row(int64_t b, int64_t c, int64_t n) {
        const double *move = moves_ + c * H_ * H_;
        double *weights = weights_.data();
        for (int64_t d = 1; d <= n; ++d) {
            const double *score = u_ + hidden_at_ + (b - d) * M_ + c * H_;
            double *now = phi_.data() + (d - 1) * H_;
            const double *later = now - H_;
            for (int64_t h = 0; h < H_; ++h) {
                now[h] = score[h];
                if (d > 1)
                    now[h] +=
                        power_sum<double>(int(H_), eps_h_, [&](int g) { return move[h * H_ + g] + later[g]; }, weights);
            }
            row_[n - d] =
                power_sum<double>(int(H_), eps_h_, [&](int h) { return attach_[c * H_ + h] + now[h]; }, weights);
        }
    }

    // row += G + durations; the power sum of the row.
    double power_row(int64_t b, int64_t c, int64_t n, int64_t span) {
        extras(b, c, n, span);
        finish_row(G_.data() + c * (T_ + 1) + b - n, c, n);
        return power_pairs(row_.data(), zeros(n), n);
    }
    double span_row(int64_t b, int64_t m, int64_t n, int64_t span) {
        std::fill(row_.begin(), row_.begin() + n, 0.0);
        add_spans(b, m / H_, n, span);
        finish_row(G_.data() + m * (T_ + 1) + b - n, m / H_, n);
        return power_pairs(row_.data(), zeros(n), n);
    }
    void finish_row(const double *g, int64_t c, int64_t n) {
        const double *d = dur_.data() + c * K_ + K_ - n;
        for (int64_t i = 0; i < n; ++i) row_[i] += g[i] + d[i];
    }
    const double *zeros(int64_t n) {
        if (int64_t(zeros_.size()) < n) zeros_.assign(n, 0.0);
        return zeros_.data();
    }
    // The weights of the power sum of the row, times a factor.
    void weigh_row(int64_t n, double factor) {
        double top = largest_sum(row_.data(), zeros(n), n);
        if (eps_ > 0.0) {
            double sum = exponentials(row_.data(), zeros(n), top, eps_, n, weights_.data());
            for (int64_t i = 0; i < n; ++i) weights_[i] *= factor / sum;
            return;
        }
        std::fill(weights_.begin(), weights_.begin() + n, 0.0);
        weights_[first_largest(row_.data(), zeros(n), n)] = factor;
    }

    // ------------------------------------------------------------------------------------ backward

    void recall(int64_t b) {
        int64_t block = b / BLOCK;
        if (block == recalled_) {
            std::copy_n(prefix_.begin() + (b - block * BLOCK) * M_, M_, P_.begin());
            return;
        }
        recalled_ = block;
        prefix_.resize(BLOCK * M_);
        std::copy_n(checkpoints_.begin() + block * M_, M_, prefix_.begin());
        for (int64_t i = 1; i < BLOCK && block * BLOCK + i <= T_; ++i)
            for (int64_t m = 0; m < M_; ++m)
                prefix_[i * M_ + m] = prefix_[(i - 1) * M_ + m] + step(block * BLOCK + i - 1, m);
        std::copy_n(prefix_.begin() + (b - block * BLOCK) * M_, M_, P_.begin());
    }

    void recall_alpha(int64_t b) {
        recall(b);
        for (int64_t c = 0; c < C_; ++c)
            alpha_[c] = last(b, c) + (rows_ ? P_[c * H_] + A(b)[c] : over_hidden(b, c, nullptr));
    }

    void backward(int64_t instance) {
        double *mu = call_.mu_unary.data + call_.unary_at[instance];
        const int64_t *tables = call_.mu_at.data + instance * call_.tables_of();
        mu_ = mu;
        mu_trans_ = call_.mu_tables.data + tables[0];
        double *mu_duration = call_.mu_tables.data + tables[1];
        mu_attach_ = call_.hidden ? call_.mu_tables.data + tables[2] : nullptr;
        mu_moves_ = call_.moving ? call_.mu_tables.data + tables[3] : nullptr;
        int64_t kinds = rows_ ? C_ : M_;
        bool split = rows_ && call_.hidden && !call_.moving;  // kinds of rows with two temperatures
        back_.reset(split ? M_ : kinds, std::min(T_ + 1, 2 * K_ + 1));
        back_.low = std::max<int64_t>(0, T_ + 1 - back_.capacity);
        window_.low = back_.low;
        ref_.assign(kinds, -INF);
        reached_ = T_;
        gdur_.assign(C_ * K_, 0.0);
        std::vector<double> galpha(C_), covered(split ? M_ : kinds, 0.0), gE(C_), share(H_);
        recalled_ = -1;
        recall_alpha(T_);
        power_sum<double>(int(C_), eps_, [&](int c) { return alpha_[c] + end(c); }, galpha.data());
        for (int64_t c = 0; c < C_; ++c) mu[end_at_ + c] += galpha[c];
        int64_t span = span_end_;
        for (int64_t b = T_; b >= 1; --b) {
            if (b < T_) {
                leave(b, gE.data(), covered.data(), split);
                recall_alpha(b);
                through_transitions(gE.data(), galpha.data());
            }
            slide_down(b);
            while (span > span_ && call_.span_stop[span - 1] >= b) --span;
            for (int64_t c = 0; c < C_; ++c) {
                if (call_.borders) mu[last_at_ + (b - 1) * C_ + c] += galpha[c];
                int64_t n = limit(b, c);
                int64_t mine = span;
                while (mine < span_end_ && before(mine, b, c)) ++mine;
                if (rows_) {
                    if (galpha[c] > 0.0) row_back(b, c, n, galpha[c], mine, covered.data(), split);
                    if (!split) covered[c] += galpha[c];
                } else {
                    if (galpha[c] > 0.0) over_hidden(b, c, share.data());
                    for (int64_t h = 0; h < H_ && galpha[c] > 0.0; ++h) {
                        double g = galpha[c] * share[h];
                        if (g > 0.0) kind_back(b, c * H_ + h, n, g, mine);
                        covered[c * H_ + h] += g;
                    }
                }
                cover(b - 1, c, covered.data(), split);
            }
        }
        leave(0, gE.data(), covered.data(), split);
        for (int64_t c = 0; c < C_; ++c) mu[begin_at_ + c] += gE[c];
        for (int64_t c = 0; c < C_; ++c)
            for (int64_t d = 1; d <= K_; ++d) mu_duration[(d - 1) * C_ + c] += gdur_[c * K_ + K_ - d];
    }

    // Marginals of site t.
    void cover(int64_t t, int64_t c, const double *covered, bool split) {
        double sum = 0.0;
        if (rows_ && !split) sum = covered[c];
        else
            for (int64_t m = c * H_; m < (c + 1) * H_; ++m) {
                double p = larger(covered[m], 0.0);
                sum += p;
                if (call_.hidden) mu_[hidden_at_ + t * M_ + m] = p;
            }
        mu_[site_at_ + t * C_ + c] = larger(sum, 0.0);
    }

    // Segments that begin at position a: their marginals, which are complete.
    void leave(int64_t a, double *gE, double *covered, bool split) {
        double starts = 0.0;
        bool by_kind = split || !rows_;
        for (int64_t c = 0; c < C_; ++c) {
            gE[c] = 0.0;
            if (!by_kind) {
                gE[c] = *back_.at(c, a);
                covered[c] -= gE[c];
            }
            for (int64_t m = c * H_; by_kind && m < (c + 1) * H_; ++m) {
                double g = *back_.at(m, a);
                covered[m] -= g;
                gE[c] += g;
                if (call_.hidden) mu_attach_[m] += g;
            }
            if (call_.borders) mu_[first_at_ + a * C_ + c] += gE[c];
            starts += gE[c];
        }
        mu_[bound_at_ + 2 * a + 1] += starts;
        if (a > 0) mu_[bound_at_ + 2 * a] += larger(1.0 - starts, 0.0);
    }

    void through_transitions(double *gE, double *galpha) {
        std::fill(galpha, galpha + C_, 0.0);
        if (eps_ > 0.0) scaled_transitions();
        for (int64_t c = 0; c < C_; ++c) {
            if (!(gE[c] > 0.0)) continue;
            if (eps_ > 0.0 && into_[c] > TRUSTED) {
                gE[c] /= into_[c];
                continue;
            }
            log_transition(c);
            for (int64_t p = 0; p < C_; ++p) {
                double g = gE[c] * weights_[p];
                galpha[p] += g;
                mu_trans_[p * C_ + c] += g;
            }
            gE[c] = 0.0;
        }
        if (!(eps_ > 0.0)) return;
        for (int64_t p = 0; p < C_; ++p) {
            if (from_[p] == 0.0) continue;
            const double *row = scaled_trans_.data() + p * C_;
            double *mu = mu_trans_ + p * C_;
            double sum = 0.0;
            for (int64_t c = 0; c < C_; ++c) {
                double g = from_[p] * row[c] * gE[c];
                mu[c] += g;
                sum += g;
            }
            galpha[p] += sum;
        }
    }

    // Derivatives of starts, and scaled G, of positions b - K .. b.
    void slide_down(int64_t b) {
        int64_t low = std::max<int64_t>(0, b - K_);
        if (low < back_.low) {
            int64_t to = std::max<int64_t>(0, b + 1 - back_.capacity);
            int64_t shift = back_.low - to;
            for (Window *w : {&back_, &window_}) {
                int64_t kinds = int64_t(w->data.size()) / w->capacity;
                for (int64_t m = 0; m < kinds; ++m) {
                    double *v = w->data.data() + m * w->capacity;
                    std::memmove(v + shift, v, (w->capacity - shift) * sizeof(double));
                    std::fill(v, v + shift, 0.0);
                }
                w->low = to;
            }
        }
        if (rows_ || !(eps_ > 0.0)) return;
        for (int64_t a = std::min(reached_, b) - 1; a >= low; --a)
            for (int64_t m = 0; m < M_; ++m) {
                double g = G_[m * (T_ + 1) + a];
                if (g > -INF && !((g - ref_[m]) / eps_ <= HIGH)) recentre(m, g, a, b);
                else *window_.at(m, a) = g > -INF ? exp((g - ref_[m]) / eps_) : 0.0;
            }
        reached_ = std::min(reached_, low);
    }

    // The weights of the power sum of A(b, m), times its derivative.
    void kind_back(int64_t b, int64_t m, int64_t n, double g, int64_t span) {
        int64_t c = m / H_;
        const double *from = G_.data() + m * (T_ + 1) + b - n;
        const double *d = dur_.data() + c * K_ + K_ - n;
        double *to = back_.at(m, b - n);
        double *gdur = gdur_.data() + c * K_ + K_ - n;
        bool alone = span < span_end_ && call_.span_stop[span] == b && call_.span_label[span] == c;
        if (alone) {
            span_row(b, m, n, span);
            weigh_row(n, g);
            add_weights(n, to, gdur);
            read_spans(b, c, n, span);
            return;
        }
        if (!(eps_ > 0.0)) {
            int64_t i = first_largest(from, d, n);
            to[i] += g;
            gdur[i] += g;
            return;
        }
        double above = (ref_[m] + top_[c] - A(b)[m]) / eps_;
        if (ref_[m] > -INF && above <= LOW) {
            const double *scaled = scaled_dur_.data() + c * K_ + K_ - n;
            add_products(window_.at(m, b - n), scaled, g * exp(above), n, to, gdur);
            return;
        }
        double sum = exponentials(from, d, A(b)[m], eps_, n, weights_.data());
        for (int64_t i = 0; i < n; ++i) weights_[i] *= g / sum;
        add_weights(n, to, gdur);
        const double *low = G_.data() + m * (T_ + 1) + std::max<int64_t>(0, b - K_);
        recentre(m, *std::max_element(low, from + n), std::max<int64_t>(0, b - K_), b);
    }
    void add_weights(int64_t n, double *to, double *gdur) {
        for (int64_t i = 0; i < n; ++i) {
            to[i] += weights_[i];
            gdur[i] += weights_[i];
        }
    }
    void read_spans(int64_t b, int64_t c, int64_t n, int64_t span) {
        for (; span < span_end_ && call_.span_stop[span] == b && call_.span_label[span] == c; ++span) {
            int64_t i = call_.span_start[span] - (b - n);
            if (i >= 0 && i < n) call_.mu_span[span] += weights_[i];
        }
    }

    void row_back(int64_t b, int64_t c, int64_t n, double g, int64_t span, double *covered, bool split) {
        power_row(b, c, n, span);
        weigh_row(n, g);
        read_spans(b, c, n, span);
        double *gdur = gdur_.data() + c * K_ + K_ - n;
        for (int64_t i = 0; i < n; ++i) gdur[i] += weights_[i];
        if (call_.wide)
            for (int64_t i = 0; i < n; ++i) {
                int64_t a = b - n + i;
                mu_[wide_at_ + (a * K_ + b - a - 1) * C_ + c] += weights_[i];
            }
        if (split) {
            split_row(b, c, n, covered);
            return;
        }
        double *to = back_.at(c, b - n);
        for (int64_t i = 0; i < n; ++i) to[i] += weights_[i];
        if (call_.moving) moving_back(b, c, n);
    }

    // Shares of the hidden states in the weights of a row.
    void split_row(int64_t b, int64_t c, int64_t n, double *covered) {
        shares_.resize(2 * H_);
        for (int64_t i = 0; i < n; ++i) {
            if (weights_[i] == 0.0) continue;
            int64_t a = b - n + i;
            auto term = [&](int h) {
                const double *q = Q_.data() + (c * H_ + h) * (T_ + 1);
                return (q[b] + attach_[c * H_ + h]) - q[a];
            };
            power_sum<double>(int(H_), eps_h_, term, shares_.data());
            for (int64_t h = 0; h < H_; ++h) {
                double p = weights_[i] * shares_[h];
                *back_.at(c * H_ + h, a) += p;
                covered[c * H_ + h] += p;
            }
        }
    }

    // Derivatives of phi from the longest length to the shortest: each is distributed over the states that follow.
    void moving_back(int64_t b, int64_t c, int64_t n) {
        const double *move = moves_ + c * H_ * H_;
        shares_.resize(3 * H_);
        double *gphi = shares_.data() + H_;
        double *next = shares_.data() + 2 * H_;
        double *w = shares_.data();
        std::fill(gphi, gphi + H_, 0.0);
        for (int64_t d = n; d >= 1; --d) {
            const double *now = phi_.data() + (d - 1) * H_;
            double p = weights_[n - d];
            if (p > 0.0) {
                power_sum<double>(int(H_), eps_h_, [&](int h) { return attach_[c * H_ + h] + now[h]; }, w);
                for (int64_t h = 0; h < H_; ++h) {
                    gphi[h] += p * w[h];
                    mu_attach_[c * H_ + h] += p * w[h];
                }
            }
            std::fill(next, next + H_, 0.0);
            for (int64_t h = 0; h < H_; ++h) {
                if (!(gphi[h] > 0.0)) continue;
                mu_[hidden_at_ + (b - d) * M_ + c * H_ + h] += gphi[h];
                if (d == 1) continue;
                const double *later = now - H_;
                power_sum<double>(int(H_), eps_h_, [&](int j) { return move[h * H_ + j] + later[j]; }, w);
                for (int64_t j = 0; j < H_; ++j) {
                    next[j] += gphi[h] * w[j];
                    mu_moves_[(c * H_ + h) * H_ + j] += gphi[h] * w[j];
                }
            }
            std::swap(gphi, next);
        }
    }

    // ------------------------------------------------------------------------------------ samples

    int64_t choose(const double *weights, int64_t n, double at) {
        int64_t last = 0;
        for (int64_t i = 0; i < n; ++i) {
            if (!(weights[i] > 0.0)) continue;
            last = i;
            at -= weights[i];
            if (at < 0.0) return i;
        }
        return last;
    }

    // A segmentation from p ~ exp(score / eps_y), from its end to its beginning.
    void draw(int64_t instance, int64_t number) {
        uint64_t key = uint64_t(call_.seed) * 0x9e3779b97f4a7c15ULL + uint64_t(instance);
        Draws uniform{key * 0xd1342543de82ef95ULL + uint64_t(number)};
        int64_t *to = call_.drawn.data + call_.drawn_at[instance] + number * T_;
        recalled_ = -1;
        recall_alpha(T_);
        power_sum<double>(int(C_), eps_, [&](int c) { return alpha_[c] + end(c); }, weights_.data());
        int64_t b = T_;
        int64_t c = choose(weights_.data(), C_, uniform());
        while (b > 0) {
            int64_t n = limit(b, c);
            int64_t span = span_;
            while (span < span_end_ && before(span, b, c)) ++span;
            if (rows_) power_row(b, c, n, span);
            else {
                int64_t h = 0;
                if (H_ > 1) {
                    over_hidden(b, c, nullptr);
                    h = choose(spare_.data(), H_, uniform());
                }
                span_row(b, c * H_ + h, n, span);
            }
            weigh_row(n, 1.0);
            int64_t a = b - n + choose(weights_.data(), n, uniform());
            for (int64_t t = a; t < b; ++t) to[t] = c;
            to[a] += C_;
            b = a;
            if (b == 0) break;
            recall_alpha(b);
            log_transition(c);
            c = choose(weights_.data(), C_, uniform());
        }
    }

    const SegmentsCall &call_;
    const int64_t C_, K_, H_, M_;
    const double eps_, eps_h_;
    const bool rows_;
    int64_t T_ = 0, span_ = 0, span_end_ = 0, recalled_ = -1, reached_ = 0;
    int64_t site_at_, bound_at_, hidden_at_, first_at_, last_at_, wide_at_, begin_at_, end_at_;
    const double *u_, *trans_, *attach_, *moves_;
    const uint8_t *ok_;
    double *mu_, *mu_trans_, *mu_attach_, *mu_moves_;
    double value_ = 0.0, base_ = 0.0;
    std::vector<double> dur_, top_, scaled_dur_, scaled_trans_, trans_top_, from_, into_, start_;
    double *A_ = nullptr;
    int64_t stride_ = 0;
    std::vector<double> spare_, own_A_, G_, Q_, P_, checkpoints_, prefix_, alpha_, weights_, row_, zeros_, phi_,
        shares_, gdur_, ref_;
    std::vector<int64_t> longest_;
    std::vector<int32_t> limit_;
    Window window_, back_;
};

}  // namespace mssvm
