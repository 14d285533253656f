// Chains in padded tensors (n, length, S) at any two temperatures, zero included: both sides of the objective, values
// and derivatives, in one launch that never waits for the host. A chain has WIDE lanes for each side, and lane k has
// state k. Compiled with S (the states, 2 to 32), WIDE and THREADS.
//
// From left to right, with x the scores of a site and E those of a link:
//
//     after an output, or a hidden site without rows    in'(z)    = PS_k[eps of the site] (in(k) + x(k) + E(k, z))
//     from a free output w to a hidden site             in'(w, z) = in(w) + x(w) + E(w, z)                rows open
//     from hidden to hidden                             in'(w, z) = PS_k[eps_h] (in(w, k) + x(k) + E(k, z))
//     from hidden to an output                          in'(z)    = PS_w[eps_y] of the same               rows close
//
// A row for each state of the last free output is needed only where eps_y and eps_h differ. The backward pass
// multiplies the derivatives of these power sums.
#include "logs.cu"

constexpr int ROWS = S < 4 ? S : 4;  // processed at a time
constexpr int BAD_LABEL = 0, BAD_LENGTH = 1, IMPOSSIBLE = 2, BAD_SCORE = 3, NEGATIVE = 4;  // places in `problem`

// Tensors of a batch. A null pointer means: all lengths are `longest`; no labels; weights of one.
struct Chains {
    const REAL *node, *edge;
    const long long *lengths, *labels;  // a label below zero is missing
    const bool *candidates;             // instead of labels: the possible states; a label is missing if there are none
    const REAL *site_weight;
    long long n, longest;
    long long edge_of_chain, edge_of_link;  // steps in `edge`, 0 where tables are shared
    long long missing;                      // the only negative number that a label may be
    long long sides;                        // 2: U+ and U-; 1: U- alone
    long long labels_are_outputs;           // sites without a label are hidden; 0: all sites are outputs
    long long normalize;                    // divide the loss of a chain by its number of labels
};

struct Site {
    REAL score;
    bool output, free;  // free: more than one state is possible
};

// The work of one group of lanes: a chain and a side.
struct Part {
    const Chains &in;
    int *problem;
    unsigned int group;
    int chain, k;
    bool clamped;  // U-: states are those that labels admit
    REAL cost;     // cost of a wrong state, in U+

    __device__ __forceinline__ bool report(bool found, int what) const {
        const bool some = any_lane(group, found);
        if (some && k == 0) atomicMax(problem + what, chain + 1);
        return some;
    }
    __device__ __forceinline__ bool observed(long long at) const {
        if (in.labels) return in.labels[at] >= 0;
        return in.candidates && any_lane(group, k < S && in.candidates[at * S + k]);
    }
    __device__ __forceinline__ Site site(int t) const {
        const long long at = chain * in.longest + t;
        const bool known = observed(at);
        bool possible = k < S;
        if (known) possible = in.labels ? in.labels[at] == k : k < S && in.candidates[at * S + k];
        Site found{k < S ? in.node[at * S + k] : none(), !in.labels_are_outputs || known, S > 1};
        if (clamped && !possible) found.score = none();
        if (clamped) found.free = __popc(__ballot_sync(group, possible) & group) > 1;
        if (!clamped && k < S && !possible) found.score += cost * (in.site_weight ? in.site_weight[at] : REAL(1));
        return found;
    }
    // Whether scores, labels and weights are valid. A label below zero that is not `missing` is missing, too.
    __device__ __forceinline__ bool valid(int length) const {
        bool score = false, label = false, negative = false;
        for (int t = 0; t < length; t++) {
            const long long at = chain * in.longest + t;
            score |= k < S && !(in.node[at * S + k] < infinity());
            if (t + 1 < length && (in.edge_of_link || t == 0))
                for (int q = 0; q < S; q++) score |= k < S && !(table(t).at(k, q) < infinity());
            if (in.labels) label |= in.labels[at] >= S;
            if (in.labels) negative |= in.labels[at] < 0 && in.labels[at] != in.missing;
            if (in.site_weight) label |= !(in.site_weight[at] >= 0 && in.site_weight[at] < infinity());
        }
        report(negative, NEGATIVE);
        const bool bad_score = report(score, BAD_SCORE), bad_label = report(label, BAD_LABEL);
        return !bad_score && !bad_label;
    }
    __device__ __forceinline__ Table table(int t) const {
        return Table{in.edge + chain * in.edge_of_chain + t * in.edge_of_link, S, S, S, 1};
    }
};

// The table of the current link in registers, loaded again only if it, or the temperature of its sums, changes.
struct Link {
    Pair pair;
    REAL eps;
    __device__ __forceinline__ Link(const Part &part, bool column)
        : pair(part.group, part.table(0), part.k, column, 0), eps(0) {}
    __device__ __forceinline__ void move(const Part &part, int t, bool column, REAL needed) {
        if (!part.in.edge_of_link && (!(needed > 0) || needed == eps)) return;
        pair = Pair(part.group, part.table(t), part.k, column, needed);
        eps = needed;
    }
};

// Workspace of a part. By site: the incoming message, the shift that was moved from the scores to the value, whether
// there are rows, and the rows (these only with two temperatures).
struct Space {
    REAL *at;
    int size;
    __device__ __forceinline__ REAL *message(int t) const { return at + (long long)t * size; }
    __device__ __forceinline__ REAL &shift(int t) const { return message(t)[S]; }
    __device__ __forceinline__ REAL &has_rows(int t) const { return message(t)[S + 1]; }
    __device__ __forceinline__ REAL *row(int t, int w) const { return message(t) + S + 2 + w * S; }
};

// The messages of all sites, left in the workspace; returns the power sum of the chain's n > 0 sites.
__device__ __forceinline__ double forward(const Part &part, const Space &space, int n, REAL eps_y, REAL eps_h) {
    const unsigned int group = part.group;
    const int k = part.k;
    const bool two = eps_y != eps_h, here = k < S;
    double total = 0;
    Link link(part, true);
    Site me = part.site(0);
    bool rows = false;
    if (here) space.message(0)[k] = 0;
    for (int t = 0; t < n; t++) {
        REAL high = none();
        if (here && !rows) high = space.message(t)[k];
        for (int w = 0; here && rows && w < S; w++) high = larger(high, space.row(t, w)[k]);
        const REAL shift = max_over_lanes(group, high + me.score);
        if (k == 0) {
            space.shift(t) = shift;
            space.has_rows(t) = rows;
        }
        total += shift;
        if (!(shift > none())) break;
        const REAL eps = me.output ? eps_y : eps_h;
        const auto scores = [&](const REAL *in) { return here ? in[k] + me.score - shift : none(); };
        if (t == n - 1) {
            Running sum(eps_y);
            for (int w = 0; rows && w < S; w++) sum.add(power(group, scores(space.row(t, w)), eps_h), w);
            total += rows ? sum.value() : power(group, scores(space.message(t)), eps);
            continue;
        }
        const Site next = part.site(t + 1);
        const bool carries = two && !next.output && next.free;
        link.move(part, t, true, eps);
        if (carries && !rows && me.output && me.free) {
            const REAL c = scores(space.message(t));
            for (int w = 0; w < S; w++) {
                const REAL x = from_lane(group, c, w);
                if (here) space.row(t + 1, w)[k] = x + part.table(t).at(w, k);
            }
            rows = true;
        } else if (rows) {
            Running sum(eps_y);
            for (int w = 0; w < S; w += ROWS) {
                REAL x[ROWS], message[ROWS];
#pragma unroll
                for (int j = 0; j < ROWS; j++) x[j] = w + j < S ? scores(space.row(t, w + j)) : none();
                through_rows<ROWS>(group, link.pair, x, S, here, eps_h, message);
#pragma unroll
                for (int j = 0; j < ROWS; j++) {
                    if (here && w + j < S) space.row(t + 1, w + j)[k] = message[j];
                    sum.add(message[j], w + j);
                }
            }
            rows = carries;
            if (here && !rows) space.message(t + 1)[k] = sum.value();
        } else {
            const REAL message = through(group, link.pair, scores(space.message(t)), S, here, eps);
            if (here) space.message(t + 1)[k] = message;
        }
        me = next;
        __syncwarp(group);
    }
    return total;
}

// Adds `sign` times the derivatives of the power sum to `d_node` and `d_edge`, from the messages of the forward pass.
__device__ __forceinline__ void backward(const Part &part, const Space &space, REAL *shares, int n, REAL sign,
                                         REAL eps_y, REAL eps_h, REAL *d_node, REAL *d_edge) {
    const Chains &in = part.in;
    const unsigned int group = part.group;
    const int b = part.chain, k = part.k;
    const bool here = k < S;
    Link link(part, false);
    REAL mine = 0, all_pairs[WIDE], pairs[WIDE];
    bool rows = false;  // whether site t + 1 has rows
#pragma unroll
    for (int q = 0; q < WIDE; q++) all_pairs[q] = 0;
    for (int t = n - 1; t >= 0; t--) {
        const Site me = part.site(t);
        const REAL eps = me.output ? eps_y : eps_h, shift = space.shift(t), above = mine;
        const bool own_rows = space.has_rows(t) > 0;
        const auto scores = [&](const REAL *in) { return here ? in[k] + me.score - shift : none(); };
        link.move(part, t < n - 1 ? t : 0, false, eps);
        mine = 0;
#pragma unroll
        for (int q = 0; q < WIDE; q++) pairs[q] = 0;
        if (t == n - 1) {
            Running sum(eps_y);
            for (int w = 0; own_rows && w < S; w++) sum.add(power(group, scores(space.row(t, w)), eps_h), w);
            for (int w = 0; own_rows && w < S; w++) {
                const REAL c = scores(space.row(t, w));
                const REAL share = sum.weight(power(group, c, eps_h), w) * weight(group, c, eps_h);
                if (here) shares[w * S + k] = share;
                mine += share;
            }
            if (!own_rows) mine = weight(group, scores(space.message(t)), eps);
        } else if (own_rows) {
            Running sum(eps_y);
            for (int w = 0; here && !rows && w < S; w++) sum.add(space.row(t + 1, w)[k], w);
            for (int w = 0; w < S; w += ROWS) {
                REAL x[ROWS], message[ROWS], share[ROWS], below[ROWS];
#pragma unroll
                for (int j = 0; j < ROWS; j++) {
                    const bool active = here && w + j < S;
                    x[j] = w + j < S ? scores(space.row(t, w + j)) : none();
                    message[j] = active ? space.row(t + 1, w + j)[k] : none();
                    share[j] = 0;
                    if (active) share[j] = rows ? shares[(w + j) * S + k] : above * sum.weight(message[j], w + j);
                }
                back_through_rows<ROWS>(group, link.pair, x, message, share, S, eps_h, pairs, below);
#pragma unroll
                for (int j = 0; j < ROWS; j++) {
                    if (here && w + j < S) shares[(w + j) * S + k] = below[j];
                    mine += below[j];
                }
            }
        } else if (rows) {
#pragma unroll
            for (int q = 0; q < S; q++) {
                pairs[q] = here ? shares[k * S + q] : REAL(0);
                mine += pairs[q];
            }
        } else {
            const REAL message = here ? space.message(t + 1)[k] : none();
            mine = back_through(group, link.pair, scores(space.message(t)), message, above, S, eps, pairs);
        }
        const REAL once = 1 / sum_over_lanes(group, mine);
        mine *= once;
        if (here) atomicAdd(d_node + (b * in.longest + t) * S + k, sign * mine);
        if (t < n - 1 && here)
#pragma unroll
            for (int q = 0; q < S; q++) {
                if (in.edge_of_link)
                    atomicAdd(d_edge + b * in.edge_of_chain + t * in.edge_of_link + k * S + q, sign * once * pairs[q]);
                else all_pairs[q] += once * pairs[q];
            }
        rows = own_rows;
        __syncwarp(group);
    }
    if (!in.edge_of_link && here)
#pragma unroll
        for (int q = 0; q < S; q++) atomicAdd(d_edge + ((long long)b * S + k) * S + q, sign * all_pairs[q]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    padded(const __grid_constant__ Chains in, REAL *work, double *__restrict__ value, REAL *d_node,
           REAL *d_edge, int *problem, REAL eps_y, REAL eps_h, REAL scale, int size, int first, int n_parts) {
    __shared__ REAL shares_of_block[THREADS / WIDE * S * S];
    const int number = (blockIdx.x * THREADS + threadIdx.x) / WIDE, k = threadIdx.x % WIDE;
    if (number >= n_parts) return;
    const unsigned int group = (WIDE < 32 ? (1u << WIDE % 32) - 1 : 0xffffffffu) << threadIdx.x % 32 / WIDE * WIDE;
    Part part{in, problem, group, first + number / int(in.sides), k, in.sides == 1 || number % 2 == 1, scale};
    const int b = part.chain;
    const Space space{work + (long long)number * in.longest * size, size};
    REAL *shares = shares_of_block + threadIdx.x / WIDE * S * S;
    const long long given = in.lengths ? in.lengths[b] : in.longest;
    const bool fits = given >= in.sides - 1 && given <= in.longest;  // training needs a site to label
    const int n = fits ? int(given) : 0;
    part.report(!fits, BAD_LENGTH);
    const bool valid = fits && (!part.clamped || part.valid(n));
    if (in.normalize && !part.clamped) {
        int labels = 0;
        for (int t = 0; t < n; t++) labels += part.observed(b * in.longest + t);
        part.cost = scale / max(labels, 1);
    }
    const double total = n > 0 ? forward(part, space, n, eps_y, eps_h) : 0.0;
    part.report(!(total > none()), IMPOSSIBLE);
    const bool answered = valid && total > none() && total < infinity();
    if (k == 0) value[number] = answered ? total : double(infinity()) - double(infinity());  // NaN
    if (n == 0 || !answered) return;
    const REAL sign = in.sides == 1 || !part.clamped ? 1 : -1;
    backward(part, space, shares, n, sign, eps_y, eps_h, d_node, d_edge);
}
