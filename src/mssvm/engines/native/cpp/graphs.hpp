// What sweeps of probabilities derive from the wiring of a plan, kept until the plan is gone.
#pragma once
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "scaled.hpp"
#include "waves.hpp"

namespace mssvm {

// The graphs of a plan, one for every family and every instance without one; each is built when it is first swept.
class Graphs {
public:
    explicit Graphs(const Wiring &w) : wiring_(w) {}

    // Whether they were built for this very wiring: a record of the same arrays.
    bool are_of(const Wiring &w) const { return std::memcmp(&wiring_, &w, sizeof(Wiring)) == 0; }

    // For instances side by side, if the instance has a family, or one.
    const Graph &graph(const Wiring &w, int64_t b) {
        return *found(graphs_, w, b, [&] {
            auto built = std::make_unique<Graph>();
            if (w.family_of[b] < 0) built->build<double>(w, b);
            else built->build<Vec>(w, b);
            return built;
        });
    }
    // In waves; null if the graph is not a grid that is worth it.
    const Grid *grid(const Wiring &w, int64_t b) {
        return found(grids_, w, b, [&] {
            auto built = std::make_unique<Grid>();
            if (!built->build(w, b)) built.reset();
            return built;
        });
    }

private:
    template <class Kind> using Map = std::unordered_map<int64_t, std::unique_ptr<Kind>>;

    template <class Kind, class Build> const Kind *found(Map<Kind> &map, const Wiring &w, int64_t b, Build build) {
        int64_t family = w.family_of[b], key = family < 0 ? b : -1 - family;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            auto known = map.find(key);
            if (known != map.end()) return known->second.get();
        }
        auto built = build();
        std::lock_guard<std::mutex> lock(mutex_);
        return map.emplace(key, std::move(built)).first->second.get();  // another thread may have been faster
    }

    Wiring wiring_;  // its arrays are only compared
    std::mutex mutex_;
    Map<Graph> graphs_;
    Map<Grid> grids_;
};

// The graphs of all plans, by the numbers of these. Python says when a plan is gone; a call that still runs keeps its own.
class Plans {
public:
    std::shared_ptr<Graphs> graphs(const Wiring &w) {
        std::lock_guard<std::mutex> lock(mutex_);
        std::shared_ptr<Graphs> &found = plans_[w.plan];
        if (!found || !found->are_of(w)) found = std::make_shared<Graphs>(w);
        return found;
    }
    void forget(int64_t plan) {
        std::lock_guard<std::mutex> lock(mutex_);
        plans_.erase(plan);
    }

private:
    std::mutex mutex_;
    std::unordered_map<int64_t, std::shared_ptr<Graphs>> plans_;
};

inline Plans &plans() {
    static Plans *all_of_them = new Plans();  // never destroyed: threads may outlive the end of the program
    return *all_of_them;
}

}  // namespace mssvm
