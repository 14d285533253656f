// Exact inference on forests of variables with at most WIDE states and any tables, at one temperature, in one launch.
// An instance has WIDE lanes, and lane k holds state k. Compiled with WIDE (2 to 32) and THREADS.
//
// Scores are in logs (theta / eps), so that unary scores may have any range. Tables are exp(theta / eps), and NaN where
// that leaves a quarter of the range of floating-point numbers. Within that range a state that underflows cannot become
// relevant later, unless entries are forbidden; sums below FLOOR reveal this. In both cases the instance's value is set
// to NaN, and it is computed again in log space (nested.cu).
#define FULL 0xffffffffu
constexpr REAL FLOOR = sizeof(REAL) == 4 ? REAL(1e-24) : REAL(1e-220);

__device__ __forceinline__ REAL from_lane(REAL x, int lane) { return __shfl_sync(FULL, x, lane, WIDE); }
__device__ __forceinline__ REAL max_over_lanes(REAL x) {
#pragma unroll
    for (int o = WIDE / 2; o; o >>= 1) {
        const REAL y = __shfl_xor_sync(FULL, x, o);
        x = x > y ? x : y;
    }
    return x;
}
__device__ __forceinline__ REAL sum_over_lanes(REAL x) {
#pragma unroll
    for (int o = WIDE / 2; o; o >>= 1) x += __shfl_xor_sync(FULL, x, o);
    return x;
}

// Sum-product. `work` has two rows of WIDE numbers per visit: the variable's scores plus the messages of its children,
// and its message to its parent.
extern "C" __global__ void __launch_bounds__(THREADS)
    sums(const __grid_constant__ Forests in, const REAL *__restrict__ theta, const REAL *__restrict__ tables,
         REAL *__restrict__ work, REAL *__restrict__ value, REAL *__restrict__ mu, REAL *__restrict__ mu_tables,
         REAL eps, int n_instances) {
    const int b = (blockIdx.x * THREADS + threadIdx.x) / WIDE, k = threadIdx.x % WIDE;
    const bool active = b < n_instances;
    const int i = active ? b : 0, n = active ? in.length[i] : 0, longest = __reduce_max_sync(FULL, n);
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
        const bool root = me.parent_state_at < 0;
        REAL scores = none;
        if (on && k < me.n_states()) scores = me.is_leaf() ? u[me.state_at + k] * c : carried;
        const REAL top = max_over_lanes(scores);
        const REAL e = k < me.n_states() ? exp_(scores - top) : REAL(0);
        const bool lost = __ballot_sync(FULL, on && scores > none && e < FLOOR) & group;
        REAL total = 0;
        if (root) total = e;
        const REAL z = sum_over_lanes(total);
        const long long f = f0 + factor[on ? t : 0];
        const REAL *table = tables + (root ? 0 : table_at[f]);
        const int own = __reduce_max_sync(FULL, on && !root ? me.n_states() : 0);
        REAL sum = 0;
        for (int s = 0; s < own; s++) {
            const REAL x = from_lane(e, s);
            if (on && !root && s < me.n_states() && k < me.n_parent_states()) sum += x * table[me.entry(s, k)];
        }
        if (!on) continue;
        rows[2 * t * WIDE] = scores;
        if (root) {
            logz += top + log_(z);
            safe = safe && z > 0 && z < infinity();
            if (k < me.n_states()) p[me.state_at + k] = e / z;
        } else {
            const REAL message = log_(sum) + top;
            if (k < me.n_parent_states()) safe = safe && sum < infinity() && !(lost && sum < FLOOR);
            rows[(2 * t + 1) * WIDE] = message;
            REAL *above = rows + 2 * (long long)me.parent_visit * WIDE;
            carried = none;
            if (k < me.n_parent_states())
                carried = (me.is_first_child() ? u[me.parent_state_at + k] * c : *above) + message;
            *above = carried;
        }
    }
    for (int done = 0; done < longest; done++) {
        const int t = n - 1 - done;
        const bool on = t >= 0;
        const Visit me = visit[on ? t : 0];
        const bool inner = on && me.parent_state_at >= 0;
        const long long f = f0 + factor[on ? t : 0];
        const REAL *table = tables + (inner ? table_at[f] : 0);
        REAL cavity = none, scores = none;
        if (inner) {
            const REAL message = rows[(2 * t + 1) * WIDE];  // -inf: a state that the subtree forbids
            if (k < me.n_parent_states() && message > none)
                cavity = (me.parent_visit == t + 1 && carried == carried ? carried : log_(p[me.parent_state_at + k])) -
                         message;
            if (k < me.n_states()) scores = rows[2 * t * WIDE];
        }
        const REAL high = max_over_lanes(cavity), top = max_over_lanes(scores);
        const REAL outer = inner && k < me.n_parent_states() ? exp_(cavity - high) : REAL(0),
                   e = inner && k < me.n_states() ? exp_(scores - top) : REAL(0);
        const int up = __reduce_max_sync(FULL, inner ? me.n_parent_states() : 0);
        REAL sum = 0;
        for (int q = 0; q < up; q++) {
            const REAL x = from_lane(outer, q);
            if (inner && q < me.n_parent_states() && k < me.n_states()) sum += x * table[me.entry(k, q)];
        }
        const REAL w = e * sum, total = sum_over_lanes(w), scale = REAL(1) / total;
        safe = safe && (!inner || logz == none || total > FLOOR);
        for (int q = 0; q < up; q++) {
            const REAL x = from_lane(outer, q);
            if (inner && q < me.n_parent_states() && k < me.n_states())
                atomicAdd(mu_tables + mu_at[f] + me.entry(k, q), e * x * table[me.entry(k, q)] * scale);
        }
        carried = infinity() - infinity();  // NaN: the marginal of a root is read from memory instead
        if (inner && k < me.n_states()) {
            p[me.state_at + k] = w * scale;
            carried = log_(w * scale);
        }
    }
    safe = !(__ballot_sync(FULL, !safe) & group);
    if (active && k == 0) value[b] = safe ? eps * logz : infinity() - infinity();
}

// Max-product. `work` holds the best state of each variable for every state of its parent; ties go to the first state.
extern "C" __global__ void __launch_bounds__(THREADS)
    maxima(const __grid_constant__ Forests in, const REAL *__restrict__ theta, const REAL *__restrict__ tables,
           REAL *__restrict__ work, REAL *__restrict__ value, REAL *__restrict__ mu, REAL *__restrict__ mu_tables,
           REAL eps, int n_instances) {
    const int b = (blockIdx.x * THREADS + threadIdx.x) / WIDE, k = threadIdx.x % WIDE;
    const bool active = b < n_instances;
    const int i = active ? b : 0, n = active ? in.length[i] : 0, longest = __reduce_max_sync(FULL, n);
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
        const bool root = me.parent_state_at < 0;
        REAL scores = none;
        if (on && k < me.n_states()) scores = me.is_leaf() ? u[me.state_at + k] : carried;
        const REAL *table = tables + (root ? 0 : table_at[f0 + factor[on ? t : 0]]);
        const int own = __reduce_max_sync(FULL, on ? me.n_states() : 0);
        REAL best = none;
        int at = 0;
        for (int s = 0; s < own; s++) {
            const REAL x = from_lane(scores, s);
            REAL w = none;
            if (root) w = x;
            else if (on && s < me.n_states() && k < me.n_parent_states()) w = x + table[me.entry(s, k)];
            if (w > best) {
                best = w;
                at = s;
            }
        }
        if (!on) continue;
        rows[(2 * t + 1) * WIDE] = REAL(at);
        if (root) value_of += best;
        else {
            REAL *above = rows + 2 * (long long)me.parent_visit * WIDE;
            carried = none;
            if (k < me.n_parent_states()) carried = (me.is_first_child() ? u[me.parent_state_at + k] : *above) + best;
            *above = carried;
        }
    }
    if (active && k == 0) value[b] = value_of;
    const bool found = active && value_of > none;
    int state = 0;
    for (int done = 0; done < longest; done++) {
        const int t = n - 1 - done;
        const bool on = t >= 0;
        const Visit me = visit[on ? t : 0];
        const bool inner = on && me.parent_state_at >= 0;
        const REAL at = on ? rows[(2 * t + 1) * WIDE] : REAL(0);
        // The parent's state is in its own row, written below, unless that was the last visit.
        int above = state;
        const REAL read = inner && me.parent_visit != t + 1 ? rows[2 * (long long)me.parent_visit * WIDE] : REAL(0);
        if (inner && me.parent_visit != t + 1) above = int(read);
        const REAL chosen = from_lane(at, inner ? above : 0);
        if (on) {
            state = int(chosen);
            rows[2 * t * WIDE] = chosen;
            if (found && k < me.n_states()) p[me.state_at + k] = k == state ? REAL(1) : REAL(0);
            if (found && inner && k == 0)
                atomicAdd(mu_tables + mu_at[f0 + factor[t]] + me.entry(state, above), REAL(1));
        }
    }
}
