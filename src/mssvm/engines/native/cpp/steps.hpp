// The pairwise factors of one instance as the steps of a sweep of probabilities, and where states and messages are
// stored: for L instances of one graph side by side, or for one.
#pragma once
#include <type_traits>

#include "messages.hpp"

namespace mssvm {

// Up to this number of other messages, a cavity is computed as their product. With more, the product of all messages is
// stored, and the cavity is that product divided by one message.
constexpr int MOST_OTHERS = 5;
// Largest number of states for which updates are compiled with that number as a constant. Beyond it, the update of one
// instance has vectors along the rows of a table, and the number of vectors is the constant.
template <class V> constexpr int largest_square = std::is_same_v<V, double> ? 7 : 8;
template <class V> constexpr int most_vectors = std::is_same_v<V, double> ? 4 : 0;
// The same limit for one instance whose variables have many factors, where products of messages take most of the time.
constexpr int LARGEST_SQUARE_OF_MANY = 3, MANY_FACTORS = 4;

// One end of a pairwise factor: the variable, where its states and its message begin, its number of states, and where
// the other messages to it are listed (`others`, `count` of them; -1 where the product of all messages is stored).
struct End {
    int32_t variable, state, message, card, others, count;
};

struct Step {
    End i, j;
    int64_t table, factor;
    int32_t shape;  // K > 0: both variables have K states; -C: theirs fill C vectors; 0: any others, see `update_for`
};

// A variable with more factors than MOST_OTHERS allows: the product of all messages to it is stored.
struct Hub {
    int32_t state, card, messages, count;
};

// The pairwise factors of one instance in the order of a sweep; places are counted within the instance. Where vectors
// run along rows, the states of a variable and of a message are padded to whole vectors, with zeros.
struct Graph {
    std::vector<Step> steps;
    std::vector<Hub> hubs;
    std::vector<int32_t> others, state_place, message_place;
    int64_t n_vars = 0, n_states = 0, n_messages = 0, widest = 1, entries = 0;
    bool padded = false;
    int largest = 0;  // the largest square

    template <class V> void build(const Wiring &w, int64_t b) {
        int64_t first = w.var_ptr[b], first_slot = w.first_slot(b);
        n_vars = w.var_ptr[b + 1] - first;
        lay_out<V>(w, b);
        steps.reserve(w.factor_ptr[b + 1] - w.factor_ptr[b]);
        for (int64_t i = first; i < first + n_vars; ++i) {
            if (w.degree(i) - 1 <= MOST_OTHERS) continue;
            hubs.push_back({state_place[i - first], int32_t(w.card(i)), int32_t(others.size()), int32_t(w.degree(i))});
            for (int64_t k = w.near_ptr[i]; k < w.near_ptr[i + 1]; ++k)
                others.push_back(message_place[w.near[k] - first_slot]);
        }
        for (int64_t e = w.factor_ptr[b]; e < w.factor_ptr[b + 1]; ++e) {
            int64_t f = w.order[e], s = w.scope_ptr[f];
            steps.push_back({end(w, s, first, first_slot), end(w, s + 1, first, first_slot), w.scaled_at[f],
                             f - w.factor_ptr[b], shape_of<V>(w, s)});
        }
    }

private:
    template <class V> int32_t shape_of(const Wiring &w, int64_t s) const {
        int64_t ki = w.slot_card(s), kj = w.slot_card(s + 1);
        if (ki == kj && ki >= 2 && ki <= largest) return int32_t(ki);
        int64_t vectors = (ki + L - 1) / L;
        if ((kj + L - 1) / L == vectors && vectors <= most_vectors<V>) return -int32_t(vectors);
        return 0;
    }

    template <class V> void lay_out(const Wiring &w, int64_t b) {
        bool many = std::is_same_v<V, double> && w.end_slot(b) - w.first_slot(b) > MANY_FACTORS * n_vars;
        largest = many ? LARGEST_SQUARE_OF_MANY : largest_square<V>;
        for (int64_t f = w.factor_ptr[b]; f < w.factor_ptr[b + 1]; ++f) {
            entries += w.table_size(f);
            padded |= std::is_same_v<V, double> && shape_of<V>(w, w.scope_ptr[f]) <= 0;
        }
        int64_t unit = padded ? L : 1;
        for (int64_t i = w.var_ptr[b]; i < w.var_ptr[b + 1]; ++i) {
            widest = std::max(widest, w.card(i));
            state_place.push_back(int32_t(n_states));
            n_states += (w.card(i) + unit - 1) / unit * unit;
        }
        for (int64_t s = w.first_slot(b); s < w.end_slot(b); ++s) {
            message_place.push_back(int32_t(n_messages));
            n_messages += (w.slot_card(s) + unit - 1) / unit * unit;
        }
    }

    End end(const Wiring &w, int64_t s, int64_t first, int64_t first_slot) {
        int64_t i = w.scope[s];
        End out{int32_t(i - first), state_place[i - first], message_place[s - first_slot],
                int32_t(w.card(i)), int32_t(others.size()), -1};
        if (w.degree(i) - 1 > MOST_OTHERS) return out;
        // Without a branch, which would be hard to predict.
        size_t end = others.size();
        others.resize(end + w.degree(i));
        for (int64_t k = w.near_ptr[i]; k < w.near_ptr[i + 1]; ++k) {
            others[end] = message_place[w.near[k] - first_slot];
            end += w.near[k] != s;
        }
        others.resize(end);
        out.count = int32_t(w.degree(i) - 1);
        return out;
    }
};

}  // namespace mssvm
