// Exact inference on forests, as Python calls it: families of instances in blocks, on the pool's threads.
#include <array>
#include <atomic>
#include <chrono>
#include <optional>

#include "copies.hpp"
#include "forest.hpp"
#include "parallel.hpp"

using namespace mssvm;

namespace {

using Ran = std::array<std::atomic<int64_t>, 3>;  // members by the way they ran: copies, Scaled, Scores

constexpr int64_t BLOCK = 64;  // members; those of a block that must run again do so together
constexpr int64_t TASKS_A_THREAD = 4;
constexpr int64_t MOST_THREADS = 1 << 16;  // more than there are; products with it do not overflow
constexpr double LARGEST_TASK = 2e8;       // multiplications, about a twentieth of a second
using Time = std::chrono::steady_clock::time_point;

// The tables of a family for one call, as powers too where hidden variables are copied.
struct FamilyTables {
    Tables tables;
    std::optional<PowerTables> powers;

    FamilyTables(const Family &f, const ForestCall &call) : tables(f, call) {
        if (f.copies > 1) powers.emplace(f, tables);
    }
};

// Blocks of a family: with copies or in Scaled first, in lanes; members whose numbers were too small run again in
// Scores.
class BlockRun {
public:
    BlockRun(const Family &f, const ForestCall &call, const FamilyTables &tables)
        : f_(f), call_(call), tables_(tables) {
        if (tables.powers) copies_.emplace(f, call, *tables.powers);
    }

    // Runs members first .. last - 1; false if a score was NaN or +inf.
    bool operator()(int64_t first, int64_t last, Ran &ran) {
        std::vector<int64_t> members(last - first);
        for (int64_t m = first; m < last; ++m) members[m - first] = m;
        if (copies_) members = count(ran[0], members, [&](auto &left) { run_copies(members, left); });
        if (f_.eps_h > 0) members = count(ran[1], members, [&](auto &left) { run<Scaled>(members, left); });
        if (!members.empty()) members = count(ran[2], members, [&](auto &left) { run<Scores>(members, left); });
        return numbers_;
    }

private:
    // The members that still have to run after one way of running; counts the others.
    template <class F>
    static std::vector<int64_t> count(std::atomic<int64_t> &ran, const std::vector<int64_t> &members, F run) {
        std::vector<int64_t> left;
        run(left);
        ran += int64_t(members.size() - left.size());
        return left;
    }

    void run_copies(const std::vector<int64_t> &members, std::vector<int64_t> &left) {
        for (size_t at = 0; at < members.size() && numbers_; at += L) {
            Group<Vec> group = group_of<Vec>(&members[at], int(std::min<size_t>(L, members.size() - at)));
            keep(copies_->run(group), group, left);
        }
    }
    template <template <class> class Algebra> void run(const std::vector<int64_t> &members,
                                                       std::vector<int64_t> &left) {
        int step = f_.abreast ? L : 1;
        for (size_t at = 0; at < members.size() && numbers_; at += step) {
            int count = int(std::min<size_t>(step, members.size() - at));
            if (count > 1 && run_group<Algebra>(made(together_), &members[at], count, left)) continue;
            for (int i = 0; i < count && numbers_; ++i)
                require(run_group<Algebra>(made(alone_), &members[at + i], 1, left),
                        "hidden variables touch too many outputs; use general elimination.");
        }
    }
    template <class V> Forest<V> &made(std::optional<Forest<V>> &forest) {
        if (!forest) forest.emplace(f_, call_, tables_.tables);
        return *forest;
    }
    // Members that must run again are added to `left`; false if the workspace would be too large.
    template <template <class> class Algebra, class V>
    bool run_group(Forest<V> &forest, const int64_t *members, int count, std::vector<int64_t> &left) {
        Group<V> group = group_of<V>(members, count);
        auto outcome = forest.template run<Algebra<V>>(group);
        if (!outcome.fits) return false;
        keep(outcome, group, left);
        return true;
    }
    template <class V> static Group<V> group_of(const int64_t *members, int count) {
        Group<V> group;
        group.count = count;
        for (int i = 0; i < count; ++i) group.member[i] = members[i];
        return group;
    }
    template <class V> void keep(const auto &outcome, const Group<V> &group, std::vector<int64_t> &left) {
        if (!outcome.numbers) numbers_ = false;
        for (int i = 0; i < group.count; ++i)
            if (!(outcome.done >> i & 1)) left.push_back(group.member[i]);
    }

    const Family &f_;
    const ForestCall &call_;
    const FamilyTables &tables_;
    std::optional<Forest<Vec>> together_;
    std::optional<Forest<double>> alone_;
    std::optional<Copies<Vec>> copies_;
    bool numbers_ = true;
};

// Some blocks of a family, which one thread runs one after the other.
struct Task {
    const Family *family;
    const FamilyTables *tables;  // shared by the tasks of a family; null for an only task, which makes its own
    int64_t first, last;
};

void run_task(const Task &task, const ForestCall &call, Ran &ran, std::atomic<bool> &numbers) {
    std::optional<FamilyTables> own;
    if (!task.tables) own.emplace(*task.family, call);
    const FamilyTables &tables = own ? *own : *task.tables;
    if (!tables.tables.numbers()) {
        numbers = false;
        return;
    }
    BlockRun run(*task.family, call, tables);
    for (int64_t first = task.first; first < task.last; first += BLOCK)
        if (!run(first, std::min(first + BLOCK, task.last), ran)) numbers = false;
}

// The number of a family's members in a task: every thread gets several tasks, and a task is so short that a call can
// end after it.
int64_t task_size(const Family &f, int64_t blocks, int64_t threads) {
    double most = LARGEST_TASK / std::max(f.work(), 1.0) / BLOCK;
    int64_t share = blocks / (TASKS_A_THREAD * threads);
    return BLOCK * std::max<int64_t>(1, std::min<double>(double(share), most));
}

enum Outcome : int64_t { DONE = 0, NO_NUMBERS = 1, UNFINISHED = 2 };

// Runs the families of the call's side, beginning with its task, until all are done or time is up. What a block
// computes does not depend on its task.
Outcome run_side(const std::vector<const Family *> &families, ForestCall &call, Ran &ran, Time end) {
    int64_t threads = std::clamp<int64_t>(call.threads, 1, MOST_THREADS), blocks = 0;
    std::vector<const Family *> mine, shared;
    for (const Family *family : families)
        if (family->side == call.side) mine.push_back(family);
    for (const Family *family : mine) blocks += (family->members() + BLOCK - 1) / BLOCK;
    auto has_tasks = [&](const Family *family) { return family->members() > task_size(*family, blocks, threads); };
    for (const Family *family : mine)
        if (has_tasks(family)) shared.push_back(family);
    std::vector<std::optional<FamilyTables>> tables(shared.size());
    parallel_for(int64_t(shared.size()), int(threads), [&](int64_t i) { tables[i].emplace(*shared[i], call); });
    std::vector<Task> tasks;
    size_t next = 0;
    for (const Family *family : mine) {
        int64_t size = task_size(*family, blocks, threads);
        const FamilyTables *of_all = has_tasks(family) ? &*tables[next++] : nullptr;
        for (int64_t first = 0; first < family->members(); first += size)
            tasks.push_back({family, of_all, first, std::min(first + size, family->members())});
    }
    std::atomic<bool> numbers = true;
    int64_t count = int64_t(tasks.size());
    while (call.task < count) {
        int64_t first = call.task, wave = 0;
        double work = 0;
        while (first + wave < count && (wave < threads || work < LARGEST_TASK * double(threads))) {
            const Task &task = tasks[first + wave++];
            work += task.family->work() * double(task.last - task.first);
        }
        parallel_for(wave, int(threads), [&](int64_t i) { run_task(tasks[first + i], call, ran, numbers); });
        call.task += wave;
        if (!numbers) return NO_NUMBERS;
        if (call.task < count && std::chrono::steady_clock::now() > end) return UNFINISHED;
    }
    return DONE;
}

}  // namespace

// Values and marginals of all families, for a fifth of a second at a time, so that Python can be interrupted: DONE;
// UNFINISHED, to be called again; or NO_NUMBERS if a score was NaN or +inf, and nothing that was written counts.
MSSVM_API mssvm_forests(ForestCall *record) {
    return guarded(record, [](ForestCall &call) -> int64_t {
        require(call.mu_unary.size == call.unary.size, "marginals have another length than scores.");
        require(call.cost_unary.empty() || call.cost_unary.size == call.unary.size,
                "costs have another length than scores.");
        require(call.cost_tables.empty() || call.cost_tables.size == call.tables.size,
                "costs have another length than tables.");
        require(call.side >= 0 && call.task >= 0, "a call begins with a side and a task.");
        std::vector<const Family *> families;
        for (int64_t address : call.families) {
            require(address != 0, "a family is missing.");
            families.push_back(reinterpret_cast<const Family *>(address));
            check(*families.back(), call);
        }
        Time end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
        Ran ran{};
        Outcome outcome = DONE;
        while (outcome == DONE && call.side < 2) {  // side 1 is subtracted from side 0
            outcome = run_side(families, call, ran, end);
            if (outcome != DONE) break;
            ++call.side;
            call.task = 0;
        }
        call.copies += ran[0];
        call.scaled += ran[1];
        call.scores += ran[2];
        return outcome;
    });
}
