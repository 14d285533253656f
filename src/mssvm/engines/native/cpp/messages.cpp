// Belief propagation, as Python calls it: potentials, the start of messages, sweeps, and beliefs.
#include "messages.hpp"

#include "graphs.hpp"
#include "scores.hpp"

using namespace mssvm;

namespace {

constexpr int64_t MOST_AT_A_TIME = 8;  // instances in one block of work on single ones

template <class Work> void each_instance(const Ints &instances, int64_t threads, const Work &work) {
    int64_t fair = (instances.size + threads - 1) / std::max<int64_t>(1, threads);
    int64_t at_a_time = std::clamp<int64_t>(fair, 1, MOST_AT_A_TIME);
    int64_t blocks = (instances.size + at_a_time - 1) / at_a_time;
    parallel_for(blocks, int(threads), [&](int64_t block) {
        int64_t end = std::min(instances.size, (block + 1) * at_a_time);
        for (int64_t k = block * at_a_time; k < end; ++k) work(instances[k]);
    });
}

// --- potentials ---

// In place, exp(x).
void exponentiate(double *x, int64_t n) {
    int64_t e = 0;
    for (; e + L <= n; e += L) *(Unaligned *)(x + e) = mssvm::exp(Vec(*(const Unaligned *)(x + e)));
    for (; e < n; ++e) x[e] = mssvm::exp(x[e]);
}

// Largest and smallest entries of tables that begin at `starts`; with `out`, exp((table - top) / unit), one table after
// the other from `at` on.
struct TableCall {
    int64_t bytes;
    Floats tables;
    Ints starts, sizes, at;
    double unit;
    Floats top, low, out;
    int64_t threads;
};

constexpr int64_t TABLES_AT_A_TIME = 64;

void find_ends(const TableCall &call, int64_t k) {
    const double *table = call.tables.data + call.starts[k];
    double top = -INF, low = INF;
    for (int64_t e = 0; e < call.sizes[k]; ++e) {
        top = table[e] > top ? table[e] : top;
        low = table[e] < low ? table[e] : low;
    }
    call.top[k] = top;
    call.low[k] = low;
}

void exponentiate(const TableCall &call, int64_t k) {
    const double *table = call.tables.data + call.starts[k];
    double *out = call.out.data + call.at[k], top = call.top[k], scale = 1.0 / call.unit;
    for (int64_t e = 0; e < call.sizes[k]; ++e) out[e] = (table[e] - top) * scale;
    exponentiate(out, call.sizes[k]);
}

// Scores of states with -inf at those that are not allowed; `noisy`, unless it is empty, with tie-breaking noise. For
// every instance, the largest range of the scores that meet at a variable, and of a table.
struct ScoreCall {
    int64_t bytes;
    const Wiring *wiring;
    Floats scores, noise;
    Bytes8 allowed;
    double noise_scale;
    Floats table_top, table_low, unary, noisy, range, widest_table;
    int64_t threads;
};

void measure(const ScoreCall &call, int64_t b) {
    const Wiring &w = *call.wiring;
    double most = 0.0, widest = 0.0;
    for (int64_t i = w.var_ptr[b]; i < w.var_ptr[b + 1]; ++i) {
        double top = -INF, low = INF;
        for (int64_t e = w.state_ptr[i]; e < w.state_ptr[i + 1]; ++e) {
            double v = call.allowed[e] ? call.scores[e] : -INF;
            call.unary[e] = v;
            top = v > top ? v : top;
            low = v < low && v > -INF ? v : low;
            if (call.noisy.empty()) continue;
            double size = v == -INF ? 0.0 : std::abs(v);
            call.noisy[e] = v + call.noise_scale * call.noise[e] * (1.0 + size);
        }
        double around = top - low;
        for (int64_t k = w.near_ptr[i]; k < w.near_ptr[i + 1]; ++k) {
            int64_t t = w.table_of[w.slot_factor[w.near[k]]];
            double spread = call.table_top[t] - call.table_low[t];
            around += spread;
            widest = spread <= widest ? widest : spread;
        }
        if (std::isnan(around) || top == -INF) around = INF;
        most = around <= most ? most : around;
    }
    call.range[b] = most;
    call.widest_table[b] = widest;
}

// --- runs ---

struct StartCall {
    int64_t bytes;
    const Wiring *wiring;
    const RunArrays *run;
    Ints instances;
    Floats given;  // log-messages; uniform ones if empty
    int64_t threads;
};

// exp((score - top) / unit) of all states.
void exponentiate_scores(const StartCall &call, int64_t b) {
    const Wiring &w = *call.wiring;
    const RunArrays &run = *call.run;
    double scale = 1.0 / run.unit;
    for (int64_t i = w.var_ptr[b]; i < w.var_ptr[b + 1]; ++i) {
        double top = top_of(w, run, i);
        for (int64_t x = 0; x < w.card(i); ++x) {
            double score = score_of(w, run, i, x);
            run.potential[w.state_ptr[i] + x] = score == -INF ? -INF : (score - top) * scale;
        }
    }
    exponentiate(run.potential.data + w.first_state(b), w.end_state(b) - w.first_state(b));
}

// The entry of a factor's table with the variable of slot s in state 0 and the others as they are held, and the stride
// of that variable; -1 where another one is not held.
struct Slice {
    int64_t entry, stride;
};
Slice held_slice(const Wiring &w, const RunArrays &run, int64_t f, int64_t s) {
    Slice out{0, 0};
    int64_t stride = 1;
    for (int64_t t = w.scope_ptr[f + 1] - 1; t >= w.scope_ptr[f]; --t) {
        int64_t i = w.scope[t];
        if (t == s) out.stride = stride;
        else if (!run.is_held(i)) return {-1, 0};
        else out.entry += stride * run.held_at[i];
        stride *= w.slot_card(t);
    }
    return out;
}

// Messages of held variables never change: they are computed here, and sweeps of probabilities skip them.
void tell_held(const StartCall &call, int64_t b) {
    const Wiring &w = *call.wiring;
    const RunArrays &run = *call.run;
    for (int64_t f = w.factor_ptr[b]; f < w.factor_ptr[b + 1]; ++f) {
        if (!settled(w, run, f)) continue;
        for (int64_t s = w.scope_ptr[f]; s < w.scope_ptr[f + 1]; ++s) {
            Slice at = held_slice(w, run, f, s);
            if (at.entry < 0) continue;
            double *message = run.messages.data + w.message_at[s];
            const double *table = run.scaled_tables.data + w.scaled_at[f] + at.entry;
            double total = 0.0;
            for (int64_t x = 0; x < w.slot_card(s); ++x) total += table[x * at.stride];
            for (int64_t x = 0; x < w.slot_card(s); ++x) message[x] = table[x * at.stride] / total;
        }
    }
}

void start(const StartCall &call, int64_t b) {
    const Wiring &w = *call.wiring;
    const RunArrays &run = *call.run;
    run.sweeps[b] = 0;
    run.residual[b] = INF;
    run.measuring[b] = 0;
    run.scaled[b] = run.eligible[b];
    for (int64_t s = w.first_slot(b); run.scaled[b] && s < w.end_slot(b); ++s) {
        int64_t at = w.message_at[s], card = w.slot_card(s);
        if (call.given.empty()) {
            std::fill_n(run.messages.data + at, card, 1.0 / double(card));
            continue;
        }
        double top = -INF, total = 0.0;
        for (int64_t x = 0; x < card; ++x) top = std::max(top, call.given[at + x]);
        for (int64_t x = 0; x < card; ++x) run.messages[at + x] = (call.given[at + x] - top) / run.unit;
        exponentiate(run.messages.data + at, card);
        for (int64_t x = 0; x < card; ++x) total += run.messages[at + x];
        for (int64_t x = 0; x < card; ++x) {
            run.messages[at + x] /= total;
            if (!(run.messages[at + x] >= TRUSTED)) run.scaled[b] = 0;
        }
    }
    if (run.scaled[b]) {
        exponentiate_scores(call, b);
        if (!run.held.empty()) tell_held(call, b);
        return;
    }
    for (int64_t e = w.first_message(b); e < w.end_message(b); ++e)
        run.messages[e] = call.given.empty() ? 0.0 : call.given[e];
}

struct AdvanceCall {
    int64_t bytes;
    const Wiring *wiring;
    const RunArrays *run;
    Ints instances, until;
    Bytes8 outputs;
    double eps_y, eps_h, damping, tolerance;
    int64_t flooding, scalable;  // whether probabilities can be used at these temperatures
    int64_t threads;

    Sweeping sweeping() const {
        return {
            .outputs = outputs,
            .eps_y = eps_y,
            .eps_h = eps_h,
            .unit = run->unit,
            .damping = damping,
            .tolerance = tolerance,
            .flooding = flooding != 0,
            .until = until,
            .weak = run->weak,
            .tables = run->tables,
            .scaled_tables = run->scaled_tables,
        };
    }
};

// Threads keep their workspaces: allocating memory takes longer than some sweeps.
Probabilities<Vec> &side_by_side() {
    thread_local Probabilities<Vec> state;
    return state;
}
Probabilities<double> &one_at_a_time() {
    thread_local Probabilities<double> state;
    return state;
}
Waves &in_waves() {
    thread_local Waves state;
    return state;
}
Scores &in_scores() {
    thread_local Scores state;
    return state;
}

// Turns the messages of an instance from probabilities into scores.
void to_scores(const Wiring &w, const RunArrays &run, int64_t b) {
    Probabilities<double>::messages_to_scores(w, run, run.unit, b);
    run.scaled[b] = 0;
}

// Largest number of instances of a family per thread that are swept one by one, in waves where possible: side by side
// they would not fill the lanes.
constexpr int MOST_IN_WAVES = L / 2;

int64_t count_families(const Wiring &w) {
    int64_t most = -1;
    for (int64_t family : w.family_of) most = std::max(most, family);
    return most + 1;
}

// The instances of a call, by the way in which they run. Without `scalable`, messages of all are turned into scores.
struct Queues {
    std::vector<Queue> families;  // probabilities side by side
    Queue single;                 // probabilities of one instance at a time
    Queue scores;

    Queues(const Wiring &w, const RunArrays &run, const Ints &instances, bool scalable, int64_t threads)
        : families(count_families(w)) {
        for (int64_t b : instances) {
            if (run.scaled[b] && !scalable) to_scores(w, run, b);
            if (!run.scaled[b]) scores.instances.push_back(b);
            else if (w.family_of[b] < 0) single.instances.push_back(b);
            else families[w.family_of[b]].instances.push_back(b);
        }
        for (Queue &queue : families) {
            int64_t fair = (int64_t(queue.instances.size()) + threads - 1) / threads;
            queue.share = int(std::min<int64_t>(L, std::max<int64_t>(fair, 1)));
        }
    }
};

int64_t advance(const AdvanceCall &call) {
    const Wiring &w = *call.wiring;
    const RunArrays &run = *call.run;
    Sweeping how = call.sweeping();
    int64_t threads = std::max<int64_t>(1, call.threads);
    Queues queues(w, run, call.instances, call.scalable, threads);
    std::shared_ptr<Graphs> graphs = plans().graphs(w);
    Deadline end(SLICE);
    parallel_for(std::min(threads, call.instances.size), int(threads), [&](int64_t) {
        auto sweep_one_by_one = [&](Queue &queue) {
            for (int64_t b; !end.passed() && queue.take(b);) {
                Queue one;
                one.instances.push_back(b);
                if (const Grid *grid = graphs->grid(w, b)) {
                    in_waves().prepare(w, *grid, run, how);
                    sweep_all(in_waves(), run, how, one, end);
                } else {
                    one_at_a_time().prepare(w, graphs->graph(w, b), run, how);
                    sweep_all(one_at_a_time(), run, how, one, end);
                }
            }
        };
        for (Queue &queue : queues.families) {
            if (queue.instances.empty()) continue;
            int64_t b = queue.instances[0];
            if (queue.share <= MOST_IN_WAVES && graphs->grid(w, b)) {
                sweep_one_by_one(queue);
                continue;
            }
            side_by_side().prepare(w, graphs->graph(w, b), run, how);
            sweep_all(side_by_side(), run, how, queue, end);
        }
        sweep_one_by_one(queues.single);
        if (queues.scores.instances.empty() || end.passed()) return;
        in_scores().prepare(w, run, how);
        sweep_all(in_scores(), run, how, queues.scores, end);
    });
    return 0;
}

struct ForgetCall {
    int64_t bytes;
    int64_t plan;
};

struct WaveCall {
    int64_t bytes;
    const Wiring *wiring;
    Bytes8 out;  // by instance: whether a thread that has few instances of its family sweeps it in waves
};

// --- beliefs ---

struct BeliefCall {
    int64_t bytes;
    const Wiring *wiring;
    const RunArrays *run;
    Ints instances;
    Bytes8 outputs;
    Floats table_tops;
    double eps_y, eps_h;
    int64_t scalable;
    Floats value, mu_unary, mu_tables;
    int64_t threads;
};

void beliefs(const BeliefCall &call) {
    const Wiring &w = *call.wiring;
    const RunArrays &run = *call.run;
    Sweeping how{
        .outputs = call.outputs,
        .eps_y = call.eps_y,
        .eps_h = call.eps_h,
        .unit = run.unit,
        .damping = 0.0,
        .tolerance = 0.0,
        .flooding = false,
        .until = {},
        .weak = {},
        .tables = run.tables,
        .scaled_tables = run.scaled_tables,
    };
    BeliefArrays out{call.value, call.mu_unary, call.mu_tables, call.table_tops};
    int64_t threads = std::max<int64_t>(1, call.threads);
    Queues queues(w, run, call.instances, call.scalable, threads);
    std::shared_ptr<Graphs> graphs = plans().graphs(w);
    parallel_for(std::min(threads, call.instances.size), int(threads), [&](int64_t) {
        for (Queue &queue : queues.families) {
            if (queue.instances.empty()) continue;
            Probabilities<Vec> &state = side_by_side();
            state.prepare(w, graphs->graph(w, queue.instances[0]), run, how);
            for (;;) {
                int64_t who[L], count = 0;
                while (count < queue.share && queue.take(who[count])) ++count;
                if (!count) break;
                state.load((1u << count) - 1, who);
                state.beliefs((1u << count) - 1, who, out);
            }
        }
        int64_t b;
        while (queues.single.take(b)) {
            one_at_a_time().prepare(w, graphs->graph(w, b), run, how);
            one_at_a_time().load(1, &b);
            one_at_a_time().beliefs(1, &b, out);
        }
    });
    for (int64_t b : call.instances)
        if (run.scaled[b] && std::isnan(call.value[b])) {
            to_scores(w, run, b);
            queues.scores.instances.push_back(b);
        }
    Ints rest{queues.scores.instances.data(), int64_t(queues.scores.instances.size())};
    each_instance(rest, threads, [&](int64_t b) {
        in_scores().prepare(w, run, how);
        in_scores().load(1, &b);
        in_scores().beliefs(out);
    });
}

struct DecodeCall {
    int64_t bytes;
    const Wiring *wiring;
    const RunArrays *run;
    Ints instances;
    Bytes8 allowed;
    Ints states;
    int64_t threads;
};

// The products of potentials and messages at variable i, or, in scores, their sums in units of the temperature.
void gather_beliefs(const Wiring &w, const RunArrays &run, bool products, double unit, int64_t i, bool scaled,
                    double *out) {
    int64_t at = w.state_ptr[i], card = w.card(i);
    for (int64_t x = 0; x < card; ++x) out[x] = products ? run.potential[at + x] : score_of(w, run, i, x);
    for (int64_t k = w.near_ptr[i]; k < w.near_ptr[i + 1]; ++k) {
        const double *message = run.messages.data + w.message_at[w.near[k]];
        if (products)
            for (int64_t x = 0; x < card; ++x) out[x] *= message[x];
        else
            for (int64_t x = 0; x < card; ++x) out[x] += scaled ? unit * std::log(message[x]) : message[x];
    }
}

// The first allowed state of the largest belief, -1 if none is allowed.
int64_t best_allowed(const double *belief, const uint8_t *allowed, int64_t card) {
    int64_t best = -1;
    for (int64_t x = 0; x < card; ++x)
        if (allowed[x] && (best < 0 || belief[x] > belief[best])) best = x;
    return best;
}

// The first allowed state of the largest belief, by products where these can be trusted.
void decode(const DecodeCall &call, int64_t b) {
    const Wiring &w = *call.wiring;
    const RunArrays &run = *call.run;
    bool scaled = run.scaled[b];
    std::vector<double> belief;
    for (int64_t i = w.var_ptr[b]; i < w.var_ptr[b + 1]; ++i) {
        belief.resize(w.card(i));
        const uint8_t *allowed = call.allowed.data + w.state_ptr[i];
        int64_t &best = call.states[i];
        if (scaled) {
            gather_beliefs(w, run, true, run.unit, i, scaled, belief.data());
            best = best_allowed(belief.data(), allowed, w.card(i));
            if (best >= 0 && belief[best] >= TRUSTED) continue;
        }
        gather_beliefs(w, run, false, run.unit, i, scaled, belief.data());
        best = best_allowed(belief.data(), allowed, w.card(i));
    }
}

struct FieldCall {
    int64_t bytes;
    const Wiring *wiring;
    const RunArrays *run;
    Ints instances;
    Bytes8 outputs, stale;  // `stale`: instances in which messages to held variables were skipped
    Floats out;
    int64_t threads;
};

struct LogCall {
    int64_t bytes;
    const Wiring *wiring;
    const RunArrays *run;
    Ints instances;
    Floats out;
    int64_t threads;
};

void checked(const Wiring *w, const RunArrays *run, const Ints &instances) {
    require(w != nullptr && run != nullptr, "no wiring or no run was given.");
    w->check();
    run->check(*w);
    check_instances(*w, instances);
}

}  // namespace

MSSVM_API mssvm_messages_tables(const TableCall *record) {
    return guarded(record, [](const TableCall &call) -> int64_t {
        int64_t n = call.starts.size;
        require(call.sizes.size == n && call.top.size == n && call.low.size == n, "tables differ in number.");
        require(call.out.empty() || call.at.size == n, "tables differ in number.");
        require(call.out.empty() || call.unit > 0.0, "the temperature must be positive.");
        for (int64_t k = 0; k < n; ++k) {
            require(call.starts[k] >= 0 && call.starts[k] + call.sizes[k] <= call.tables.size,
                    "a table is not in the array.");
            require(call.out.empty() || (call.at[k] >= 0 && call.at[k] + call.sizes[k] <= call.out.size),
                    "a table is not inside the output.");
        }
        parallel_for((n + TABLES_AT_A_TIME - 1) / TABLES_AT_A_TIME, int(call.threads), [&](int64_t block) {
            for (int64_t k = block * TABLES_AT_A_TIME; k < std::min(n, (block + 1) * TABLES_AT_A_TIME); ++k) {
                if (call.out.empty()) find_ends(call, k);
                else exponentiate(call, k);
            }
        });
        return 0;
    });
}

MSSVM_API mssvm_messages_scores(const ScoreCall *record) {
    return guarded(record, [](const ScoreCall &call) -> int64_t {
        require(call.wiring != nullptr, "no wiring was given.");
        const Wiring &w = *call.wiring;
        w.check();
        int64_t n = w.state_ptr[w.state_ptr.size - 1];
        require(call.scores.size == n && call.allowed.size == n && call.unary.size == n, "one score for every state.");
        require(call.noisy.empty() || (call.noisy.size == n && call.noise.size == n), "one number for every state.");
        require(call.range.size == w.instances() && call.widest_table.size == w.instances(), "one range an instance.");
        std::vector<int64_t> every(w.instances());
        for (int64_t b = 0; b < w.instances(); ++b) every[b] = b;
        each_instance({every.data(), w.instances()}, call.threads, [&](int64_t b) { measure(call, b); });
        return 0;
    });
}

MSSVM_API mssvm_messages_start(const StartCall *record) {
    return guarded(record, [](const StartCall &call) -> int64_t {
        checked(call.wiring, call.run, call.instances);
        require(call.given.empty() || call.given.size == call.run->messages.size,
                "given messages have another length.");
        each_instance(call.instances, call.threads, [&](int64_t b) { start(call, b); });
        return 0;
    });
}

MSSVM_API mssvm_messages_advance(const AdvanceCall *record) {
    return guarded(record, [](const AdvanceCall &call) -> int64_t {
        checked(call.wiring, call.run, call.instances);
        require(call.until.size == call.wiring->instances(), "until needs a number for every instance.");
        require(call.outputs.size == call.wiring->state_ptr.size - 1, "outputs need a flag for every variable.");
        require(call.damping >= 0.0 && call.damping < 1.0, "damping must be at least 0 and less than 1.");
        return advance(call);
    });
}

MSSVM_API mssvm_messages_beliefs(const BeliefCall *record) {
    return guarded(record, [](const BeliefCall &call) -> int64_t {
        checked(call.wiring, call.run, call.instances);
        require(call.value.size == call.wiring->instances(), "one value for every instance.");
        require(call.outputs.size == call.wiring->state_ptr.size - 1, "outputs need a flag for every variable.");
        require(call.mu_unary.empty() || call.mu_unary.size == call.run->unary.size, "one marginal for every state.");
        beliefs(call);
        return 0;
    });
}

// Frees the graphs that are cached for a plan.
MSSVM_API mssvm_messages_forget(const ForgetCall *record) {
    return guarded(record, [](const ForgetCall &call) -> int64_t {
        plans().forget(call.plan);
        return 0;
    });
}

MSSVM_API mssvm_messages_waves(const WaveCall *record) {
    return guarded(record, [](const WaveCall &call) -> int64_t {
        require(call.wiring != nullptr, "no wiring was given.");
        const Wiring &w = *call.wiring;
        w.check();
        require(call.out.size == w.instances(), "one flag for every instance.");
        std::shared_ptr<Graphs> graphs = plans().graphs(w);
        for (int64_t b = 0; b < w.instances(); ++b) call.out[b] = graphs->grid(w, b) != nullptr;
        return 0;
    });
}

MSSVM_API mssvm_messages_decode(const DecodeCall *record) {
    return guarded(record, [](const DecodeCall &call) -> int64_t {
        checked(call.wiring, call.run, call.instances);
        require(call.states.size == call.wiring->state_ptr.size - 1, "one state for every variable.");
        require(call.allowed.size == call.run->unary.size, "allowed needs a flag for every state.");
        each_instance(call.instances, call.threads, [&](int64_t b) { decode(call, b); });
        return 0;
    });
}

// Scores of states by all messages, which must be scores and whose messages to held variables are brought up to date.
MSSVM_API mssvm_messages_fields(const FieldCall *record) {
    return guarded(record, [](const FieldCall &call) -> int64_t {
        checked(call.wiring, call.run, call.instances);
        require(call.out.size == call.run->unary.size, "one score for every state.");
        require(call.stale.size == call.wiring->instances(), "stale needs a flag for every instance.");
        double eps = call.run->unit;
        Sweeping how{
            .outputs = call.outputs,
            .eps_y = eps,
            .eps_h = eps,
            .unit = eps,
            .damping = 0.0,
            .tolerance = 0.0,
            .flooding = false,
            .until = {},
            .weak = {},
            .tables = call.run->tables,
            .scaled_tables = {},
        };
        each_instance(call.instances, call.threads, [&](int64_t b) {
            require(!call.run->scaled[b], "fields are made of messages in scores.");
            Scores &state = in_scores();
            state.prepare(*call.wiring, *call.run, how);
            state.load(1, &b);
            if (call.stale[b]) state.refresh();
            state.collect(true);
            for (int64_t e = call.wiring->first_state(b); e < call.wiring->end_state(b); ++e)
                call.out[e] = state.field(e);
        });
        return 0;
    });
}

MSSVM_API mssvm_messages_logs(const LogCall *record) {
    return guarded(record, [](const LogCall &call) -> int64_t {
        checked(call.wiring, call.run, call.instances);
        require(call.out.size == call.run->messages.size, "one message for every slot.");
        each_instance(call.instances, call.threads, [&](int64_t b) {
            const Wiring &w = *call.wiring;
            const RunArrays &run = *call.run;
            for (int64_t s = w.first_slot(b); s < w.end_slot(b); ++s) {
                double top = 0.0;
                for (int64_t e = w.message_at[s]; e < w.message_at[s + 1]; ++e) top = std::max(top, run.messages[e]);
                for (int64_t e = w.message_at[s]; e < w.message_at[s + 1]; ++e)
                    call.out[e] = run.scaled[b] ? run.unit * std::log(run.messages[e] / top) : run.messages[e];
            }
        });
        return 0;
    });
}
