// Messages as scores, for factors of any order at any two temperatures: the one recursion, zeros included.
//
//     S_a = theta_a + sum_i n_i          R_a(x_B) = PS_{eps_h} over x_A of S_a
//     b_a = softmax_{eps_y}(R_a)(x_B) * exp((S_a - R_a) / eps_h)
//     output i   m_i(x_i) = PS_{eps_y} over the other outputs of R_a  -  n_i(x_i)
//     hidden i   m_i(x_i) = eps_h log b_a(x_i)  -  n_i(x_i)
//
// with outputs a_B, hidden a_A, PS_eps(v) = eps log sum exp(v / eps) (the maximum at eps = 0), and max m_i = 0. A state
// is masked while a score or message of -inf sits on it: `field` sums what is finite and `masked` counts what is not,
// so that no infinity is ever subtracted.
#pragma once
#include "messages.hpp"

namespace mssvm {

constexpr double ROUNDINGS = 8.0;  // a change of a message by this many roundings of the largest field is none
constexpr double SCORE_WORK_AT_A_TIME = 1e7;  // table entries of the sweeps of one instance in one call

inline double power_sum(const double *values, int64_t n, double eps) {
    double top = -INF;
    for (int64_t k = 0; k < n; ++k) top = values[k] > top ? values[k] : top;
    if (eps == 0.0 || top == -INF) return top;
    double total = 0.0;
    for (int64_t k = 0; k < n; ++k) total += std::exp((values[k] - top) / eps);
    return top + eps * std::log(total);
}

class Scores {
public:
    static constexpr int lanes = 1;

    void prepare(const Wiring &wiring, const RunArrays &run, const Sweeping &how) {
        w_ = &wiring;
        run_ = &run;
        how_ = &how;
        outputs_ = how.outputs;
        eps_y_ = how.eps_y;
        eps_h_ = how.eps_h;
        tables_ = how.tables;
    }

    int64_t at_a_time(int64_t b) const {
        return std::max<int64_t>(1, int64_t(SCORE_WORK_AT_A_TIME / double(w_->entries(b) + 1)));
    }

    void load(unsigned, const int64_t *who) {
        b_ = who[0];
        int64_t size = w_->widest;
        for (int64_t f = w_->factor_ptr[b_]; f < w_->factor_ptr[b_ + 1]; ++f)
            size = std::max({size, w_->table_size(f), end_of_messages(f) - w_->message_at[w_->scope_ptr[f]]});
        for (std::vector<double> *buffer : {&score_, &partial_, &weight_, &cavity_, &new_})
            if (int64_t(buffer->size()) < size) buffer->resize(size);
        if (int64_t(group_.size()) < size) group_.resize(size);
        int64_t n_states = w_->end_state(b_) - w_->first_state(b_);
        if (int64_t(field_.size()) < n_states) {
            field_.resize(n_states);
            masked_.resize(n_states);
        }
    }

    void sweep(bool reverse, bool) {
        collect(false);
        change_ = 0.0;
        int64_t first = w_->factor_ptr[b_], n = w_->factor_ptr[b_ + 1] - first;
        for (int64_t e = 0; e < n; ++e) {
            int64_t f = w_->order[reverse ? first + n - 1 - e : first + e];
            double moved = update(f, how_->damping, how_->flooding);
            change_ = moved <= change_ ? change_ : moved;  // a NaN stays
        }
        if (change_ <= ROUNDINGS * std::numeric_limits<double>::epsilon() * largest_field()) change_ = 0.0;
    }

    // Bring messages to and from held variables up to date.
    void refresh() {
        collect(false);
        for (int64_t f = w_->factor_ptr[b_]; f < w_->factor_ptr[b_ + 1]; ++f)
            if (settled(*w_, *run_, f)) update(f, 0.0, false);
    }

    bool trusted(int) const { return true; }
    double change(int, bool) const { return change_ / how_->change_unit(); }
    bool shows_logarithms(int64_t) const { return true; }
    void store(unsigned, const int64_t *) {}
    void leave(unsigned) {}
    void to_scores(int64_t) {}

    // theta_i plus all finite messages to i, and the number of infinite ones; with `open` also at the states that a
    // held variable may not take.
    void collect(bool open) {
        const Wiring &w = *w_;
        int64_t at = w.first_state(b_);
        for (int64_t i = w.var_ptr[b_]; i < w.var_ptr[b_ + 1]; ++i)
            for (int64_t x = 0; x < w.card(i); ++x) {
                int64_t e = w.state_ptr[i] + x;
                double v = open ? run_->open_unary[e] : score_of(w, *run_, i, x);
                masked_[e - at] = v == -INF;
                field_[e - at] = v == -INF ? 0.0 : v;
            }
        for (int64_t s = w.first_slot(b_); s < w.end_slot(b_); ++s) {
            int64_t to = w.state_ptr[w.scope[s]] - at;
            for (int64_t x = 0; x < w.slot_card(s); ++x) {
                double v = run_->messages[w.message_at[s] + x];
                if (v == -INF) ++masked_[to + x];
                else field_[to + x] += v;
            }
        }
    }

    double field(int64_t e) const {
        int64_t at = e - w_->first_state(b_);
        return masked_[at] ? -INF : field_[at];
    }

    void beliefs(const BeliefArrays &out) {
        const Wiring &w = *w_;
        bool wanted = !out.mu_unary.empty(), feasible = true;
        double total = 0.0;
        collect(false);
        for (int64_t i = w.var_ptr[b_]; i < w.var_ptr[b_ + 1]; ++i) {
            double v = variable_belief(i, outputs_[i] ? eps_y_ : eps_h_, wanted ? out.mu_unary.data : nullptr);
            feasible &= v > -INF;
            if (w.degree(i) != 1) total += double(1 - w.degree(i)) * v;
        }
        for (int64_t f = w.factor_ptr[b_]; f < w.factor_ptr[b_ + 1]; ++f) {
            Shape shape = fill(f);
            double v = partials(shape);
            total += v;
            feasible &= v > -INF;
            if (wanted && v > -INF) factor_belief(shape, v, out.mu_tables.data + w.mu_at[f]);
        }
        out.value[b_] = feasible ? total : -INF;
    }

private:
    struct Shape {
        int64_t size, groups;  // entries, and states of the outputs
    };

    int64_t end_of_messages(int64_t f) const { return w_->message_at[w_->scope_ptr[f + 1]]; }

    double largest_field() const {
        double most = 0.0;
        for (int64_t e = 0; e < w_->end_state(b_) - w_->first_state(b_); ++e)
            most = std::max(most, std::abs(field_[e]));
        return most;
    }

    // S_a, the number of x_B of every entry, and the cavities.
    Shape fill(int64_t f) {
        const Wiring &w = *w_;
        int64_t first = w.scope_ptr[f], at = w.first_state(b_);
        Shape shape{w.table_size(f), 1};
        const double *table = tables_.data + w.table_at[f];
        std::copy(table, table + shape.size, score_.begin());
        std::fill(group_.begin(), group_.begin() + shape.size, 0);
        int64_t stride = 1;
        for (int64_t s = w.scope_ptr[f + 1] - 1; s >= first; --s) {
            int64_t i = w.scope[s], card = w.slot_card(s), offset = w.message_at[s] - w.message_at[first];
            int32_t step = outputs_[i] ? int32_t(shape.groups) : 0;
            for (int64_t x = 0; x < card; ++x) {
                int64_t e = w.state_ptr[i] - at + x;
                double message = run_->messages[w.message_at[s] + x];
                bool lost = message == -INF;
                double n = masked_[e] - lost > 0 ? -INF : field_[e] - (lost ? 0.0 : message);
                cavity_[offset + x] = n;
                for (int64_t t = x * stride; t < shape.size; t += card * stride)
                    for (int64_t lo = t; lo < t + stride; ++lo) {
                        score_[lo] += n;
                        group_[lo] += int32_t(x) * step;
                    }
            }
            stride *= card;
            if (outputs_[i]) shape.groups *= card;
        }
        return shape;
    }

    // R_a into `partial_`, eps_h log softmax_{eps_y}(R_a) into `weight_`; returns PS_{eps_y}(R_a).
    double partials(const Shape &shape) {
        if (shape.groups == shape.size) {
            for (int64_t t = 0; t < shape.size; ++t) partial_[group_[t]] = score_[t];
        } else if (shape.groups == 1) {
            partial_[0] = power_sum(score_.data(), shape.size, eps_h_);
        } else {
            std::fill(partial_.begin(), partial_.begin() + shape.groups, -INF);
            std::fill(weight_.begin(), weight_.begin() + shape.groups, 0.0);
            for (int64_t t = 0; t < shape.size; ++t) partial_[group_[t]] = std::max(partial_[group_[t]], score_[t]);
            for (int64_t t = 0; t < shape.size; ++t)
                if (score_[t] > -INF) weight_[group_[t]] += std::exp((score_[t] - partial_[group_[t]]) / eps_h_);
            for (int64_t k = 0; k < shape.groups; ++k)
                if (partial_[k] > -INF) partial_[k] += eps_h_ * std::log(weight_[k]);
        }
        double value = power_sum(partial_.data(), shape.groups, eps_y_);
        for (int64_t k = 0; k < shape.groups; ++k) {
            if (shape.groups == 1) weight_[k] = 0.0;
            else if (eps_y_ > 0.0) weight_[k] = (partial_[k] - value) * (eps_h_ / eps_y_);
            else weight_[k] = partial_[k] == value ? 0.0 : -INF;
        }
        return value;
    }

    // PS_eps over everything but one axis of a C-ordered table.
    static void reduce(const double *values, int64_t size, int64_t stride, int64_t card, double eps, double *out) {
        for (int64_t x = 0; x < card; ++x) {
            double top = -INF, total = 0.0;
            for (int64_t t = x * stride; t < size; t += card * stride)
                for (int64_t lo = t; lo < t + stride; ++lo) top = values[lo] > top ? values[lo] : top;
            out[x] = top;
            if (eps == 0.0 || top == -INF) continue;
            for (int64_t t = x * stride; t < size; t += card * stride)
                for (int64_t lo = t; lo < t + stride; ++lo) total += std::exp((values[lo] - top) / eps);
            out[x] = top + eps * std::log(total);
        }
    }

    // All messages of a factor; returns the largest change.
    double update(int64_t f, double damping, bool flooding) {
        const Wiring &w = *w_;
        Shape shape = fill(f);
        double value = partials(shape), change = 0.0;
        if (shape.groups < shape.size && value > -INF)
            for (int64_t t = 0; t < shape.size; ++t)
                if (score_[t] > -INF) score_[t] += weight_[group_[t]] - partial_[group_[t]];
        int64_t stride = shape.size, group_stride = shape.groups;
        for (int64_t s = w.scope_ptr[f]; s < w.scope_ptr[f + 1]; ++s) {
            int64_t i = w.scope[s], card = w.slot_card(s);
            stride /= card;
            if (outputs_[i]) {
                group_stride /= card;
                reduce(partial_.data(), shape.groups, group_stride, card, eps_y_, new_.data());
            } else {
                reduce(score_.data(), shape.size, stride, card, eps_h_, new_.data());
            }
            double moved = accept(s, w.message_at[s] - w.message_at[w.scope_ptr[f]], damping, flooding);
            change = moved <= change ? change : moved;
        }
        return change;
    }

    // Subtract the cavity, normalise, damp and store one message; returns its largest change.
    double accept(int64_t s, int64_t offset, double damping, bool flooding) {
        const Wiring &w = *w_;
        int64_t card = w.slot_card(s), at = w.state_ptr[w.scope[s]] - w.first_state(b_);
        const double *cavity = cavity_.data() + offset;
        double *message = run_->messages.data + w.message_at[s];
        double top = -INF, change = 0.0;
        for (int64_t x = 0; x < card; ++x) {
            if (cavity[x] == -INF) continue;
            new_[x] -= cavity[x];
            top = new_[x] > top ? new_[x] : top;
        }
        for (int64_t x = 0; x < card; ++x) {
            double v = 0.0, old = message[x];
            if (cavity[x] > -INF && top > -INF) {
                v = new_[x] - top;
                if (damping > 0.0 && v > -INF && old > -INF) v = (1.0 - damping) * v + damping * old;
            }
            if (v != old) {
                double moved = std::abs(v - old);
                change = moved <= change ? change : moved;
            }
            if (!flooding) {
                masked_[at + x] += (v == -INF) - (old == -INF);
                field_[at + x] += (v == -INF ? 0.0 : v) - (old == -INF ? 0.0 : old);
            }
            message[x] = v;
        }
        return change;
    }

    // PS_eps of g_i; adds its weights, of which the first maximiser has all at eps = 0.
    double variable_belief(int64_t i, double eps, double *mu) {
        const Wiring &w = *w_;
        int64_t lo = w.state_ptr[i], card = w.card(i), best = 0;
        double top = -INF, total = 0.0;
        for (int64_t x = 0; x < card; ++x) {
            double v = field(lo + x);
            if (v > top) {
                top = v;
                best = x;
            }
        }
        if (top == -INF) return -INF;
        for (int64_t x = 0; x < card; ++x) {
            new_[x] = eps > 0.0 ? std::exp((field(lo + x) - top) / eps) : double(x == best);
            total += new_[x];
        }
        for (int64_t x = 0; mu && x < card; ++x) mu[lo + x] += new_[x] / total;
        return eps > 0.0 ? top + eps * std::log(total) : top;
    }

    // Adds b_a = softmax_{eps_y}(R_a) * exp((S_a - R_a) / eps_h), normalised.
    void factor_belief(const Shape &shape, double value, double *mu) {
        double total = 0.0;
        for (int64_t t = 0; t < shape.size; ++t) {
            double r = partial_[group_[t]], v = 0.0;
            if (score_[t] > -INF) {
                v = eps_y_ > 0.0 ? std::exp((r - value) / eps_y_) : double(r == value);
                if (shape.groups < shape.size) v *= std::exp((score_[t] - r) / eps_h_);
            }
            score_[t] = v;
            total += v;
        }
        for (int64_t t = 0; t < shape.size; ++t) mu[t] += score_[t] / total;
    }

    const Wiring *w_ = nullptr;
    const RunArrays *run_ = nullptr;
    const Sweeping *how_ = nullptr;
    Bytes8 outputs_{};
    Floats tables_{};
    double eps_y_ = 0.0, eps_h_ = 0.0, change_ = 0.0;
    int64_t b_ = 0;
    std::vector<double> field_, score_, partial_, weight_, cavity_, new_;
    std::vector<int32_t> group_;
    std::vector<int64_t> masked_;
};

}  // namespace mssvm
