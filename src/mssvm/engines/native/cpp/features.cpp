// Linear models: scores from weights, and gradients from marginals.
#include "features.hpp"

using namespace mssvm;

namespace {

// Every place that a term reads or writes is inside its array.
void check(const Term &t, const Model &m) {
    require(t.bytes == int64_t(sizeof(Term)), "a term has another size: Python files and library differ.");
    require(t.layout >= CONSTANT && t.layout <= SPARSE, "a term has an unknown layout.");
    require(t.rows >= 0 && t.features >= 0 && t.width >= 0, "a term has a negative size.");
    int64_t at = t.at.wide.size + t.at.narrow.size;
    require(at == t.rows, "a term needs one target for every row.");
    require(t.rows == 0 || t.block.size >= (t.one_block ? 1 : t.rows),
            "a term needs a block of weights for every row.");
    require(t.layout != DENSE || t.x.size == t.rows * t.features, "a dense term needs rows times features numbers.");
    int64_t size = t.on_unary ? m.states : m.entries, highest = -1, last_block = -1;
    for (int64_t to : t.at.wide) highest = std::max(highest, to);
    for (int32_t to : t.at.narrow) highest = std::max<int64_t>(highest, to);
    require(highest < 0 || highest + t.width <= size, "a term's target lies beyond the scores.");
    for (int64_t block : t.block) {
        require(block >= 0, "a block of weights has a negative place.");
        last_block = std::max(last_block, block);
    }
    int64_t per_block = t.active_first.empty() ? t.features * t.width : t.active_states.size;
    require(t.rows == 0 || last_block + per_block <= m.weights, "a block of weights lies beyond the weights.");
    if (t.layout != SPARSE) return;
    require(t.indptr.wide.size + t.indptr.narrow.size == t.rows + 1, "compressed rows need rows + 1 pointers.");
    require(t.indices.wide.size + t.indices.narrow.size == t.x.size, "compressed rows need an index for every number.");
    require(t.indices.wide.empty() == t.indptr.wide.empty() || t.x.empty(), "indices and pointers need one type.");
    require(t.active_first.empty() || t.active_first.size == t.features + 1,
            "active states need features + 1 pointers.");
    for (int64_t j : t.indices.wide) require(j >= 0 && j < t.features, "a compressed index is no feature.");
    for (int32_t j : t.indices.narrow) require(j >= 0 && j < t.features, "a compressed index is no feature.");
}

void begin_with(const Floats &offset, const Floats &out) {
    if (offset.empty()) std::fill(out.begin(), out.end(), 0.0);
    else std::copy(offset.begin(), offset.end(), out.begin());
}

}  // namespace

// Checks every index of a model once, so that the passes need not.
MSSVM_API mssvm_features_check(const Model *model) {
    return guarded(model, [](const Model &m) -> int64_t {
        for (const Term *term : m.terms) check(nested(term), m);
        return 0;
    });
}

MSSVM_API mssvm_features_forward(const Forward *call) {
    return guarded(call, [](const Forward &c) -> int64_t {
        const Model &m = nested(c.model);
        require(c.w.size == m.weights, "w has another number of weights than the model.");
        require(c.unary.size == m.states && c.tables.size == m.entries, "theta has another size than the batch.");
        require(c.offset_unary.empty() || c.offset_unary.size == m.states,
                "the offset has another size than the batch.");
        require(c.offset_tables.empty() || c.offset_tables.size == m.entries,
                "the offset has another size than the batch.");
        begin_with(c.offset_unary, c.unary);
        begin_with(c.offset_tables, c.tables);
        for (const Term *term : m.terms)
            add_term<false>(*term, m.packed_from, c.w.data, term->on_unary ? c.unary.data : c.tables.data);
        return 0;
    });
}

MSSVM_API mssvm_features_adjoint(const Adjoint *call) {
    return guarded(call, [](const Adjoint &c) -> int64_t {
        const Model &m = nested(c.model);
        require(c.gradient.size == m.weights, "the gradient has another number of weights than the model.");
        require(c.mu_unary.size == m.states && c.tables.size == m.entries, "mu has another size than the batch.");
        std::fill(c.gradient.begin(), c.gradient.end(), 0.0);
        std::fill(c.tables.begin(), c.tables.end(), 0.0);
        const TiedRun *runs = reinterpret_cast<const TiedRun *>(c.runs.data);
        for (int64_t k = 0; k < c.runs.size / 3; ++k) {
            TiedRun run = runs[k];
            bool inside = run.from >= 0 && run.from + run.length <= c.mu_tables.size;
            inside = inside && run.to >= 0 && run.to + run.length <= m.entries;
            require(inside, "a run of marginals lies beyond its arrays.");
            for (int64_t j = 0; j < run.length; ++j) c.tables[run.to + j] += c.mu_tables[run.from + j];
        }
        for (const Term *term : m.terms)
            add_term<true>(*term, m.packed_from, c.gradient.data, term->on_unary ? c.mu_unary.data : c.tables.data);
        return 0;
    });
}
