// Memory layout of forests and their instances: the records that Python fills, and the tables of one call.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "boundary.hpp"
#include "simd.hpp"

namespace mssvm {

struct Temperatures {
    double y, h;
    double inverse_y = y > 0 ? 1 / y : 1.0, inverse_h = h > 0 ? 1 / h : 1.0;
};

// Offset of a table in the tables of the batch, and its shape.
struct Shape {
    int64_t start, rows, columns;

    int64_t entries() const { return rows * columns; }
};

// Scores that are contiguous both in an instance (`from`) and among the positions of its family (`to`).
struct Segment {
    int64_t from, to, length;
};

// Bits of `Family::roles`.
constexpr uint8_t FREE_OUTPUT = 1;  // an output with several allowed states
constexpr uint8_t CLOSED = 2;       // an output, or a variable with one allowed state: rows end here
constexpr uint8_t PRESENT = 4;      // the instance has this position

// Instances that can run side by side under one query. The forest of the largest is listed by position, children before
// parents. Read from the root, the forest of every other member is a prefix of it: a member of n' variables has
// the last n' positions. Members of one kind have the same topology. Tables are numbered by slot.
struct Family {
    int64_t bytes;
    Ints parent;       // by position: its parent; the number of positions at a root
    Ints card;         // by position: number of states
    Ints slot;         // by position: table to the parent, -1 at a root
    Bytes8 flip;       // by position: the table's rows are the parent's states
    Ints at;           // by position: first score in the largest member
    Ints shapes;       // (slot, 3): see Shape
    Ints instance;     // by member: its number in the batch
    Ints kind;         // by member: its kind
    Ints first;        // by member: its first score in the batch
    Ints mu_at;        // (member, slot): where marginals of the table are written, -1 if the member has none
    Ints segment_ptr;  // by kind: its first segment
    Ints segments;     // (segment, 3): see Segment
    Bytes8 roles;      // (member, position)
    Bytes8 allowed;    // by state of the batch; empty if all states are allowed
    double eps_y, eps_h;
    int64_t side;     // 0: costs are added to scores, marginals are written; 1: no costs, marginals are subtracted
    int64_t abreast;  // whether members run in lanes
    int64_t copies;   // eps_h / eps_y if hidden variables may run as that many copies (`copies.hpp`), else 0

    int positions() const { return int(parent.size); }
    int slots() const { return int(shapes.size / 3); }
    int64_t members() const { return instance.size; }
    const Shape &shape(int j) const { return reinterpret_cast<const Shape *>(shapes.data)[j]; }
    const Segment &segment(int64_t i) const { return reinterpret_cast<const Segment *>(segments.data)[i]; }
    double work() const {  // multiplications of a member, about
        double total = 0;
        for (int64_t p = 0; p < parent.size; ++p)
            total += 3.0 * card[p] * (parent[p] < parent.size ? card[parent[p]] : 1);
        return total;
    }
    int64_t states() const {
        int64_t total = 0;
        for (int64_t k : card) total += k;
        return total;
    }
};

// Nested power sums of all members of some families, and the marginals of side 0 less those of side 1.
struct ForestCall {
    int64_t bytes;
    Ints families;                   // addresses of `Family` records
    Floats unary, tables;            // scores of the batch
    Floats cost_unary, cost_tables;  // added on side 0; empty if there are no costs
    Floats value, minus;             // by instance: of side 0, and of side 1
    Floats mu_unary, mu_tables;
    int64_t threads;
    // Written by a call:
    int64_t side, task;              // where to begin; after the call, where to continue
    int64_t copies, scaled, scores;  // added to: how many members ran with copies, in Scaled and in Scores

    const Floats &values(int64_t of) const { return of == 0 ? value : minus; }
};

inline void check(const Family &f, const ForestCall &call) {
    int64_t n = f.parent.size, members = f.instance.size, slots = f.shapes.size / 3;
    require(f.bytes == int64_t(sizeof(Family)), "a family has another size: Python files and library differ.");
    require(f.card.size == n && f.slot.size == n && f.flip.size == n && f.at.size == n,
            "a family's positions have columns of different lengths.");
    require(f.kind.size == members && f.first.size == members && f.roles.size == members * n &&
                f.mu_at.size == members * slots && f.shapes.size == 3 * slots,
            "a family's members have columns of different lengths.");
    require(f.side == 0 || f.side == 1, "a family has a side other than 0 and 1.");
    require(f.eps_y >= 0 && f.eps_h >= 0 && std::isfinite(f.eps_y) && std::isfinite(f.eps_h),
            "a temperature is negative or not finite.");
    require(f.allowed.empty() || f.allowed.size == call.unary.size, "the mask has another length than the scores.");
    int64_t states = f.states();
    for (int64_t p = 0; p < n; ++p) {
        require(f.card[p] >= 1, "a variable has no states.");
        require(f.parent[p] > p && f.parent[p] <= n, "a position comes after its parent.");
        require(f.at[p] >= 0 && f.at[p] + f.card[p] <= states, "a position's scores lie outside the family.");
        bool root = f.parent[p] == n;
        require(root ? f.slot[p] == -1 : f.slot[p] >= 0 && f.slot[p] < slots, "a position has no table to its parent.");
        if (root) continue;
        const Shape &shape = f.shape(int(f.slot[p]));
        int64_t child = f.flip[p] ? shape.columns : shape.rows, above = f.flip[p] ? shape.rows : shape.columns;
        require(child == f.card[p] && above == f.card[f.parent[p]], "a table has another shape than its variables.");
    }
    for (int64_t j = 0; j < slots; ++j) {
        const Shape &shape = f.shape(int(j));
        require(shape.start >= 0 && shape.start + shape.entries() <= call.tables.size,
                "a table lies outside the batch.");
    }
    int64_t kinds = f.segment_ptr.size - 1;
    require(kinds >= 0 && f.segment_ptr[0] == 0 && f.segment_ptr[kinds] == f.segments.size / 3,
            "segments do not end where their pointers say.");
    std::vector<int64_t> reach(kinds, 0);  // by kind: the end of its last segment
    for (int64_t kind = 0; kind < kinds; ++kind)
        for (int64_t i = f.segment_ptr[kind]; i < f.segment_ptr[kind + 1]; ++i) {
            const Segment &segment = f.segment(i);
            require(
                segment.from >= 0 && segment.length >= 0 && segment.to >= 0 && segment.to + segment.length <= states,
                "a segment lies outside the family.");
            reach[kind] = std::max(reach[kind], segment.from + segment.length);
        }
    for (int64_t m = 0; m < members; ++m) {
        require(f.instance[m] >= 0 && f.instance[m] < call.values(f.side).size,
                "a member is no instance of the batch.");
        require(f.kind[m] >= 0 && f.kind[m] < kinds, "a member has an unknown kind.");
        require(f.first[m] >= 0 && f.first[m] + reach[f.kind[m]] <= call.unary.size, "scores lie outside the batch.");
        for (int64_t j = 0; j < slots; ++j) {
            int64_t to = f.mu_at[m * slots + j];
            require(to < 0 || to + f.shape(int(j)).entries() <= call.mu_tables.size,
                    "marginals lie outside the batch.");
        }
    }
}

// A table between a child (x of k states) and its parent (z of c): forth[x c + z], back[z k + x].
struct Edge {
    const double *forth, *back;
};

// A table as scores, and as exp((theta - top) / eps) at eps_h (`at_eps_h`) and at eps_y (`at_eps_y`), where these are
// positive. `range` of its allowed entries, in units of either temperature; `has_forbidden`: an entry is forbidden.
struct Table {
    Edge scores, at_eps_h, at_eps_y;
    double top;
    double range_h, range_y;
    bool has_forbidden;
};

// All tables of a family for one call, each both ways round.
class Tables {
public:
    Tables(const Family &f, const ForestCall &call) {
        bool two_temperatures = f.eps_y > 0 && f.eps_y != f.eps_h;
        bool sums = f.eps_h > 0;
        size_t total = 0;
        for (int j = 0; j < f.slots(); ++j) total += 2 * (1 + sums + two_temperatures) * f.shape(j).entries();
        memory_.resize(total + L);  // rows are read L numbers at a time
        double *to = memory_.data();
        std::vector<double> sum;
        for (int j = 0; j < f.slots(); ++j) {
            const Shape &shape = f.shape(j);
            const double *theta = call.tables.data + shape.start;
            if (f.side == 0 && !call.cost_tables.empty()) {
                const double *cost = call.cost_tables.data + shape.start;
                sum.resize(shape.entries());
                for (int64_t i = 0; i < shape.entries(); ++i) sum[i] = theta[i] + cost[i];
                theta = sum.data();
            }
            for (int64_t i = 0; i < shape.entries(); ++i) numbers_ &= theta[i] < INF;
            Table table = describe(theta, shape.entries(), f.eps_y, f.eps_h);
            double top = table.top;
            table.scores = both_ways(theta, shape, to, [](double v) { return v; });
            if (sums) table.at_eps_h = both_ways(theta, shape, to, [&](double v) { return exp((v - top) / f.eps_h); });
            table.at_eps_y = table.at_eps_h;
            if (two_temperatures)
                table.at_eps_y = both_ways(theta, shape, to, [&](double v) { return exp((v - top) / f.eps_y); });
            tables_.push_back(table);
            for (Edge *edge : {&table.scores, &table.at_eps_h, &table.at_eps_y}) std::swap(edge->forth, edge->back);
            tables_.push_back(table);
        }
        int64_t widest = 1;
        for (int64_t k : f.card) widest = std::max(widest, k);
        zeros_.assign(widest + L, 0.0);
        ones_.assign(widest + L, 1.0);
        Edge zero{zeros_.data(), zeros_.data()}, one{ones_.data(), ones_.data()};
        from_root_ = Table{zero, one, one, 0.0, 0.0, 0.0, false};
    }

    // The table of a slot, its rows being the child's states; or `flipped`, its columns.
    const Table &operator()(int slot, bool flipped = false) const { return tables_[2 * slot + flipped]; }

    // No score is NaN or +inf.
    bool numbers() const { return numbers_; }

    // The table between a root and the super-root, which has one state.
    const Table &from_root() const { return from_root_; }

private:
    static Table describe(const double *theta, int64_t entries, double eps_y, double eps_h) {
        Table table{};
        double top = -INF, low = INF;
        for (int64_t i = 0; i < entries; ++i) {
            top = std::max(top, theta[i]);
            if (theta[i] > -INF) low = std::min(low, theta[i]);
            else table.has_forbidden = true;
        }
        table.top = top > -INF ? top : 0.0;
        double range = top > -INF ? top - low : 0.0;
        table.range_h = eps_h > 0 ? range / eps_h : INF;
        table.range_y = eps_y > 0 ? range / eps_y : INF;
        return table;
    }

    template <class F> static Edge both_ways(const double *theta, const Shape &shape, double *&to, F f) {
        Edge edge{to, to + shape.entries()};
        double *forth = to, *back = to + shape.entries();
        for (int64_t x = 0; x < shape.rows; ++x)
            for (int64_t z = 0; z < shape.columns; ++z) {
                double v = f(theta[x * shape.columns + z]);
                forth[x * shape.columns + z] = v;
                back[z * shape.rows + x] = v;
            }
        to += 2 * shape.entries();
        return edge;
    }

    std::vector<double> memory_, zeros_, ones_;
    std::vector<Table> tables_;  // (slot, flipped)
    Table from_root_;
    bool numbers_ = true;
};

}  // namespace mssvm
