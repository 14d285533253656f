// What calls on chains share: checks, workspace, and tasks on threads.
#pragma once
#include <new>

#include "parallel.hpp"
#include "trws.hpp"

namespace mssvm {

class Room {
public:
    explicit Room(int64_t vectors)
        : memory_(static_cast<Vec *>(::operator new(size_t(vectors) * sizeof(Vec), std::align_val_t(sizeof(Vec))))) {}
    ~Room() { ::operator delete(memory_, std::align_val_t(sizeof(Vec))); }
    Vec *data() { return memory_; }

private:
    Vec *memory_;
};

inline void check(const ChainLayout &a) {
    int64_t groups = a.in_count.size, slots = a.message_at.size;
    require(a.task_ptr.size >= 1 && a.state_at.size == groups + 1 && a.slot_ptr.size == groups + 1 &&
                a.variable.size == groups * L && a.root.size == groups * L && a.left.size == groups * L,
            "the columns of groups have different lengths.");
    require(a.read_at.size == slots && a.partner.size == slots && a.other_card.size == slots &&
                a.transposed.size == slots && a.aligned.size == slots && a.tied.size == slots,
            "the columns of slots have different lengths.");
    require(a.hidden.size == groups && a.other_hidden.size == slots && a.shift_at.size == slots && a.degree >= 0 &&
                a.degree <= 1 << 20,
            "the roles of groups and slots have different lengths.");
    for (const Shorts &by_lane : {a.reverse, a.reverse_read, a.table, a.scaled, a.mu, a.other})
        require(by_lane.size == slots * L, "the lanes of slots have different lengths.");
    require(a.rho.size == slots * L, "the lanes of slots have different lengths.");
    require(a.widest >= 1 && a.widest <= 1 << 20, "a variable has between one and 2^20 states.");
    for (int64_t t = 1; t < a.task_ptr.size; ++t)
        require(a.task_ptr[t] >= a.task_ptr[t - 1] && a.task_ptr[t] <= groups, "a task has groups that are not there.");
}

inline void check(const ChainCall &c) {
    check(nested(c.layout));
    const ChainLayout &a = *c.layout;
    int64_t groups = a.in_count.size;
    require(c.unary.size >= (groups ? a.state_at[groups] : 0) * L, "there are too few scores.");
    require(c.rule >= 0 && c.rule <= 2, "there are three rules.");
    require(c.sweeps >= 0 && c.threads >= 1 && c.threads <= 4096, "sweeps or threads are out of range.");
}

// The number of states of a group and of all neighbours, where that is one of few; 0 otherwise.
inline int square(const ChainLayout &a, int64_t g) {
    int64_t k = a.state_at[g + 1] - a.state_at[g];
    for (int64_t s = a.slot_ptr[g]; s < a.slot_ptr[g + 1]; ++s)
        if (a.other_card[s] != k) return 0;
    return k >= 2 && k <= 5 ? int(k) : 0;
}

// work(rule) with the rule as a constant.
template <class Work> void by_rule(const ChainCall &c, Work work) {
    if (c.rule == 0) work(std::integral_constant<Rule, Rule::maxima>());
    else if (c.rule == 1) work(std::integral_constant<Rule, Rule::scaled>());
    else work(std::integral_constant<Rule, Rule::scores>());
}

template <class Work> int64_t each_task(const ChainCall &c, int64_t vectors, Work work) {
    const ChainLayout &a = *c.layout;
    parallel_for(a.task_ptr.size - 1, int(c.threads), [&](int64_t task) {
        Room room(vectors);
        by_rule(c, [&](auto rule) { work(rule, a.task_ptr[task], a.task_ptr[task + 1], room.data()); });
    });
    return 0;
}

}  // namespace mssvm
