// The role of every position of a forest in every lane, and the numbers of rows of its belief and its message.
//
// A lane mask has one bit per lane. With c the parent's `closed` bit (an output or a given variable; always set above a
// root):
//
//     present      the lane's forest has the position
//     opens        a free output, not c: it sends to a hidden parent, and rows begin, one for each of its states
//     output_edge  a free output, c: an output sends to an output, at eps_y
//     ends         not a free output, c: rows end
//     multiplies   the message multiplies the parent's belief: not c, or an output edge where the parent's own edge is
//                  an output edge as well; elsewhere the message is added to the parent's scores
//
// Where eps_y = eps_h no rows open and none end below the roots: one sum over all variables.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "layout.hpp"
#include "simd.hpp"

namespace mssvm {

// The role of a position: lane masks, and numbers of rows.
template <class V> struct Role {
    unsigned present, opens, ends, output_edge, multiplies;
    unsigned given;    // not a free output, but closed: it has one state
    int rows;          // rows of its belief
    int message_rows;  // rows of its message
    int parent_rows;   // factor by which its message multiplies the rows of its parent's belief

    // The role of hidden variables among hidden variables, in all lanes: constants, so that branches compile away.
    static constexpr Role plain() { return {full<V>, 0, 0, 0, full<V>, 0, 1, 1, 1}; }
    bool operator==(const Role &) const = default;
};

// A position of a forest, and its message to its parent. `forest.hpp` has the mathematics of u, e, b, t and s.
template <class V> struct Node : Role<V> {
    int parent;                     // -1: the position above all roots
    int k, c;                       // its states x, and those of its parent, z
    int slot;                       // -1: no table
    int children, children_end;     // in `Roles::children`
    int first_factor, last_factor;  // first and last child whose message multiplies its belief, -1 if none does

    bool flip;   // the table's rows are the parent's states
    bool ready;  // no message is added to its scores
    bool plain;  // it and its children are `Role::plain`
    const Table *table;

    V *u;     // (x) scores; after the downward pass its marginals
    V *e;     // (x) exponentials of the scores; in Scores the array of u
    V *b;     // (row, x) belief; the array of e where no message multiplies it
    V *t;     // (row, x) derivative with respect to the belief; one array for all positions
    V *s;     // (row, z) message, then the derivative with respect to it
    V *norm;  // (z) normaliser of a message that is added to scores
    V scale;  // scale of the message
    V row;    // at eps_y = 0, the best row of its belief
    V state;  // at eps_y = 0, the state of an output

    V pair_at(V x, V z) const { return flip ? z * double(k) + x : x * double(c) + z; }
    V *pair(V *pairs, int x, int z) const { return pairs + (flip ? z * k + x : x * c + z); }
};

// The roles of the members of a group as lane masks, by position.
template <class V> class RoleMasks {
public:
    static constexpr int lanes = Of<V>::lanes;
    struct Masks {
        unsigned output, closed, present;
    };

    explicit RoleMasks(const Family &f) : f_(f), masks_(f.positions()) {}

    // Reads the members' roles; returns whether they differ from those read before. Lanes without a member repeat the
    // last.
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
            Masks masks{};
            for (int lane = 0; lane < lanes; ++lane) {
                unsigned role = roles[lane][p];
                masks.output |= unsigned((role & FREE_OUTPUT) != 0) << lane;
                masks.closed |= unsigned((role & CLOSED) != 0) << lane;
                masks.present |= unsigned((role & PRESENT) != 0) << lane;
            }
            masks_[p] = masks;
        }
        return changed;
    }

    const Masks &operator[](int p) const { return masks_[p]; }

private:
    const Family &f_;
    std::vector<Masks> masks_;
    const uint8_t *before_[lanes] = {};  // the roles that were read last
};

template <class V> class Roles {
public:
    static constexpr int lanes = Of<V>::lanes;

    Roles(const Family &f, const Tables &tables) : f_(f), nodes(f.positions() + 1), masks_(f) {
        int n = f.positions();
        list_children();
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
            node.table = root || top ? &tables.from_root() : &tables(node.slot, node.flip);
            most_children = std::max(most_children, node.children_end - node.children);
        }
    }

    // Sets roles and rows for some members, one per lane; false if they are those of the last call.
    bool set(const int64_t *members, int count, bool scaled) {
        if (!masks_.read(members, count) && scaled == scaled_) return false;
        scaled_ = scaled;
        set_masks();
        set_rows();
        set_ranges();
        return true;
    }

    Node<V> &child(int i) { return nodes[children[i]]; }

private:
    // Lists the children of every position, in order, position by position.
    void list_children() {
        for (int64_t parent : f_.parent) ++nodes[parent].children_end;
        int next = 0;
        for (Node<V> &node : nodes) {
            node.children = next;
            next += node.children_end;
            node.children_end = node.children;
        }
        children.resize(f_.positions());
        for (int p = 0; p < f_.positions(); ++p) children[nodes[f_.parent[p]].children_end++] = p;
    }

    void set_masks() {
        int n = f_.positions();
        bool one_temperature = f_.eps_y == f_.eps_h;
        Node<V> &top = nodes[n];
        top.present = top.multiplies = full<V>;
        top.opens = top.ends = top.output_edge = top.given = 0;
        for (int p = n - 1; p >= 0; --p) {
            Node<V> &node = nodes[p];
            const Node<V> &above = nodes[node.parent];
            unsigned output = one_temperature ? 0 : masks_[p].output;
            unsigned closed = full<V>;
            if (node.parent < n) closed = one_temperature ? 0 : masks_[node.parent].closed;
            node.present = masks_[p].present;
            node.opens = node.present & output & ~closed;
            node.output_edge = node.present & output & closed;
            node.ends = node.present & ~output & closed;
            node.given = node.present & masks_[p].closed & ~masks_[p].output;
            node.multiplies = node.present & ~closed;
            if (f_.eps_y > 0) node.multiplies |= node.output_edge & above.output_edge;
            // At eps_y = 0 a parent that opens rows has its belief at eps_h, like the best row of its child: that
            // message multiplies the belief, too.
            if (scaled_ && f_.eps_y == 0 && node.ends == full<V> && above.opens == full<V>) node.multiplies = full<V>;
        }
    }

    void set_rows() {
        std::vector<unsigned> with_rows(nodes.size());  // lanes whose messages have rows
        for (size_t p = 0; p < nodes.size(); ++p) {
            Node<V> &node = nodes[p];
            node.rows = 1;
            with_rows[p] = node.opens;
            node.ready = f_.eps_y > 0 || node.output_edge != full<V>;
            node.plain = true;
            node.first_factor = node.last_factor = -1;
            for (int i = node.children; i < node.children_end; ++i) {
                Node<V> &below = child(i);
                if (below.multiplies) {
                    if (node.first_factor < 0) node.first_factor = i;
                    node.last_factor = i;
                }
                unsigned carries = with_rows[children[i]] & below.multiplies;
                if (carries & ~below.output_edge & ~below.ends) {
                    node.rows = int(std::min<int64_t>(int64_t(node.rows) * below.message_rows, 1 << 30));
                    with_rows[p] |= carries;
                    below.parent_rows = below.message_rows;
                } else {
                    below.parent_rows = 1;
                }
                if (below.present & ~below.multiplies) node.ready = false;
                node.plain &= below.multiplies == full<V> && below.parent_rows == 1;
            }
            node.message_rows = node.opens ? std::max(node.rows, node.k) : node.rows;
            node.parent_rows = 1;  // until its parent is visited
            node.plain &= static_cast<const Role<V> &>(node) == Role<V>::plain();
        }
    }

    void set_ranges() {
        range = 0.0;
        has_forbidden = false;
        has_rows = false;
        for (const Node<V> &node : nodes) {
            has_rows |= node.rows > 1 || node.message_rows > 1;
            if (node.slot < 0) continue;
            has_forbidden |= node.table->has_forbidden;
            if (node.present & ~node.output_edge) range = std::max(range, node.table->range_h);
            if (node.output_edge && f_.eps_y > 0) range = std::max(range, node.table->range_y);
        }
    }

    const Family &f_;
    bool scaled_ = true;

public:
    std::vector<Node<V>> nodes;  // by position; the last is the one above all roots
    std::vector<int> children;   // positions by parent
    int most_children = 1;
    double range = 0.0;          // range of the tables, in units of the temperatures at which they are used
    bool has_forbidden = false;  // a table forbids something
    bool has_rows = false;

private:
    RoleMasks<V> masks_;
};

}  // namespace mssvm
