// Shared by all calls on chains: checks, workspace, and tasks on threads.
//
// A task is run by a team of one or more threads, each of which owns some consecutive bands. In a forward pass a
// variable waits for its earlier neighbours, which have lower levels: a thread begins a level when the threads that own
// these neighbours have ended the level before. Where bands lie side by side this is the previous thread (in a backward
// pass the next one), elsewhere all threads. A variable never overwrites a message that is still to be read, since its
// later neighbours have waited for it in the same way.
//
// Tasks of two calls, U+ and U- of training, may run at the same time: they share nothing.
#pragma once
#include <algorithm>
#include <deque>
#include <functional>
#include <new>
#include <vector>

#include "parallel.hpp"
#include "trws.hpp"

namespace mssvm {

class VectorBuffer {
public:
    VectorBuffer(const VectorBuffer &) = delete;
    VectorBuffer &operator=(const VectorBuffer &) = delete;
    explicit VectorBuffer(int64_t vectors)
        : memory_(static_cast<Vec *>(::operator new(size_t(vectors) * sizeof(Vec), std::align_val_t(sizeof(Vec))))) {}
    ~VectorBuffer() { ::operator delete(memory_, std::align_val_t(sizeof(Vec))); }
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
    int64_t tasks = a.bands.size, cells = a.cell_ptr.size - 1;
    require(a.task_ptr.size == tasks + 1 && a.partial_ptr.size == tasks + 1 && cells >= 0,
            "the columns of tasks have different lengths.");
    for (int64_t t = 0; t < tasks; ++t) {
        int64_t mine = a.task_ptr[t + 1] - a.task_ptr[t];
        require(
            a.bands[t] >= 1 && mine >= 0 && mine % a.bands[t] == 0 && a.task_ptr[t] >= 0 && a.task_ptr[t + 1] <= cells,
            "a task has levels that do not exist.");
    }
    for (int64_t cell = 0; cell < cells; ++cell)
        require(a.cell_ptr[cell] >= 0 && a.cell_ptr[cell] <= a.cell_ptr[cell + 1] && a.cell_ptr[cell + 1] <= groups,
                "a level has groups that do not exist.");
    int64_t partials = a.partial_to.size;
    require(a.partial_at.size == partials + 1, "the columns of partial sums have different lengths.");
    for (int64_t t = 0; t < tasks; ++t)
        require(a.partial_ptr[t] >= 0 && a.partial_ptr[t] <= a.partial_ptr[t + 1] && a.partial_ptr[t + 1] <= partials,
                "a task has partial sums that do not exist.");
}

inline void check(const ChainCall &c) {
    check(nested(c.layout));
    const ChainLayout &a = *c.layout;
    int64_t groups = a.in_count.size;
    require(c.unary.size >= (groups ? a.state_at[groups] : 0) * L, "there are too few scores.");
    require(c.by_lane.size >= groups * L, "there are too few numbers by group and lane.");
    require(c.rule >= 0 && c.rule <= 2, "there are three rules.");
    require(c.sweeps >= 0 && c.threads >= 1 && c.threads <= 4096, "sweeps or threads are out of range.");
}

// The number of states if a group and all its neighbours have the same one, 0 otherwise.
inline int square(const ChainLayout &a, int64_t g) {
    int64_t k = a.state_at[g + 1] - a.state_at[g];
    for (int64_t s = a.slot_ptr[g]; s < a.slot_ptr[g + 1]; ++s)
        if (a.other_card[s] != k) return 0;
    return int(k);
}

// work(rule) with the rule as a constant.
template <class Work> void by_rule(const ChainCall &c, Work work) {
    if (c.rule == 0) work(std::integral_constant<Rule, Rule::maxima>());
    else if (c.rule == 1) work(std::integral_constant<Rule, Rule::scaled>());
    else work(std::integral_constant<Rule, Rule::scores>());
}

// The number of levels that a thread has ended, over all its passes.
struct alignas(64) Progress {
    std::atomic<int64_t> levels{0};

    void wait_for(int64_t enough) const {
        for (int tries = 0; levels.load(std::memory_order_acquire) < enough; ++tries)
            if (tries < 256) relax();
            else std::this_thread::yield();
    }
};

// The part of a task that one thread of a team runs.
class Share {
public:
    Share(const ChainLayout &layout, int64_t task, std::deque<Progress> &progress, int first, int member, int size)
        : a_(layout), task_(task), team_(progress), first_(first), member_(member) {
        bands_ = a_.bands[task];
        active_ = int(std::min<int64_t>(size, bands_));
        levels_ = (a_.task_ptr[task + 1] - a_.task_ptr[task]) / bands_;
        ended_ = team_[first_ + member_].levels.load(std::memory_order_relaxed);
        begin_ = std::min(member_, active_) * bands_ / active_;
        end_ = std::min(member_ + 1, active_) * bands_ / active_;
    }

    // visit(group) in the order of levels.
    template <class Visit> void forward(Visit visit) {
        for (int64_t level = 0; level < levels_; ++level) {
            wait(0, member_);
            for (int64_t g = first_group(level); g < end_group(level); ++g) visit(g);
            end_level();
        }
    }

    // visit(group) in the opposite order.
    template <class Visit> void backward(Visit visit) {
        for (int64_t level = levels_ - 1; level >= 0; --level) {
            wait(member_ + 1, active_);
            for (int64_t g = end_group(level) - 1; g >= first_group(level); --g) visit(g);
            end_level();
        }
    }

    // work(first, end) on all groups of the task, on its first thread when all have ended their passes; the others wait
    // for it.
    template <class Work> void finish(Work work) {
        if (member_ == 0) {
            for (int other = 1; other < active_; ++other) team_[first_ + other].wait_for(ended_);
            work(a_.cell_ptr[a_.task_ptr[task_]], a_.cell_ptr[a_.task_ptr[task_ + 1]]);
        }
        end_level();
        if (member_ > 0 && member_ < active_) team_[first_].wait_for(ended_);
    }

    int64_t task() const { return task_; }

private:
    int64_t cell(int64_t level, int64_t band) const { return a_.task_ptr[task_] + level * bands_ + band; }
    int64_t first_group(int64_t level) const { return a_.cell_ptr[cell(level, begin_)]; }
    int64_t end_group(int64_t level) const { return a_.cell_ptr[cell(level, end_)]; }
    // Waits for the threads that own neighbours: the adjacent one of threads begin .. end where bands lie side by side,
    // all threads elsewhere.
    void wait(int begin, int end) {
        if (member_ >= active_) return;
        if (!a_.side_by_side) {
            begin = 0;
            end = active_;
        } else if (begin < member_) {  // forwards: the previous thread
            begin = member_ - 1;
        } else {  // backwards: the next one
            end = std::min(end, member_ + 2);
        }
        for (int other = begin; other < end; ++other)
            if (other != member_) team_[first_ + other].wait_for(ended_);
    }
    void end_level() { team_[first_ + member_].levels.store(++ended_, std::memory_order_release); }

    const ChainLayout &a_;
    int64_t task_;
    std::deque<Progress> &team_;
    int first_, member_, active_ = 1;
    int64_t bands_ = 1, levels_ = 0, ended_ = 0, begin_ = 0, end_ = 0;
};

// What the tasks of a call do.
struct TaskWork {
    const ChainCall *call;
    int64_t vectors;  // of a thread's buffer
    double cost;      // of a task, in units that are the same for all calls that run together
    std::function<void(Share &, Vec *)> run;

    int64_t tasks() const { return call->layout->bands.size; }
    int64_t bands() const {
        int64_t most = 1;
        for (int64_t each : call->layout->bands) most = std::max(most, each);
        return most;
    }
};

// The time of the busiest team if every team takes every n-th task, given that part of a team is idle during its first
// and last levels.
inline double time_of_teams(const std::vector<TaskWork> &works, int size, int64_t teams) {
    double most = 0;
    for (int64_t team = 0; team < teams; ++team) {
        double time = 0;
        int64_t begin = 0;
        for (const TaskWork &work : works) {
            int64_t end = begin + work.tasks(), active = std::min<int64_t>(size, work.bands());
            int64_t mine = (end - team + teams - 1) / teams - (begin - team + teams - 1) / teams;
            time += double(mine) * work.cost * (1.5 - 0.5 / double(active)) / double(active);
            begin = end;
        }
        most = std::max(most, time);
    }
    return most;
}

// The number of threads of a team that takes the least time.
inline int team_size(const std::vector<TaskWork> &works, int64_t bands, int threads) {
    int best = 1;
    double least = INF;
    for (int size = 1; size <= std::min<int64_t>(bands, threads); ++size) {
        double time = time_of_teams(works, size, threads / size);
        if (time < least * (1 - 1e-9)) {
            least = time;
            best = size;
        }
    }
    return best;
}

// Adds the contributions of a task's groups to the bounds of their instances, in fixed order.
inline void add_bounds(const ChainCall &c, Share &share) {
    share.finish([&](int64_t first, int64_t end) {
        const ChainLayout &a = *c.layout;
        for (int64_t at = (end - 1) * L; at >= first * L; at -= L)
            for (int64_t lane = at; lane < at + L; ++lane)
                if (a.variable[lane] >= 0) c.value[c.owner[a.variable[lane]]] += c.by_lane[lane];
    });
}

// The largest residual of every instance, and the marginals of tables that several bands share.
inline void add_readings(const ChainCall &c, Share &share) {
    share.finish([&](int64_t first, int64_t end) {
        const ChainLayout &a = *c.layout;
        for (int64_t lane = first * L; lane < end * L; ++lane) {
            if (a.variable[lane] < 0) continue;
            double &most = c.residual[c.owner[a.variable[lane]]];
            most = std::max(most, c.by_lane[lane]);
        }
        for (int64_t p = a.partial_ptr[share.task()]; p < a.partial_ptr[share.task() + 1]; ++p) {
            const double *from = c.partial.data + a.partial_at[p];
            double *to = c.mu_tables.data + a.partial_to[p];
            for (int64_t j = 0; j < a.partial_at[p + 1] - a.partial_at[p]; ++j) to[j] += from[j];
        }
    });
}

// Marginals and residuals of a share by read(rule, group); maxima have none.
template <class Read> void read_groups(const ChainCall &c, Share &share, Read read) {
    by_rule(c, [&](auto rule) {
        if constexpr (decltype(rule)::value != Rule::maxima) {
            share.forward([&](int64_t g) { read(rule, g); });
            add_readings(c, share);
        }
    });
}

// Runs the tasks of all works, the most expensive first.
inline void run_tasks(std::vector<TaskWork> works, int64_t most_threads) {
    std::stable_sort(works.begin(), works.end(),
                     [](const TaskWork &one, const TaskWork &other) { return one.cost > other.cost; });
    int64_t tasks = 0, places = 0, bands = 1, vectors = 0;
    for (const TaskWork &work : works) {
        tasks += work.tasks();
        places += work.tasks() * work.bands();
        bands = std::max(bands, work.bands());
        vectors = std::max(vectors, work.vectors);
    }
    int64_t useful = std::max<int64_t>(1, std::min(most_threads, places));
    std::deque<VectorBuffer> buffers;
    std::deque<Progress> progress(useful);
    for (int64_t k = 0; k < useful; ++k) buffers.emplace_back(vectors);
    std::atomic<int64_t> next{0};
    together(int(useful), [&](int thread, int threads) {
        int size = team_size(works, bands, threads);
        int team = thread / size, member = thread % size, teams = threads / size;
        if (team >= teams) return;
        // Single threads take the next free task; a team takes every n-th, so that its members agree on it.
        auto following = [&](int64_t task) { return size == 1 ? next.fetch_add(1) : task + teams; };
        for (int64_t task = following(team - teams); task < tasks; task = following(task)) {
            int64_t mine = task;
            auto work = works.begin();
            for (; mine >= work->tasks(); ++work) mine -= work->tasks();
            Share share(*work->call->layout, mine, progress, team * size, member, size);
            work->run(share, buffers[thread].data());
        }
    });
}

// work(call, share, buffer) for the shares of all tasks of a call.
template <class Work> int64_t run_call(const ChainCall &c, int64_t vectors, Work work) {
    run_tasks({{&c, vectors, 1.0, [&](Share &share, Vec *buffer) { work(c, share, buffer); }}}, c.threads);
    return 0;
}

// The parts of calls that run on the threads of a task; trws.cpp and nested.cpp have them.
void sweep_share(const ChainCall &c, Share &share, Vec *buffer);
void read_share(const ChainCall &c, Share &share, Vec *buffer);
void check_nested(const ChainCall &c);
int64_t nested_vectors(const ChainLayout &a);
void sweep_nested_share(const ChainCall &c, Share &share, Vec *buffer);
void read_nested_share(const ChainCall &c, Share &share, Vec *buffer);

// Vectors of the buffer of a thread at one temperature.
inline int64_t chain_vectors(const ChainLayout &a) { return 8 * a.widest; }

}  // namespace mssvm
