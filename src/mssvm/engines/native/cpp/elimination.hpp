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
#include <chrono>
#include <cmath>
#include <type_traits>
#include <vector>

#include "boundary.hpp"
#include "simd.hpp"

namespace mssvm {

// Index arrays of a plan, as `engines/program.py` describes them.
struct Program {
    int64_t bytes;
    Bytes8 clamped;
    Ints unary_slot, factor_slot, factor_size, entry_at, entry, clamp_ptr, clamp_var, clamp_stride;
    Ints position_ptr, var, card, output, shift_at, shift_size, message_at, message_size, message_input;
    Ints separator_ptr, separator, separator_stride, axis_ptr, axis_size;
    Ints input_ptr, input_at, input_size, level, stride_ptr, stride;
    int64_t n_slots, n_work, n_hidden, max_axes, max_inputs, max_card;

    int64_t steps() const { return var.size; }
    int64_t positions() const { return position_ptr.size - 1; }
    int64_t inputs() const { return level.size; }
};

// How a step computes: sums of probabilities, power sums of scores, maxima of scores.
enum Algebra : int64_t { SCALED, LOG, MAX };

// Greatest temperature of a step on scaled probabilities, in units of the scores' range and of the lowest temperature.
constexpr double WARMEST = 1024.0;
constexpr int64_t BLOCK = 512;               // doubles of a bucket that are combined at a time
constexpr int64_t ENTRIES_PER_CHECK = 1 << 18;  // doubles between two readings of the clock

// The time that a call may take; without a limit the clock is not read.
class Clock {
public:
    Clock() = default;
    explicit Clock(double seconds) : limited_(true), end_(Time::now() + std::chrono::duration<double>(seconds)) {}

    bool limited() const { return limited_; }
    // Whether time is up, asked after some more entries.
    bool late(int64_t entries) {
        entries_ += entries;
        if (!limited_ || entries_ < ENTRIES_PER_CHECK) return false;
        entries_ = 0;
        return late();
    }
    bool late() const { return limited_ && Time::now() >= end_; }

private:
    using Time = std::chrono::steady_clock;
    bool limited_ = false;
    int64_t entries_ = 0;
    std::chrono::time_point<Time, std::chrono::duration<double>> end_;
};

// --- arithmetic of entries ---

template <Algebra algebra, class V> INLINE V combined(V a, V b) {
    if constexpr (algebra == SCALED) return a * b;
    else return a + b;
}

INLINE Unaligned &wide(double *x) { return *reinterpret_cast<Unaligned *>(x); }

// x = f(x, a) for n entries; a is the same for all of them.
template <class V, class F> INLINE void transform(V *x, int64_t n, V a, F f) {
    int64_t k = 0;
    if constexpr (Of<V>::lanes == 1) {
        Vec all_a = all<Vec>(a);
        for (; k + L <= n; k += L) wide(x + k) = f(Vec(wide(x + k)), all_a);
    }
    for (; k < n; ++k) x[k] = f(x[k], a);
}

template <class V> INLINE void exponentials(V *x, int64_t n) {
    transform(x, n, V{}, [](auto score, auto) { return exp(score); });
}

template <class V> INLINE void logarithms(V *x, int64_t n) {
    transform(x, n, V{}, [](auto sum, auto) { return log(sum); });
}

// f(card) with the number of states as a constant where it is small, for loops that are unrolled.
template <class F> INLINE void with_card(int64_t card, F f) {
    switch (card) {
        case 2: return f(std::integral_constant<int64_t, 2>());
        case 3: return f(std::integral_constant<int64_t, 3>());
        case 4: return f(std::integral_constant<int64_t, 4>());
        case 5: return f(std::integral_constant<int64_t, 5>());
        default: return f(card);
    }
}

// Rows of scores become exp((score - top) / eps); tops[r] is the greatest score of row r. A row without a feasible
// state becomes zeros.
template <class V> INLINE void weigh_scores(V *x, int64_t n, int64_t card, double eps, V *tops) {
    for (int64_t r = 0; r < n; ++r) {
        V *row = x + r * card;
        V top = row[0];
        for (int64_t j = 1; j < card; ++j) top = larger(top, row[j]);
        V base = top > -INF ? top : V{};
        for (int64_t j = 0; j < card; ++j) row[j] = (row[j] - base) / eps;
        tops[r] = top;
    }
    exponentials(x, n * card);
}

template <class V> INLINE V sum_of(const V *x, int64_t n) {
    V total = x[0];
    for (int64_t j = 1; j < n; ++j) total += x[j];
    return total;
}

// The power sums of n rows, `out[r] = PS_eps(row r)`; plain sums of probabilities. `tops` and x are overwritten.
template <Algebra algebra, class V>
INLINE void reduce_rows(V *x, int64_t n, int64_t card, double eps, V *tops, V *out) {
    with_card(card, [=](auto card) {
        if constexpr (algebra == SCALED) {
            for (int64_t r = 0; r < n; ++r) out[r] = sum_of(x + r * card, card);
        } else if constexpr (algebra == MAX) {
            for (int64_t r = 0; r < n; ++r) {
                V top = x[r * card];
                for (int64_t j = 1; j < card; ++j) top = larger(top, x[r * card + j]);
                out[r] = top;
            }
        } else {
            weigh_scores(x, n, card, eps, tops);
            for (int64_t r = 0; r < n; ++r) {
                V total = sum_of(x + r * card, card);
                out[r] = tops[r] > -INF ? total : all<V>(1.0);
            }
            logarithms(out, n);
            for (int64_t r = 0; r < n; ++r) out[r] = tops[r] + eps * out[r];
        }
    });
}

// Rows become the gradients of their power sums times g[r]: at eps = 0 all of it goes to the first maximiser.
template <Algebra algebra, class V>
INLINE void weigh_rows(V *x, int64_t n, int64_t card, double eps, V *tops, const V *g) {
    with_card(card, [=](auto card) {
        if constexpr (algebra == MAX) {
            for (int64_t r = 0; r < n; ++r) {
                V *row = x + r * card;
                V top = row[0], left = g[r];
                for (int64_t j = 1; j < card; ++j) top = larger(top, row[j]);
                for (int64_t j = 0; j < card; ++j) {
                    auto best = row[j] == top;
                    row[j] = best ? left : V{};
                    left = best ? V{} : left;
                }
            }
        } else {
            if constexpr (algebra == LOG) weigh_scores(x, n, card, eps, tops);
            for (int64_t r = 0; r < n; ++r) {
                V *row = x + r * card;
                V total = sum_of(row, card);
                V factor = g[r] != 0.0 ? g[r] / total : V{};  // an impossible row has no gradient and no sum
                for (int64_t j = 0; j < card; ++j) row[j] *= factor;
            }
        }
    });
}

// --- visiting the entries of a bucket ---

// Inputs of one level: they change with axis `level - 1` and those outside of it.
struct InputGroup {
    int64_t level, first, last;
};

// One step's inputs and axes. The inputs from `inner` on have the innermost axis, the others come in `groups`.
struct Bucket {
    int64_t card, axes, inputs, inner, inside, positions, groups;
    const int64_t *size, *place, *stride;
    InputGroup *group;

    int64_t step(int64_t i, int64_t axis) const { return stride[i * axes + axis]; }
    // The first group that changes when the odometer moves along `axis`.
    int64_t stale(int64_t axis) const {
        int64_t g = 0;
        while (g < groups && group[g].level <= axis) ++g;
        return g;
    }
};

// Memory of a thread for visiting a bucket: rows, their gradients, one block, greatest scores, the odometer.
template <class V> struct Workspace {
    std::vector<double> floats;
    std::vector<int64_t> at, digit;
    std::vector<InputGroup> group;
    V *rows, *sums, *block, *tops;

    void reserve(const Program &p) {
        constexpr int W = Of<V>::lanes;
        int64_t rows_size = (p.max_inputs + 1) * p.max_card, block_size = std::max<int64_t>(BLOCK / W, p.max_card);
        floats.resize((2 * rows_size + 2 * block_size) * W + 8);
        double *first = floats.data();
        first += (8 - reinterpret_cast<uintptr_t>(first) / 8 % 8) % 8;
        rows = reinterpret_cast<V *>(first);
        sums = rows + rows_size;
        block = sums + rows_size;
        tops = block + block_size;
        at.resize(p.max_inputs);
        digit.resize(p.max_axes + 1);
        group.resize(p.max_inputs + 1);
    }

    static Workspace &of_thread() {
        thread_local Workspace workspace;
        return workspace;
    }
};

template <class V> Bucket bucket_of(const Program &p, int64_t s, Workspace<V> &workspace) {
    int64_t i0 = p.input_ptr[s], a0 = p.axis_ptr[s];
    Bucket b;
    b.card = p.card[s];
    b.axes = p.axis_ptr[s + 1] - a0;
    b.inputs = p.input_ptr[s + 1] - i0;
    b.size = p.axis_size.data + a0;
    b.place = p.input_at.data + i0;
    b.stride = p.stride.data + p.stride_ptr[i0];
    b.positions = p.message_size[s];
    b.inside = b.axes ? b.size[b.axes - 1] : 1;
    b.group = workspace.group.data();
    b.groups = 0;
    b.inner = 0;
    const int64_t *level = p.level.data + i0;
    while (b.inner < b.inputs && level[b.inner] < b.axes) {
        int64_t first = b.inner;
        while (b.inner < b.inputs && level[b.inner] == level[first]) ++b.inner;
        b.group[b.groups++] = {level[first], first, b.inner};
    }
    return b;
}

// Where every input is, at a position of all axes but the innermost.
struct Odometer {
    const Bucket &b;
    int64_t *at, *digit;

    void start(int64_t outer) {
        for (int64_t i = 0; i < b.inputs; ++i) at[i] = b.place[i];
        for (int64_t axis = b.axes - 2; axis >= 0; --axis) {
            digit[axis] = outer % b.size[axis];
            outer /= b.size[axis];
            for (int64_t i = 0; i < b.inputs; ++i) at[i] += digit[axis] * b.step(i, axis);
        }
    }
    // The axis that moves next; -1 at the end.
    int64_t next() const {
        int64_t axis = b.axes - 2;
        while (axis >= 0 && digit[axis] + 1 == b.size[axis]) --axis;
        return axis;
    }
    // One step along `axis`; the axes inside it, now at their ends, return to zero.
    void move(int64_t axis) {
        for (int64_t i = 0; i < b.inputs; ++i) at[i] += b.step(i, axis);
        digit[axis] += 1;
        for (int64_t d = axis + 1; d < b.axes - 1; ++d) {
            for (int64_t i = 0; i < b.inputs; ++i) at[i] -= digit[d] * b.step(i, d);
            digit[d] = 0;
        }
    }
};

// rows[g] = the inputs of the groups 0 .. g, from group `first` on.
template <Algebra algebra, class V>
INLINE void combine_rows(const Bucket &b, int64_t first, const V *work, const int64_t *at, V *rows) {
    for (int64_t g = first; g < b.groups; ++g) {
        V *row = rows + g * b.card;
        int64_t i = b.group[g].first;
        const V *x = work + at[i];
        if (g == 0)
            for (int64_t j = 0; j < b.card; ++j) row[j] = x[j];
        else
            for (int64_t j = 0; j < b.card; ++j) row[j] = combined<algebra>(row[j - b.card], x[j]);
        for (++i; i < b.group[g].last; ++i) {
            x = work + at[i];
            for (int64_t j = 0; j < b.card; ++j) row[j] = combined<algebra>(row[j], x[j]);
        }
    }
}

// block = the last row (if there is one) and the innermost inputs at the positions begin .. begin + n.
template <Algebra algebra, class V>
INLINE void combine_block(const Bucket &b, int64_t begin, int64_t n, const V *work, const int64_t *at, const V *rows,
                          V *__restrict block) {
    int64_t offset = begin * b.card, size = n * b.card, i = b.inner;
    const V *x = work + at[i++] + offset;
    if (b.groups) {
        const V *row = rows + (b.groups - 1) * b.card;
        with_card(b.card, [=](auto card) {
            for (int64_t r = 0; r < n; ++r)
                for (int64_t j = 0; j < card; ++j) block[r * card + j] = combined<algebra>(row[j], x[r * card + j]);
        });
    } else if (i < b.inputs) {
        const V *y = work + at[i++] + offset;
        for (int64_t k = 0; k < size; ++k) block[k] = combined<algebra>(x[k], y[k]);
    } else {
        for (int64_t k = 0; k < size; ++k) block[k] = x[k];
    }
    for (; i < b.inputs; ++i) {
        x = work + at[i] + offset;
        for (int64_t k = 0; k < size; ++k) block[k] = combined<algebra>(block[k], x[k]);
    }
}

// Calls consume(position, n) for blocks of n rows, in workspace.block, of the positions from .. to of the separator.
template <Algebra algebra, class V, class F>
void visit(const Bucket &b, int64_t from, int64_t to, const V *work, Workspace<V> &workspace, F consume) {
    Odometer odometer{b, workspace.at.data(), workspace.digit.data()};
    const int64_t *at = workspace.at.data();
    int64_t height = std::max<int64_t>(1, BLOCK / (Of<V>::lanes * b.card)), begin = from % b.inside;
    odometer.start(from / b.inside);
    combine_rows<algebra>(b, 0, work, at, workspace.rows);
    for (;;) {
        int64_t end = std::min(b.inside, begin + to - from);
        while (begin < end) {
            int64_t n = std::min(height, end - begin);
            combine_block<algebra>(b, begin, n, work, at, workspace.rows, workspace.block);
            consume(from, n);
            begin += n;
            from += n;
        }
        if (from == to) return;
        int64_t axis = odometer.next();
        odometer.move(axis);
        combine_rows<algebra>(b, b.stale(axis), work, at, workspace.rows);
        begin = 0;
    }
}

// The message of a step at the positions from .. to.
template <Algebra algebra, class V>
void forward_range(const Bucket &b, double eps, int64_t from, int64_t to, const V *work, V *message,
                   Workspace<V> &workspace) {
    visit<algebra>(b, from, to, work, workspace, [&](int64_t position, int64_t n) {
        reduce_rows<algebra>(workspace.block, n, b.card, eps, workspace.tops, message + position);
    });
}

// The adjoint of `combine_rows`: gradients of finished rows go to their inputs and to the row before.
template <class V> INLINE void flush_rows(const Bucket &b, int64_t first, V *grad, const int64_t *at, V *sums) {
    for (int64_t g = b.groups - 1; g >= first; --g) {
        V *sum = sums + g * b.card;
        for (int64_t i = b.group[g].first; i < b.group[g].last; ++i) {
            V *to = grad + at[i];
            for (int64_t j = 0; j < b.card; ++j) to[j] += sum[j];
        }
        if (g > 0)
            for (int64_t j = 0; j < b.card; ++j) sum[j - b.card] += sum[j];
        for (int64_t j = 0; j < b.card; ++j) sum[j] = V{};
    }
}

// The adjoint of `combine_block`.
template <class V>
INLINE void spread_block(const Bucket &b, int64_t begin, int64_t n, const V *__restrict block, V *grad,
                         const int64_t *at, V *sums) {
    int64_t offset = begin * b.card, size = n * b.card;
    for (int64_t i = b.inner; i < b.inputs; ++i) {
        V *to = grad + at[i] + offset;
        for (int64_t k = 0; k < size; ++k) to[k] += block[k];
    }
    if (!b.groups) return;
    V *sum = sums + (b.groups - 1) * b.card;
    with_card(b.card, [=](auto card) {
        for (int64_t r = 0; r < n; ++r)
            for (int64_t j = 0; j < card; ++j) sum[j] += block[r * card + j];
    });
}

// Number of entries that are not zero in all lanes.
template <class V> INLINE int64_t count_nonzero(const V *g, int64_t n) {
    int64_t count = 0;
    if constexpr (Of<V>::lanes == 1) {
        for (int64_t k = 0; k < n; ++k) count += g[k] != 0.0;
    } else {
        for (int64_t k = 0; k < n; ++k) {
            double most = 0.0;
            for (int i = 0; i < L; ++i) most = std::max(most, std::abs(g[k][i]));
            count += most != 0.0;
        }
    }
    return count;
}

// Hands the gradient of a step's message, at the positions from .. to, on to its inputs.
template <Algebra algebra, class V>
void reverse_range(const Bucket &b, double eps, int64_t from, int64_t to, const V *work, const V *message, V *grad,
                   Workspace<V> &workspace) {
    Odometer odometer{b, workspace.at.data(), workspace.digit.data()};
    const int64_t *at = workspace.at.data();
    int64_t height = std::max<int64_t>(1, BLOCK / (Of<V>::lanes * b.card)), begin = from % b.inside, stale = 0;
    bool flushed = true;
    std::fill(workspace.sums, workspace.sums + b.groups * b.card, V{});
    auto rows = [&](int64_t first, int64_t n) {
        combine_block<algebra>(b, first, n, work, at, workspace.rows, workspace.block);
        weigh_rows<algebra>(workspace.block, n, b.card, eps, workspace.tops, message + from - begin + first);
        spread_block(b, first, n, workspace.block, grad, at, workspace.sums);
    };
    odometer.start(from / b.inside);
    for (;;) {
        int64_t end = std::min(b.inside, begin + to - from);
        while (begin < end) {
            int64_t n = std::min(height, end - begin);
            int64_t count = count_nonzero(message + from, n);
            if (count) {
                combine_rows<algebra>(b, stale, work, at, workspace.rows);
                stale = b.groups;
                flushed = false;
            }
            if (4 * count >= n && count) rows(begin, n);
            else if (count)  // few rows of many, as after a maximum
                for (int64_t r = 0; r < n; ++r)
                    if (count_nonzero(message + from + r, 1)) rows(begin + r, 1);
            begin += n;
            from += n;
        }
        int64_t axis = from == to ? -1 : odometer.next(), first = b.stale(axis);
        if (!flushed) flush_rows(b, first, grad, at, workspace.sums);
        flushed = flushed || first == 0;
        if (from == to) return;
        stale = std::min(stale, first);
        odometer.move(axis);
        begin = 0;
    }
}

// --- domains ---

// Greatest and least feasible entry of n; `floor` stands for what is impossible, which has no least entry (INF).
template <class V> INLINE void extent(const V *x, int64_t n, double floor, V &top, V &bottom) {
    top = all<V>(floor);
    bottom = all<V>(INF);
    int64_t k = 0;
    if constexpr (Of<V>::lanes == 1) {
        Vec high = all<Vec>(floor), low = all<Vec>(INF);
        for (; k + L <= n; k += L) {
            Vec a = wide(const_cast<double *>(x) + k);
            high = larger(high, a);
            low = smaller(low, a > floor ? a : all<Vec>(INF));
        }
        for (int i = 0; i < L; ++i) top = std::max(top, high[i]);
        bottom = across_min(low);
    }
    for (; k < n; ++k) {
        top = larger(top, x[k]);
        bottom = smaller(bottom, x[k] > floor ? x[k] : all<V>(INF));
    }
}

// Rewrites an input of domain `from` in domain `to`, not both 0, relative to its greatest entry `top`, whose score it
// adds to `shift`. Domain 0: scores x + shift; domain t > 0: scores t log x + shift. Lanes without a feasible entry
// hold zeros or -inf.
template <class V> void convert(V *x, int64_t n, double from, double to, V top, V &shift) {
    if (from == 0.0) {
        V base = top > -INF ? top : V{};
        shift += base;
        transform(x, n, base, [=](auto a, auto base) { return exp((a - base) / to); });
        return;
    }
    V base = top > 0.0 ? top : all<V>(1.0);
    shift += from * log(base);
    V inverse = 1.0 / base;
    if (from == to) {
        transform(x, n, inverse, [](auto a, auto factor) { return a * factor; });
        return;
    }
    double ratio = to > 0.0 ? from / to : from;
    transform(x, n, inverse, [=](auto a, auto factor) {
        using W = decltype(a);
        W share = a * factor;
        W score = ratio * log(share > 0.0 ? share : all<W>(1.0));
        if (to > 0.0) return share > 0.0 ? W(exp(score)) : W{};
        return share > 0.0 ? score : all<W>(-INF);
    });
}

// Moves to `shift` the score that all entries of a message share, where entries are within a factor of two of each
// other: then the subtraction is exact, and what is left keeps more digits in the sums to come.
template <class V> void take_shared_score(V *x, int64_t n, V top, V bottom, V &shift) {
    V least = smaller(larger(top, -top), larger(bottom, -bottom));
    V shared = top - bottom <= least ? top : V{};
    shared = top > -INF ? shared : V{};
    shift += shared;
    transform(x, n, shared, [](auto a, auto shared) { return a - shared; });
}

// --- the sweeps of one instance, or of L ---

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
    const double *temperature;  // of every step
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

    // Every table is an input of one step, whose turn it is now.
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

// --- scores in and marginals out ---

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

// Back-substitution: the first maximiser of every variable at temperature zero, last eliminated first. A variable is
// judged by the rows of its steps at the states of the variables eliminated later; unknown (-1) where these are.
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
