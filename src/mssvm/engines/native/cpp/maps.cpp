// Sparse linear maps from the scores of graphs to those of forests made from them, and their transposes for marginals.
//
// A map is a list of blocks (a forest, a table) of a few kinds. Block i has the kind of[i], begins at here[i] of the
// forests' array, and reads the graphs' array from the places place[at[i]], place[at[i] + 1], ... on. A kind q has the
// runs ptr[q] .. ptr[q + 1]. A run maps `length` entries with constant steps on both sides: the first of them is
// place[at[i] + slot] + entry in the graphs' array and here[i] + to in the forests' array.
#include "boundary.hpp"
#include "given.hpp"

using namespace mssvm;

namespace {

struct EntryRun {
    int64_t slot, entry, to, length, entry_step, to_step;
};

struct MapCall {
    int64_t bytes;
    Ints of, here, at, place, ptr;
    Ints runs;  // (run, 6): see EntryRun
    Floats graphs, forests;
    Floats weight;  // by block; empty: 1
    int64_t back;   // 0: forests += map(graphs); 1: graphs += weight * transpose(forests)
};

void check_ends(const MapCall &call, const EntryRun &run, int64_t from, int64_t to) {
    int64_t last = run.length - 1;
    require(from >= 0 && from + last * run.entry_step >= 0 && from < call.graphs.size &&
                from + last * run.entry_step < call.graphs.size,
            "a map reads outside the graphs' array.");
    require(to >= 0 && to + last * run.to_step >= 0 && to < call.forests.size &&
                to + last * run.to_step < call.forests.size,
            "a map writes outside the forests' array.");
}

// The sum of n numbers, as two sums whose additions overlap.
double sum(const double *x, int64_t n, int64_t step) {
    double even = 0.0, odd = 0.0;
    int64_t j = 0;
    for (; j + 1 < n; j += 2) {
        even += x[j * step];
        odd += x[(j + 1) * step];
    }
    if (j < n) even += x[j * step];
    return even + odd;
}

int64_t apply(const MapCall &call) {
    int64_t blocks = call.of.size;
    require(call.here.size == blocks && call.at.size == blocks, "the columns of a map have different lengths.");
    require(call.weight.empty() || call.weight.size == blocks, "a map has another number of weights than of blocks.");
    require(call.ptr.size > 0 && call.ptr[call.ptr.size - 1] * 6 == call.runs.size, "runs do not end as pointers say.");
    const EntryRun *runs = reinterpret_cast<const EntryRun *>(call.runs.data);
    for (int64_t i = 0; i < blocks; ++i) {
        double weight = call.weight.empty() ? 1.0 : call.weight[i];
        if (weight == 0.0) continue;
        require(call.of[i] >= 0 && call.of[i] + 1 < call.ptr.size, "a block has an unknown kind.");
        for (int64_t n = call.ptr[call.of[i]]; n < call.ptr[call.of[i] + 1]; ++n) {
            const EntryRun &run = runs[n];
            require(call.at[i] + run.slot < call.place.size, "a map has too few places.");
            int64_t from = call.place[call.at[i] + run.slot] + run.entry;
            int64_t to = call.here[i] + run.to;
            check_ends(call, run, from, to);
            double *graph = call.graphs.data + from, *forest = call.forests.data + to;
            int64_t step = run.entry_step, to_step = run.to_step;
            if (step == 0 && !call.back) {
                double score = *graph;
                for (int64_t j = 0; j < run.length; ++j) forest[j * to_step] += score;
            } else if (step == 0) {
                *graph += weight * sum(forest, run.length, to_step);
            } else if (!call.back) {
                for (int64_t j = 0; j < run.length; ++j) forest[j * to_step] += graph[j * step];
            } else {
                for (int64_t j = 0; j < run.length; ++j) graph[j * step] += weight * forest[j * to_step];
            }
        }
    }
    return 0;
}

struct RunsCall {
    int64_t bytes;
    Ints rows;  // (row, 3): to, slot, entry
    Ints runs;  // (row, 6): written
};

// Finds the longest runs in rows, in their order; returns the number of runs.
int64_t find_runs(const RunsCall &call) {
    int64_t n = call.rows.size / 3, count = 0;
    require(call.runs.size == 6 * n, "there must be place for as many runs as rows.");
    EntryRun *runs = reinterpret_cast<EntryRun *>(call.runs.data);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t *row = call.rows.data + 3 * i;
        int64_t to = row[0], slot = row[1], entry = row[2];
        if (count > 0 && runs[count - 1].slot == slot) {
            EntryRun &run = runs[count - 1];
            if (run.length == 1) {  // a run of one entry has no step yet
                run.entry_step = entry - run.entry;
                run.to_step = to - run.to;
            }
            if (entry == run.entry + run.length * run.entry_step && to == run.to + run.length * run.to_step) {
                ++run.length;
                continue;
            }
        }
        runs[count++] = {slot, entry, to, 1, 0, 0};
    }
    return count;
}

// Values and indicators of given states; the three views are the record's indices of 32 or of 64 bits.
template <class Index> int64_t read_given(const GivenCall &call, View<Index> states, View<Index> entries,
                                          View<Index> places) {
    require(call.variables.size == call.instances.size && call.factors.size == call.instances.size &&
                entries.size == places.size,
            "the columns of given states have different lengths.");
    require(call.unary.size == call.scores && call.mu_unary.size == call.scores &&
                call.tables.size == call.entries_of_tables && call.mu_tables.size == call.marginals_of_tables,
            "scores or marginals have another size than the batch of the given states.");
    int64_t next = 0, next_factor = 0;
    for (int64_t i = 0; i < call.instances.size; ++i) {
        int64_t last = next + call.variables[i], last_factor = next_factor + call.factors[i];
        require(last <= states.size && last_factor <= entries.size, "given states end too soon.");
        require(call.instances[i] >= 0 && call.instances[i] < call.value.size, "a value has no such instance.");
        double total = 0.0, table_total = 0.0;
        for (int64_t j = next; j < last; ++j) total += call.unary[states[j]];
        for (int64_t j = next_factor; j < last_factor; ++j) table_total += call.tables[entries[j]];
        double value = total + table_total;
        call.value[call.instances[i]] = value;
        double mass = call.subtract ? -1.0 : 1.0;
        if (value == -__builtin_inf()) mass = 0.0;
        for (int64_t j = next; j < last; ++j) call.mu_unary[states[j]] += mass;
        for (int64_t j = next_factor; j < last_factor; ++j) call.mu_tables[places[j]] += mass;
        next = last;
        next_factor = last_factor;
    }
    return 0;
}

int64_t given(const GivenCall &call) {
    if (!call.wide_states.empty()) return read_given(call, call.wide_states, call.wide_entries, call.wide_places);
    return read_given(call, call.states, call.entries, call.places);
}

}  // namespace

MSSVM_API mssvm_map_entries(const MapCall *record) { return guarded(record, apply); }

MSSVM_API mssvm_map_runs(const RunsCall *record) { return guarded(record, find_runs); }

MSSVM_API mssvm_given_states(const GivenCall *record) { return guarded(record, given); }
