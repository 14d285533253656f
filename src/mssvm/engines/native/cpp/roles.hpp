// What every position of a forest does in every lane, and how many rows its belief and its message have.
//
// A word has one bit per lane. With c the parent's `closed` bit (an output or a given variable; always so above a root):
//
//     here     the lane's forest has the position
//     opens    a free output, not c: it tells a hidden parent, and rows begin, one for each of its states
//     cold     a free output, c: an output tells an output, at eps_y
//     ends     not a free output, c: rows end
//     times    the message multiplies the parent's belief: not c, or cold where the parent is cold as well;
//              elsewhere it is added to the parent's scores
//
// Where eps_y = eps_h nothing opens and nothing closes below the roots: one sum over all variables.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "layout.hpp"
#include "simd.hpp"

namespace mssvm {

// What a position does in the lanes, and how many rows there are.
template <class V> struct Role {
    unsigned here, opens, ends, cold, times;
    unsigned given;      // not a free output, but closed: it has one state
    int rows;            // of its belief
    int sent;            // rows of its message
    int brought;         // rows that its message brings its parent

    // Of hidden variables among hidden variables, in all lanes: constants, for which little code is left.
    static constexpr Role plain() { return {full<V>, 0, 0, 0, full<V>, 0, 1, 1, 1}; }
    bool operator==(const Role &) const = default;
};

// A position of a forest, and its message to its parent. `forest.hpp` has the mathematics of u, e, b, t and s.
template <class V> struct Node : Role<V> {
    int parent;          // -1: the position above all roots
    int k, c;            // its states x, and those of its parent, z
    int slot;            // -1: no table
    bool flip;           // the table's rows are the parent's states
    Table table;
    int kids, kids_end;  // in `Roles::kids`

    bool ready;          // no message is added to its scores
    bool plain;          // it and the messages that it gets are `Role::plain`

    V scale;             // of the message
    V row;               // at eps_y = 0, the best row of its belief
    V state;             // at eps_y = 0, the state of an output
    V *u;                // (x) scores; after the downward pass its marginals
    V *e;                // (x) exponentials of the scores
    V *b;                // (row, x) belief; the array of e where no message multiplies it
    V *t;                // (row, x) derivative by the belief; one array for all positions
    V *s;                // (row, z) message, then the derivative by it
    V *norm;             // (z) of a message that is added to scores

    V pair_at(V x, V z) const { return flip ? z * double(k) + x : x * double(c) + z; }
    V *pair(V *pairs, int x, int z) const { return pairs + (flip ? z * k + x : x * c + z); }
};

// The roles of some members, a word for every position.
template <class V> class RoleWords {
public:
    static constexpr int lanes = Of<V>::lanes;
    struct Words {
        unsigned output, closed, here;
    };

    explicit RoleWords(const Family &f) : f_(f), words_(f.positions()) {}

    // Reads them; whether they differ from those read before. Lanes without a member repeat the last.
    bool read(const int64_t *members, int count) {
        int n = f_.positions();
        const uint8_t *roles[lanes];
        bool changed = false;
        for (int lane = 0; lane < lanes; ++lane) {
            roles[lane] = f_.roles.data + members[std::min(lane, count - 1)] * n;
            changed |= !before_[lane] || std::memcmp(roles[lane], before_[lane], n) != 0;
            before_[lane] = roles[lane];
        }
        for (int p = 0; changed && p < n; ++p) {
            Words found{};
            for (int lane = 0; lane < lanes; ++lane) {
                unsigned role = roles[lane][p];
                found.output |= unsigned((role & FREE_OUTPUT) != 0) << lane;
                found.closed |= unsigned((role & CLOSED) != 0) << lane;
                found.here |= unsigned((role & PRESENT) != 0) << lane;
            }
            words_[p] = found;
        }
        return changed;
    }

    const Words &operator[](int p) const { return words_[p]; }

private:
    const Family &f_;
    std::vector<Words> words_;
    const uint8_t *before_[lanes] = {};  // the roles that were read last
};

template <class V> class Roles {
public:
    static constexpr int lanes = Of<V>::lanes;

    Roles(const Family &f, const Tables &tables) : f_(f), nodes(f.positions() + 1), words_(f) {
        int n = f.positions();
        for (int p = 0; p < n; ++p) kids.push_back(p);
        std::stable_sort(kids.begin(), kids.end(), [&](int a, int b) { return f.parent[a] < f.parent[b]; });
        int next = 0;
        for (int p = 0; p <= n; ++p) {
            Node<V> &node = nodes[p];
            bool top = p == n;
            bool root = !top && f.parent[p] == n;
            node.parent = top ? -1 : int(f.parent[p]);
            node.k = top ? 1 : int(f.card[p]);
            node.c = top ? 0 : 1;
            if (!top && !root) node.c = int(f.card[f.parent[p]]);
            node.slot = top ? -1 : int(f.slot[p]);
            node.flip = !top && f.flip[p];
            if (root) node.table = tables.from_root();
            else if (!top) node.table = tables(node.slot, node.flip);
            node.kids = next;
            while (next < n && f.parent[kids[next]] == p) ++next;
            node.kids_end = next;
            most_kids = std::max(most_kids, node.kids_end - node.kids);
        }
    }

    // Sets roles and rows for some members, one a lane; false if they are those of the last call.
    bool set(const int64_t *members, int count, bool scaled) {
        if (!words_.read(members, count) && scaled == scaled_) return false;
        scaled_ = scaled;
        set_words();
        set_rows();
        set_ranges();
        return true;
    }

    Node<V> &kid(int i) { return nodes[kids[i]]; }

private:
    void set_words() {
        int n = f_.positions();
        bool one_temperature = f_.eps_y == f_.eps_h;
        Node<V> &top = nodes[n];
        top.here = top.times = full<V>;
        top.opens = top.ends = top.cold = top.given = 0;
        for (int p = n - 1; p >= 0; --p) {
            Node<V> &node = nodes[p];
            const Node<V> &above = nodes[node.parent];
            unsigned output = one_temperature ? 0 : words_[p].output;
            unsigned closed = full<V>;
            if (node.parent < n) closed = one_temperature ? 0 : words_[node.parent].closed;
            node.here = words_[p].here;
            node.opens = node.here & output & ~closed;
            node.cold = node.here & output & closed;
            node.ends = node.here & ~output & closed;
            node.given = node.here & words_[p].closed & ~words_[p].output;
            node.times = node.here & ~closed;
            if (f_.eps_y > 0) node.times |= node.cold & above.cold;
            // At eps_y = 0 the best row is in the parent's unit where that opens rows itself: it multiplies.
            if (scaled_ && f_.eps_y == 0 && node.ends == full<V> && above.opens == full<V>) node.times = full<V>;
        }
    }

    void set_rows() {
        std::vector<unsigned> with_rows(nodes.size());  // lanes whose messages have rows
        for (size_t p = 0; p < nodes.size(); ++p) {
            Node<V> &node = nodes[p];
            node.rows = 1;
            with_rows[p] = node.opens;
            node.ready = f_.eps_y > 0 || node.cold != full<V>;
            node.plain = true;
            for (int i = node.kids; i < node.kids_end; ++i) {
                Node<V> &below = kid(i);
                unsigned carries = with_rows[kids[i]] & below.times;
                if (carries & ~below.cold & ~below.ends) {
                    node.rows = int(std::min<int64_t>(int64_t(node.rows) * below.sent, 1 << 30));
                    with_rows[p] |= carries;
                    below.brought = below.sent;
                } else {
                    below.brought = 1;
                }
                if (below.here & ~below.times) node.ready = false;
                node.plain &= below.times == full<V> && below.brought == 1;
            }
            node.sent = node.opens ? std::max(node.rows, node.k) : node.rows;
            node.brought = 1;  // until its parent says more
            node.plain &= static_cast<const Role<V> &>(node) == Role<V>::plain();
        }
    }

    void set_ranges() {
        range = 0.0;
        holes = false;
        has_rows = false;
        for (const Node<V> &node : nodes) {
            has_rows |= node.rows > 1 || node.sent > 1;
            if (node.slot < 0) continue;
            holes |= node.table.holes;
            if (node.here & ~node.cold) range = std::max(range, node.table.hot_range);
            if (node.cold && f_.eps_y > 0) range = std::max(range, node.table.cold_range);
        }
    }

    const Family &f_;
    bool scaled_ = true;

public:
    std::vector<Node<V>> nodes;  // by position, then the one above all roots
    std::vector<int> kids;       // positions by parent
    int most_kids = 1;
    double range = 0.0;          // of the tables, in units of the temperatures at which they are used
    bool holes = false;          // a table forbids something
    bool has_rows = false;

private:
    RoleWords<V> words_;
};

}  // namespace mssvm
