// Nested power sums over all segmentations of a sequence; `segments.hpp` has the mathematics.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "algebra.hpp"
#include "boundary.hpp"
#include "rows.hpp"

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

// The recursion over 0 .. T: of every position and label the power sum over segmentations up to it.
class SegmentSums {
public:
    explicit SegmentSums(const SegmentsCall &call)
        : call_(call),
          C_(call.labels),
          K_(call.longest),
          H_(std::max<int64_t>(call.hidden, 1)),
          M_(call.kinds()),
          eps_(call.eps_y),
          eps_h_(call.eps_h),
          rows_(call.wide || call.moving || (call.hidden > 1 && call.eps_y != call.eps_h)) {}

protected:
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

    // The score of a kind at a site, or of its label alone where A is computed from rows; 0 where no segment may cover
    // the site.
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

    // Enters position a as a start of segments of label c; `score` is that of everything before the position.
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

    const SegmentsCall &call_;
    const int64_t C_, K_, H_, M_;
    const double eps_, eps_h_;
    const bool rows_;
    int64_t T_ = 0, span_ = 0, span_end_ = 0;
    int64_t site_at_, bound_at_, hidden_at_, first_at_, last_at_, wide_at_, begin_at_, end_at_;
    const double *u_, *trans_, *attach_, *moves_;
    const uint8_t *ok_;
    double value_ = 0.0, base_ = 0.0;
    std::vector<double> dur_, top_, scaled_dur_, scaled_trans_, trans_top_, from_, into_, start_;
    double *A_ = nullptr;
    int64_t stride_ = 0;
    std::vector<double> spare_, own_A_, G_, Q_, P_, checkpoints_, alpha_, weights_, row_, zeros_, phi_, ref_;
    std::vector<int64_t> longest_;
    std::vector<int32_t> limit_;
    Window window_;
};

}  // namespace mssvm
