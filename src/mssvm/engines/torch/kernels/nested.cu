// Nested power sums on forests at any two temperatures, zero included, in one launch. An instance has WIDE lanes, and
// lane k holds state k. Compiled with WIDE (2 to 32) and THREADS.
//
// A free output below a hidden variable stays open until the next output above it: messages of hidden variables have a
// row for each of its states. This is exact where each hidden component touches at most two free outputs, and forests
// are rooted at outputs (or at an end of a path).
//
// Everything is in logs near 0 (logs.cu): the highest score of each variable is moved to the value.
#include "logs.cu"

constexpr int OUTPUT = 1, FREE = 2;  // roles
constexpr int ROWS = WIDE < 4 ? WIDE : 4;  // processed at a time

__device__ __forceinline__ Table table_of(const Visit &me, const REAL *scores) {
    const int own = me.n_states(), up = me.n_parent_states();
    return me.is_second_variable() ? Table{scores, own, up, 1, own} : Table{scores, own, up, up, 1};
}

// Workspace of an instance. Each visit t has its scores plus all messages without rows, the rows that came from below,
// and the rows sent to its parent, which the downward pass replaces by their weights. rows[t] is the number of rows
// from below, 0 if there are none.
struct Space {
    REAL *at;
    int *rows;
    int most;
    __device__ __forceinline__ REAL *scores(int t) const { return at + (long long)t * (most + 2 * most * most); }
    __device__ __forceinline__ REAL *below(int t) const { return scores(t) + most; }
    __device__ __forceinline__ REAL *above(int t) const { return below(t) + most * most; }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    nested(const __grid_constant__ Forests in, const REAL *__restrict__ theta, const REAL *__restrict__ tables,
           const unsigned char *__restrict__ role_of, REAL *work, int *rows, REAL *__restrict__ value, REAL *mu,
           REAL *__restrict__ mu_tables, REAL eps_y, REAL eps_h, int most, int n_instances) {
    const int b = (blockIdx.x * THREADS + threadIdx.x) / WIDE, k = threadIdx.x % WIDE;
    if (b >= n_instances) return;
    const unsigned int group = (WIDE < 32 ? (1u << WIDE % 32) - 1 : 0xffffffffu) << threadIdx.x % 32 / WIDE * WIDE;
    const int n = in.length[b];
    const Visit *__restrict__ visit = in.visits + in.visits_at[b];
    const int *__restrict__ factor = in.factors + in.visits_at[b], *__restrict__ variable =
                                                                       in.variables + in.visits_at[b];
    const unsigned char *__restrict__ roles = role_of + in.var_at[b];
    const REAL *u = theta + in.first[b];
    REAL *p = mu + in.first[b];
    const long long f0 = in.factor_at[b];
    const Space space{work + in.work_at[b] * (most + 2 * most * most), rows + in.work_at[b], most};
    for (int t = 0; t < n; t++) {
        if (k < visit[t].n_states()) space.scores(t)[k] = u[visit[t].state_at + k];
        if (k == 0) space.rows[t] = 0;
    }
    __syncwarp(group);
    REAL total = 0;
    for (int t = 0; t < n; t++) {
        const Visit me = visit[t];
        const int own = me.n_states(), up = me.n_parent_states(), role = roles[variable[t]], count = space.rows[t];
        const REAL eps = role & OUTPUT ? eps_y : eps_h;
        const REAL *below = space.below(t) + k;
        const bool here = k < own, active = k < up;
        REAL c = here ? space.scores(t)[k] : none(), high = count ? none() : REAL(0);
        if (here)
            for (int w = 0; w < count; w++) high = larger(high, below[w * most]);
        const REAL shift = max_over_lanes(group, c + high);
        total += shift;
        if (!(shift > none())) break;
        c -= shift;
        if (here) space.scores(t)[k] = c;
        if (me.parent_state_at < 0) {
            Running sum(eps_y);
            for (int w = 0; w < count; w++) sum.add(power(group, here ? c + below[w * most] : none(), eps), w);
            total += count ? sum.value() : power(group, c, eps);
            continue;
        }
        const REAL *P = tables + in.table_at[f0 + factor[t]];
        REAL *over = space.scores(me.parent_visit), *carried = space.below(me.parent_visit);
        const bool carries = roles[variable[me.parent_visit]] == FREE;
        if (carries && role == (OUTPUT | FREE)) {
            for (int w = 0; w < own; w++) {
                const REAL x = from_lane(group, c, w);
                if (active) carried[w * most + k] = x + P[me.entry(w, k)];
            }
            if (k == 0) space.rows[me.parent_visit] = own;
        } else {
            const Pair table(group, table_of(me, P), k, true, eps);
            if (!count) {
                const REAL message = through(group, table, c, own, active, eps);
                if (active) {
                    space.above(t)[k] = message;
                    over[k] += message;
                }
            }
            REAL *to = carries ? carried : space.above(t);
            Running sum(eps_y);
            for (int w = 0; w < count; w += ROWS) {
                REAL x[ROWS], message[ROWS];
#pragma unroll
                for (int j = 0; j < ROWS; j++) x[j] = here && w + j < count ? c + below[(w + j) * most] : none();
                through_rows<ROWS>(group, table, x, own, active, eps, message);
#pragma unroll
                for (int j = 0; j < ROWS; j++) {
                    if (active && w + j < count) to[(w + j) * most + k] = message[j];
                    sum.add(message[j], w + j);
                }
            }
            if (carries && count && k == 0) space.rows[me.parent_visit] = count;
            if (!carries && count && active) over[k] += sum.value();
        }
        __syncwarp(group);
    }
    if (k == 0) value[b] = total;
    if (!(total > none())) return;
    for (int t = n - 1; t >= 0; t--) {
        const Visit me = visit[t];
        const int own = me.n_states(), up = me.n_parent_states(), role = roles[variable[t]], count = space.rows[t];
        const REAL eps = role & OUTPUT ? eps_y : eps_h;
        const REAL *below = space.below(t) + k;
        const bool here = k < own, active = k < up;
        REAL *weights = space.above(t) + k, mine = 0;
        const REAL c = here ? space.scores(t)[k] : none();
        const auto scores = [&](int w) { return here && count ? c + below[w * most] : c; };  // c is -inf elsewhere
        if (me.parent_state_at < 0) {
            Running sum(eps_y);
            for (int w = 0; w < count; w++) sum.add(power(group, scores(w), eps), w);
            for (int w = 0; w < (count ? count : 1); w++) {
                const REAL share = count ? sum.weight(power(group, scores(w), eps), w) : REAL(1),
                           x = share * weight(group, scores(w), eps);
                if (here && count) weights[w * most] = x;
                mine += x;
            }
            mine /= sum_over_lanes(group, mine);
            if (here) p[me.state_at + k] = mine;
            __syncwarp(group);
            continue;
        }
        const long long f = f0 + factor[t];
        const REAL *P = tables + in.table_at[f];
        REAL *pair = mu_tables + in.mu_at[f];
        const bool carries = roles[variable[me.parent_visit]] == FREE;
        const REAL *shares = space.above(me.parent_visit);
        if (carries && role == (OUTPUT | FREE)) {
            if (here)
                for (int q = 0; q < up; q++) mine += shares[k * most + q];
            const REAL scale = 1 / sum_over_lanes(group, mine);
            if (here)
                for (int q = 0; q < up; q++) atomicAdd(pair + me.entry(k, q), scale * shares[k * most + q]);
            mine *= scale;
        } else {
            const Pair table(group, table_of(me, P), k, false, eps);
            const REAL over = active ? p[me.parent_state_at + k] : REAL(0);
            REAL pairs[WIDE];
            const REAL *messages = (carries && count ? space.below(me.parent_visit) : space.above(t)) + k;
            Running sum(eps_y);
#pragma unroll
            for (int q = 0; q < WIDE; q++) pairs[q] = 0;
            if (!count) mine = back_through(group, table, c, active ? messages[0] : none(), over, up, eps, pairs);
            if (active && !carries)
                for (int w = 0; w < count; w++) sum.add(messages[w * most], w);
            for (int w = 0; w < count; w += ROWS) {
                REAL x[ROWS], message[ROWS], share[ROWS], weight_of[ROWS];
#pragma unroll
                for (int j = 0; j < ROWS; j++) {
                    const bool row = w + j < count;
                    x[j] = row ? scores(w + j) : none();
                    message[j] = row && active ? messages[(w + j) * most] : none();
                    share[j] = 0;
                    if (!row || !active) continue;
                    share[j] = carries ? shares[(w + j) * most + k] : over * sum.weight(message[j], w + j);
                }
                back_through_rows<ROWS>(group, table, x, message, share, up, eps, pairs, weight_of);
#pragma unroll
                for (int j = 0; j < ROWS; j++) {
                    if (here && w + j < count) weights[(w + j) * most] = weight_of[j];
                    mine += weight_of[j];
                }
            }
            const REAL scale = 1 / sum_over_lanes(group, mine);
            mine *= scale;
#pragma unroll
            for (int q = 0; q < WIDE; q++)
                if (q < up && here) atomicAdd(pair + me.entry(k, q), scale * pairs[q]);
        }
        if (here) p[me.state_at + k] = mine;
        __syncwarp(group);
    }
}
