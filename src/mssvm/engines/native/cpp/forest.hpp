// Nested power sums PS_y[eps_y] PS_h[eps_h] theta on forests, L instances side by side: an upward pass, children before
// parents, then a downward pass.
//
// Position p has scores u(x) and a belief b(r, x) = e(x) times the messages of its children, e = exp(u / eps), with a
// row r for every joint state of the outputs below it whose maximum or sum is still open. The message s of a child with
// states x to its parent with states z (E is the exponential of their table):
//
//     hidden to hidden    s(r, z) = sum_x b(r, x) E(x, z)      multiplies the parent's belief             (eps_h)
//     output to hidden    s(r, z) = b(r) E(r, z)               multiplies it too: rows begin              (eps_h)
//     hidden to output    s as above, and rows end:            u(z) += eps_y log sum_r s(r, z)^(eps_h/eps_y)
//     output to output    s(z) = sum_x b(x) E(x, z)            multiplies where the parent sends to an output as well,
//                                                              else u(z) += eps_y log s(z)                (eps_y)
//
// At eps_y = 0 the third line is u(z) += eps_h log max_r s(r, z) (where the parent opens rows in all lanes, the best
// row multiplies its belief instead), and the fourth is u(z) += max_x u(x) + theta(x, z). So marginal MAP on y - h - y'
// is the second line for y and the third for h: a row for every label y, the sum over h in each, and at y' the best
// row.
//
// The downward pass is the chain rule: t is the derivative with respect to b, d with respect to s (in its array), and
// marginals are sum_r b t in Scaled, sum_r t in Scores. All roots send to one more position of one state, the
// super-root, where rows end: its score is the value. At a variable with one allowed state rows end, and none begin.
// Where eps_y = eps_h all variables are treated as hidden, and there are no rows.
//
// A member is an instance of a family; it runs in one lane. Masks with a bit for every lane (`roles.hpp`) say which
// instance has a position, and where rows begin and end in it.
#pragma once
#include "algebra.hpp"
#include "members.hpp"
#include "workspace.hpp"

namespace mssvm {

constexpr double MOST_NUMBERS = 1 << 27;  // numbers in a workspace: 1 GiB
constexpr double WIDEST = 300.0;          // range of a table in Scaled, in units of its temperature
constexpr double STEEPEST = 1000.0;       // eps_h / eps_y in Scaled, where rows are raised to that power

template <class V> class Forest {
public:
    static constexpr int lanes = Of<V>::lanes;

    Forest(const Family &f, const ForestCall &call, const Tables &tables)
        : f_(f),
          tables_(tables),
          members_(f, call),
          roles_(f, tables),
          nodes_(roles_.nodes),
          eps_{f.eps_y, f.eps_h},
          states_(f.states()),
          products_(roles_.most_children) {
        size_t pairs = 0;
        for (int j = 0; j < f.slots(); ++j) {
            pair_at_.push_back(pairs);
            pairs += f.shape(j).entries();
        }
        pair_size_ = pairs;
    }

    struct Outcome {
        unsigned done;  // the lanes that were written
        bool numbers;   // no score was NaN or +inf
        bool fits;      // rows did not exceed the workspace
    };

    // Runs some members. In Scaled, lanes whose numbers were too small to trust are not written.
    template <class Algebra> Outcome run(const Group<V> &group) {
        bool changed = roles_.set(group.member, group.count, Algebra::scaled);
        unsigned wanted = (1u << group.count) - 1;
        if (changed) fits_ = place();
        if (!fits_) return {0, true, false};
        if (Algebra::scaled && !may_scale()) return {0, true, true};
        V *memory = static_cast<V *>(workspace(need_ * sizeof(V)));
        if (changed || memory != memory_) set_pointers(memory, Algebra::scaled);
        members_.choose(group);
        if (!members_.read(memory_)) return {0, false, true};
        std::fill(pairs_, pairs_ + pair_size_, V{});
        strict_ = strict();
        upward<Algebra>();
        unsigned good = wanted;
        if (Algebra::scaled) {
            for (int i = 0; i < group.count; ++i)
                if (!(lane(least_, i) > trusted())) good &= ~(1u << i);
            if (!good) return {0, true, true};
        }
        downward<Algebra>();
        if (Algebra::scaled && eps_.y > 0) outer_products();
        members_.write_values(value_, good);
        members_.write_states(memory_, good);
        for (int j = 0; j < f_.slots(); ++j) members_.write_tables(j, pairs_ + pair_at_[j], good);
        return {good, true, true};
    }

private:
    // Whether every positive number counts, however small: where a table forbids something, a state of tiny probability
    // may be the only one left later, and at eps_y > eps_h a tiny row grows when it is raised to eps_h / eps_y.
    bool strict() const { return roles_.has_forbidden || eps_.y > eps_.h; }

    // The smallest number that may be trusted.
    //
    // With `strict` it is a limit on every factor. A belief is the product of e and of the messages of m children, and
    // a message is at least a belief times an entry of a table: products of 2 m + 1 factors must not underflow.
    //
    // Otherwise it is a limit on the sum of a belief. A term that underflowed (1e-308) must stay negligible beside that
    // sum, although the message to the parent may raise the term by exp(range) relative to the others, and by the same
    // factor again relative to other rows if there are rows.
    double trusted() const {
        if (strict()) return std::pow(1e-290, 1.0 / (2 * roles_.most_children + 1));
        if (roles_.has_rows) return std::max(1e-250, 1e-270 * std::exp(2 * roles_.range));
        return std::max(1e-250, 1e-290 * std::exp(roles_.range));
    }
    // The range of tables must not exceed that of doubles, and powers of rows must neither overflow nor lose digits.
    bool may_scale() const {
        bool powers = roles_.has_rows && eps_.y > 0;
        if (powers && eps_.h > STEEPEST * eps_.y) return false;
        return roles_.range <= (strict() ? -std::log(trusted()) : WIDEST);
    }

    // Computes b(r, x), which is e(x) times messages, and then the message of every position, which multiplies the
    // parent's belief or is added to the parent's scores.
    template <class A> void upward() {
        value_ = V{};
        least_ = all<V>(1.0);
        nodes_.back().u[0] = V{};
        for (Node<V> &node : nodes_) {  // a separate loop: the exponentials of many positions overlap
            if (node.plain) enter<A, true>(node);
            else if (node.ready && node.present) enter<A, false>(node);
        }
        for (Node<V> &node : nodes_) {
            if (node.plain) send_upward<A, true>(node);
            else if (node.present) send_upward<A, false>(node);
        }
    }
    // The role of a position; a compile-time constant where the position and its children are plain.
    template <bool plain> static INLINE Role<V> role_of(const Node<V> &node) {
        if constexpr (plain) return Role<V>::plain();
        else return node;
    }
    template <class A, bool plain> INLINE void enter(Node<V> &node) {
        Role<V> role = role_of<plain>(node);
        value_ += pick(role.present & ~A::by_maxima(role, eps_), A::enter(node, role, eps_), V{});
    }
    template <class A, bool plain> INLINE void send_upward(Node<V> &node) {
        Role<V> role = role_of<plain>(node);
        unsigned by_maxima = A::by_maxima(role, eps_);
        if (by_maxima != full<V>) {
            if (!plain && !node.ready) enter<A, false>(node);
            V size = form_belief<A, plain>(node);
            V gain = A::normalise(node, role, eps_, size, strict_, least_);
            if (node.parent >= 0) A::push(node, role, eps_, work_);
            if (A::scaled) gain += node.table->top;
            value_ += pick(role.present & ~by_maxima, gain, V{});
        }
        if (role.present & ~role.multiplies) A::close(node, role, eps_, nodes_[node.parent].u, least_, work_);
    }

    // Messages multiply one after the other, and so do their rows: b((r, j), z) = b(r, z) s(j, z).
    template <class A>
    INLINE void multiply(const V *b, int rows, const Node<V> &below, const Role<V> &role, V *to) {
        int k = below.c, parent_rows = role.parent_rows;
        in_lanes<V>(role.multiplies, [&](auto select) ALWAYS {
            if (rows * parent_rows == 1) {
                for (int z = 0; z < k; ++z) to[z] = A::times(b[z], select(below.s[z], A::one()));
                return;
            }
            for (int r = rows - 1; r >= 0; --r)
                for (int j = parent_rows - 1; j >= 0; --j)
                    for (int z = 0; z < k; ++z) {
                        V factor = select(below.s[j * k + z], j ? A::zero() : A::one());
                        to[(r * parent_rows + j) * k + z] = A::times(b[r * k + z], factor);
                    }
        });
    }
    // The belief; returns its sum, or in scores its maximum.
    template <class A, bool plain> INLINE V form_belief(Node<V> &node) {
        if constexpr (plain) return form_plain_belief<A>(node);
        const V *b = node.e;
        int rows = 1;
        for (int i = node.children; i < node.children_end; ++i) {
            Node<V> &below = roles_.child(i);
            Role<V> child = role_of<plain>(below);
            if (!child.multiplies) continue;
            multiply<A>(b, rows, below, child, node.b);
            b = node.b;
            rows *= child.parent_rows;
        }
        return A::size(node.b, node.rows * node.k);
    }
    // One row: the factors of a state are multiplied in registers.
    template <class A> INLINE V form_plain_belief(Node<V> &node) {
        V even = A::zero(), odd = A::zero();
        in_pieces<8>(node.k, [&](auto size, int x) ALWAYS {
            V b[size];
            for (int j = 0; j < size; ++j) b[j] = node.e[x + j];
            for (int i = node.children; i < node.children_end; ++i) {
                const V *s = roles_.child(i).s + x;
                for (int j = 0; j < size; ++j) b[j] = A::times(b[j], s[j]);
            }
            for (int j = 0; j < size; ++j) node.b[x + j] = b[j];
            for (int j = 0; j < size; j += 2) even = A::plus(even, b[j]);
            for (int j = 1; j < size; j += 2) odd = A::plus(odd, b[j]);
        });
        return A::plus(even, odd);
    }

    // Derivatives with respect to beliefs from those with respect to messages; then with respect to the factors of
    // beliefs, the last factor first.
    template <class A> void downward() {
        V mass = value_ > -INF ? all<V>(1.0) : V{};
        Node<V> &top = nodes_.back();
        top.u[0] = mass;
        top.state = V{};
        derive_all<A, false>(top);
        for (int p = f_.positions() - 1; p >= 0; --p) {
            Node<V> &node = nodes_[p];
            if (node.plain) descend<A, true>(node, mass);
            else if (node.present) descend<A, false>(node, mass);
        }
    }
    template <class A, bool plain> INLINE void descend(Node<V> &node, V mass) {
        if constexpr (plain && A::scaled) {
            int first = node.children, count = node.children_end - first;
            bool in_registers = eps_.y > 0 && !strict_;
            if (in_registers && count == 1) return A::pull_through(node, roles_.child(first));
            if (in_registers && count == 2) return A::pull_through(node, roles_.child(first), roles_.child(first + 1));
        }
        V *pairs = node.slot >= 0 ? pairs_ + pair_at_[node.slot] : nullptr;
        A::pull(node, role_of<plain>(node), eps_, nodes_[node.parent], mass, strict_, pairs, work_);
        derive_all<A, plain>(node);
    }
    // At eps_y = 0: the rows of the children that make up the row of their parent.
    void choose_rows(Node<V> &node) {
        V row = node.row;
        for (int i = node.children_end - 1; i >= node.children; --i) {
            Node<V> &below = roles_.child(i);
            if (!below.multiplies) continue;
            if (below.parent_rows == node.rows) {
                below.row = row;
                continue;
            }
            below.row = V{};
            if (below.parent_rows == 1) continue;
            for (int l = 0; l < lanes; ++l) {
                int at = int(lane(row, l));
                set_lane(below.row, l, at % below.parent_rows);
                set_lane(row, l, at / below.parent_rows);
            }
        }
    }
    template <class A, bool plain> INLINE void derive_all(Node<V> &node) {
        if (A::maxima(eps_)) return;  // best states are chosen, and there are no derivatives
        if (A::scaled && eps_.y == 0) return choose_rows(node);
        const V *b = node.e;  // the product of the factors before a child
        V *to = work_;
        int rows = 1;
        for (int i = node.children; i < node.children_end; ++i) {
            Node<V> &below = roles_.child(i);
            Role<V> child = role_of<plain>(below);
            products_[i - node.children] = {b, rows};
            if (!child.multiplies || i == node.last_factor) continue;
            multiply<A>(b, rows, below, child, to);
            b = to;
            rows *= child.parent_rows;
            to += rows * node.k;
        }
        for (int i = node.children_end - 1; i >= node.children; --i) {
            Node<V> &below = roles_.child(i);
            Role<V> child = role_of<plain>(below);
            auto [before, rows_before] = products_[i - node.children];
            if (child.multiplies) derive<A>(node, below, child, before, rows_before, i != node.first_factor);
            if (child.present && child.multiplies != full<V>) derive_closed(node, below, A::by_maxima(child, eps_));
        }
    }
    // d(j, z) with respect to the message of a child, given the product before it; and t(r, z) with respect to that
    // product if it is `wanted`.
    template <class A>
    INLINE void derive(Node<V> &node, Node<V> &below, const Role<V> &child, const V *before, int rows, bool wanted) {
        int k = node.k, parent_rows = child.parent_rows;
        V *t = node.t, *s = below.s;
        V scale = below.scale;
        in_lanes<V>(child.multiplies, [&](auto select) ALWAYS {
            if (rows * parent_rows == 1) {
                for (int z = 0; wanted && z < k; ++z) {
                    V d = select(A::through(t[z], before[z]) * scale, s[z]);
                    t[z] = A::through(t[z], select(s[z], A::one()));
                    s[z] = d;
                }
                for (int z = 0; !wanted && z < k; ++z) s[z] = select(A::through(t[z], before[z]) * scale, s[z]);
                return;
            }
            for (int r = 0; wanted && r < rows; ++r)
                for (int z = 0; z < k; ++z) {
                    V sum = A::through(t[r * parent_rows * k + z], select(s[z], A::one()));
                    for (int j = 1; j < parent_rows; ++j)
                        sum += A::through(t[(r * parent_rows + j) * k + z], select(s[j * k + z], V{}));
                    work_t_[r * k + z] = sum;
                }
            for (int j = 0; j < parent_rows; ++j)
                for (int z = 0; z < k; ++z) {
                    V d = A::through(t[j * k + z], before[z]);
                    for (int r = 1; r < rows; ++r) d += A::through(t[(r * parent_rows + j) * k + z], before[r * k + z]);
                    s[j * k + z] = select(d * scale, s[j * k + z]);
                }
            if (wanted) std::copy(work_t_, work_t_ + rows * k, t);
        });
    }
    // `derive` where the message was added to scores: d(r, z) = q(z) norm(z) s(r, z). In lanes without the child it is
    // 0.
    INLINE void derive_closed(Node<V> &node, Node<V> &below, unsigned by_maxima) {
        int k = node.k;
        in_lanes<V>(below.present & ~below.multiplies & ~by_maxima, [&](auto closing) ALWAYS {
            in_pieces<8>(k, [&](auto size, int z) ALWAYS {
                V weight[size];
                for (int j = 0; j < size; ++j) weight[j] = node.u[z + j] * below.norm[z + j] * below.scale;
                for (int r = 0; r < below.message_rows; ++r)
                    for (int j = 0; j < size; ++j) {
                        V &s = below.s[r * k + z + j];
                        V other = r < below.parent_rows ? pick(below.multiplies, s, V{}) : V{};
                        s = closing(weight[j] * s, other);
                    }
            });
        });
    }

    // Marginals of tables: sums of b(r, x) d(r, z) over positions, times E, for positions with the same role in all
    // lanes (for others `Scaled::pull` has added them).
    void outer_products() {
        for (int j = 0; j < f_.slots(); ++j) {
            hidden_factors_.clear();
            output_factors_.clear();
            opening_[0].clear();
            opening_[1].clear();
            for (Node<V> &node : nodes_) {
                if (node.slot != j || !node.present) continue;
                if (node.output_edge == full<V>) add_factors(node, 1, output_factors_);
                else if (node.opens && node.rows == 1 && !node.output_edge) opening_[node.flip].push_back(&node);
                else if (!node.opens && !node.output_edge) add_factors(node, node.rows, hidden_factors_);
            }
            V *to = pairs_ + pair_at_[j];
            const Shape &shape = f_.shape(j);
            if (!hidden_factors_.empty()) add_outer_products(hidden_factors_, shape, tables_(j).at_eps_h.forth, to);
            if (!output_factors_.empty()) add_outer_products(output_factors_, shape, tables_(j).at_eps_y.forth, to);
            for (const auto &list : opening_)
                if (!list.empty()) add_opening(list, shape, tables_(j).at_eps_h.forth, to);
        }
    }
    using Factors = std::vector<FactorPair<V>>;

    static void add_factors(const Node<V> &node, int rows, Factors &list) {
        for (int r = 0; r < rows; ++r) {
            const V *b = node.b + r * node.k, *d = node.s + r * node.c;
            if (node.flip) list.emplace_back(d, b);
            else list.emplace_back(b, d);
        }
    }
    // Adds the marginals of positions where rows begin: b(x) d(x, z), times E. All of them read the table in one
    // orientation.
    static void add_opening(const std::vector<Node<V> *> &list, const Shape &shape, const double *E, V *to) {
        const Node<V> &first = *list[0];
        for (int x = 0; x < first.k; ++x)
            in_pieces<8>(first.c, [&](auto size, int z) ALWAYS {
                V sum[size] = {};
                for (Node<V> *node : list)
                    for (int i = 0; i < size; ++i) sum[i] += node->b[x] * node->s[x * node->c + z + i];
                for (int i = 0; i < size; ++i) {
                    int64_t at = first.flip ? (z + i) * shape.columns + x : x * shape.columns + z + i;
                    to[at] += sum[i] * E[at];
                }
            });
    }

    // Sizes of the workspace; false if it would be too large.
    bool place() {
        double need = 0;
        most_ = 1;
        for (const Node<V> &node : nodes_) {
            double k = node.k, c = node.c, rows = node.rows, message_rows = node.message_rows;
            need += k * (1 + rows) + message_rows * c + c;
            double work = std::max({rows * k * (1 + node.children_end - node.children), message_rows, 2 * k + c});
            if (need + 3 * work > MOST_NUMBERS / lanes) return false;
            most_ = std::max(most_, size_t(work));
        }
        need_ = size_t(need) + states_ + 1 + pair_size_ + 3 * most_;
        return true;
    }
    void set_pointers(V *memory, bool scaled) {
        memory_ = memory;
        for (int p = 0; p < f_.positions(); ++p) nodes_[p].u = memory + f_.at[p];
        nodes_.back().u = memory + states_;
        pairs_ = memory + states_ + 1;
        work_ = pairs_ + pair_size_;
        work_t_ = work_ + most_;
        V *t = work_t_ + most_;  // shared by all positions, which use it one after the other
        V *to = t + most_;
        for (Node<V> &node : nodes_) {
            bool alone = true;  // no message multiplies its belief
            for (int i = node.children; i < node.children_end; ++i) alone &= !roles_.child(i).multiplies;
            node.t = t;
            node.e = scaled ? to : node.u;
            if (scaled) to += node.k;
            node.b = alone ? node.e : to;
            if (!alone) to += node.rows * node.k;
            node.s = to;
            to += node.message_rows * node.c;
            node.norm = to;
            if (node.present & ~node.multiplies) to += node.c;
        }
    }

    const Family &f_;
    const Tables &tables_;
    Members<V> members_;
    Roles<V> roles_;
    std::vector<Node<V>> &nodes_;
    Temperatures eps_;
    int64_t states_;
    std::vector<size_t> pair_at_;  // by slot
    size_t pair_size_, need_ = 0, most_ = 1;
    bool fits_ = true, strict_ = false;
    V *memory_ = nullptr, *pairs_, *work_, *work_t_;
    V value_, least_;
    Factors hidden_factors_, output_factors_;
    std::vector<Node<V> *> opening_[2];                // by flip
    std::vector<std::pair<const V *, int>> products_;  // by child: the product of the factors before it, and its rows
};

}  // namespace mssvm
