// Elimination programs on many instances (values, marginals, maximising states) and on one (mini-bucket bounds).
#include "elimination.hpp"

#include <atomic>

#include "parallel.hpp"

using namespace mssvm;

namespace {

// --- programs ---

void check_pointers(const Ints &pointers, int64_t rows, int64_t end, const char *message) {
    require(pointers.size == rows + 1 && pointers[0] == 0 && pointers[rows] == end, message);
    for (int64_t k = 0; k < rows; ++k) require(pointers[k] <= pointers[k + 1], message);
}

void check_range(const Ints &values, int64_t low, int64_t high, const char *message) {
    for (int64_t value : values) require(value >= low && value < high, message);
}

// Where scores go: slots in the work vector, entries of tables, strides of clamped variables.
void check_scores(const Program &p) {
    int64_t variables = p.clamped.size, factors = p.factor_slot.size;
    require(p.unary_slot.size == variables, "a program needs a slot for every variable.");
    check_range(p.unary_slot, 0, p.n_slots, "a variable's slot lies beyond the slots.");
    require(p.factor_size.size == factors && p.entry_at.size == factors, "a program needs entries of every factor.");
    check_range(p.factor_size, 0, p.n_slots + 1, "a factor is larger than all slots.");
    check_range(p.entry_at, 0, p.entry.size + 1, "a factor's entries lie beyond the list of entries.");
    check_pointers(p.clamp_ptr, factors, p.clamp_var.size, "the clamped variables of factors are counted wrong.");
    require(p.clamp_stride.size == p.clamp_var.size, "a clamped variable needs a stride.");
    check_range(p.clamp_var, 0, variables, "a clamped variable is not there.");
    for (int64_t f = 0; f < factors; ++f) {
        require(p.factor_slot[f] >= 0 && p.factor_slot[f] <= p.n_slots - p.factor_size[f],
                "a factor's slot lies beyond the slots.");
        require(p.entry_at[f] + p.factor_size[f] <= p.entry.size, "a factor's entries lie beyond the list of entries.");
    }
}

// An input of step s, and every row of it that the walk reads.
void check_input(const Program &p, int64_t s, int64_t i, int64_t axes) {
    require(p.stride_ptr[i + 1] - p.stride_ptr[i] == axes, "an input needs a stride for every axis.");
    require(i == p.input_ptr[s] || p.level[i - 1] <= p.level[i], "inputs must be sorted by level.");
    require(p.level[i] >= 0 && p.level[i] <= axes, "an input's level is no axis.");
    require(p.input_at[i] >= 0 && p.input_size[i] >= 0 && p.input_at[i] <= p.n_work - p.input_size[i],
            "an input lies beyond the work vector.");
    int64_t last_row = 0;
    for (int64_t a = 0; a < axes; ++a) {
        int64_t stride = p.stride[p.stride_ptr[i] + a], size = p.axis_size[p.axis_ptr[s] + a];
        require(stride >= 0 && (stride == 0 || a < p.level[i]), "an input's strides do not fit its level.");
        require(size == 1 || stride <= p.n_work / (size - 1), "an input lies beyond its table.");
        last_row += stride * (size - 1);
        require(last_row <= p.n_work, "an input lies beyond its table.");
    }
    require(last_row + p.card[s] <= p.input_size[i], "an input lies beyond its table.");
    require(p.level[i] < axes || axes == 0 || p.stride[p.stride_ptr[i] + axes - 1] == p.card[s],
            "rows of an innermost input must be contiguous.");
}

// The shift of a step, if it has one, is one of its inputs.
void check_shift(const Program &p, int64_t s) {
    if (p.shift_at[s] == -1) return;
    bool found = false;
    for (int64_t i = p.input_ptr[s]; i < p.input_ptr[s + 1]; ++i)
        found = found || (p.input_at[i] == p.shift_at[s] && p.input_size[i] == p.shift_size[s]);
    require(found, "a shift is no input of its step.");
}

// Every place in the work vector that a step reads or writes is inside it.
void check(const Program &p) {
    int64_t variables = p.clamped.size, steps = p.steps(), inputs = p.inputs();
    require(p.n_slots >= 1 && p.n_work >= p.n_slots, "a program needs a constant, slots and messages in this order.");
    check_scores(p);
    require(p.position_ptr.size >= 1, "a program needs pointers of its positions.");
    check_pointers(p.position_ptr, p.positions(), steps, "the steps of positions are counted wrong.");
    require(p.card.size == steps && p.output.size == steps && p.shift_at.size == steps && p.shift_size.size == steps &&
                p.message_at.size == steps && p.message_size.size == steps && p.message_input.size == steps,
            "a program needs a state count, a role, a shift and a message for every step.");
    check_range(p.var, 0, variables, "a step eliminates no variable.");
    require(p.max_card >= 1 && p.max_card <= p.n_work, "the greatest number of states is not one of a table.");
    check_range(p.card, 1, p.max_card + 1, "a step has more states than the program says, or none.");
    check_range(p.message_input, -1, inputs, "a message goes to no input.");
    check_pointers(p.separator_ptr, steps, p.separator.size, "the separators of steps are counted wrong.");
    require(p.separator_stride.size == p.separator.size, "a separator's variable needs a stride.");
    check_range(p.separator, 0, variables, "a separator's variable is not there.");
    check_pointers(p.axis_ptr, steps, p.axis_size.size, "the axes of steps are counted wrong.");
    check_pointers(p.input_ptr, steps, inputs, "the inputs of steps are counted wrong.");
    require(p.input_at.size == inputs && p.input_size.size == inputs, "an input needs a place and a size.");
    check_pointers(p.stride_ptr, inputs, p.stride.size, "the strides of inputs are counted wrong.");
    for (int64_t s = 0; s < steps; ++s) {
        int64_t axes = p.axis_ptr[s + 1] - p.axis_ptr[s], first = p.input_ptr[s], last = p.input_ptr[s + 1];
        require(axes <= p.max_axes && last - first <= p.max_inputs,
                "a step has more axes or inputs than the program says.");
        require(last > first && p.level[last - 1] == axes, "a step has no input with its innermost axis.");
        check_shift(p, s);
        int64_t positions = 1;
        for (int64_t a = p.axis_ptr[s]; a < p.axis_ptr[s + 1]; ++a) {
            require(p.axis_size[a] >= 1 && p.axis_size[a] <= p.n_work / positions,
                    "an axis is empty, or longer than a table.");
            positions *= p.axis_size[a];
        }
        require(positions == p.message_size[s], "a message has another size than the axes of its step.");
        require(p.message_at[s] >= 0 && p.message_at[s] <= p.n_work - positions,
                "a message lies beyond the work vector.");
        for (int64_t i = first; i < last; ++i) check_input(p, s, i, axes);
    }
    for (int64_t position = 0; position < p.positions(); ++position) {
        int64_t first = p.position_ptr[position], last = p.position_ptr[position + 1];
        require(last > first, "a position has no step.");
        for (int64_t s = first; s < last; ++s) {
            require(p.card[s] == p.card[first] && p.var[s] == p.var[first],
                    "the steps of a position differ in variables.");
            require(last == first + 1 || p.shift_at[s] >= 0, "a split variable needs a shift in every step.");
            require(p.shift_size[s] == p.shift_size[first], "the shifts of a variable differ in size.");
        }
    }
}

// --- many instances ---

// A program, the temperature of each of its steps, and the instances that it is run on.
struct Job {
    int64_t bytes;
    const Program *program;
    Floats temperature;
    Ints instances;
    double max_spread;
};

// The arrays of one call. Without `marginals` only values are written; with `decode` the maximising states too.
struct Call {
    int64_t bytes;
    const Instances *instances;
    int64_t marginals, decode;
    Floats unary, tables, value, mu_unary, mu_tables;
    Ints states;
};

void check(const Call &c, const Job &job) {
    const Instances &in = nested(c.instances);
    const Program &p = nested(job.program);
    int64_t count = in.var_ptr.size - 1, variables = in.unary_ptr.size - 1;
    require(count >= 0 && in.factor_ptr.size == count + 1 && in.var_ptr[count] == variables,
            "a batch needs pointers of variables and factors for every instance.");
    require(in.table_at.size == in.factor_ptr[count] && in.mu_at.size == in.factor_ptr[count],
            "a batch needs a table for every factor.");
    require(in.first.size == variables && in.allowed.size == in.unary_ptr[variables] && c.unary.size == in.allowed.size,
            "scores and masks have another number of states than the batch.");
    check_range(in.table_at, 0, c.tables.size + 1, "a factor's table lies beyond the tables.");
    if (c.marginals) check_range(in.mu_at, 0, c.mu_tables.size + 1, "a factor's marginals lie beyond the marginals.");
    require(c.value.size == count, "a call needs a value for every instance.");
    require(!c.marginals || c.mu_unary.size == c.unary.size, "marginals have another number of states than the batch.");
    require(!c.decode || c.states.size == variables, "a call needs a state for every variable.");
    require(job.temperature.size == p.steps(), "a program needs a temperature for every step.");
    for (double eps : job.temperature) require(eps >= 0.0 && eps < INF, "a temperature is negative or not finite.");
    for (int64_t b : job.instances) {
        require(b >= 0 && b < count, "an instance is not in the batch.");
        require(in.var_ptr[b + 1] - in.var_ptr[b] == p.clamped.size &&
                    in.factor_ptr[b + 1] - in.factor_ptr[b] == p.factor_slot.size,
                "an instance has another number of variables or factors than its program.");
    }
}

// The cursor of a task, and the algebra of every step.
struct Progress {
    int64_t phase;
    Cursor cursor;
    int64_t algebra[1];

    static int64_t ints(const Program &p) { return 3 + p.steps(); }
};
enum Phase : int64_t { FORWARD, REVERSE, DONE };

// Doubles of a task: work vector, its gradient, the inputs' shifts and domains, the value and the highest temperature.
template <class V> int64_t doubles_of(const Program &p, bool marginals) {
    int64_t lanes = Of<V>::lanes;
    return 8 + lanes * (p.n_work * (marginals ? 2 : 1) + p.inputs() + 1) + p.inputs() + 1;
}

// Runs instances first .. first + count of a job, one per lane, from where `ints` says; returns whether they are done.
template <class V>
bool advance(const Call &c, const Job &job, int64_t first, int64_t count, double *doubles, int64_t *ints,
             Clock &clock) {
    constexpr int W = Of<V>::lanes;
    const Program &p = *job.program;
    const Instances &in = *c.instances;
    int64_t instance[W];  // lanes beyond `count` repeat the last instance
    for (int i = 0; i < W; ++i) instance[i] = job.instances[first + std::min<int64_t>(i, count - 1)];
    doubles += (8 - reinterpret_cast<uintptr_t>(doubles) / 8 % 8) % 8;
    V *work = reinterpret_cast<V *>(doubles);
    V *grad = work + p.n_work;
    V *shift = c.marginals ? grad + p.n_work : grad;
    V *total = shift + p.inputs();
    double *warmest = reinterpret_cast<double *>(total + 1);
    Progress &progress = *reinterpret_cast<Progress *>(ints);
    Memory<V> memory{work, grad, shift, warmest + 1, progress.algebra, *total, *warmest, progress.cursor};
    Sweep<V> sweep{p, job.temperature.data, job.max_spread, false, memory};
    if (progress.phase == FORWARD) {
        if (progress.cursor.step == 0 && progress.cursor.position == 0)
            load_scores(p, in, instance, c.unary.data, c.tables.data, work);
        if (!sweep.forward(clock)) return false;
        for (int64_t i = 0; i < count; ++i) {
            int64_t v0 = in.var_ptr[instance[i]];
            double value = lane(*total, int(i));
            c.value[instance[i]] = value;
            if (!c.decode) continue;
            int64_t *states = c.states.data + v0;
            for (int64_t v = 0; v < p.clamped.size; ++v) states[v] = p.clamped[v] ? in.first[v0 + v] : -1;
            if (value > -INF) decode_states(p, job.temperature.data, doubles, W, i, states);
        }
        progress.phase = c.marginals ? REVERSE : DONE;
        progress.cursor = {p.steps(), 0};
    }
    if (progress.phase == REVERSE) {
        if (!sweep.reverse(clock)) return false;
        store_marginals(p, in, instance, count, grad, c.mu_unary.data, c.mu_tables.data);
        progress.phase = DONE;
    }
    return true;
}

// Block k has the instances first[k] .. first[k] + count[k] of a job.
struct Blocks {
    int64_t bytes;
    View<const Job *> jobs;
    Ints job, first, count;
};

void check(const Call &c, const Blocks &b) {
    int64_t blocks = b.job.size;
    for (const Job *job : b.jobs) check(c, nested(job));
    require(b.first.size == blocks && b.count.size == blocks, "a block needs a job, a first instance and a count.");
    for (int64_t k = 0; k < blocks; ++k) {
        require(b.job[k] >= 0 && b.job[k] < b.jobs.size, "a block is of no job.");
        require(b.count[k] >= 1 && b.count[k] <= L, "a block has more instances than a vector has lanes, or none.");
        require(b.first[k] >= 0 && b.first[k] + b.count[k] <= b.jobs[b.job[k]]->instances.size,
                "a block lies beyond its job's instances.");
    }
}

// Blocks on the pool's threads.
struct Run {
    int64_t bytes;
    const Call *call;
    const Blocks *blocks;
    int64_t begin, threads;
    double seconds;
};

void run_block(const Call &call, const Blocks &b, int64_t block) {
    thread_local std::vector<double> doubles;
    thread_local std::vector<int64_t> ints;
    const Job &job = *b.jobs[b.job[block]];
    int64_t count = b.count[block];
    const Program &p = *job.program;
    int64_t size = count == 1 ? doubles_of<double>(p, call.marginals) : doubles_of<Vec>(p, call.marginals);
    if (int64_t(doubles.size()) < size) doubles.resize(size);
    ints.assign(Progress::ints(p), 0);
    Clock clock;
    if (count == 1) advance<double>(call, job, b.first[block], 1, doubles.data(), ints.data(), clock);
    else advance<Vec>(call, job, b.first[block], count, doubles.data(), ints.data(), clock);
}

// One block in memory of the caller's, which is not touched between calls.
struct Resume {
    int64_t bytes;
    const Call *call;
    const Job *job;
    int64_t first, count;
    Floats doubles;
    Ints ints;
    double seconds;
};

// --- one instance in log space ---

struct Load {
    int64_t bytes;
    const Program *program;
    const Instances *instances;
    Floats unary, tables, work;
};

struct Bound {
    int64_t bytes;
    const Program *program;
    int64_t match;
    Floats temperature, work, value;
    Ints cursor;
    double seconds;
};

struct Gradient {
    int64_t bytes;
    const Program *program;
    Floats temperature, work, grad, d_temperature;
    Ints cursor;
    double seconds;
};

struct Decode {
    int64_t bytes;
    const Program *program;
    Floats temperature, work;
    Ints states;
};

// A sweep that leaves scores and messages in `work` as they are.
template <class F>
bool on_scores(const Program &p, const Floats &temperature, double *work, double *grad, double &total,
               const Ints &cursor, F run) {
    require(temperature.size == p.steps(), "a program needs a temperature for every step.");
    require(cursor.size == 2 && cursor[0] >= 0 && cursor[0] <= p.steps() && cursor[1] >= 0, "a cursor is no place.");
    std::vector<int64_t> algebra(p.steps());
    for (int64_t s = 0; s < p.steps(); ++s) algebra[s] = temperature[s] > 0.0 ? LOG : MAX;
    double warmest = 0.0;
    Cursor &place = *reinterpret_cast<Cursor *>(cursor.data);
    Memory<double> memory{work, grad, nullptr, nullptr, algebra.data(), total, warmest, place};
    Sweep<double> sweep{p, temperature.data, 0.0, true, memory};
    return run(sweep);
}

// Inner product of a table with its gradient; what is impossible has weight zero.
double product(const Floats &grad, const Floats &work, int64_t at, int64_t size) {
    double total = 0.0;
    for (int64_t k = at; k < at + size; ++k)
        if (grad[k] != 0.0) total += grad[k] * work[k];
    return total;
}

}  // namespace

// Checks every index of a program once, so that sweeps need not.
MSSVM_API mssvm_elimination_check(const Program *program) {
    return guarded(program, [](const Program &p) -> int64_t {
        check(p);
        return 0;
    });
}

// Runs blocks from `begin` on for about `seconds`; returns the first block that is still to do.
MSSVM_API mssvm_elimination_run(const Run *call) {
    return guarded(call, [](const Run &r) -> int64_t {
        const Call &call = nested(r.call);
        const Blocks &blocks = nested(r.blocks);
        int64_t end = blocks.job.size;
        require(r.begin >= 0 && r.begin <= end, "there is no such block.");
        if (r.begin == 0) check(call, blocks);
        Clock clock(r.seconds);
        std::atomic<int64_t> undone{end};
        parallel_for(end - r.begin, int(r.threads), [&](int64_t k) {
            if (k == 0 || !clock.late()) return run_block(call, blocks, r.begin + k);
            int64_t lowest = undone;
            while (r.begin + k < lowest && !undone.compare_exchange_weak(lowest, r.begin + k)) {}
        });
        return undone;
    });
}

// Runs one block for about `seconds`, from where `ints` says (zeros: from the beginning); returns 1 when it is done.
MSSVM_API mssvm_elimination_resume(const Resume *call) {
    return guarded(call, [](const Resume &r) -> int64_t {
        const Call &call = nested(r.call);
        const Job &job = nested(r.job);
        const Program &p = nested(job.program);
        bool one = r.count == 1;
        require(r.count >= 1 && r.count <= L && r.first >= 0 && r.first + r.count <= job.instances.size,
                "a block lies beyond its job's instances or a vector's lanes.");
        int64_t size = one ? doubles_of<double>(p, call.marginals) : doubles_of<Vec>(p, call.marginals);
        require(r.doubles.size >= size && r.ints.size == Progress::ints(p), "a block needs more memory.");
        if (std::all_of(r.ints.begin(), r.ints.end(), [](int64_t x) { return x == 0; })) check(call, job);
        const Progress &progress = *reinterpret_cast<const Progress *>(r.ints.data);
        require(progress.phase >= FORWARD && progress.phase <= DONE && progress.cursor.step >= 0 &&
                    progress.cursor.step <= p.steps() && progress.cursor.position >= 0,
                "a cursor is no place.");
        Clock clock(r.seconds);
        if (one) return advance<double>(call, job, r.first, 1, r.doubles.data, r.ints.data, clock);
        return advance<Vec>(call, job, r.first, r.count, r.doubles.data, r.ints.data, clock);
    });
}

// Copies the scores of instance 0 into the slots of a work vector; its shifts stay.
MSSVM_API mssvm_elimination_load(const Load *call) {
    return guarded(call, [](const Load &c) -> int64_t {
        const Program &p = nested(c.program);
        const Instances &in = nested(c.instances);
        require(c.work.size == p.n_work, "the work vector has another size than the program's.");
        require(in.var_ptr.size == 2 && in.factor_ptr.size == 2 && in.var_ptr[1] == p.clamped.size &&
                    in.factor_ptr[1] == p.factor_slot.size && in.table_at.size == p.factor_slot.size,
                "the batch must be one instance of the program's topology.");
        require(in.first.size == p.clamped.size && in.unary_ptr.size == p.clamped.size + 1 &&
                    in.allowed.size == c.unary.size && in.unary_ptr[p.clamped.size] == c.unary.size,
                "scores and masks have another number of states than the instance.");
        int64_t instance = 0;
        load_scores(p, in, &instance, c.unary.data, c.tables.data, c.work.data);
        return 0;
    });
}

// The value of a loaded instance; `work` gets its messages, and with `match` better shifts. From the cursor (zeros: the
// beginning) for about `seconds`; returns 1 when it is done.
MSSVM_API mssvm_elimination_bound(const Bound *call) {
    return guarded(call, [](const Bound &c) -> int64_t {
        const Program &p = nested(c.program);
        require(c.work.size == p.n_work && c.value.size == 1, "the work vector has another size than the program's.");
        Clock clock(c.seconds);
        return on_scores(p, c.temperature, c.work.data, nullptr, c.value[0], c.cursor,
                         [&](Sweep<double> &sweep) { return sweep.forward(clock, c.match); });
    });
}

// After `bound`: the derivatives of a feasible instance's value in `work` and in the steps' temperatures, from the
// cursor (steps, 0) on; returns 1 when it is done.
//
// d PS_eps(x) / d eps = (PS_eps(x) - E[x]) / eps; every table is an input of one step: its gradient holds the weights.
MSSVM_API mssvm_elimination_gradient(const Gradient *call) {
    return guarded(call, [](const Gradient &c) -> int64_t {
        const Program &p = nested(c.program);
        require(c.work.size == p.n_work && c.grad.size == p.n_work && c.d_temperature.size == p.steps(),
                "the work vector and its gradient have another size than the program's.");
        Clock clock(c.seconds);
        double feasible = 0.0;
        bool done = on_scores(p, c.temperature, c.work.data, c.grad.data, feasible, c.cursor,
                              [&](Sweep<double> &sweep) { return sweep.reverse(clock); });
        if (!done) return 0;
        for (int64_t s = 0; s < p.steps(); ++s) {
            double total = product(c.grad, c.work, p.message_at[s], p.message_size[s]);
            for (int64_t i = p.input_ptr[s]; i < p.input_ptr[s + 1]; ++i)
                total -= product(c.grad, c.work, p.input_at[i], p.input_size[i]);
            c.d_temperature[s] = c.temperature[s] > 0.0 ? total / c.temperature[s] : 0.0;
        }
        return 1;
    });
}

// After `bound`: the maximisers of the variables at temperature zero.
MSSVM_API mssvm_elimination_decode(const Decode *call) {
    return guarded(call, [](const Decode &c) -> int64_t {
        const Program &p = nested(c.program);
        require(c.work.size == p.n_work && c.temperature.size == p.steps() && c.states.size == p.clamped.size,
                "a work vector, temperatures or states have another size than the program's.");
        decode_states(p, c.temperature.data, c.work.data, 1, 0, c.states.data);
        return 0;
    });
}
