// Nested power sums on forests at any two temperatures, zero included, in one launch. An instance has WIDE lanes, and
// lane k holds state k. Compiled with WIDE (2 to 32) and THREADS.
//
// A free output below a hidden variable stays open until the next output above it: messages of hidden variables have a
// row for each of its states. This is exact where each hidden component touches at most two free outputs, and forests
// are rooted at outputs (or at an end of a path).
//
// Everything is in logs near 0: the highest score of each variable is moved to the value. Sums use scaled
// probabilities, and are repeated in logs where these are too small to be trusted.
constexpr REAL SMALL = sizeof(REAL) == 4 ? REAL(1e-20) : REAL(1e-200);
constexpr int OUTPUT = 1, FREE = 2;  // roles

__device__ __forceinline__ REAL none() { return -infinity(); }
__device__ __forceinline__ REAL from_lane(unsigned int group, REAL x, int lane) {
    return __shfl_sync(group, x, lane, WIDE);
}
__device__ __forceinline__ REAL max_over_lanes(unsigned int group, REAL x) {
#pragma unroll
    for (int o = WIDE / 2; o; o >>= 1) x = larger(x, __shfl_xor_sync(group, x, o));
    return x;
}
__device__ __forceinline__ REAL sum_over_lanes(unsigned int group, REAL x) {
#pragma unroll
    for (int o = WIDE / 2; o; o >>= 1) x += __shfl_xor_sync(group, x, o);
    return x;
}
__device__ __forceinline__ bool any_lane(unsigned int group, bool x) { return __ballot_sync(group, x) & group; }

// A running power sum of numbers, with the index of the first maximum.
struct Running {
    REAL eps, top, total;
    int best;
    __device__ __forceinline__ Running(REAL eps) : eps(eps), top(none()), total(0), best(0) {}
    __device__ __forceinline__ void add(REAL x, int number) {
        if (!(x > none())) return;
        if (eps > 0) total = x > top ? total * exp_((top - x) / eps) + 1 : total + exp_((x - top) / eps);
        if (x > top) {
            top = x;
            best = number;
        }
    }
    __device__ __forceinline__ REAL value() const { return eps > 0 && top > none() ? top + eps * log_(total) : top; }
    __device__ __forceinline__ REAL weight(REAL x, int number) const {
        return !(x > none()) ? REAL(0) : eps > 0 ? exp_((x - top) / eps) / total : REAL(number == best);
    }
};

// The power sum over lanes, and the weight of each.
__device__ __forceinline__ REAL power(unsigned int group, REAL x, REAL eps) {
    const REAL top = max_over_lanes(group, x);
    return eps > 0 && top > none() ? top + eps * log_(sum_over_lanes(group, exp_((x - top) / eps))) : top;
}
__device__ __forceinline__ REAL weight(unsigned int group, REAL x, REAL eps) {
    const REAL top = max_over_lanes(group, x);
    if (!(top > none())) return 0;
    if (eps > 0) {
        const REAL e = exp_((x - top) / eps);
        return e / sum_over_lanes(group, e);
    }
    return REAL((__ffs(int(__ballot_sync(group, x == top) & group)) - 1) % 32 == int(threadIdx.x % 32));
}

// Workspace of an instance. Each visit t has its scores plus all messages without rows, the rows that came from below,
// and the rows sent to its parent, which the downward pass replaces by their weights. rows[t] is the number of rows
// from below, 0 if active are none.
struct Space {
    REAL *at;
    int *rows;
    int most;
    __device__ __forceinline__ REAL *scores(int t) const { return at + (long long)t * (most + 2 * most * most); }
    __device__ __forceinline__ REAL *below(int t) const { return scores(t) + most; }
    __device__ __forceinline__ REAL *above(int t) const { return below(t) + most * most; }
};

// The table between a variable and its parent in registers: lane k has the column of the parent's state k, or the row
// of the variable's own state k.
struct Pair {
    REAL log[WIDE], scaled[WIDE], top;
    __device__ __forceinline__ Pair(unsigned int group, const Visit &me, const REAL *P, int k, bool column, REAL eps) {
        const int n = column ? me.n_states() : me.n_parent_states();
        const bool active = k < (column ? me.n_parent_states() : me.n_states());
        top = none();
#pragma unroll
        for (int s = 0; s < WIDE; s++) {
            log[s] = s < n && active ? P[column ? me.entry(s, k) : me.entry(k, s)] : none();
            top = larger(top, log[s]);
        }
        top = max_over_lanes(group, top);
        if (!(top > none())) top = 0;
#pragma unroll
        for (int s = 0; s < WIDE; s++) scaled[s] = eps > 0 ? exp_((log[s] - top) / eps) : REAL(0);
    }
};

// For the parent's state k: the power sum over a variable's states of their scores x and the table's column.
__device__ __forceinline__ REAL through(unsigned int group, const Pair &table, REAL x, int own, bool active, REAL eps) {
    REAL best = none();
    if (eps > 0) {
        const REAL top = max_over_lanes(group, x), e = top > none() ? exp_((x - top) / eps) : REAL(0);
        REAL sum = 0;
        if (!(top > none())) return top;
#pragma unroll
        for (int s = 0; s < WIDE; s++)
            if (s < own) sum += from_lane(group, e, s) * table.scaled[s];
        if (!any_lane(group, active && !(sum > SMALL))) return active ? top + table.top + eps * log_(sum) : none();
    }
#pragma unroll
    for (int s = 0; s < WIDE; s++)
        if (s < own) best = larger(best, from_lane(group, x, s) + table.log[s]);
    if (!(eps > 0)) return best;
    REAL sum = 0;
    const bool some = best > none();
#pragma unroll
    for (int s = 0; s < WIDE; s++)
        if (s < own) {
            const REAL e = exp_((from_lane(group, x, s) + table.log[s] - best) / eps);
            sum += some ? e : REAL(0);
        }
    return some ? best + eps * log_(sum) : best;
}

// The derivative of `through`: given g, the weight of the parent's state k, returns the weight of the variable's state
// k, and adds the joint weights to the pairwise marginals.
__device__ __forceinline__ REAL back_through(unsigned int group, const Pair &table, REAL x, REAL message, REAL g,
                                             int up, REAL eps, REAL *pairs) {
    REAL mine = 0;
    if (eps > 0) {
        const REAL top = max_over_lanes(group, x), e = x > none() ? exp_((x - top) / eps) : REAL(0);
        const REAL sum = message > none() && top > none() ? exp_((message - top - table.top) / eps) : REAL(0);
        if (!any_lane(group, g > 0 && !(sum > SMALL))) {
            const REAL r = g > 0 ? g / sum : REAL(0);
#pragma unroll
            for (int q = 0; q < WIDE; q++)
                if (q < up) {
                    const REAL v = e * table.scaled[q] * from_lane(group, r, q);
                    mine += v;
                    pairs[q] += v;
                }
            return mine;
        }
    }
#pragma unroll
    for (int q = 0; q < WIDE; q++)
        if (q < up) {
            const REAL to = from_lane(group, message, q), share = from_lane(group, g, q), score = x + table.log[q];
            REAL v = 0;
            if (eps > 0) v = share > 0 && score > none() ? share * exp_((score - to) / eps) : REAL(0);
            else {
                const unsigned int best = __ballot_sync(group, score > none() && score == to) & group;
                if (best && __ffs(int(best)) - 1 == int(threadIdx.x % 32)) v = share;
            }
            mine += v;
            pairs[q] += v;
        }
    return mine;
}

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
            const Pair table(group, me, P, k, true, eps);
            REAL *to = carries && count ? carried : space.above(t);
            Running sum(eps_y);
            REAL message = none();
            for (int w = 0; w < (count ? count : 1); w++) {
                message = through(group, table, here ? (count ? c + below[w * most] : c) : none(), own, active, eps);
                if (active) to[w * most + k] = message;
                if (count && !carries) sum.add(message, w);
            }
            if (carries && count) {
                if (k == 0) space.rows[me.parent_visit] = count;
            } else if (active) over[k] += count ? sum.value() : message;
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
        const auto scores = [&](int w) { return here ? (count ? c + below[w * most] : c) : none(); };
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
            const Pair table(group, me, P, k, false, eps);
            const REAL over = active ? p[me.parent_state_at + k] : REAL(0);
            REAL pairs[WIDE];
            const REAL *messages = (carries && count ? space.below(me.parent_visit) : space.above(t)) + k;
            Running sum(eps_y);
#pragma unroll
            for (int q = 0; q < WIDE; q++) pairs[q] = 0;
            if (active && count && !carries)
                for (int w = 0; w < count; w++) sum.add(messages[w * most], w);
            for (int w = 0; w < (count ? count : 1); w++) {
                const REAL message = active ? messages[w * most] : none();
                const REAL g = !count || !active ? over
                               : carries         ? shares[w * most + k]
                                                 : over * sum.weight(message, w);
                const REAL x = back_through(group, table, scores(w), message, g, up, eps, pairs);
                if (here && count) weights[w * most] = x;
                mine += x;
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
