// The records of linear models: terms, a model, and its calls.
#pragma once
#include "boundary.hpp"

namespace mssvm {

// Whole numbers of 64 or of 32 bits, the other view being empty: reading half the memory takes less time.
struct Index {
    Ints wide;
    Shorts narrow;
};

enum Layout : int64_t { CONSTANT, DENSE, SPARSE };

// One term of a model. `active_first`, where there is any: feature j has weights for the states
// active_states[active_first[j] .. active_first[j + 1]) only.
struct Term {
    int64_t bytes, layout, on_unary, rows, features, width, one_block;
    Floats x;
    Index at;
    Ints block;
    Index indices, indptr;
    Ints active_first, active_states;
};

// The terms of a model, and the sizes of what they read and write; a term of at least `packed_from`
// multiplications is computed with its weights packed.
struct Model {
    int64_t bytes;
    View<const Term *> terms;
    int64_t weights, states, entries, packed_from;
};

// Marginals that are contiguous and belong to contiguous tables: `length` numbers at `from` are added to those at `to`.
struct TiedRun {
    int64_t from, to, length;
};

// theta = Phi w + offset; an empty offset is zero.
struct Forward {
    int64_t bytes;
    const Model *model;
    Floats w, offset_unary, offset_tables, unary, tables;
};

// gradient = Phi^T mu; `tables` is a workspace for the marginals of tables, summed over the factors that share one.
struct Adjoint {
    int64_t bytes;
    const Model *model;
    Floats mu_unary, mu_tables;
    Ints runs;
    Floats tables, gradient;
};

}  // namespace mssvm
