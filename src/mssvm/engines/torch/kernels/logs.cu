// Power sums over the lanes of an instance: WIDE lanes (2 to 32), lane k has state k of a variable. Scores are logs,
// shifted to a maximum near 0. Sums use scaled probabilities, and are repeated in logs where these underflow.
constexpr REAL SMALL = sizeof(REAL) == 4 ? REAL(1e-20) : REAL(1e-200);

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
        if (!(x > none())) return 0;
        return eps > 0 ? exp_((x - top) / eps) / total : REAL(number == best);
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

// The scores of a variable's own state s with its parent's state q.
struct Table {
    const REAL *scores;
    int n_own, n_parent, own_step, parent_step;
    __device__ __forceinline__ REAL at(int s, int q) const { return scores[s * own_step + q * parent_step]; }
};

// The table between a variable and its parent in registers: lane k has the column of the parent's state k, or the row
// of the variable's own state k.
struct Pair {
    REAL log[WIDE], scaled[WIDE], top;
    __device__ __forceinline__ Pair(unsigned int group, const Table &table, int k, bool column, REAL eps) {
        const int n = column ? table.n_own : table.n_parent;
        const bool active = k < (column ? table.n_parent : table.n_own);
        top = none();
#pragma unroll
        for (int s = 0; s < WIDE; s++) {
            log[s] = none();
            if (s < n && active) log[s] = column ? table.at(s, k) : table.at(k, s);
            top = larger(top, log[s]);
        }
        top = max_over_lanes(group, top);
        if (!(top > none())) top = 0;
#pragma unroll
        for (int s = 0; s < WIDE; s++) scaled[s] = eps > 0 ? exp_((log[s] - top) / eps) : REAL(0);
    }
};

// The sums of `through` in scaled probabilities, for N rows whose instructions interleave. False if one underflowed.
template <int N>
__device__ __forceinline__ bool through_scaled(unsigned int group, const Pair &table, const REAL *x, int own,
                                               bool active, REAL eps, REAL *message) {
    REAL top[N], e[N], sum[N];
    bool small = false;
#pragma unroll
    for (int j = 0; j < N; j++) top[j] = max_over_lanes(group, x[j]);
#pragma unroll
    for (int j = 0; j < N; j++) {
        e[j] = top[j] > none() ? exp_((x[j] - top[j]) / eps) : REAL(0);
        sum[j] = 0;
    }
#pragma unroll
    for (int s = 0; s < WIDE; s++)
        if (s < own)
#pragma unroll
            for (int j = 0; j < N; j++) sum[j] += from_lane(group, e[j], s) * table.scaled[s];
#pragma unroll
    for (int j = 0; j < N; j++) {
        const bool some = top[j] > none();
        small |= active && some && !(sum[j] > SMALL);
        message[j] = active && some ? top[j] + table.top + eps * log_(sum[j]) : none();
    }
    return !any_lane(group, small);
}

// For the parent's state k: the power sum over a variable's states of their scores x and the table's column.
__device__ __forceinline__ REAL through(unsigned int group, const Pair &table, REAL x, int own, bool active, REAL eps) {
    REAL best = none(), sum = 0;
    if (eps > 0 && through_scaled<1>(group, table, &x, own, active, eps, &sum)) return sum;
#pragma unroll
    for (int s = 0; s < WIDE; s++)
        if (s < own) best = larger(best, from_lane(group, x, s) + table.log[s]);
    if (!(eps > 0)) return best;
    const bool some = best > none();
    sum = 0;
#pragma unroll
    for (int s = 0; s < WIDE; s++)
        if (s < own) {
            const REAL e = exp_((from_lane(group, x, s) + table.log[s] - best) / eps);
            sum += some ? e : REAL(0);
        }
    return some ? best + eps * log_(sum) : best;
}

// `through` for N rows.
template <int N>
__device__ __forceinline__ void through_rows(unsigned int group, const Pair &table, const REAL *x, int own, bool active,
                                             REAL eps, REAL *message) {
    if (eps > 0 && through_scaled<N>(group, table, x, own, active, eps, message)) return;
#pragma unroll
    for (int j = 0; j < N; j++) message[j] = through(group, table, x[j], own, active, eps);
}

// `back_through` in scaled probabilities, for N rows. False if a sum underflowed.
template <int N>
__device__ __forceinline__ bool back_scaled(unsigned int group, const Pair &table, const REAL *x, const REAL *message,
                                            const REAL *g, int up, REAL eps, REAL *pairs, REAL *mine) {
    REAL e[N], r[N];
    bool small = false;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const REAL top = max_over_lanes(group, x[j]);
        const REAL sum = message[j] > none() && top > none() ? exp_((message[j] - top - table.top) / eps) : REAL(0);
        e[j] = x[j] > none() ? exp_((x[j] - top) / eps) : REAL(0);
        r[j] = g[j] > 0 ? g[j] / sum : REAL(0);
        small |= g[j] > 0 && !(sum > SMALL);
        mine[j] = 0;
    }
    if (any_lane(group, small)) return false;
#pragma unroll
    for (int q = 0; q < WIDE; q++)
        if (q < up)
#pragma unroll
            for (int j = 0; j < N; j++) {
                const REAL v = e[j] * table.scaled[q] * from_lane(group, r[j], q);
                mine[j] += v;
                pairs[q] += v;
            }
    return true;
}

// The derivative of `through`: given g, the weight of the parent's state k, returns the weight of the variable's state
// k, and adds the joint weights to the pairwise marginals.
__device__ __forceinline__ REAL back_through(unsigned int group, const Pair &table, REAL x, REAL message, REAL g,
                                             int up, REAL eps, REAL *pairs) {
    REAL mine = 0;
    if (eps > 0 && back_scaled<1>(group, table, &x, &message, &g, up, eps, pairs, &mine)) return mine;
    mine = 0;
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

// `back_through` for N rows; `mine` are the weights of the variable's state k in each.
template <int N>
__device__ __forceinline__ void back_through_rows(unsigned int group, const Pair &table, const REAL *x,
                                                  const REAL *message, const REAL *g, int up, REAL eps, REAL *pairs,
                                                  REAL *mine) {
    if (eps > 0 && back_scaled<N>(group, table, x, message, g, up, eps, pairs, mine)) return;
#pragma unroll
    for (int j = 0; j < N; j++) mine[j] = back_through(group, table, x[j], message[j], g[j], up, eps, pairs);
}
