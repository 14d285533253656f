// Sweeps of one instance whose graph is a grid with one table across and one down, several rows at a time.
//
// A sweep visits the variables row by row; at (r, c) it updates the factor to the variable above, then the factor to
// the variable on the left. (Other orders, such as diagonals, give the same messages as long as the factors of every
// variable are updated in the same order.) The updates at (r, c) depend on those at (r, c - 1) and (r - 1, c + 1), so
// all variables with the same c + 2 r are independent of each other. They form a wave, and run in the lanes of a
// vector: first their factors upwards, then their factors to the left. Every message is that of the sweep row by row,
// bit for bit.
//
// Memory: the numbers of one state in one wave are consecutive, in the order of rows. The neighbours of L variables are
// then L consecutive numbers too, read from any offset. Messages that a variable at the border lacks are one.
#pragma once
#include "scaled.hpp"

namespace mssvm {

enum Side { LEFT, RIGHT, ABOVE, BELOW };
constexpr int SIDES = 4;

// A grid in waves. A step updates a pack of up to L factors, one in each lane. The two ends of pack p are numbered 2 p
// and 2 p + 1 in place of variables; `lane_variables` has the variable of every lane of an end (-1: no factor there).
struct Grid {
    int64_t rows = 0, columns = 0, states = 0, wave_stride = 0;  // wave_stride: numbers stored for one state of a wave
    std::vector<Step> steps;
    std::vector<int32_t> others, state_place, message_place, lane_variables;
    int64_t n_states = 0, n_messages = 0;

    // Whether the graph of instance b is such a grid, large enough to gain; otherwise it is of no use.
    bool build(const Wiring &w, int64_t b) {
        if (!measure(w, b)) return false;
        int64_t longest = std::min(rows, (columns + 1) / 2), waves = columns + 2 * rows + 1;
        wave_stride = longest + MARGIN + L + 2;
        n_states = waves * states * wave_stride;
        n_messages = SIDES * n_states;
        if (longest < SHORTEST || n_messages > INT32_MAX || !sort_factors(w, b) || !same_order(w, b)) return false;
        for (int64_t v = 0; v < rows * columns; ++v) state_place.push_back(place_of_states(v / columns, v % columns));
        for (int64_t wave = 0; wave <= columns - 1 + 2 * (rows - 1); ++wave) {
            int64_t first = first_row(wave), last = std::min(rows - 1, wave / 2);
            pack(wave, std::max<int64_t>(first, 1), last, ABOVE);
            pack(wave, first, std::min(last, (wave + 1) / 2 - 1), LEFT);
        }
        return true;
    }

private:
    static constexpr int64_t MARGIN = 2;    // numbers before the first row of a wave: neighbours beyond the border
    static constexpr int64_t SHORTEST = 4;  // least length of a wave for which waves are used
    int64_t table_[SIDES] = {};             // by LEFT and ABOVE: where the table begins
    bool late_first_[SIDES] = {};           // by LEFT and ABOVE: whether its rows are the later variable's states
    Side order_[SIDES] = {};                // the order in which a variable meets its messages

    int64_t first_row(int64_t wave) const { return std::max<int64_t>(0, (wave - columns + 2) / 2); }
    int64_t index(int64_t r, int64_t c) const { return r - first_row(c + 2 * r) + MARGIN; }
    int32_t place_of_states(int64_t r, int64_t c) const {
        return int32_t((c + 2 * r) * states * wave_stride + index(r, c));
    }
    // The message to (r, c) from a side, kept with the later variable of its factor.
    int32_t incoming(int64_t r, int64_t c, Side side) const {
        if (side == RIGHT) ++c;
        if (side == BELOW) ++r;
        return int32_t(((c + 2 * r) * SIDES + side) * states * wave_stride + index(r, c));
    }
    bool has(int64_t r, int64_t c, Side side) const {
        if (side == LEFT) return c > 0;
        if (side == RIGHT) return c + 1 < columns;
        return side == ABOVE ? r > 0 : r + 1 < rows;
    }

    bool measure(const Wiring &w, int64_t b) {
        int64_t first = w.var_ptr[b], n = w.var_ptr[b + 1] - first;
        if (n < 2) return false;
        states = w.card(first);
        if (states < 2 || states > largest_square<Vec>) return false;
        for (int64_t i = first; i < first + n; ++i)
            if (w.card(i) != states) return false;
        for (int64_t f = w.factor_ptr[b]; f < w.factor_ptr[b + 1]; ++f) {
            int64_t s = w.scope_ptr[f];
            if (w.scope_ptr[f + 1] != s + 2) return false;
            columns = std::max(columns, std::abs(w.scope[s] - w.scope[s + 1]));
        }
        if (columns < 2 || n % columns) return false;
        rows = n / columns;
        return w.factor_ptr[b + 1] - w.factor_ptr[b] == rows * (columns - 1) + (rows - 1) * columns;
    }

    // Whether the factors are those of the grid, each kind with one table, and swept in an order with the same
    // messages: at every variable the one above comes first, then the left, the right and the one below.
    bool sort_factors(const Wiring &w, int64_t b) {
        int64_t first = w.var_ptr[b], first_slot = w.first_slot(b), first_factor = w.factor_ptr[b], n = rows * columns;
        std::vector<int64_t> rank[SIDES];  // by side and variable: place in the sweep
        for (auto &of_side : rank) of_side.assign(n, -1);
        message_place.resize(w.end_slot(b) - first_slot);
        bool seen[SIDES] = {};
        for (int64_t e = first_factor; e < w.factor_ptr[b + 1]; ++e) {
            int64_t f = w.order[e], s = w.scope_ptr[f], one = w.scope[s] - first, other = w.scope[s + 1] - first;
            int64_t late = std::max(one, other), early = std::min(one, other);
            bool down = late - early == columns, across = late - early == 1 && late % columns != 0;
            if (!down && !across) return false;
            Side side = down ? ABOVE : LEFT, back = down ? BELOW : RIGHT;
            bool late_first = one == late;
            if (!seen[side]) {
                table_[side] = w.scaled_at[f];
                late_first_[side] = late_first;
                seen[side] = true;
            }
            if (table_[side] != w.scaled_at[f] || late_first_[side] != late_first || rank[side][late] >= 0)
                return false;
            rank[side][late] = rank[back][early] = e;
            message_place[s + !late_first - first_slot] = incoming(late / columns, late % columns, side);
            message_place[s + late_first - first_slot] = incoming(early / columns, early % columns, back);
        }
        for (int64_t v = 0; v < n; ++v) {
            int64_t before = -1;
            for (Side side : {ABOVE, LEFT, RIGHT, BELOW}) {
                if (rank[side][v] < 0) continue;
                if (rank[side][v] < before) return false;
                before = rank[side][v];
            }
        }
        return true;
    }

    // Whether all variables meet their messages in one order of sides: products have the same bits then.
    bool same_order(const Wiring &w, int64_t b) {
        if (rows < 3 || columns < 3) return false;
        int64_t first_slot = w.first_slot(b);
        auto side_of = [&](int64_t r, int64_t c, int64_t slot) {
            int side = 0;
            while (side < SIDES && incoming(r, c, Side(side)) != message_place[slot - first_slot]) ++side;
            return side;
        };
        int64_t inner = w.near_ptr[w.var_ptr[b] + columns + 1];
        for (int k = 0; k < SIDES; ++k) order_[k] = Side(side_of(1, 1, w.near[inner + k]));
        for (int64_t v = 0; v < rows * columns; ++v) {
            int64_t k = w.near_ptr[w.var_ptr[b] + v];
            for (Side side : order_)
                if (has(v / columns, v % columns, side) && side_of(v / columns, v % columns, w.near[k++]) != side)
                    return false;
        }
        return true;
    }

    End end(int32_t number, int64_t r, int64_t c, Side from) {
        End out{number,          place_of_states(r, c),  incoming(r, c, from),
                int32_t(states), int32_t(others.size()), SIDES - 1};
        for (Side side : order_)
            if (side != from) others.push_back(incoming(r, c, side));
        return out;
    }

    // The factors of a wave to the left or upwards, of rows `first` to `last`.
    void pack(int64_t wave, int64_t first, int64_t last, Side side) {
        for (int64_t r = first; r <= last; r += L) {
            int64_t c = wave - 2 * r, up = side == ABOVE, left = side == LEFT;
            int32_t number = int32_t(2 * steps.size());
            bool swap = late_first_[side];
            End late = end(number + !swap, r, c, side),
                early = end(number + swap, r - up, c - left, side == ABOVE ? BELOW : RIGHT);
            steps.push_back({swap ? late : early, swap ? early : late, table_[side], -1, int32_t(states)});
            for (bool is_late : {swap, !swap})
                for (int64_t k = 0; k < L; ++k) {
                    int64_t row = r + k - (is_late ? 0 : up), column = c - 2 * k - (is_late ? 0 : left);
                    lane_variables.push_back(r + k <= last ? int32_t(row * columns + column) : -1);
                }
        }
    }
};

// Messages of one instance in waves; as `Probabilities`, for `sweep_all`.
class Waves {
public:
    static constexpr int lanes = 1;

    Waves() {
        for (Roles roles : {Roles::SUMS, Roles::MAXIMA, Roles::MIXED})
            for (int states = 2; states <= largest_square<Vec>; ++states)
                updates_[int(roles)][states] = update_for<Vec, double, false>(states, roles);
    }

    void prepare(const Wiring &wiring, const Grid &grid, const RunArrays &run, const Sweeping &how) {
        w_ = &wiring;
        grid_ = &grid;
        run_ = &run;
        how_ = &how;
        psi_.assign(grid.n_states + L, 1.0);
        messages_.assign(grid.n_messages + L, 1.0);
    }

    int64_t at_a_time(int64_t b) const {
        // Loading and storing a large grid costs as much as several sweeps.
        return std::max<int64_t>(3, int64_t(WORK_AT_A_TIME / double(w_->entries(b) + 1)));
    }

    void load(unsigned, const int64_t *who) {
        int64_t b = who[0], first = w_->var_ptr[b];
        spread_out(run_->potential.data + w_->first_state(b), grid_->state_place, psi_.data());
        spread_out(run_->messages.data + w_->first_message(b), grid_->message_place, messages_.data());
        if (how_->flooding) next_ = messages_;
        size_t ends = grid_->lane_variables.size() / L;
        roles_.assign(ends, 0);
        held_.assign(ends, 0);
        for (size_t k = 0; k < grid_->lane_variables.size(); ++k) {
            int64_t v = grid_->lane_variables[k];
            unsigned lane = 1u << k % L;
            if (v < 0 || run_->is_held(first + v)) held_[k / L] |= lane;
            if (v >= 0 && how_->maximal(first + v)) roles_[k / L] |= lane;
        }
    }

    void sweep(bool reverse, bool measure) {
        double *to = how_->flooding ? next_.data() : messages_.data();
        Lanes<Vec, double> state{how_->scaled_tables.data,
                                 psi_.data(),
                                 messages_.data(),
                                 to,
                                 nullptr,
                                 room_,
                                 grid_->others.data(),
                                 how_->damping,
                                 false,
                                 measure,
                                 grid_->wave_stride};
        Marks<Vec> marks;
        MessageMasks masks{roles_.data(), held_.data(), 0};
        const Step *first = grid_->steps.data(), *last = first + grid_->steps.size() - 1;
        const Step *step = reverse ? last : first, *end = reverse ? first - 1 : last + 1;
        while (step != end) {
            Roles roles = roles_of<Vec>(roles_[step->i.variable], roles_[step->j.variable]);
            step = updates_[int(roles)][step->shape](state, marks, step, end, reverse ? -1 : 1, masks);
        }
        if (how_->flooding) std::swap(messages_, next_);
        change_ = largest(larger(marks.rise, -marks.fall));
        log_change_ = largest(marks.log_change);
        least_ = across_min(marks.least);
    }

    bool trusted(int) const { return least_ >= TRUSTED; }
    double change(int, bool measuring) const { return measuring ? log_change_ : change_; }
    bool shows_logarithms(int64_t b) const { return how_->weak[b]; }

    void store(unsigned, const int64_t *who) {
        double *to = run_->messages.data + w_->first_message(who[0]);
        for (int32_t place : grid_->message_place)
            for (int64_t x = 0; x < grid_->states; ++x) *to++ = messages_[place + x * grid_->wave_stride];
    }

    void leave(unsigned) {}

    void to_scores(int64_t b) {
        Probabilities<double>::messages_to_scores(*w_, *run_, how_->unit, b);
        run_->scaled[b] = 0;
    }

private:
    void spread_out(const double *from, const std::vector<int32_t> &places, double *to) const {
        for (int32_t place : places)
            for (int64_t x = 0; x < grid_->states; ++x) to[place + x * grid_->wave_stride] = *from++;
    }

    const Wiring *w_ = nullptr;
    const Grid *grid_ = nullptr;
    const RunArrays *run_ = nullptr;
    const Sweeping *how_ = nullptr;
    std::vector<double, Aligned<double>> psi_, messages_, next_;
    Vec room_[work_size(largest_square<Vec>)];
    std::vector<uint8_t> roles_, held_;
    Update<Vec, double> updates_[3][largest_square<Vec> + 1] = {};
    double change_ = 0.0, log_change_ = 0.0, least_ = 1.0;
};

}  // namespace mssvm
