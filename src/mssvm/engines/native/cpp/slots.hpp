// Scores of instances into the tables of a program; marginals and states out of them.
#pragma once
#include <algorithm>
#include <vector>

#include "program.hpp"
#include "simd.hpp"

namespace mssvm {

// The layout of a batch, which states are allowed, and the first of these for every variable.
struct Instances {
    int64_t bytes;
    Ints var_ptr, factor_ptr, unary_ptr, table_at, mu_at;
    Bytes8 allowed;
    Ints first;

    // How far the clamped variables of factor f move in its table.
    int64_t clamp_offset(const Program &p, int64_t f, int64_t v0) const {
        int64_t offset = 0;
        for (int64_t c = p.clamp_ptr[f]; c < p.clamp_ptr[f + 1]; ++c)
            offset += first[v0 + p.clamp_var[c]] * p.clamp_stride[c];
        return offset;
    }
};

// Copies the scores of one instance per lane into their slots; forbidden states become -inf.
template <class V>
void load_scores(const Program &p, const Instances &in, const int64_t *instance, const double *unary,
                 const double *tables, V *work) {
    constexpr int W = Of<V>::lanes;
    double *slots = reinterpret_cast<double *>(work);
    std::fill(slots, slots + p.n_slots * W, 0.0);
    for (int64_t v = 0; v < p.clamped.size; ++v) {
        double *slot = slots + p.unary_slot[v] * W;
        for (int i = 0; i < W; ++i) {
            int64_t variable = in.var_ptr[instance[i]] + v, first = in.unary_ptr[variable];
            if (p.clamped[v]) {
                slot[i] += unary[first + in.first[variable]];
                continue;
            }
            int64_t card = in.unary_ptr[variable + 1] - first;
            for (int64_t k = 0; k < card; ++k) slot[k * W + i] += in.allowed[first + k] ? unary[first + k] : -INF;
        }
    }
    for (int64_t f = 0; f < p.factor_slot.size; ++f) {
        double *slot = slots + p.factor_slot[f] * W;
        const int64_t *entry = p.entry.data + p.entry_at[f];
        const double *table[W];
        for (int i = 0; i < W; ++i) {
            int64_t offset = in.clamp_offset(p, f, in.var_ptr[instance[i]]);
            table[i] = tables + in.table_at[in.factor_ptr[instance[i]] + f] + offset;
        }
        for (int64_t k = 0; k < p.factor_size[f]; ++k)
            for (int i = 0; i < W; ++i) slot[k * W + i] += table[i][entry[k]];
    }
}

// The adjoint: gradients of the slots of `count` lanes become marginals. Factors that share a table are summed, so all
// are cleared first.
template <class V>
void store_marginals(const Program &p, const Instances &in, const int64_t *instance, int64_t count, const V *grad,
                     double *mu_unary, double *mu_tables) {
    constexpr int W = Of<V>::lanes;
    const double *slots = reinterpret_cast<const double *>(grad);
    for (int64_t i = 0; i < count; ++i) {
        int64_t v0 = in.var_ptr[instance[i]], f0 = in.factor_ptr[instance[i]];
        for (int64_t v = 0; v < p.clamped.size; ++v) {
            int64_t first = in.unary_ptr[v0 + v], card = in.unary_ptr[v0 + v + 1] - first;
            const double *slot = slots + p.unary_slot[v] * W + i;
            if (p.clamped[v]) {
                std::fill(mu_unary + first, mu_unary + first + card, 0.0);
                mu_unary[first + in.first[v0 + v]] = *slot;
                continue;
            }
            for (int64_t k = 0; k < card; ++k) mu_unary[first + k] = slot[k * W];
        }
        for (int64_t f = 0; f < p.factor_slot.size; ++f) {
            int64_t size = p.factor_size[f];
            for (int64_t c = p.clamp_ptr[f]; c < p.clamp_ptr[f + 1]; ++c) {
                int64_t v = v0 + p.clamp_var[c];
                size *= in.unary_ptr[v + 1] - in.unary_ptr[v];
            }
            double *mu = mu_tables + in.mu_at[f0 + f];
            std::fill(mu, mu + size, 0.0);
        }
        for (int64_t f = 0; f < p.factor_slot.size; ++f) {
            double *mu = mu_tables + in.mu_at[f0 + f] + in.clamp_offset(p, f, v0);
            const double *slot = slots + p.factor_slot[f] * W + i;
            const int64_t *entry = p.entry.data + p.entry_at[f];
            for (int64_t k = 0; k < p.factor_size[f]; ++k) mu[entry[k]] += slot[k * W];
        }
    }
}

// Back-substitution: the first maximiser of every variable at temperature zero, last eliminated first. The scores
// of its states are the sums over its steps at the states of the variables eliminated later. If one of these is unknown
// (-1), so is the variable.
inline void decode_states(const Program &p, const double *temperature, const double *work, int64_t lanes, int64_t lane,
                          int64_t *states) {
    std::vector<double> row(p.max_card);
    for (int64_t position = p.positions() - 1; position >= 0; --position) {
        int64_t first = p.position_ptr[position], card = p.card[first];
        if (temperature[first] > 0.0) continue;
        int64_t last = p.position_ptr[position + 1];
        bool known = true;
        for (int64_t k = p.separator_ptr[first]; k < p.separator_ptr[last]; ++k) known &= states[p.separator[k]] >= 0;
        if (!known) continue;
        std::fill(row.begin(), row.end(), 0.0);
        for (int64_t s = first; s < last; ++s) {
            int64_t place = 0, axes = p.axis_ptr[s + 1] - p.axis_ptr[s];
            for (int64_t k = p.separator_ptr[s]; k < p.separator_ptr[s + 1]; ++k)
                place += states[p.separator[k]] * p.separator_stride[k];
            for (int64_t i = p.input_ptr[s]; i < p.input_ptr[s + 1]; ++i) {
                int64_t at = p.input_at[i], rest = place;
                for (int64_t axis = axes - 1; axis >= 0; --axis) {
                    int64_t size = p.axis_size[p.axis_ptr[s] + axis];
                    at += rest % size * p.stride[p.stride_ptr[i] + axis];
                    rest /= size;
                }
                for (int64_t j = 0; j < card; ++j) row[j] += work[(at + j) * lanes + lane];
            }
        }
        states[p.var[first]] = std::max_element(row.begin(), row.begin() + card) - row.begin();
    }
}

}  // namespace mssvm
