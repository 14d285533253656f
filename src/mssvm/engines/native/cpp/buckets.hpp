// Visiting the entries of a bucket without storing its table: forwards, where inputs are combined to rows of x_s, and
// backwards, where the gradients of the entries are added up for the inputs. Separators are walked like an odometer.
#pragma once
#include <algorithm>
#include <vector>

#include "entries.hpp"

namespace mssvm {

constexpr int64_t BLOCK = 512;  // doubles of a bucket that are combined at a time

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

// Goes through the positions `from` to `to` of the separator in blocks of n rows: combines a block in workspace.block,
// then calls consume(position, n) with its first position.
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

// The message of a step at the positions `from` to `to`.
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

// Hands the gradient of a step's message, at the positions `from` to `to`, on to its inputs.
template <Algebra algebra, class V>
void reverse_range(const Bucket &b, double eps, int64_t from, int64_t to, const V *work, const V *message, V *grad,
                   Workspace<V> &workspace) {
    Odometer odometer{b, workspace.at.data(), workspace.digit.data()};
    const int64_t *at = workspace.at.data();
    int64_t height = std::max<int64_t>(1, BLOCK / (Of<V>::lanes * b.card)), begin = from % b.inside;
    int64_t stale = 0;    // the first row that has to be combined anew
    bool flushed = true;  // whether no row has gradients that its inputs still need
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

}  // namespace mssvm
