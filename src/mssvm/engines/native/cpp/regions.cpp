// Ascent on theta(z) by whole regions: connected variables of equal state move to another state together.
//
// Messages settle region by region, and a region that has settled on the wrong state stays there: no single variable
// gains by leaving it. Relabelling a region costs one pass over its variables and its border, so all regions and states
// are tried. For graphs of pairwise factors; states of the same number are taken to mean the same in neighbouring
// variables.
#include "messages.hpp"

using namespace mssvm;

namespace {

constexpr int ROUNDS = 20;
constexpr double LEAST_GAIN = 1e-9;

struct RelabelCall {
    int64_t bytes;
    const Wiring *wiring;
    Ints instances;
    Bytes8 free;
    Floats unary, tables;
    Ints states;
    Floats sent;   // the messages that variables at `states` would send, of the instances that changed
    Bytes8 moved;  // one flag for every one of `instances`
    int64_t threads;
};

class Regions {
public:
    explicit Regions(const RelabelCall &call) : call_(call), w_(*call.wiring), z_(call.states), scores_(w_.widest) {}

    // Improve the states of instance b until no move gains; a move that did not gain is tried again only after it or a
    // neighbour has changed. Returns whether any state changed.
    bool improve(int64_t b) {
        first_ = w_.var_ptr[b];
        end_ = w_.var_ptr[b + 1];
        int64_t n = end_ - first_;
        std::vector<int64_t> before(z_.data + first_, z_.data + end_);
        region_.assign(n, -1);
        busy_.assign(n, 1);
        settled_.clear();
        for (int round = 0; round < ROUNDS; ++round) {
            bool moved = move_variables();
            moved |= move_regions();
            if (!moved) break;
        }
        return !std::equal(before.begin(), before.end(), z_.data + first_);
    }

    // m_j(x_j) = theta_ij(z_i, x_j), the largest entry 0.
    void send(int64_t b) const {
        for (int64_t s = w_.first_slot(b); s < w_.end_slot(b); ++s) {
            Other other = across(s);
            double *message = call_.sent.data + w_.message_at[s];
            double top = -INF;
            for (int64_t x = 0; x < w_.slot_card(s); ++x) {
                message[x] = entry(other, x, z_[other.variable]);
                top = std::max(top, message[x]);
            }
            for (int64_t x = 0; x < w_.slot_card(s); ++x) message[x] -= top;
        }
    }

private:
    // The other variable of a pairwise factor, and how its table is read from slot s.
    struct Other {
        int64_t variable, table, stride, other_stride;
    };

    Other across(int64_t s) const {
        int64_t f = w_.slot_factor[s], first = w_.scope_ptr[f], wide = w_.slot_card(first + 1), table = w_.table_at[f];
        if (s == first) return {w_.scope[first + 1], table, wide, 1};
        return {w_.scope[first], table, 1, wide};
    }
    double entry(const Other &other, int64_t x, int64_t other_x) const {
        return call_.tables[other.table + x * other.stride + other_x * other.other_stride];
    }

    // After a move of i: marks it, its neighbours, and the regions they were found in to be tried again.
    void touch(int64_t i) {
        wake(i);
        for (int64_t k = w_.near_ptr[i]; k < w_.near_ptr[i + 1]; ++k) wake(across(w_.near[k]).variable);
    }
    void wake(int64_t i) {
        busy_[i - first_] = 1;
        int64_t region = region_[i - first_];
        if (region >= 0 && region < int64_t(settled_.size())) settled_[region] = 0;
    }

    // The best of `scores_`; the present one unless another gains.
    int64_t best_state(int64_t now, int64_t card) const {
        int64_t best = now;
        for (int64_t x = 0; x < card; ++x)
            if (scores_[x] > scores_[best] + LEAST_GAIN) best = x;
        return best;
    }

    bool move_variables() {
        bool moved = false;
        for (int64_t i = first_; i < end_; ++i) {
            if (!call_.free[i] || !busy_[i - first_]) continue;
            busy_[i - first_] = 0;
            int64_t card = w_.card(i);
            for (int64_t x = 0; x < card; ++x) scores_[x] = call_.unary[w_.state_ptr[i] + x];
            for (int64_t k = w_.near_ptr[i]; k < w_.near_ptr[i + 1]; ++k) {
                Other other = across(w_.near[k]);
                for (int64_t x = 0; x < card; ++x) scores_[x] += entry(other, x, z_[other.variable]);
            }
            int64_t best = best_state(z_[i], card);
            if (best == z_[i]) continue;
            moved = true;
            z_[i] = best;
            touch(i);
        }
        return moved;
    }

    bool move_regions() {
        bool moved = false;
        int64_t start = int64_t(settled_.size());
        for (int64_t root = first_; root < end_; ++root) {
            int64_t known = region_[root - first_];
            if (!call_.free[root] || known >= start || (known >= 0 && settled_[known])) continue;
            collect(root, int64_t(settled_.size()));
            int64_t best = best_state(z_[root], region_scores(int64_t(settled_.size())));
            settled_.push_back(best == z_[root]);
            if (best == z_[root]) continue;
            moved = true;
            for (int64_t i : members_) {
                z_[i] = best;
                touch(i);
            }
        }
        return moved;
    }

    // The connected free variables that share the state and the number of states of the root.
    void collect(int64_t root, int64_t name) {
        members_.assign(1, root);
        region_[root - first_] = name;
        for (size_t at = 0; at < members_.size(); ++at) {
            int64_t i = members_[at];
            for (int64_t k = w_.near_ptr[i]; k < w_.near_ptr[i + 1]; ++k) {
                int64_t j = across(w_.near[k]).variable;
                if (region_[j - first_] == name || !call_.free[j] || z_[j] != z_[root] || w_.card(j) != w_.card(root))
                    continue;
                region_[j - first_] = name;
                members_.push_back(j);
            }
        }
    }

    // The score of the region and its border in every common state; returns how many states.
    int64_t region_scores(int64_t name) {
        int64_t card = w_.card(members_[0]);
        std::fill_n(scores_.begin(), card, 0.0);
        for (int64_t i : members_) {
            for (int64_t x = 0; x < card; ++x) scores_[x] += call_.unary[w_.state_ptr[i] + x];
            for (int64_t k = w_.near_ptr[i]; k < w_.near_ptr[i + 1]; ++k) {
                Other other = across(w_.near[k]);
                bool inside = region_[other.variable - first_] == name;
                if (inside && i > other.variable) continue;  // counted from the other side
                for (int64_t x = 0; x < card; ++x) scores_[x] += entry(other, x, inside ? x : z_[other.variable]);
            }
        }
        return card;
    }

    const RelabelCall &call_;
    const Wiring &w_;
    Ints z_;
    int64_t first_ = 0, end_ = 0;
    std::vector<double> scores_;
    std::vector<int64_t> region_, members_;
    std::vector<uint8_t> busy_, settled_;
};

}  // namespace

MSSVM_API mssvm_messages_relabel(const RelabelCall *record) {
    return guarded(record, [](const RelabelCall &call) -> int64_t {
        require(call.wiring != nullptr, "no wiring was given.");
        const Wiring &w = *call.wiring;
        w.check();
        check_instances(w, call.instances);
        require(call.states.size == w.state_ptr.size - 1 && call.free.size == call.states.size,
                "one state a variable.");
        require(call.unary.size == w.state_ptr[call.states.size], "one score for every state.");
        require(call.sent.size == w.message_at[w.scope.size], "one message for every slot.");
        for (int64_t i = 0; i < call.states.size; ++i)
            require(w.card(i) <= w.widest, "a variable has more than the most states.");
        for (int64_t f = 0; f < w.table_at.size; ++f)
            require(w.table_at[f] + w.table_size(f) <= call.tables.size, "a table lies outside the batch.");
        require(call.moved.size == call.instances.size, "one flag for every instance named.");
        parallel_for(call.instances.size, int(call.threads), [&](int64_t k) {
            Regions regions(call);
            call.moved[k] = regions.improve(call.instances[k]);
            if (call.moved[k]) regions.send(call.instances[k]);
        });
        return 0;
    });
}
