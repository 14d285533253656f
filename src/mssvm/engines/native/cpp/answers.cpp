// Sweeps and readings of one or two bounds in one call: the tasks of both sides of training share the threads, and
// never wait for each other.
#include "trws_tasks.hpp"

using namespace mssvm;

namespace {

struct ChainAnswer {
    int64_t bytes;
    const ChainCall *call;  // its `value` is the bound after the last sweep; marginals are read if it has residuals
    Floats before;          // the bound before the last of several sweeps
    int64_t nested;         // at two temperatures
};

struct AnswersCall {
    int64_t bytes;
    const ChainAnswer *first;
    const ChainAnswer *second;  // or null
    int64_t threads;
};

void run_share(const ChainAnswer &answer, Share &share, Vec *buffer) {
    auto sweep = answer.nested ? sweep_nested_share : sweep_share;
    ChainCall call = *answer.call;
    if (call.sweeps > 1) {
        ChainCall earlier = call;
        earlier.sweeps = call.sweeps - 1;
        earlier.value = answer.before;
        sweep(earlier, share, buffer);
        call.ready = 1;
    }
    call.sweeps = 1;
    sweep(call, share, buffer);
    if (!call.residual.empty()) (answer.nested ? read_nested_share : read_share)(call, share, buffer);
}

TaskWork work_of(const ChainAnswer &answer) {
    const ChainCall &c = nested(answer.call);
    if (answer.nested) check_nested(c);
    else check(c);
    require(c.sweeps >= 1, "an answer needs a sweep.");
    require(c.residual.empty() || c.eps > 0, "marginals at eps_y = 0 are not read.");
    require(c.sweeps == 1 || answer.before.size == c.value.size, "there are two bounds of every instance.");
    const ChainLayout &a = *c.layout;
    // At two temperatures a message has several rows, and each of its numbers is computed from a row of another
    // message.
    double work = double(c.messages.size) * double(answer.nested ? a.widest : 1);
    return {&c, answer.nested ? nested_vectors(a) : chain_vectors(a), work / double(std::max<int64_t>(1, a.bands.size)),
            [&answer](Share &share, Vec *buffer) { run_share(answer, share, buffer); }};
}

}  // namespace

MSSVM_API mssvm_chain_answers(const AnswersCall *call) {
    return guarded(call, [](const AnswersCall &c) -> int64_t {
        require(c.threads >= 1 && c.threads <= 4096, "threads are out of range.");
        std::vector<TaskWork> works{work_of(nested(c.first))};
        if (c.second != nullptr) works.push_back(work_of(nested(c.second)));
        run_tasks(std::move(works), c.threads);
        return 0;
    });
}
