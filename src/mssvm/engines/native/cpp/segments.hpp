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
// segments that begin after it. Memory: G, T numbers per kind, windows of 2 K positions, and nothing of size T K.
//
// Masks of sites become run lengths: a segment may not be longer than the run of sites up to its end that allow its
// label, nor than the distance to the last known boundary.
#pragma once
#include <algorithm>
#include <vector>

#include "segment_sums.hpp"

namespace mssvm {

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

// All segmentations of one instance after another: the power sum, then samples and derivatives.
class Segmentations : SegmentSums {
public:
    explicit Segmentations(const SegmentsCall &call) : SegmentSums(call) {}

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
    // ------------------------------------------------------------------------------------ backward

    // Brings P to position b, from the last checkpoint before it.
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

    int64_t recalled_ = -1, reached_ = 0;
    double *mu_, *mu_trans_, *mu_attach_, *mu_moves_;
    std::vector<double> prefix_, shares_, gdur_;
    Window back_;
};

}  // namespace mssvm
