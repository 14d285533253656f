// Nested power sums on forests at two temperatures, zeros included, everything in one launch: WIDE lanes an instance,
// lane k holding state k. Compiled with WIDE (2 to 32) and THREADS. A free output below a hidden variable stays open
// until the next output above: what is sent past hidden variables has a row for each of its states. Exact where each
// hidden component touches two free outputs at most, and variables are rooted at outputs (or at an end of a path).
// Everything is in logs and stays near 0: the highest score of a variable goes to the value. Sums are of scaled
// numbers, and again in logs where these are too small to tell.
constexpr REAL SMALL = sizeof(REAL) == 4 ? REAL(1e-20) : REAL(1e-200);
constexpr int OUTPUT = 1, FREE = 2;  // roles

__device__ __forceinline__ REAL none() { return -infinity(); }
__device__ __forceinline__ REAL of(unsigned int group, REAL x, int lane) { return __shfl_sync(group, x, lane, WIDE); }
__device__ __forceinline__ REAL most_of(unsigned int group, REAL x) {
#pragma unroll
    for (int o = WIDE / 2; o; o >>= 1) x = larger(x, __shfl_xor_sync(group, x, o));
    return x;
}
__device__ __forceinline__ REAL sum_of(unsigned int group, REAL x) {
#pragma unroll
    for (int o = WIDE / 2; o; o >>= 1) x += __shfl_xor_sync(group, x, o);
    return x;
}
__device__ __forceinline__ bool any_of(unsigned int group, bool x) { return __ballot_sync(group, x) & group; }

// The power sum of numbers that come one after the other, and the first of the largest.
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
    const REAL top = most_of(group, x);
    return eps > 0 && top > none() ? top + eps * log_(sum_of(group, exp_((x - top) / eps))) : top;
}
__device__ __forceinline__ REAL weight(unsigned int group, REAL x, REAL eps) {
    const REAL top = most_of(group, x);
    if (!(top > none())) return 0;
    if (eps > 0) {
        const REAL e = exp_((x - top) / eps);
        return e / sum_of(group, e);
    }
    return REAL((__ffs(int(__ballot_sync(group, x == top) & group)) - 1) % 32 == int(threadIdx.x % 32));
}

// What an instance's variables know: of each visit its scores with all that has no rows, the rows from below, and the
// rows to its parent, in whose place their weights come on the way down. rows[t] counts the former, 0 if there are
// none.
struct Space {
    REAL *at;
    int *rows;
    int most;
    __device__ __forceinline__ REAL *scores(int t) const { return at + (long long)t * (most + 2 * most * most); }
    __device__ __forceinline__ REAL *below(int t) const { return scores(t) + most; }
    __device__ __forceinline__ REAL *above(int t) const { return below(t) + most * most; }
};

// A variable with its factor towards its parent: lane k has the table's column of the parent's state k, or the row of
// its own.
struct Pair {
    REAL log[WIDE], scaled[WIDE], top;
    __device__ __forceinline__ Pair(unsigned int group, const Visit &me, const REAL *P, int k, bool column, REAL eps) {
        const int n = column ? me.own() : me.up();
        const bool there = k < (column ? me.up() : me.own());
        top = none();
#pragma unroll
        for (int s = 0; s < WIDE; s++) {
            log[s] = s < n && there ? P[column ? me.at(s, k) : me.at(k, s)] : none();
            top = larger(top, log[s]);
        }
        top = most_of(group, top);
        if (!(top > none())) top = 0;
#pragma unroll
        for (int s = 0; s < WIDE; s++) scaled[s] = eps > 0 ? exp_((log[s] - top) / eps) : REAL(0);
    }
};

// For the parent's state k: the power sum over a variable's states of their scores x and the table's column.
__device__ __forceinline__ REAL through(unsigned int group, const Pair &table, REAL x, int own, bool there, REAL eps) {
    REAL best = none();
    if (eps > 0) {
        const REAL top = most_of(group, x), e = top > none() ? exp_((x - top) / eps) : REAL(0);
        REAL sum = 0;
        if (!(top > none())) return top;
#pragma unroll
        for (int s = 0; s < WIDE; s++)
            if (s < own) sum += of(group, e, s) * table.scaled[s];
        if (!any_of(group, there && !(sum > SMALL))) return there ? top + table.top + eps * log_(sum) : none();
    }
#pragma unroll
    for (int s = 0; s < WIDE; s++)
        if (s < own) best = larger(best, of(group, x, s) + table.log[s]);
    if (!(eps > 0)) return best;
    REAL sum = 0;
    const bool some = best > none();
#pragma unroll
    for (int s = 0; s < WIDE; s++)
        if (s < own) {
            const REAL e = exp_((of(group, x, s) + table.log[s] - best) / eps);
            sum += some ? e : REAL(0);
        }
    return some ? best + eps * log_(sum) : best;
}

// Back: what g, the weight of the parent's state k, whose power sum was the message, gives to the variable's state k;
// and to both together, which is added to the pairs.
__device__ __forceinline__ REAL back_through(unsigned int group, const Pair &table, REAL x, REAL message, REAL g,
                                             int up, REAL eps, REAL *pairs) {
    REAL mine = 0;
    if (eps > 0) {
        const REAL top = most_of(group, x), e = x > none() ? exp_((x - top) / eps) : REAL(0);
        const REAL sum = message > none() && top > none() ? exp_((message - top - table.top) / eps) : REAL(0);
        if (!any_of(group, g > 0 && !(sum > SMALL))) {
            const REAL r = g > 0 ? g / sum : REAL(0);
#pragma unroll
            for (int q = 0; q < WIDE; q++)
                if (q < up) {
                    const REAL v = e * table.scaled[q] * of(group, r, q);
                    mine += v;
                    pairs[q] += v;
                }
            return mine;
        }
    }
#pragma unroll
    for (int q = 0; q < WIDE; q++)
        if (q < up) {
            const REAL to = of(group, message, q), share = of(group, g, q), score = x + table.log[q];
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
        if (k < visit[t].own()) space.scores(t)[k] = u[visit[t].v + k];
        if (k == 0) space.rows[t] = 0;
    }
    __syncwarp(group);
    REAL total = 0;
    for (int t = 0; t < n; t++) {
        const Visit me = visit[t];
        const int own = me.own(), up = me.up(), role = roles[variable[t]], count = space.rows[t];
        const REAL eps = role & OUTPUT ? eps_y : eps_h;
        const REAL *below = space.below(t) + k;
        const bool here = k < own, there = k < up;
        REAL c = here ? space.scores(t)[k] : none(), high = count ? none() : REAL(0);
        if (here)
            for (int w = 0; w < count; w++) high = larger(high, below[w * most]);
        const REAL shift = most_of(group, c + high);
        total += shift;
        if (!(shift > none())) break;
        c -= shift;
        if (here) space.scores(t)[k] = c;
        if (me.p < 0) {
            Running sum(eps_y);
            for (int w = 0; w < count; w++) sum.add(power(group, here ? c + below[w * most] : none(), eps), w);
            total += count ? sum.value() : power(group, c, eps);
            continue;
        }
        const REAL *P = tables + in.table_at[f0 + factor[t]];
        REAL *over = space.scores(me.parent), *carried = space.below(me.parent);
        const bool carries = roles[variable[me.parent]] == FREE;
        if (carries && role == (OUTPUT | FREE)) {
            for (int w = 0; w < own; w++) {
                const REAL x = of(group, c, w);
                if (there) carried[w * most + k] = x + P[me.at(w, k)];
            }
            if (k == 0) space.rows[me.parent] = own;
        } else {
            const Pair table(group, me, P, k, true, eps);
            REAL *to = carries && count ? carried : space.above(t);
            Running sum(eps_y);
            REAL message = none();
            for (int w = 0; w < (count ? count : 1); w++) {
                message = through(group, table, here ? (count ? c + below[w * most] : c) : none(), own, there, eps);
                if (there) to[w * most + k] = message;
                if (count && !carries) sum.add(message, w);
            }
            if (carries && count) {
                if (k == 0) space.rows[me.parent] = count;
            } else if (there) over[k] += count ? sum.value() : message;
        }
        __syncwarp(group);
    }
    if (k == 0) value[b] = total;
    if (!(total > none())) return;
    for (int t = n - 1; t >= 0; t--) {
        const Visit me = visit[t];
        const int own = me.own(), up = me.up(), role = roles[variable[t]], count = space.rows[t];
        const REAL eps = role & OUTPUT ? eps_y : eps_h;
        const REAL *below = space.below(t) + k;
        const bool here = k < own, there = k < up;
        REAL *weights = space.above(t) + k, mine = 0;
        const REAL c = here ? space.scores(t)[k] : none();
        const auto scores = [&](int w) { return here ? (count ? c + below[w * most] : c) : none(); };
        if (me.p < 0) {
            Running sum(eps_y);
            for (int w = 0; w < count; w++) sum.add(power(group, scores(w), eps), w);
            for (int w = 0; w < (count ? count : 1); w++) {
                const REAL share = count ? sum.weight(power(group, scores(w), eps), w) : REAL(1),
                           x = share * weight(group, scores(w), eps);
                if (here && count) weights[w * most] = x;
                mine += x;
            }
            mine /= sum_of(group, mine);
            if (here) p[me.v + k] = mine;
            __syncwarp(group);
            continue;
        }
        const long long f = f0 + factor[t];
        const REAL *P = tables + in.table_at[f];
        REAL *pair = mu_tables + in.mu_at[f];
        const bool carries = roles[variable[me.parent]] == FREE;
        const REAL *shares = space.above(me.parent);
        if (carries && role == (OUTPUT | FREE)) {
            if (here)
                for (int q = 0; q < up; q++) mine += shares[k * most + q];
            const REAL scale = 1 / sum_of(group, mine);
            if (here)
                for (int q = 0; q < up; q++) atomicAdd(pair + me.at(k, q), scale * shares[k * most + q]);
            mine *= scale;
        } else {
            const Pair table(group, me, P, k, false, eps);
            const REAL over = there ? p[me.p + k] : REAL(0);
            REAL pairs[WIDE];
            const REAL *messages = (carries && count ? space.below(me.parent) : space.above(t)) + k;
            Running sum(eps_y);
#pragma unroll
            for (int q = 0; q < WIDE; q++) pairs[q] = 0;
            if (there && count && !carries)
                for (int w = 0; w < count; w++) sum.add(messages[w * most], w);
            for (int w = 0; w < (count ? count : 1); w++) {
                const REAL message = there ? messages[w * most] : none();
                const REAL g = !count || !there ? over : carries ? shares[w * most + k] : over * sum.weight(message, w);
                const REAL x = back_through(group, table, scores(w), message, g, up, eps, pairs);
                if (here && count) weights[w * most] = x;
                mine += x;
            }
            const REAL scale = 1 / sum_of(group, mine);
            mine *= scale;
#pragma unroll
            for (int q = 0; q < WIDE; q++)
                if (q < up && here) atomicAdd(pair + me.at(k, q), scale * pairs[q]);
        }
        if (here) p[me.v + k] = mine;
        __syncwarp(group);
    }
}
