// Calls of the decomposition bound at two temperatures (nested.hpp).
#include "nested.hpp"

#include "trws_tasks.hpp"

using namespace mssvm;

namespace {

template <Rule rule, class F> INLINE auto with_states(const ChainCall &c, int64_t g, Vec *buffer, F f) {
    if (c.layout->widest == 2 && square(*c.layout, g) == 2) return f(NestedChains<2, rule>(c, buffer));
    return f(NestedChains<0, rule>(c, buffer));
}

}  // namespace

namespace mssvm {

void check_nested(const ChainCall &c) {
    check(c);
    require(c.rule >= 1 && c.eps >= 0 && c.eps_h > 0, "hidden variables need a temperature above zero.");
    require(c.layout->widest <= 64, "two temperatures are for variables of up to 64 states.");
}

int64_t nested_vectors(const ChainLayout &a) { return NestedChains<0, Rule::scores>::buffer(a); }

void sweep_nested_share(const ChainCall &c, Share &share, Vec *buffer) {
    by_rule(c, [&](auto rule) {
        constexpr Rule sums = decltype(rule)::value;
        if constexpr (sums != Rule::maxima) {
            for (int64_t sweep = c.ready && c.sweeps > 0; sweep <= c.sweeps; ++sweep) {
                bool last = sweep == c.sweeps, update = sweep > 0;
                if (update)
                    share.forward(
                        [&](int64_t g) { with_states<sums>(c, g, buffer, [&](auto chains) { chains.forward(g); }); });
                share.backward([&](int64_t g) {
                    Vec bound =
                        with_states<sums>(c, g, buffer, [&](auto chains) { return chains.backward(g, update, last); });
                    if (last) *(Unaligned *)(c.by_lane.data + g * L) = bound;
                });
            }
            add_bounds(c, share);
        }
    });
}

void read_nested_share(const ChainCall &c, Share &share, Vec *buffer) {
    read_groups(c, share, [&](auto rule, int64_t g) {
        with_states<decltype(rule)::value>(c, g, buffer, [&](auto chains) { chains.read(g); });
    });
}

}  // namespace mssvm

// Computes the messages from later variables unless they are up to date, then sweeps forwards and backwards; `value` is
// the bound after the last sweep.
MSSVM_API mssvm_nested_sweep(const ChainCall *call) {
    return guarded(call, [](const ChainCall &c) -> int64_t {
        check_nested(c);
        return run_call(c, nested_vectors(*c.layout), sweep_nested_share);
    });
}

// Marginals and residuals at the shifts of the last sweep.
MSSVM_API mssvm_nested_read(const ChainCall *call) {
    return guarded(call, [](const ChainCall &c) -> int64_t {
        check_nested(c);
        require(c.eps > 0, "marginals at eps_y = 0 are not read.");
        return run_call(c, nested_vectors(*c.layout), read_nested_share);
    });
}
