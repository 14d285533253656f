// Scores of some members of a family into lanes, and their marginals out of lanes.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "layout.hpp"
#include "simd.hpp"

namespace mssvm {

// Members of a family that run together, one per lane. Lanes without a member have scores of zero and the roles of the
// last member; nothing is written from them.
template <class V> struct Group {
    static constexpr int lanes = Of<V>::lanes;
    int64_t member[lanes];
    int count;
};

// Moves numbers between the arrays of a call and the lanes of a workspace.
template <class V> class Members {
public:
    static constexpr int lanes = Of<V>::lanes;

    Members(const Family &f, const ForestCall &call) : f_(f), call_(call), states_(f.states()) {
        if (f.side == 0 && !call.cost_unary.empty()) cost_ = call.cost_unary.data;
    }

    void choose(const Group<V> &group) {
        group_ = group;
        int64_t kinds[lanes];
        for (int i = 0; i < lanes; ++i) kinds[i] = i < group.count ? f_.kind[group.member[i]] : -1;
        if (runs_.empty() || !std::equal(kinds, kinds + lanes, kinds_)) find_runs(kinds);
        std::copy(kinds, kinds + lanes, kinds_);
    }

    // u = unary + cost where that is allowed, -inf elsewhere; 0 at positions that a member does not have. False if a
    // number, allowed or not, is NaN or +inf.
    bool read(V *u) const {
        if (cost_) return f_.allowed.empty() ? read_as<true, false>(u) : read_as<true, true>(u);
        return f_.allowed.empty() ? read_as<false, false>(u) : read_as<false, true>(u);
    }

    // Values and marginals of the lanes of `lane_mask`: marginals are written on side 0 and subtracted on side 1.
    void write_values(V value, unsigned lane_mask) const {
        double *to = call_.values(f_.side).data;
        for (int i = 0; i < group_.count; ++i)
            if (lane_mask >> i & 1) to[f_.instance[group_.member[i]]] = lane(value, i);
    }
    void write_states(const V *u, unsigned lane_mask) const {
        for (const Run &run : runs_) {
            double *to[lanes] = {};
            for (int i = 0; i < group_.count; ++i)
                if (run.from[i] >= 0 && lane_mask >> i & 1)
                    to[i] = call_.mu_unary.data + f_.first[group_.member[i]] + run.from[i];
            write(u + run.to, run.length, to);
        }
    }
    void write_tables(int slot, const V *pairs, unsigned lane_mask) const {
        double *to[lanes] = {};
        for (int i = 0; i < group_.count; ++i) {
            int64_t at = f_.mu_at[group_.member[i] * f_.slots() + slot];
            if (at >= 0 && lane_mask >> i & 1) to[i] = call_.mu_tables.data + at;
        }
        write(pairs, f_.shape(slot).entries(), to);
    }

private:
    // Scores that are contiguous among the positions of the family and in every member that has them (-1: it does not).
    struct Run {
        int64_t to, length;
        int64_t from[lanes];
    };

    void find_runs(const int64_t *kinds) {
        std::vector<int64_t> ends{0, states_};
        for (int i = 0; i < lanes; ++i) {
            if (kinds[i] < 0 || (i > 0 && kinds[i] == kinds[i - 1])) continue;
            for (int64_t n = f_.segment_ptr[kinds[i]]; n < f_.segment_ptr[kinds[i] + 1]; ++n) {
                ends.push_back(f_.segment(n).to);
                ends.push_back(f_.segment(n).to + f_.segment(n).length);
            }
        }
        std::sort(ends.begin(), ends.end());
        ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
        runs_.clear();
        for (size_t k = 0; k + 1 < ends.size(); ++k) {
            Run run{ends[k], ends[k + 1] - ends[k], {}};
            std::fill(run.from, run.from + lanes, -1);
            runs_.push_back(run);
        }
        for (int i = 0; i < lanes; ++i) {
            if (kinds[i] < 0) continue;
            for (int64_t n = f_.segment_ptr[kinds[i]]; n < f_.segment_ptr[kinds[i] + 1]; ++n) {
                const Segment &segment = f_.segment(n);
                auto first = std::lower_bound(runs_.begin(), runs_.end(), segment.to,
                                              [](const Run &run, int64_t to) { return run.to < to; });
                for (auto run = first; run != runs_.end() && run->to < segment.to + segment.length; ++run)
                    run->from[i] = segment.from + run->to - segment.to;
            }
        }
    }

    template <bool costs, bool masks> bool read_as(V *u) const {
        bool numbers = true;
        for (const Run &run : runs_) {
            int64_t from[lanes];
            for (int i = 0; i < lanes; ++i) from[i] = run.from[i] < 0 ? -1 : f_.first[group_.member[i]] + run.from[i];
            int64_t j = 0;
            if constexpr (lanes > 1) {
                V wrong = V{};  // becomes NaN or +inf if a score is
                for (; j + lanes <= run.length; j += lanes) {
                    V rows[lanes];
                    for (int i = 0; i < lanes; ++i) {
                        rows[i] = V{};
                        if (from[i] < 0) continue;
                        V v = *(const Unaligned *)(call_.unary.data + from[i] + j);
                        if constexpr (costs) v += *(const Unaligned *)(cost_ + from[i] + j);
                        wrong = v < INF ? wrong : v;
                        if constexpr (masks) v = masked(v, f_.allowed.data + from[i] + j);
                        rows[i] = v;
                    }
                    transpose(rows);
                    for (int i = 0; i < lanes; ++i) u[run.to + j + i] = rows[i];
                }
                for (int i = 0; i < lanes; ++i) numbers &= lane(wrong, i) == 0.0;
            }
            for (; j < run.length; ++j)
                for (int i = 0; i < lanes; ++i) {
                    double v = 0.0;
                    if (from[i] >= 0) {
                        v = call_.unary[from[i] + j];
                        if constexpr (costs) v += cost_[from[i] + j];
                        numbers &= v < INF;
                        if constexpr (masks) v = f_.allowed[from[i] + j] ? v : -INF;
                    }
                    set_lane(u[run.to + j], i, v);
                }
        }
        return numbers;
    }
    static INLINE V masked(V v, const uint8_t *allowed) { return set_lanes(allowed) ? v : all<V>(-INF); }

    // n numbers of every lane to a place of its own; none for lanes without one.
    void write(const V *from, int64_t n, double *const *to) const {
        if (f_.side == 0) write_by(from, n, to, [](auto, auto now) { return now; });
        else write_by(from, n, to, [](auto before, auto now) { return before - now; });
    }
    template <class F> INLINE void write_by(const V *from, int64_t n, double *const *to, F f) const {
        int64_t j = 0;
        if constexpr (lanes > 1)
            for (; j + lanes <= n; j += lanes) {
                V rows[lanes];
                for (int i = 0; i < lanes; ++i) rows[i] = from[j + i];
                transpose(rows);
                for (int i = 0; i < lanes; ++i) {
                    if (!to[i]) continue;
                    Unaligned &place = *(Unaligned *)(to[i] + j);
                    place = f(V(place), rows[i]);
                }
            }
        for (; j < n; ++j)
            for (int i = 0; i < lanes; ++i)
                if (to[i]) to[i][j] = f(to[i][j], lane(from[j], i));
    }

    const Family &f_;
    const ForestCall &call_;
    int64_t states_;
    const double *cost_ = nullptr;
    Group<V> group_;
    int64_t kinds_[lanes];
    std::vector<Run> runs_;
};

}  // namespace mssvm
