// The arrays of a chain layout that have one entry for each slot of a group and each lane, made from arrays that have
// one entry for each slot of a variable (`chain_layout.py`).
#include "parallel.hpp"
#include "trws.hpp"

using namespace mssvm;

namespace {

struct LanesCall {
    int64_t bytes;
    // By slot of a variable: its place (slot of the group times lanes, plus lane), the neighbour's slot of the same
    // factor, the neighbour, the factor, where its scaled table and its marginals are, its chain's weight.
    Ints at;
    Shorts back, neighbour, factor, scaled_of, mu_of;
    Floats weight;
    Bytes8 upward;
    // By slot of a group: the slot of its first variable, its band, where messages and readings are, in vectors.
    Ints head, band, message_at, read_at;
    Shorts variable;  // by variable: its number in the batch
    Ints table_at;    // by factor of the batch
    Shorts reverse, reverse_read, table, scaled, other, mu;
    Floats rho;
    Bytes8 aligned, tied;
    // Numbers stored for messages and for readings, and numbers that every band has behind them for lanes without a
    // variable.
    int64_t messages, readings, unused, threads;
};

constexpr int64_t SLOTS_AT_A_TIME = 1 << 14;

template <class Work> void each_slot(int64_t slots, int64_t threads, Work work) {
    parallel_for((slots + SLOTS_AT_A_TIME - 1) / SLOTS_AT_A_TIME, int(threads), [&](int64_t block) {
        int64_t end = std::min(slots, (block + 1) * SLOTS_AT_A_TIME);
        for (int64_t s = block * SLOTS_AT_A_TIME; s < end; ++s) work(s);
    });
}

bool below(int64_t index, int64_t size) { return index >= 0 && index < size; }

void check(const LanesCall &c) {
    int64_t slots = c.at.size, groups = c.head.size;
    require(c.threads >= 1 && c.threads <= 4096, "threads are out of range.");
    for (const Shorts &each : {c.back, c.neighbour, c.factor, c.scaled_of, c.mu_of})
        require(each.size == slots, "the columns of slots have different lengths.");
    require(c.weight.size == slots && c.upward.size == slots, "the columns of slots have different lengths.");
    require(c.band.size == groups && c.message_at.size == groups && c.read_at.size == groups &&
                c.aligned.size == groups && c.tied.size == groups,
            "the columns of groups have different lengths.");
    for (const Shorts &each : {c.reverse, c.reverse_read, c.table, c.scaled, c.other, c.mu})
        require(each.size == groups * L, "the columns by lane have different lengths.");
    require(c.rho.size == groups * L, "the columns by lane have different lengths.");
    each_slot(slots, c.threads, [&](int64_t s) {
        require(below(c.at[s], groups * L) && below(c.back[s], slots) && below(c.neighbour[s], c.variable.size) &&
                    below(c.factor[s], c.table_at.size),
                "a slot has a place, neighbour or factor that does not exist.");
    });
    each_slot(groups, c.threads,
              [&](int64_t g) { require(below(c.head[g], slots), "a group has a slot that does not exist."); });
}

// Lanes without a variable: dummy places, and the tables of the first lane.
void fill(const LanesCall &c, int64_t g) {
    int64_t head = c.head[g];
    for (int64_t lane = g * L; lane < (g + 1) * L; ++lane) {
        c.reverse[lane] = int32_t(c.messages + c.band[g] * c.unused);
        c.reverse_read[lane] = int32_t(c.readings + c.band[g] * c.unused);
        c.table[lane] = int32_t(c.table_at[c.factor[head]]);
        c.scaled[lane] = c.scaled_of[head];
        c.other[lane] = 0;
        c.mu[lane] = -1;
        c.rho[lane] = c.weight[head];
    }
}

void place(const LanesCall &c, int64_t s) {
    int64_t lane = c.at[s], back = c.at[c.back[s]];
    c.reverse[lane] = int32_t(c.message_at[back / L] * L + back % L);
    if (c.upward[s]) c.reverse_read[lane] = int32_t(c.read_at[back / L] * L + back % L);
    c.table[lane] = int32_t(c.table_at[c.factor[s]]);
    c.scaled[lane] = c.scaled_of[s];
    c.other[lane] = c.variable[c.neighbour[s]];
    c.mu[lane] = c.mu_of[s];
    c.rho[lane] = c.weight[s];
}

// Whether the places of a slot's lanes rise by `step`.
bool rising(const Shorts &places, int64_t g, int step) {
    for (int lane = 1; lane < L; ++lane)
        if (places[g * L + lane] - places[g * L] != lane * step) return false;
    return true;
}

}  // namespace

MSSVM_API mssvm_chain_lanes(const LanesCall *call) {
    return guarded(call, [](const LanesCall &c) -> int64_t {
        check(c);
        each_slot(c.head.size, c.threads, [&](int64_t g) { fill(c, g); });
        each_slot(c.at.size, c.threads, [&](int64_t s) { place(c, s); });
        each_slot(c.head.size, c.threads, [&](int64_t g) {
            // One load reads consecutive places.
            c.aligned[g] = rising(c.reverse, g, 1) && (!c.upward[c.head[g]] || rising(c.reverse_read, g, 1));
            c.tied[g] = rising(c.scaled, g, 0);
        });
        return 0;
    });
}
