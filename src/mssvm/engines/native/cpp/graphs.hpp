// Graphs that sweeps of probabilities derive from the wiring of a plan, cached until the plan is freed.
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

    // Whether they were built for this wiring: a record of the same arrays.
    bool are_of(const Wiring &w) const { return std::memcmp(&wiring_, &w, sizeof(Wiring)) == 0; }

    // The graph of an instance: for several instances side by side if it has a family, otherwise for one.
    const Graph &graph(const Wiring &w, int64_t b) {
        return *found(graphs_, w, b, [&] {
            auto built = std::make_unique<Graph>();
            if (w.family_of[b] < 0) built->build<double>(w, b);
            else built->build<Vec>(w, b);
            return built;
        });
    }
    // The grid of an instance, to be swept in waves; null if its graph is not a grid, or is too small to gain.
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

// The graphs of all plans, by number of the plan. Python reports when a plan is freed; a running call keeps a reference
// to its graphs.
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
