// Linear models on forests from weights to values and a gradient, in one call:
//
//     theta = Phi w        mu = mu+ - mu-: forests of both sides, or given states as side 1        gradient = Phi^T mu
//
// The records of these steps are prepared by the caller; weights, results and workspace are filled in here.
#include "given.hpp"
#include "layout.hpp"
#include "linear.hpp"

using namespace mssvm;

MSSVM_API mssvm_features_forward(const Forward *call);
MSSVM_API mssvm_features_adjoint(const Adjoint *call);
MSSVM_API mssvm_forests(ForestCall *record);
MSSVM_API mssvm_given_states(const GivenCall *record);

namespace {

struct Joined {
    int64_t bytes;
    const Forward *forward;
    const ForestCall *forests;
    const GivenCall *given;  // null if there are none
    const Adjoint *adjoint;
    Floats w;
    Floats value;      // (side, instance)
    Floats gradient;   // one number per weight
    Floats workspace;  // reused by the next call: scores, marginals, and tables of the adjoint
    int64_t threads;
    int64_t side, task;  // written by a call: where the forests continue
};

// Runs the steps, beginning with the forests' task; returns as `mssvm_forests` does, or the error of a step.
int64_t join(Joined &c) {
    Forward forward = nested(c.forward);
    ForestCall forests = nested(c.forests);
    Adjoint adjoint = nested(c.adjoint);
    const Model &m = nested(forward.model);
    require(c.value.size % 2 == 0, "values have two sides.");
    require(m.states >= 0 && m.entries >= 0, "a model has a negative size.");
    require(m.states <= c.workspace.size / 2 && m.entries <= c.workspace.size / 2, "the workspace is too small.");
    const int64_t instances = c.value.size / 2, entries = c.workspace.size - 2 * m.states - 2 * m.entries;
    require(entries >= 0, "the workspace is too small.");
    Floats left = c.workspace;
    auto take = [&left](int64_t size) {
        Floats part = left.part(0, size);
        left = left.part(size, left.size - size);
        return part;
    };
    Floats unary = take(m.states), tables = take(m.entries), mu_unary = take(m.states), mu_tables = take(entries);

    if (c.side == 0 && c.task == 0) {
        forward.w = c.w;
        forward.unary = unary;
        forward.tables = tables;
        if (int64_t code = mssvm_features_forward(&forward)) return code;
    }
    forests.unary = unary;
    forests.tables = tables;
    forests.value = c.value.part(0, instances);
    forests.minus = c.value.part(instances, instances);
    forests.mu_unary = mu_unary;
    forests.mu_tables = mu_tables;
    forests.threads = c.threads;
    forests.side = c.side;
    forests.task = c.task;
    int64_t outcome = mssvm_forests(&forests);
    c.side = forests.side;
    c.task = forests.task;
    if (outcome) return outcome;

    if (c.given) {
        GivenCall given = nested(c.given);
        given.unary = unary;
        given.tables = tables;
        given.value = forests.minus;
        given.mu_unary = mu_unary;
        given.mu_tables = mu_tables;
        if (int64_t code = mssvm_given_states(&given)) return code;
    }
    adjoint.mu_unary = mu_unary;
    adjoint.mu_tables = mu_tables;
    adjoint.tables = take(m.entries);
    adjoint.gradient = c.gradient;
    return mssvm_features_adjoint(&adjoint);
}

}  // namespace

// Values of both sides and the gradient of their difference; returns as `mssvm_forests` does.
MSSVM_API mssvm_joined(Joined *record) { return guarded(record, join); }
