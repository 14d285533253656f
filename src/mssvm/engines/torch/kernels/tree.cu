// Exact forests of variables of at most WIDE states with any tables, everything in one launch: WIDE lanes an instance,
// lane k holding state k. Compiled with WIDE (2 to 32) and THREADS. Scores are logs over eps, so that no range of unary
// scores is too wide; tables come as exp(theta / eps), NaN where that leaves a quarter of the range of numbers: then
// nothing is lost that could be heard again, unless entries are forbidden, and sums that are smaller than tables allow
// show that. Instances that meet either get the value NaN, and are computed again elsewhere.
#define FULL 0xffffffffu
constexpr REAL FLOOR = sizeof(REAL) == 4 ? REAL(1e-24) : REAL(1e-220);

__device__ __forceinline__ REAL of(REAL x, int lane) { return __shfl_sync(FULL, x, lane, WIDE); }
__device__ __forceinline__ REAL most_of(REAL x) {
#pragma unroll
    for (int o = WIDE / 2; o; o >>= 1) {
        const REAL y = __shfl_xor_sync(FULL, x, o);
        x = x > y ? x : y;
    }
    return x;
}
__device__ __forceinline__ REAL sum_of(REAL x) {
#pragma unroll
    for (int o = WIDE / 2; o; o >>= 1) x += __shfl_xor_sync(FULL, x, o);
    return x;
}

// work: two rows of WIDE numbers a visit: the variable's scores with all from below, and its message to the parent.
extern "C" __global__ void __launch_bounds__(THREADS)
    sums(const __grid_constant__ Forests in, const REAL *__restrict__ theta, const REAL *__restrict__ tables,
         REAL *__restrict__ work, REAL *__restrict__ value, REAL *__restrict__ mu, REAL *__restrict__ mu_tables,
         REAL eps, int n_instances) {
    const int b = (blockIdx.x * THREADS + threadIdx.x) / WIDE, k = threadIdx.x % WIDE;
    const bool there = b < n_instances;
    const int i = there ? b : 0, n = there ? in.length[i] : 0, longest = __reduce_max_sync(FULL, n);
    const REAL c = REAL(1) / eps, none = -infinity();
    const Visit *__restrict__ visit = in.visits + in.visits_at[i];
    const int *__restrict__ factor = in.factors + in.visits_at[i];
    const long long *__restrict__ table_at = in.table_at, *__restrict__ mu_at = in.mu_at;
    const REAL *u = theta + in.first[i];
    REAL *p = mu + in.first[i];
    REAL *rows = work + in.work_at[i] * 2 * WIDE + k;
    const long long f0 = in.factor_at[i];
    const unsigned int group = (WIDE < 32 ? (1u << WIDE % 32) - 1 : FULL) << threadIdx.x % 32 / WIDE * WIDE;
    REAL carried = none, logz = 0;
    bool safe = true;
    for (int t = 0; t < longest; t++) {
        const bool on = t < n;
        const Visit me = visit[on ? t : 0];
        const bool root = me.p < 0;
        const REAL scores = !on || k >= me.own() ? none : me.leaf() ? u[me.v + k] * c : carried, top = most_of(scores);
        const REAL e = k < me.own() ? exp_(scores - top) : REAL(0);
        const bool lost = __ballot_sync(FULL, on && scores > none && e < FLOOR) & group;
        REAL total = 0;
        if (root) total = e;
        const REAL z = sum_of(total);
        const long long f = f0 + factor[on ? t : 0];
        const REAL *P = tables + (root ? 0 : table_at[f]);
        const int own = __reduce_max_sync(FULL, on && !root ? me.own() : 0);
        REAL sum = 0;
        for (int s = 0; s < own; s++) {
            const REAL x = of(e, s);
            if (on && !root && s < me.own() && k < me.up()) sum += x * P[me.at(s, k)];
        }
        if (!on) continue;
        rows[2 * t * WIDE] = scores;
        if (root) {
            logz += top + log_(z);
            safe = safe && z > 0 && z < infinity();
            if (k < me.own()) p[me.v + k] = e / z;
        } else {
            const REAL message = log_(sum) + top;
            if (k < me.up()) safe = safe && sum < infinity() && !(lost && sum < FLOOR);
            rows[(2 * t + 1) * WIDE] = message;
            REAL *above = rows + 2 * (long long)me.parent * WIDE;
            carried = k < me.up() ? (me.first() ? u[me.p + k] * c : *above) + message : none;
            *above = carried;
        }
    }
    for (int done = 0; done < longest; done++) {
        const int t = n - 1 - done;
        const bool on = t >= 0;
        const Visit me = visit[on ? t : 0];
        const bool inner = on && me.p >= 0;
        const long long f = f0 + factor[on ? t : 0];
        const REAL *P = tables + (inner ? table_at[f] : 0);
        REAL cavity = none, scores = none;
        if (inner) {
            const REAL message = rows[(2 * t + 1) * WIDE];  // -inf: a state that nothing below allows
            if (k < me.up() && message > none)
                cavity = (me.parent == t + 1 && carried == carried ? carried : log_(p[me.p + k])) - message;
            if (k < me.own()) scores = rows[2 * t * WIDE];
        }
        const REAL high = most_of(cavity), top = most_of(scores);
        const REAL outer = inner && k < me.up() ? exp_(cavity - high) : REAL(0),
                   e = inner && k < me.own() ? exp_(scores - top) : REAL(0);
        const int up = __reduce_max_sync(FULL, inner ? me.up() : 0);
        REAL sum = 0;
        for (int q = 0; q < up; q++) {
            const REAL x = of(outer, q);
            if (inner && q < me.up() && k < me.own()) sum += x * P[me.at(k, q)];
        }
        const REAL w = e * sum, total = sum_of(w), scale = REAL(1) / total;
        safe = safe && (!inner || logz == none || total > FLOOR);
        for (int q = 0; q < up; q++) {
            const REAL x = of(outer, q);
            if (inner && q < me.up() && k < me.own())
                atomicAdd(mu_tables + mu_at[f] + me.at(k, q), e * x * P[me.at(k, q)] * scale);
        }
        carried = infinity() - infinity();  // of a root: read back
        if (inner && k < me.own()) {
            p[me.v + k] = w * scale;
            carried = log_(w * scale);
        }
    }
    safe = !(__ballot_sync(FULL, !safe) & group);
    if (there && k == 0) value[b] = safe ? eps * logz : infinity() - infinity();
}

// The best states. work: the best state of each variable for every state of its parent; ties go to the first state.
extern "C" __global__ void __launch_bounds__(THREADS)
    maxima(const __grid_constant__ Forests in, const REAL *__restrict__ theta, const REAL *__restrict__ tables,
           REAL *__restrict__ work, REAL *__restrict__ value, REAL *__restrict__ mu, REAL *__restrict__ mu_tables,
           REAL eps, int n_instances) {
    const int b = (blockIdx.x * THREADS + threadIdx.x) / WIDE, k = threadIdx.x % WIDE;
    const bool there = b < n_instances;
    const int i = there ? b : 0, n = there ? in.length[i] : 0, longest = __reduce_max_sync(FULL, n);
    const REAL none = -infinity();
    const Visit *__restrict__ visit = in.visits + in.visits_at[i];
    const int *__restrict__ factor = in.factors + in.visits_at[i];
    const long long *__restrict__ table_at = in.table_at, *__restrict__ mu_at = in.mu_at;
    const REAL *u = theta + in.first[i];
    REAL *p = mu + in.first[i];
    REAL *rows = work + in.work_at[i] * 2 * WIDE + k;
    const long long f0 = in.factor_at[i];
    REAL carried = none, value_of = 0;
    for (int t = 0; t < longest; t++) {
        const bool on = t < n;
        const Visit me = visit[on ? t : 0];
        const bool root = me.p < 0;
        const REAL scores = !on || k >= me.own() ? none : me.leaf() ? u[me.v + k] : carried;
        const REAL *P = tables + (root ? 0 : table_at[f0 + factor[on ? t : 0]]);
        const int own = __reduce_max_sync(FULL, on ? me.own() : 0);
        REAL best = none;
        int at = 0;
        for (int s = 0; s < own; s++) {
            const REAL x = of(scores, s), w = root ? x : on && s < me.own() && k < me.up() ? x + P[me.at(s, k)] : none;
            if (w > best) {
                best = w;
                at = s;
            }
        }
        if (!on) continue;
        rows[(2 * t + 1) * WIDE] = REAL(at);
        if (root) value_of += best;
        else {
            REAL *above = rows + 2 * (long long)me.parent * WIDE;
            carried = k < me.up() ? (me.first() ? u[me.p + k] : *above) + best : none;
            *above = carried;
        }
    }
    if (there && k == 0) value[b] = value_of;
    const bool found = there && value_of > none;
    int state = 0;
    for (int done = 0; done < longest; done++) {
        const int t = n - 1 - done;
        const bool on = t >= 0;
        const Visit me = visit[on ? t : 0];
        const bool inner = on && me.p >= 0;
        const REAL at = on ? rows[(2 * t + 1) * WIDE] : REAL(0);
        // The parent's state is in its own row, written below, unless that was the last visit.
        int above = state;
        const REAL read = inner && me.parent != t + 1 ? rows[2 * (long long)me.parent * WIDE] : REAL(0);
        if (inner && me.parent != t + 1) above = int(read);
        const REAL chosen = of(at, inner ? above : 0);
        if (on) {
            state = int(chosen);
            rows[2 * t * WIDE] = chosen;
            if (found && k < me.own()) p[me.v + k] = k == state ? REAL(1) : REAL(0);
            if (found && inner && k == 0) atomicAdd(mu_tables + mu_at[f0 + factor[t]] + me.at(state, above), REAL(1));
        }
    }
}
