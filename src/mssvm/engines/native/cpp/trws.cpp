// Calls of the decomposition bound (trws.hpp): load scores, sweep, read marginals, decode. Tasks run on threads.
#include "trws_tasks.hpp"

using namespace mssvm;

namespace {

struct LoadCall {
    int64_t bytes;
    const ChainLayout *layout;
    Floats scores;  // by state of the batch
    Bytes8 allowed;
    Ints unary_ptr;
    Floats unary;  // by group and state, in lanes
    Floats tables;
    Ints table, size, scaled_at;  // by pair of table and weight: where it is read, its size, where it is written
    Floats weight;
    Floats scaled;
    double eps, safe;  // range of a table in units of its temperature up to which it can be used in scaled form
    int64_t threads;
};

template <Rule rule, class F> INLINE auto with_states(const ChainCall &c, int64_t g, Vec *buffer, F f) {
    switch (square(*c.layout, g)) {
        case 2: return f(Chains<2, rule>(c, buffer));
        case 3: return f(Chains<3, rule>(c, buffer));
        default: return f(Chains<0, rule>(c, buffer));
    }
}

constexpr int64_t TABLES_AT_A_TIME = 1 << 12;
constexpr int64_t GROUPS_AT_A_TIME = 1 << 10;

// Writes the scaled tables; false if the range of one is too large.
bool scale(const LoadCall &c) {
    int64_t blocks = (c.table.size + TABLES_AT_A_TIME - 1) / TABLES_AT_A_TIME;
    std::vector<uint8_t> safe(blocks, 1);
    parallel_for(blocks, int(c.threads), [&](int64_t block) {
        int64_t end = std::min(c.table.size, (block + 1) * TABLES_AT_A_TIME);
        for (int64_t t = block * TABLES_AT_A_TIME; t < end; ++t) {
            const double *from = c.tables.data + c.table[t];
            double *to = c.scaled.data + c.scaled_at[t], top = -INF, low = INF, unit = c.eps * c.weight[t];
            for (int64_t j = 0; j < c.size[t]; ++j) {
                top = std::max(top, from[j]);
                low = std::min(low, from[j]);
            }
            if (!(top - low <= c.safe * unit)) {
                safe[block] = 0;
                return;
            }
            to[0] = top;
            for (int64_t j = 0; j < c.size[t]; ++j) to[j + 1] = exp((from[j] - top) / unit);
        }
    });
    return std::all_of(safe.begin(), safe.end(), [](uint8_t each) { return each == 1; });
}

bool load(const LoadCall &c) {
    const ChainLayout &a = *c.layout;
    require(c.allowed.size == c.scores.size, "there is one flag for every score.");
    require(c.size.size == c.table.size && c.scaled_at.size == c.table.size && c.weight.size == c.table.size,
            "the columns of tables have different lengths.");
    require(c.threads >= 1 && c.threads <= 4096, "threads are out of range.");
    int64_t groups = a.in_count.size;
    require(c.unary.size >= (groups ? a.state_at[groups] : 0) * L, "the array of scores is too small.");
    int64_t blocks = (groups + GROUPS_AT_A_TIME - 1) / GROUPS_AT_A_TIME;
    parallel_for(blocks, int(c.threads), [&](int64_t block) {
        int64_t end = std::min(groups, (block + 1) * GROUPS_AT_A_TIME);
        for (int64_t g = block * GROUPS_AT_A_TIME; g < end; ++g)
            for (int64_t at = a.state_at[g]; at < a.state_at[g + 1]; ++at)
                for (int i = 0; i < L; ++i) {
                    int64_t v = a.variable[g * L + i];
                    double &score = c.unary[at * L + i];
                    score = 0.0;
                    if (v < 0) continue;
                    int64_t from = c.unary_ptr[v] + at - a.state_at[g];
                    score = c.allowed[from] ? c.scores[from] : -INF;
                }
    });
    return c.eps > 0 && scale(c);
}

}  // namespace

// 1 where all tables can be used in scaled form.
MSSVM_API mssvm_trws_load(const LoadCall *call) {
    return guarded(call, [](const LoadCall &c) -> int64_t {
        check(nested(c.layout));
        return load(c);
    });
}

namespace mssvm {

void sweep_share(const ChainCall &c, Share &share, Vec *buffer) {
    by_rule(c, [&](auto rule) {
        constexpr Rule sums = decltype(rule)::value;
        for (int64_t sweep = 1; sweep <= c.sweeps; ++sweep) {
            bool last = sweep == c.sweeps;
            share.forward([&](int64_t g) { with_states<sums>(c, g, buffer, [&](auto chains) { chains.forward(g); }); });
            share.backward([&](int64_t g) {
                Vec bound = with_states<sums>(c, g, buffer, [&](auto chains) { return chains.backward(g, last); });
                if (last) *(Unaligned *)(c.by_lane.data + g * L) = bound;
            });
        }
        if (c.sweeps > 0) add_bounds(c, share);
    });
}

void read_share(const ChainCall &c, Share &share, Vec *buffer) {
    read_groups(c, share, [&](auto rule, int64_t g) {
        with_states<decltype(rule)::value>(c, g, buffer, [&](auto chains) { chains.read(g); });
    });
}

}  // namespace mssvm

// Sweeps forwards and backwards; `value` is the bound after the last of them.
MSSVM_API mssvm_trws_sweep(const ChainCall *call) {
    return guarded(call, [](const ChainCall &c) -> int64_t {
        check(c);
        return run_call(c, chain_vectors(*c.layout), sweep_share);
    });
}

// Marginals and residuals at the messages of the last sweep.
MSSVM_API mssvm_trws_read(const ChainCall *call) {
    return guarded(call, [](const ChainCall &c) -> int64_t {
        check(c);
        return run_call(c, chain_vectors(*c.layout), read_share);
    });
}

MSSVM_API mssvm_trws_decode(const ChainCall *call) {
    return guarded(call, [](const ChainCall &c) -> int64_t {
        check(c);
        return run_call(c, chain_vectors(*c.layout), [](const ChainCall &c, Share &share, Vec *buffer) {
            share.forward([&](int64_t g) { Chains<0, Rule::maxima>(c, buffer).decode(g); });
        });
    });
}
