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

#include "register_updates.hpp"

namespace mssvm {

constexpr double TRUSTED = 1e-290;
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

// --- many factors in a row ---

// Which variables are maximal or held, a lane mask each (`held` may be null); lanes that are `idle`.
struct MessageMasks {
    const uint8_t *role, *held;
    unsigned idle;
};

// Updates of mixed roles gain too little to be compiled for every number of states, or as `plain` ones. Those of a
// single instance have a shape all the same: it also says how its states are stored.
template <class V, Roles roles> constexpr bool any_shape = std::is_same_v<V, Vec> && roles == Roles::MIXED;

// Updates factors from `step` on while they are of shape K with such roles; returns the first one that is not.
template <class V, class Item, int K, Roles roles, bool plain>
const Step *update_while(const Lanes<V, Item> &given, Marks<V> &sofar, const Step *step, const Step *end, int direction,
                         const MessageMasks &masks) {
    Lanes<V, Item> lanes = given;
    Marks<Wide<K, V>> marks;
    for (; step != end; step += direction) {
        unsigned role_i = masks.role[step->i.variable], role_j = masks.role[step->j.variable], fixed = 0;
        if (roles_of<V>(role_i, role_j) != roles) break;
        if (!any_shape<V, roles> && step->shape != K) break;
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
    if constexpr (any_shape<V, roles>) {
        return update_while<V, Item, 0, roles, plain>;
    } else if constexpr (K < -most_vectors<V>) {
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
    return update_for<V, Item, Roles::MIXED, false>(shape);
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
        room_.resize(work_size(graph_->widest));
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
    void beliefs(unsigned lane_mask, const int64_t *who, const BeliefArrays &out) {
        bool wanted = !out.mu_unary.empty();
        int64_t some = 0;
        for (int k = 0; k < lanes; ++k)
            if (lane_mask >> k & 1) some = who[k];
        int64_t n_mu = 0;
        for (const Step &step : graph_->steps)
            n_mu = std::max(n_mu, mu_at(step, some) + int64_t(step.i.card) * step.j.card);
        mu_unary_.assign(wanted ? graph_->n_states : 0, V{});
        mu_tables_.assign(wanted ? n_mu : 0, V{});
        least_ = all<V>(1.0);
        V total = variable_beliefs(some) + factor_beliefs(some);
        for (int k = 0; k < lanes; ++k) {
            if (!(lane_mask >> k & 1)) continue;
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
