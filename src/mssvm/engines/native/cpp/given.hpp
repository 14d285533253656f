// The record of instances in which every variable has one allowed state.
#pragma once
#include "boundary.hpp"

namespace mssvm {

// Values of instances in which every variable has one allowed state, and their indicators: added to marginals, or
// subtracted from them. Indices have 32 bits where that is enough.
struct GivenCall {
    int64_t bytes;
    Ints instances, variables, factors;  // by instance: its number, and how many variables and factors it has
    Shorts states, entries, places;      // scores of states and of tables, and where their marginals are
    Ints wide_states, wide_entries, wide_places;
    int64_t scores, entries_of_tables, marginals_of_tables;  // sizes that the indices were made for
    Floats unary, tables, value, mu_unary, mu_tables;
    int64_t subtract;
};

}  // namespace mssvm
