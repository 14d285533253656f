// Bucket elimination, exact and by mini-buckets: nested power sums forwards, their derivatives backwards.
//
// Step s takes the functions that have the variable x_s, its bucket, and replaces them by one message over the other
// variables of the bucket, its separator:
//
//     message(z) = PS_eps(s)_{x_s} sum_i input_i(x_s, z),      PS_eps(a) = eps log sum exp(a / eps), the max at eps = 0
//
// The value is the constant plus the messages without separator. Backwards, every entry of a message that has the
// derivative g hands g times the weights of its power sum to the entries of the inputs that it was made of. A variable
// whose bucket is split has several steps, each with a share of its temperature (Hoelder's inequality: the value is an
// upper bound), and shifts, over the variables that all of them have, that sum to zero over the steps.
//
// No table of a whole bucket is stored. The separator's axes are walked like an odometer; inputs that do not change
// along the inner axes are combined once for every outer position (a row of scores, one for each state of x_s), and the
// innermost axis is done in contiguous blocks. V is a double, or a vector of the same entry in L instances.
//
// A step runs on scaled probabilities x = exp((score - top) / eps), whose sums need no exponentials, where no score is
// lost: all products must be normal numbers, and the scores must not be small against the temperature, as a probability
// near one determines its score only to eps 2^-53. All other steps run on scores.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "buckets.hpp"
#include "domains.hpp"
#include "slots.hpp"

namespace mssvm {

// Greatest temperature of a step on scaled probabilities, in units of the scores' range and of the lowest temperature.
constexpr double WARMEST = 1024.0;

// The place that a sweep has reached: a step, and a position of its separator.
struct Cursor {
    int64_t step, position;
};

// The state of a sweep between calls: tables and their gradients; the shift and domain of every input; the algebra of
// every step; the value; the highest temperature of scaled probabilities; the cursor.
template <class V> struct Memory {
    V *work, *grad, *shift;
    double *domain;
    int64_t *algebra;
    V &total;
    double &warmest;
    Cursor &cursor;
};

// A program on its memory. With `scores_only` all tables stay scores as they are, without shifts and domains.
template <class V> struct Sweep : Memory<V> {
    const Program &program;
    const double *temperature;  // by step
    double max_spread;
    bool scores_only;
    using Memory<V>::work, Memory<V>::grad, Memory<V>::shift, Memory<V>::domain, Memory<V>::algebra;
    using Memory<V>::total, Memory<V>::warmest, Memory<V>::cursor;

    Sweep(const Program &program, const double *temperature, double max_spread, bool scores_only, Memory<V> memory)
        : Memory<V>(memory),
          program(program),
          temperature(temperature),
          max_spread(max_spread),
          scores_only(scores_only) {}

    // All steps in order, or as many as time permits; returns whether all are done. Begins where the cursor is.
    bool forward(Clock &clock, bool match = false) {
        Workspace<V> &workspace = Workspace<V>::of_thread();
        workspace.reserve(program);
        if (cursor.step == 0 && cursor.position == 0) begin();
        while (cursor.step < program.steps()) {
            int64_t s = cursor.step, from = cursor.position;
            if (from == 0) {
                if constexpr (Of<V>::lanes == 1)
                    if (match) this->match(s, workspace);
                algebra[s] = scores_only ? plain(s) : prepare(s, workspace);
            }
            Bucket b = bucket_of(program, s, workspace);
            int64_t to = range_end(b, clock);
            V *message = work + program.message_at[s];
            double eps = temperature[s];
            if (algebra[s] == SCALED) forward_range<SCALED>(b, eps, from, to, work, message, workspace);
            else if (algebra[s] == LOG) forward_range<LOG>(b, eps, from, to, work, message, workspace);
            else forward_range<MAX>(b, eps, from, to, work, message, workspace);
            cursor.position = to;
            if (to == b.positions) {
                send(s);
                cursor = {s + 1, 0};
            }
            if (clock.late((to - from) * b.card * Of<V>::lanes)) break;
        }
        return cursor.step == program.steps();
    }

    // The derivative of the value in every entry, zero in infeasible lanes: from the last step to the first, or as many
    // as time permits.
    bool reverse(Clock &clock) {
        Workspace<V> &workspace = Workspace<V>::of_thread();
        workspace.reserve(program);
        if (cursor.step == program.steps() && cursor.position == 0) begin_reverse();
        while (cursor.step > 0) {
            int64_t s = cursor.step - 1, from = cursor.position;
            if (from == 0) clear_inputs(s);
            Bucket b = bucket_of(program, s, workspace);
            int64_t to = range_end(b, clock);
            const V *message = grad + program.message_at[s];
            double eps = temperature[s];
            if (algebra[s] == SCALED) reverse_range<SCALED>(b, eps, from, to, work, message, grad, workspace);
            else if (algebra[s] == LOG) reverse_range<LOG>(b, eps, from, to, work, message, grad, workspace);
            else reverse_range<MAX>(b, eps, from, to, work, message, grad, workspace);
            cursor.position = to;
            if (to == b.positions) cursor = {s, 0};
            if (clock.late((to - from) * b.card * Of<V>::lanes)) break;
        }
        return cursor.step == 0;
    }

private:
    // The end of the range of a bucket that is computed before the clock is read again.
    int64_t range_end(const Bucket &b, const Clock &clock) const {
        if (!clock.limited()) return b.positions;
        int64_t count = std::max<int64_t>(1, ENTRIES_PER_CHECK / (b.card * Of<V>::lanes));
        return std::min(b.positions, cursor.position + count);
    }

    Algebra plain(int64_t s) const { return temperature[s] > 0.0 ? LOG : MAX; }

    void begin() {
        total = work[0];
        if (scores_only) return;
        std::fill(domain, domain + program.inputs(), 0.0);
        std::fill(shift, shift + program.inputs(), V{});
        warmest = warmest_scaled();
    }

    // The highest temperature at which probabilities keep the scores: see WARMEST.
    double warmest_scaled() const {
        double limit = INF;
        for (int64_t s = 0; s < program.steps(); ++s)
            if (temperature[s] > 0.0) limit = std::min(limit, WARMEST * temperature[s]);
        V range{};
        for (int64_t i = 0; i < program.inputs(); ++i) {
            if (program.input_at[i] >= program.n_slots) continue;
            V top, bottom;
            extent(work + program.input_at[i], program.input_size[i], -INF, top, bottom);
            range = larger(range, top > -INF ? top - bottom : V{});
        }
        for (int i = 0; i < Of<V>::lanes; ++i)
            if (lane(range, i) > 0.0) limit = std::min(limit, WARMEST * lane(range, i));
        return limit;
    }

    // Brings the inputs of a step to one domain: scaled probabilities where these are safe in every lane, else scores.
    Algebra prepare(int64_t s, Workspace<V> &workspace) {
        double eps = temperature[s];
        int64_t i0 = program.input_ptr[s], i1 = program.input_ptr[s + 1];
        bool scaled = eps > 0.0 && eps <= warmest && max_spread > 0.0;
        V *tops = workspace.rows, *bottoms = workspace.sums, spread{};
        for (int64_t i = i0; i < i1; ++i) {
            V top, bottom;
            double floor = domain[i] > 0.0 ? 0.0 : -INF;
            extent(work + program.input_at[i], program.input_size[i], floor, top, bottom);
            tops[i - i0] = top;
            bottoms[i - i0] = bottom;
            if (!scaled) continue;
            V range = domain[i] > 0.0 ? domain[i] * log(top > 0.0 ? top / bottom : all<V>(1.0)) : top - bottom;
            spread += top > floor ? range / eps : V{};
        }
        for (int i = 0; i < Of<V>::lanes; ++i) scaled = scaled && lane(spread, i) < max_spread;
        for (int64_t i = i0; i < i1; ++i) {
            V *x = work + program.input_at[i];
            int64_t size = program.input_size[i], k = i - i0;
            if (scaled) convert(x, size, domain[i], eps, tops[k], shift[i]);
            else if (domain[i] > 0.0) convert(x, size, domain[i], 0.0, tops[k], shift[i]);
            else if (program.input_at[i] >= program.n_slots) take_shared_score(x, size, tops[k], bottoms[k], shift[i]);
        }
        return scaled ? SCALED : plain(s);
    }

    // A finished message becomes an input of its step, or a part of the value.
    void send(int64_t s) {
        V level{};
        if (!scores_only)
            for (int64_t i = program.input_ptr[s]; i < program.input_ptr[s + 1]; ++i) level += shift[i];
        int64_t target = program.message_input[s];
        if (target >= 0) {
            if (scores_only) return;
            domain[target] = algebra[s] == SCALED ? temperature[s] : 0.0;
            shift[target] = level;
            return;
        }
        V x = work[program.message_at[s]];
        if (algebra[s] == SCALED) x = x > 0.0 ? temperature[s] * log(x > 0.0 ? x : all<V>(1.0)) : all<V>(-INF);
        total += level + x;
    }

    void begin_reverse() {
        V one = total > -INF ? all<V>(1.0) : V{};
        grad[0] = one;
        for (int64_t s = 0; s < program.steps(); ++s)
            if (program.message_input[s] < 0) grad[program.message_at[s]] = one;
    }

    // Zeros the gradients of the inputs of a step. Every table is the input of one step only, so none is lost.
    void clear_inputs(int64_t s) {
        for (int64_t i = program.input_ptr[s]; i < program.input_ptr[s + 1]; ++i) {
            V *first = grad + program.input_at[i];
            std::fill(first, first + program.input_size[i], V{});
        }
    }

    // Before the first step of a variable with several: shifts scores between its mini-buckets until their moments, the
    // power sums over everything but the variables that they share, agree. An entry forbidden in one is forbidden in
    // all.
    void match(int64_t s, Workspace<V> &workspace) {
        const Ints &ptr = program.position_ptr;
        int64_t position = std::upper_bound(ptr.begin(), ptr.end(), s) - ptr.begin() - 1;
        int64_t first = ptr[position], count = ptr[position + 1] - first, size = program.shift_size[s];
        if (s != first || count == 1) return;
        std::vector<double> moments(count * size);
        double tau = 0.0;
        for (int64_t r = 0; r < count; ++r) {
            tau += temperature[first + r];
            add_moments(first + r, workspace, moments.data() + r * size);
        }
        for (int64_t k = 0; k < size; ++k) {
            double sum = 0.0;
            for (int64_t r = 0; r < count; ++r) sum += moments[r * size + k];
            for (int64_t r = 0; r < count; ++r) {
                double share = tau > 0.0 ? temperature[first + r] / tau : 1.0 / double(count);
                double &shifted = work[program.shift_at[first + r] + k];
                shifted = sum == -INF ? -INF : shifted + share * sum - moments[r * size + k];
            }
        }
    }

    // moment[k] = PS_eps of all scores of the bucket that are at entry k of its shift.
    void add_moments(int64_t s, Workspace<V> &workspace, double *moment) {
        Bucket b = bucket_of(program, s, workspace);
        int64_t card = b.card, size = program.shift_size[s];
        double eps = temperature[s];
        std::vector<double> totals(size, 0.0);
        std::fill(moment, moment + size, -INF);
        visit<LOG>(b, 0, b.positions, work, workspace, [&](int64_t position, int64_t n) {
            for (int64_t r = 0; r < n; ++r) {
                double *top = moment + shift_row(b, s, position + r);
                for (int64_t j = 0; j < card; ++j) top[j] = std::max(top[j], workspace.block[r * card + j]);
            }
        });
        if (eps == 0.0) return;
        visit<LOG>(b, 0, b.positions, work, workspace, [&](int64_t position, int64_t n) {
            double *x = workspace.block;
            for (int64_t r = 0; r < n; ++r) {
                const double *top = moment + shift_row(b, s, position + r);
                for (int64_t j = 0; j < card; ++j) {
                    double base = top[j] > -INF ? top[j] : 0.0;
                    x[r * card + j] = (x[r * card + j] - base) / eps;
                }
            }
            exponentials(x, n * card);
            for (int64_t r = 0; r < n; ++r) {
                double *total = totals.data() + shift_row(b, s, position + r);
                for (int64_t j = 0; j < card; ++j) total[j] += x[r * card + j];
            }
        });
        for (int64_t k = 0; k < size; ++k)
            if (moment[k] > -INF) moment[k] += eps * std::log(totals[k]);
    }

    // Where the shift of step s is, from its first entry, at a position of the separator.
    int64_t shift_row(const Bucket &b, int64_t s, int64_t position) const {
        int64_t i = 0, row = 0;
        while (b.place[i] != program.shift_at[s]) ++i;
        for (int64_t axis = b.axes - 1; axis >= 0; --axis) {
            row += position % b.size[axis] * b.step(i, axis);
            position /= b.size[axis];
        }
        return row;
    }
};

}  // namespace mssvm
