// Alternating paths y - h - y - h - .. at eps_y = eps_h / n for a whole number n, as chains of one temperature.
//
// A hidden variable between two labels is summed at eps_h, and the sum is raised to the power eps_h / eps_y = n. The
// power of a sum is a sum over n copies of the hidden variable, in which only the number of copies in each state
// matters:
//
//     (sum_h a(h) f(h))^n = sum_k c(k) prod_h a(h)^k(h) prod_h f(h)^k(h),   k(1) + .. + k(H) = n,   c multinomial
//
// So a variable whose states are the counts k replaces the hidden variable, and the path is a chain at one
// temperature, eps_y. With E = exp(theta / eps_h) and E^k(y) = prod_h E(y, h)^k(h):
//
//     label to counts     g(k) = c(k) sum_y b(y) E^k(y),     b(y) = exp(u(y) / eps_y) s(y)
//     counts to label     s(y) = sum_k m(k) E^k(y),          m(k) = g(k) prod_h exp(u(h) / eps_h)^k(h)
//
// Where a label is missing (in some lanes), it is hidden too: it is summed at eps_h together with its neighbours,
//
//     T(h, h') = sum_y E(h, y) e(y) E(y, h'),
//
// and the message g consists of the coefficients of the polynomial sum_k m(k) f^k after the substitution f = T f'. A
// path is extended at its ends by a variable of one state. The downward pass is the chain rule: a state that has k of
// the n copies gets the share k / n of the marginal of these counts. All terms are positive, so nothing cancels.
#pragma once
#include <cmath>

#include "algebra.hpp"
#include "members.hpp"
#include "workspace.hpp"

namespace mssvm {

// Counts of n copies in H states, and how a polynomial in f is multiplied out at f = T f'.
struct Counts {
    struct Move {
        int from, to, entry;  // coefficient(to) += coefficient(from) * T[entry]
    };
    int n, H, K;
    std::vector<std::vector<int>> count;  // (k, h); all copies are in the first state at k = 0
    std::vector<double> many;             // c(k)
    int terms = 0;                        // coefficients of all stages; the first K are given, the last K wanted
    std::vector<Move> moves;

    Counts(int copies, int states) : n(copies), H(states) {
        count = splits(n);
        K = int(count.size());
        for (const auto &k : count) {
            double c = std::tgamma(n + 1.0);
            for (int part : k) c /= std::tgamma(part + 1.0);
            many.push_back(std::round(c));
        }
        // Stage i has terms f^k f'^l with n - i copies in k and i in l; a copy moves from its first state h to all h'.
        int begin = 0;
        for (int i = 0; i <= n; ++i) {
            auto left = splits(n - i), right = splits(i);
            int size = int(left.size() * right.size());
            if (i == n) {
                terms = begin + size;
                break;
            }
            auto next_left = splits(n - i - 1), next_right = splits(i + 1);
            for (size_t a = 0; a < left.size(); ++a)
                for (size_t b = 0; b < right.size(); ++b) {
                    int h = 0;
                    while (left[a][h] == 0) ++h;
                    auto k = left[a];
                    --k[h];
                    for (int to = 0; to < H; ++to) {
                        auto l = right[b];
                        ++l[to];
                        int place = find(next_left, k) * int(next_right.size()) + find(next_right, l);
                        moves.push_back({begin + int(a * right.size() + b), begin + size + place, h * H + to});
                    }
                }
            begin += size;
        }
    }

    // The coefficients of all stages, from those of the first.
    template <class V> void multiply_out(const V *T, V *poly) const {
        std::fill(poly + K, poly + terms, V{});
        if (H == 2) return multiply_two(T, poly);
        for (auto [from, to, entry] : moves) poly[to] += poly[from] * T[entry];
    }
    // Derivatives with respect to the coefficients of all stages, from those of the last stage; those with respect to T
    // are added to zeros.
    template <class V> void multiply_back(const V *T, const V *poly, V *slope, V *by_T) const {
        std::fill(slope, slope + terms - K, V{});
        if (H == 2) return back_two(T, poly, slope, by_T);
        for (size_t i = moves.size(); i-- > 0;) {
            auto [from, to, entry] = moves[i];
            slope[from] += slope[to] * T[entry];
            by_T[entry] += poly[from] * slope[to];
        }
    }

private:
    // The same moves for two states, without a list: term (a, b) of stage i has a of its n - i copies in the second
    // state, and b of the other i. The copy that moves leaves the first state, or the second if all
    // are there (a = n - i).
    template <class V> void multiply_two(const V *T, V *poly) const {
        const V T00 = T[0], T01 = T[1], T10 = T[2], T11 = T[3];
        V *now = poly;
        for (int i = 0; i < n; ++i) {
            V *next = now + (n - i + 1) * (i + 1);
            for (int a = 0; a <= n - i; ++a) {
                bool last = a == n - i;
                const V first = last ? T10 : T00, second = last ? T11 : T01;
                V *to = next + (last ? a - 1 : a) * (i + 2);
                V before = V{};  // the previous term, which contributes to this place too
                for (int b = 0; b <= i; ++b) {
                    V term = now[a * (i + 1) + b];
                    to[b] += term * first + before * second;
                    before = term;
                }
                to[i + 1] += before * second;
            }
            now = next;
        }
    }
    template <class V> void back_two(const V *T, const V *poly, V *slope, V *by_T) const {
        const V T00 = T[0], T01 = T[1], T10 = T[2], T11 = T[3];
        V by[2][2] = {};
        int at = terms - K;
        for (int i = n - 1; i >= 0; --i) {
            const V *next = slope + at;
            at -= (n - i + 1) * (i + 1);
            for (int a = 0; a <= n - i; ++a) {
                bool last = a == n - i;
                const V first = last ? T10 : T00, second = last ? T11 : T01;
                const V *from = next + (last ? a - 1 : a) * (i + 2);
                V sum_first = V{}, sum_second = V{};
                for (int b = 0; b <= i; ++b) {
                    V term = poly[at + a * (i + 1) + b];
                    slope[at + a * (i + 1) + b] = from[b] * first + from[b + 1] * second;
                    sum_first += term * from[b];
                    sum_second += term * from[b + 1];
                }
                by[last][0] += sum_first;
                by[last][1] += sum_second;
            }
        }
        for (int entry = 0; entry < 4; ++entry) by_T[entry] += by[entry / 2][entry % 2];
    }

    // The ways to split some copies over the states, the first states first.
    std::vector<std::vector<int>> splits(int copies) const {
        std::vector<std::vector<int>> out;
        std::vector<int> now(H, 0);
        split(copies, 0, now, out);
        return out;
    }
    void split(int left, int h, std::vector<int> &now, std::vector<std::vector<int>> &out) const {
        if (h == H - 1) {
            now[h] = left;
            out.push_back(now);
            return;
        }
        for (int part = left; part >= 0; --part) {
            now[h] = part;
            split(left - part, h + 1, now, out);
        }
    }
    static int find(const std::vector<std::vector<int>> &list, const std::vector<int> &item) {
        return int(std::find(list.begin(), list.end(), item) - list.begin());
    }
};

// The tables of a family as powers. Index 0 stands for an end of the path, slot j has index j + 1.
class PowerTables {
public:
    // (y, k): E^k(y), and transposed.
    struct Powers {
        std::vector<double> by_label, by_count, by_label_many;  // by_label_many: E^k(y) times c(k)
    };
    // (y, h h'): E(h, y) E(y, h'), and transposed.
    struct Joint {
        int below, above;  // indices of tables
        std::vector<double> by_label, by_pair;
    };
    Counts counts;
    int labels;
    double range = 0.0;          // range of the tables, in units of eps_h
    bool has_forbidden = false;  // a table forbids something
    std::vector<double> tops;    // by slot: the largest score
    std::vector<Powers> powers;
    std::vector<bool> label_rows;  // labels are the rows of the table
    std::vector<Joint> joints;

    PowerTables(const Family &f, const Tables &tables)
        : counts(int(f.copies), int(f.card[1])), labels(int(f.card[0])), powers(1), label_rows(1, true) {
        int n = f.positions();
        std::vector<std::vector<double>> E(f.slots() + 1);
        E[0].assign(labels * counts.H, 0.0);
        for (int y = 0; y < labels; ++y) E[0][y * counts.H] = 1.0;
        powers.resize(f.slots() + 1);
        label_rows.assign(f.slots() + 1, true);
        for (int p = 0; p + 1 < n; ++p) {
            int j = int(f.slot[p]);
            bool sends = (n - 1 - p) % 2 == 0;  // a label sends to a hidden variable
            label_rows[j + 1] = sends != bool(f.flip[p]);
        }
        for (int j = 0; j < f.slots(); ++j) {
            const Table &table = tables(j);
            range = std::max(range, table.range_h);
            has_forbidden |= table.has_forbidden;
            tops.push_back(table.top);
            const double *from = label_rows[j + 1] ? table.at_eps_h.forth : table.at_eps_h.back;
            E[j + 1].assign(from, from + labels * counts.H);
        }
        for (size_t i = 0; i < E.size(); ++i) raise(E[i], powers[i]);
        // Pairs of tables on the two sides of a label; a path may begin at any label.
        for (int p = 0; p < n; p += 2) {
            int above = p + 1 < n ? int(f.slot[p]) + 1 : 0;
            for (int below : {p > 0 ? int(f.slot[p - 1]) + 1 : 0, 0}) join(E, below, above);
        }
    }

    int joint(int below, int above) const {
        for (size_t i = 0; i < joints.size(); ++i)
            if (joints[i].below == below && joints[i].above == above) return int(i);
        return -1;
    }

private:
    void raise(const std::vector<double> &E, Powers &to) const {
        int K = counts.K, H = counts.H;
        for (auto *part : {&to.by_label, &to.by_count, &to.by_label_many}) part->resize(labels * K);
        for (int y = 0; y < labels; ++y)
            for (int k = 0; k < K; ++k) {
                double v = 1.0;
                for (int h = 0; h < H; ++h)
                    for (int i = 0; i < counts.count[k][h]; ++i) v *= E[y * H + h];
                to.by_label[y * K + k] = v;
                to.by_count[k * labels + y] = v;
                to.by_label_many[y * K + k] = v * counts.many[k];
            }
    }
    void join(const std::vector<std::vector<double>> &E, int below, int above) {
        if (joint(below, above) >= 0) return;
        int H = counts.H;
        Joint made{below, above, std::vector<double>(labels * H * H), std::vector<double>(labels * H * H)};
        for (int y = 0; y < labels; ++y)
            for (int i = 0; i < H * H; ++i) {
                double v = E[below][y * H + i / H] * E[above][y * H + i % H];
                made.by_label[y * H * H + i] = v;
                made.by_pair[i * labels + y] = v;
            }
        joints.push_back(std::move(made));
    }
};

template <class V> class Copies {
public:
    static constexpr int lanes = Of<V>::lanes;

    Copies(const Family &f, const ForestCall &call, const PowerTables &tables)
        : f_(f),
          tables_(tables),
          counts_(tables.counts),
          members_(f, call),
          masks_(f),
          states_(f.states()),
          K_(counts_.K),
          H_(counts_.H),
          C_(tables.labels) {
        int n = f.positions();
        for (int p = 0; p < n; p += 2) {
            Label label;
            label.position = p;
            label.below = p > 0 ? int(f.slot[p - 1]) + 1 : 0;
            label.above = p + 1 < n ? int(f.slot[p]) + 1 : 0;
            label.joint = tables.joint(label.below, label.above);
            label.opening_joint = tables.joint(0, label.above);
            labels_.push_back(label);
        }
        size_t at = 0;
        for (int j = 0; j < f.slots(); ++j) {
            pair_at_.push_back(at);
            at += f.shape(j).entries();
        }
        pair_size_ = at;
    }

    struct Outcome {
        unsigned done;  // the lanes that were written
        bool numbers;   // no score was NaN or +inf
    };

    // Runs some members. Lanes whose numbers were too small to be trusted are not written. No lane is written if a
    // table has forbidden entries or too large a range for powers. Such members run with rows instead.
    Outcome run(const Group<V> &group) {
        if (tables_.has_forbidden || 2 * counts_.n * tables_.range > 300.0) return {0, true};
        masks_.read(group.member, group.count);
        place();
        members_.choose(group);
        if (!members_.read(u_)) return {0, false};
        upward();
        double trusted = std::max(1e-250, 1e-290 * std::exp(2 * counts_.n * tables_.range));
        unsigned good = 0;
        for (int i = 0; i < group.count; ++i)
            if (lane(least_, i) > trusted) good |= 1u << i;
        if (!good) return {0, true};
        downward();
        marginals_of_tables();
        members_.write_values(value_, good);
        members_.write_states(u_, good);
        for (int j = 0; j < f_.slots(); ++j) members_.write_tables(j, pairs_ + pair_at_[j], good);
        return {good, true};
    }

private:
    // A label and the counts above it. `missing`: lanes in which it is hidden; `opening`: lanes that begin with it.
    struct Label {
        int position, below, above, joint, opening_joint;
        unsigned present, given, missing, opening;
        V *u, *hidden_u;  // scores, then marginals, of the label and of the hidden variable above it
        V *e, *b, *s;     // (y) exponentials, at eps_y where given; times s; message from the counts below, then
                          // its derivative
        V *g, *v, *m;     // (k) message to the counts, then its derivative; powers of the hidden scores; counts
        V *T, *poly;      // (h h') of a missing label, then its derivative; coefficients of all stages
        V scale, T_scale;
    };

    void place() {
        size_t each = 3 * C_ + 3 * K_ + H_ * H_ + counts_.terms;
        size_t n = labels_.size();
        size_t expanded = (f_.slots() + 1) * C_ * K_ + tables_.joints.size() * C_ * H_ * H_;
        size_t work = counts_.terms + H_ * (counts_.n + 1) + H_ * H_;
        size_t need = states_ + pair_size_ + n * each + expanded + work;
        V *to = static_cast<V *>(workspace(need * sizeof(V)));
        auto take = [&](size_t size) {
            V *part = to;
            to += size;
            return part;
        };
        u_ = take(states_);
        pairs_ = take(pair_size_);
        expanded_ = take(expanded);
        work_ = take(work);
        for (size_t i = 0; i < n; ++i) {
            Label &label = labels_[i];
            int p = label.position;
            label.present = masks_[p].present;
            label.missing = label.present & ~masks_[p].output & ~masks_[p].closed;
            label.given = label.present & ~label.missing;
            label.opening = p > 0 ? label.present & ~masks_[p - 1].present : label.present;
            label.u = u_ + f_.at[p];
            label.hidden_u = p + 1 < f_.positions() ? u_ + f_.at[p + 1] : nullptr;
            label.e = take(C_);
            label.b = take(C_);
            label.s = take(C_);
            label.g = take(K_);
            label.v = take(K_);
            label.m = take(K_);
            label.T = take(H_ * H_);
            label.poly = take(counts_.terms);
        }
    }

    void upward() {
        value_ = V{};
        least_ = all<V>(1.0);
        for (Label &label : labels_) {
            enter(label);
            if (label.hidden_u) raise_hidden(label);
        }
        const Label *below = nullptr;
        for (Label &label : labels_) {
            const PowerTables::Powers &powers = tables_.powers[label.below];
            V one = all<V>(1.0);
            if (below) product<SumProduct>(below->m, 1, K_, powers.by_count.data(), C_, label.s);
            V total = V{};
            for (int y = 0; y < C_; ++y) {
                label.s[y] = below ? pick(label.opening, one, label.s[y]) : one;
                label.b[y] = label.e[y] * label.s[y];
                total += label.b[y];
            }
            least_ = pick(label.given, smaller(total, least_), least_);
            const double *above = tables_.powers[label.above].by_label_many.data();
            product<SumProduct>(label.b, 1, C_, above, K_, label.g);
            if (label.missing) sum_missing(label, below);
            form_counts(label);
            below = &label;
        }
        Label &root = labels_.back();
        value_ += f_.eps_y * log(larger(root.g[0], all<V>(1e-300)));
        least_ = smaller(root.g[0], least_);
    }
    // e = exp((u - max) / eps), at eps_h where the label is missing.
    void enter(Label &label) {
        V inverse = pick(label.missing, all<V>(1 / f_.eps_h), all<V>(1 / f_.eps_y));
        V top = all<V>(-1e300);
        for (int y = 0; y < C_; ++y) top = larger(top, label.u[y]);
        for (int y = 0; y < C_; ++y) label.e[y] = exp((label.u[y] - top) * inverse);
        if (label.below) top += pick(label.present & ~label.opening, all<V>(table_top(label.position - 1)), V{});
        if (label.above) top += table_top(label.position);
        value_ += pick(label.present, top, V{});
    }
    double table_top(int position) const { return tables_.tops[f_.slot[position]]; }

    // v(k) = prod_h exp((u(h) - max) / eps_h)^k(h).
    void raise_hidden(Label &label) {
        V top = all<V>(-1e300);
        for (int h = 0; h < H_; ++h) top = larger(top, label.hidden_u[h]);
        V *power = work_;  // (h, 0 .. n)
        int n = counts_.n;
        for (int h = 0; h < H_; ++h) {
            V e = exp((label.hidden_u[h] - top) * (1 / f_.eps_h));
            V now = all<V>(1.0);
            for (int i = 0; i <= n; ++i) {
                power[h * (n + 1) + i] = now;
                now *= e;
            }
        }
        for (int k = 0; k < K_; ++k) {
            V v = power[counts_.count[k][0]];
            for (int h = 1; h < H_; ++h) v *= power[h * (n + 1) + counts_.count[k][h]];
            label.v[k] = v;
        }
        value_ += pick(label.present, top, V{});
    }
    // g of the lanes in which the label is missing.
    void sum_missing(Label &label, const Label *below) {
        int size = H_ * H_;
        V one = all<V>(1.0);
        product<SumProduct>(label.e, 1, C_, tables_.joints[label.joint].by_label.data(), size, label.T);
        if (label.opening && label.joint != label.opening_joint) {
            product<SumProduct>(label.e, 1, C_, tables_.joints[label.opening_joint].by_label.data(), size, work_);
            for (int i = 0; i < size; ++i) label.T[i] = pick(label.opening, work_[i], label.T[i]);
        }
        V top = label.T[0];
        for (int i = 1; i < size; ++i) top = larger(top, label.T[i]);
        least_ = pick(label.missing, smaller(top, least_), least_);
        V safe = top > 1e-300 ? top : one;
        label.T_scale = two_to_minus_exponent(safe);
        for (int i = 0; i < size; ++i) label.T[i] *= label.T_scale;
        for (int k = 0; k < K_; ++k) {
            V alone = k == 0 ? one : V{};
            label.poly[k] = below ? pick(label.opening, alone, below->m[k]) : alone;
        }
        counts_.multiply_out(label.T, label.poly);
        const V *last = label.poly + counts_.terms - K_;
        for (int k = 0; k < K_; ++k) label.g[k] = pick(label.missing, last[k], label.g[k]);
        value_ += pick(label.missing, exponent(safe) * (LN2 * f_.eps_h), V{});
    }
    // m(k) = g(k) v(k), its sum in [1, 2).
    void form_counts(Label &label) {
        if (!label.hidden_u) return;
        V total = V{};
        for (int k = 0; k < K_; ++k) {
            label.m[k] = label.g[k] * label.v[k];
            total += label.m[k];
        }
        least_ = pick(label.present, smaller(total, least_), least_);
        V safe = total > 1e-300 ? total : all<V>(1.0);
        label.scale = two_to_minus_exponent(safe);
        for (int k = 0; k < K_; ++k) label.m[k] *= label.scale;
        value_ += pick(label.present, exponent(safe) * (LN2 * f_.eps_y), V{});
    }

    // Derivatives of log Z, from the root on: with respect to g, to b and s or T, and to m.
    void downward() {
        Label &root = labels_.back();
        V total = root.g[0];
        for (int k = 0; k < K_; ++k) root.g[k] = k == 0 ? 1.0 / total : V{};
        for (size_t i = labels_.size(); i-- > 0;) {
            Label &label = labels_[i];
            Label *below = i > 0 ? &labels_[i - 1] : nullptr;
            const double *above = tables_.powers[label.above].by_count.data();
            V *t = work_;
            if (label.missing) derive_missing(label);
            for (int k = 0; k < K_; ++k) label.g[k] = pick(label.given, label.g[k] * counts_.many[k], V{});
            product<SumProduct>(label.g, 1, K_, above, C_, t);
            for (int y = 0; y < C_; ++y) {
                label.u[y] = pick(label.given, label.b[y] * t[y], label.u[y]);
                label.s[y] = pick(label.given & ~label.opening, label.e[y] * t[y], V{});
            }
            if (below) derive_counts(label, *below);
        }
    }
    // Where the label is missing: its marginals, the derivative with respect to T times 1 / n (in its array), and that
    // with respect to the counts below, which remains in the first K of the array of coefficients.
    void derive_missing(Label &label) {
        int size = H_ * H_;
        V *slope = work_;
        V *by_T = work_ + counts_.terms;
        std::fill(by_T, by_T + size, V{});
        for (int k = 0; k < K_; ++k) slope[counts_.terms - K_ + k] = pick(label.missing, label.g[k], V{});
        counts_.multiply_back(label.T, label.poly, slope, by_T);
        for (int k = 0; k < K_; ++k) label.poly[k] = slope[k];
        V share = label.T_scale * (1.0 / counts_.n);
        for (int i = 0; i < size; ++i) label.T[i] = by_T[i] * share;
        V *q = work_;
        product<SumProduct>(label.T, 1, size, tables_.joints[label.joint].by_pair.data(), C_, q);
        for (int y = 0; y < C_; ++y) label.u[y] = pick(label.missing, label.e[y] * q[y], label.u[y]);
        if (!label.opening || label.joint == label.opening_joint) return;
        product<SumProduct>(label.T, 1, size, tables_.joints[label.opening_joint].by_pair.data(), C_, q);
        unsigned lane_mask = label.missing & label.opening;
        for (int y = 0; y < C_; ++y) label.u[y] = pick(lane_mask, label.e[y] * q[y], label.u[y]);
    }
    // From a label to the counts below it: marginals of the hidden variable, and the derivative with respect to g.
    void derive_counts(const Label &label, Label &below) {
        V *t = work_;
        product<SumProduct>(label.s, 1, C_, tables_.powers[label.below].by_label.data(), K_, t);
        if (label.missing)
            for (int k = 0; k < K_; ++k) t[k] = pick(label.missing, label.poly[k], t[k]);
        V *q = below.hidden_u;
        for (int h = 0; h < H_; ++h) q[h] = V{};
        for (int k = 0; k < K_; ++k) {
            V mass = below.m[k] * t[k] * (1.0 / counts_.n);
            for (int h = 0; h < H_; ++h) q[h] += mass * double(counts_.count[k][h]);
            below.g[k] = t[k] * below.v[k] * below.scale;
        }
    }

    // Outer products of labels and counts, times E^k, and of labels and pairs (h, h') where labels are missing; then
    // every state of k copies gets its share.
    void marginals_of_tables() {
        std::fill(pairs_, pairs_ + pair_size_, V{});
        V *to = expanded_;
        for (int index = 1; index <= f_.slots(); ++index, to += C_ * K_) {
            factors_.clear();
            for (size_t i = 0; i < labels_.size(); ++i) {
                const Label &label = labels_[i];
                if (label.above == index) factors_.push_back({label.b, label.g});
                if (label.below == index) factors_.push_back({label.s, labels_[i - 1].m});
            }
            std::fill(to, to + C_ * K_, V{});
            add_outer_products(factors_, Shape{0, C_, K_}, tables_.powers[index].by_label.data(), to);
            for (int y = 0; y < C_; ++y)
                for (int k = 0; k < K_; ++k)
                    for (int h = 0; h < H_; ++h)
                        *pair(index, y, h) += to[y * K_ + k] * (double(counts_.count[k][h]) / counts_.n);
        }
        for (size_t j = 0; j < tables_.joints.size(); ++j) add_joint(int(j));
    }
    void add_joint(int j) {
        const PowerTables::Joint &joint = tables_.joints[j];
        int size = H_ * H_;
        factors_.clear();
        masked_.clear();
        for (const Label &label : labels_) {
            if (!label.missing) continue;
            bool inner = label.joint == j, end = label.opening_joint == j;
            if (!inner && !end) continue;
            unsigned lane_mask = label.missing;
            if (!end) lane_mask &= ~label.opening;
            if (!inner) lane_mask &= label.opening;
            if (!lane_mask) continue;
            if (lane_mask == label.missing) {
                factors_.push_back({label.e, label.T});
                continue;
            }
            masked_.emplace_back(size);
            for (int i = 0; i < size; ++i) masked_.back()[i] = pick(lane_mask, label.T[i], V{});
            factors_.push_back({label.e, nullptr});
        }
        size_t next = 0;
        for (auto &factor : factors_)
            if (!factor.second) factor.second = masked_[next++].data();
        if (factors_.empty()) return;
        V *to = expanded_;
        std::fill(to, to + C_ * size, V{});
        add_outer_products(factors_, Shape{0, C_, size}, joint.by_label.data(), to);
        for (int y = 0; y < C_; ++y)
            for (int i = 0; i < size; ++i) {
                if (joint.below) *pair(joint.below, y, i / H_) += to[y * size + i];
                if (joint.above) *pair(joint.above, y, i % H_) += to[y * size + i];
            }
    }
    V *pair(int index, int y, int h) const {
        V *pairs = pairs_ + pair_at_[index - 1];
        return pairs + (tables_.label_rows[index] ? y * H_ + h : h * C_ + y);
    }

    const Family &f_;
    const PowerTables &tables_;
    const Counts &counts_;
    Members<V> members_;
    RoleMasks<V> masks_;
    int64_t states_;
    int K_, H_, C_;
    std::vector<Label> labels_;
    std::vector<size_t> pair_at_;
    size_t pair_size_;
    V *u_, *pairs_, *expanded_, *work_;
    V value_, least_;
    std::vector<FactorPair<V>> factors_;
    std::vector<std::vector<V>> masked_;
};

}  // namespace mssvm
