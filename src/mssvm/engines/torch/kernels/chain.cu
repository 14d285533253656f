// Exact inference on chains of S states with one table each, in one launch. A warp has GROUPS chains, a chain has LANES
// lanes, and lane k holds the states k, k + LANES, ... (COLS of them). Compiled with S, COLS, GROUPS, WARPS (per
// block), AHEAD (sites prefetched) and BLOCKS (per multiprocessor).
//
// Numbers are scaled probabilities exp(theta / eps). A chain whose scale leaves the safe range, or in which a state
// underflows that may matter later, gets the value NaN and is computed again in log space. Without forbidden entries an
// underflowed state can regain at most the range of the table; with forbidden entries no state may underflow.
#define FULL 0xffffffffu
constexpr int LANES = (S + COLS - 1) / COLS, ROW = (LANES * COLS + 4) / 4 * 4, VECTOR = (S + 3) / 4 * 4;
constexpr bool SPARE = COLS == 1 && GROUPS == 1 && S < 32;  // a lane without a state computes the sum
constexpr REAL LOW = sizeof(REAL) == 4 ? REAL(1e-28) : REAL(1e-250), HIGH = REAL(1) / LOW;
constexpr REAL TINY = sizeof(REAL) == 4 ? REAL(1e-37) : REAL(1e-300),
               DIGITS = sizeof(REAL) == 4 ? REAL(1e6) : REAL(1e14);

struct alignas(16) Four {
    REAL x, y, z, w;
};

// The place of a lane: its chain (n = 0: none), its index among the chain's lanes, and the chain's vector in shared
// memory (lanes without a chain read that of the first chain).
struct Lane {
    int b, k, base, n;
    bool own;
    REAL *vector;
    __device__ __forceinline__ Lane(Four *shared, const int *length, int n_chains) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane / LANES;
        own = group < GROUPS;
        b = (blockIdx.x * WARPS + warp) * GROUPS + group;
        k = lane % LANES;
        base = group * LANES;
        n = own && b < n_chains ? length[b] : 0;
        vector = reinterpret_cast<REAL *>(shared + (warp * GROUPS + (own ? group : 0)) * (VECTOR / 4));
        if (own && k == 0)
            for (int s = S; s < VECTOR; s++) vector[s] = 0;
        __syncwarp();
    }
    __device__ __forceinline__ bool on(int j) const { return n > 0 && k + j * LANES < S; }
    __device__ __forceinline__ int state(int j) const { return k + j * LANES; }
    __device__ __forceinline__ void put(const REAL *x) const {
#pragma unroll
        for (int j = 0; j < COLS; j++)
            if (own && state(j) < S) vector[state(j)] = x[j];
        __syncwarp();
    }
};

__device__ __forceinline__ int longest(int n) { return __reduce_max_sync(FULL, n); }

__device__ __forceinline__ float rsqrt_(float x) { return rsqrtf(x); }
__device__ __forceinline__ double rsqrt_(double x) { return rsqrt(x); }

// Forward-backward. `work` has ROW numbers per site. Chain b has its scores at first[b], length[b] sites, its table at
// table_at[b], and is the only one to write the pairwise marginals at mu_at[b].
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    sums(const REAL *__restrict__ theta, const REAL *__restrict__ tables, const long long *__restrict__ first,
         const int *__restrict__ length, const long long *__restrict__ table_at, const long long *__restrict__ mu_at,
         const long long *__restrict__ work_at, REAL *__restrict__ work, REAL *__restrict__ value,
         REAL *__restrict__ mu, REAL *__restrict__ mu_tables, REAL eps, int n_chains) {
    __shared__ Four shared[WARPS * GROUPS * (VECTOR / 4)];
    const Lane me(shared, length, n_chains);
    const int n = me.n, most = longest(n), b = n ? me.b : 0;
    const REAL c = REAL(1) / eps;
    const REAL *u = theta + first[b] + me.k;
    const REAL *E = tables + table_at[b];
    REAL *A = work + work_at[b] * ROW + me.k;
    REAL *p = mu + first[b] + me.k;
    const Four *v4 = reinterpret_cast<const Four *>(me.vector);
    REAL P[COLS][VECTOR];
#pragma unroll
    for (int j = 0; j < COLS; j++)
#pragma unroll
        for (int s = 0; s < VECTOR; s++)
            P[j][s] = s < S && me.on(j) ? exp_(E[s * S + me.state(j)] * c) : REAL(SPARE && s < S);
    REAL most_p = 0, least_p = infinity();
    bool forbids = false;
#pragma unroll
    for (int j = 0; j < COLS; j++)
#pragma unroll
        for (int s = 0; s < S; s++)
            if (me.on(j)) {
                const bool forbidden = E[s * S + me.state(j)] == -infinity();
                forbids = forbids || forbidden;
                most_p = larger(most_p, P[j][s]);
                least_p = forbidden || P[j][s] > least_p ? least_p : P[j][s];
            }
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        const REAL less = __shfl_xor_sync(FULL, least_p, o);
        most_p = larger(most_p, __shfl_xor_sync(FULL, most_p, o));
        least_p = less < least_p ? less : least_p;
    }
    const bool has_forbidden = __any_sync(FULL, forbids);
    const REAL floor = TINY / least_p;
    bool lost = false;
    // Forward: a_t = exp(u_t) (P^T a_{t-1}) r_t, where r_t = z_{t-2}^(-1/2) and z = sum(a): that keeps z near a
    // constant, and is known before it is needed. Reads come last in a step, so that nothing waits for them.
    REAL a[COLS], next[AHEAD][COLS], logz = 0, r = 1, end = 1, low = 1, high = 1;
    const REAL *coming = u + (AHEAD + 1) * S;
    REAL *At = A;
#pragma unroll
    for (int j = 0; j < COLS; j++) {
        a[j] = me.on(j) ? exp_(u[j * LANES] * c) : REAL(0);
        lost = lost || (me.on(j) && a[j] < floor && u[j * LANES] > -infinity());
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
#pragma unroll
        for (int j = 0; j < COLS; j++) next[i][j] = me.on(j) && i + 1 < n ? u[(i + 1) * S + j * LANES] : REAL(0);
    for (int from = 0; from < most; from += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int t = from + i;
            if (t >= most) break;
            me.put(a);
            REAL m[COLS][2], z0 = 0, z1 = 0;
            const bool go = t + 1 < n;
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                m[j][0] = m[j][1] = 0;
                if (me.on(j) && t < n) At[i * ROW + j * LANES] = a[j];
            }
            if (me.k == 0 && t < n) At[i * ROW + LANES * COLS] = r;
#pragma unroll
            for (int s = 0; s < VECTOR; s += 4) {
                const Four v = v4[s / 4];
#pragma unroll
                for (int j = 0; j < COLS; j++) {
                    m[j][0] += v.x * P[j][s];
                    m[j][1] += v.y * P[j][s + 1];
                    m[j][0] += v.z * P[j][s + 2];
                    m[j][1] += v.w * P[j][s + 3];
                }
                if (!SPARE) {
                    z0 += v.x;
                    z1 += v.y;
                    z0 += v.z;
                    z1 += v.w;
                }
            }
            __syncwarp();
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                const REAL sum = m[j][0] + m[j][1];
                if (SPARE) z0 = __shfl_sync(FULL, sum, 31);
                if (go && me.on(j)) a[j] = exp_(next[i][j] * c) * (sum * r);
                else if (SPARE && !me.on(j)) a[j] = REAL(0);
                if (has_forbidden)
                    lost = lost || (go && me.on(j) && sum > 0 && a[j] < floor && next[i][j] > -infinity());
                if (t + AHEAD + 1 < n && me.on(j)) next[i][j] = coming[i * S + j * LANES];
            }
            const REAL z = z0 + z1;
            if (t < n) {
                end = z;
                low = z < low ? z : low;
                high = z > high ? z : high;
                if (!(z == z)) low = 0;
            }
            if (go) {
                logz -= log_(r);
                r = rsqrt_(z);
            }
        }
        coming += AHEAD * S;
        At += AHEAD * ROW;
    }
    const unsigned int losing =
        __ballot_sync(FULL, has_forbidden && lost) >> me.base % 32 & (LANES < 32 ? (1u << LANES % 32) - 1 : FULL);
    const bool safe = low > larger(LOW, TINY * DIGITS * most_p / least_p) && high < HIGH && !losing;
    logz += log_(end);
    r = REAL(1) / end;
    if (n && me.k == 0) value[b] = safe ? eps * logz : infinity() - infinity();
    // Backward: b_t = r_{t+1} P g, g = exp(u_{t+1}) b_{t+1}; p_t = a_t b_t; pairs are a_t r_{t+1} g times the table.
#pragma unroll
    for (int j = 0; j < COLS; j++)
#pragma unroll
        for (int s = 0; s < VECTOR; s++) P[j][s] = s < S && me.on(j) ? exp_(E[me.state(j) * S + s] * c) : REAL(0);
    REAL acc[COLS][VECTOR], beta[COLS], below[AHEAD][COLS], ahead[AHEAD][COLS], scale[AHEAD];
#pragma unroll
    for (int j = 0; j < COLS; j++) {
#pragma unroll
        for (int s = 0; s < VECTOR; s++) acc[j][s] = 0;
        beta[j] = r;
        if (me.on(j)) p[(n - 1) * S + j * LANES] = a[j] * r;
    }
    const REAL *ut = u + (long long)(n - 1) * S;
    REAL *pt = p + (long long)(n - 2) * S;
    At = A + (long long)(n - 2) * ROW;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        const bool there = n - 2 - i >= 0;
        scale[i] = there ? At[-i * ROW + LANES * COLS - me.k] : REAL(0);
#pragma unroll
        for (int j = 0; j < COLS; j++) {
            below[i][j] = me.on(j) && there ? At[-i * ROW + j * LANES] : REAL(0);
            ahead[i][j] = me.on(j) && there ? ut[-i * S + j * LANES] : REAL(0);
        }
    }
    for (int from = 0; from < most - 1; from += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int t = n - 2 - from - i;
            if (from + i >= most - 1) break;
            REAL f[COLS], m[COLS][2];
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                beta[j] *= exp_(ahead[i][j] * c);
                f[j] = t >= 0 ? below[i][j] * scale[i] : REAL(0);
                m[j][0] = m[j][1] = 0;
            }
            me.put(beta);
#pragma unroll
            for (int s = 0; s < VECTOR; s += 4) {
                const Four v = v4[s / 4];
#pragma unroll
                for (int j = 0; j < COLS; j++) {
                    m[j][0] += v.x * P[j][s];
                    m[j][1] += v.y * P[j][s + 1];
                    m[j][0] += v.z * P[j][s + 2];
                    m[j][1] += v.w * P[j][s + 3];
                    acc[j][s] += f[j] * v.x;
                    acc[j][s + 1] += f[j] * v.y;
                    acc[j][s + 2] += f[j] * v.z;
                    acc[j][s + 3] += f[j] * v.w;
                }
            }
            __syncwarp();
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                beta[j] = (m[j][0] + m[j][1]) * scale[i];
                if (t >= 0 && me.on(j)) pt[-i * S + j * LANES] = below[i][j] * beta[j];
                if (t >= AHEAD && me.on(j)) {
                    below[i][j] = At[-(i + AHEAD) * ROW + j * LANES];
                    ahead[i][j] = ut[-(i + AHEAD) * S + j * LANES];
                }
            }
            if (t >= AHEAD) scale[i] = At[-(i + AHEAD) * ROW + LANES * COLS - me.k];
        }
        ut -= AHEAD * S;
        pt -= AHEAD * S;
        At -= AHEAD * ROW;
    }
#pragma unroll
    for (int j = 0; j < COLS; j++) {
        REAL *q = mu_tables + mu_at[b] + me.state(j) * S;
#pragma unroll
        for (int s = 0; s < S; s++)
            if (n > 1 && me.on(j)) q[s] = acc[j][s] * P[j][s];
    }
}

// The best path: scores in logs, back pointers in one byte per state; ties go to the first state.
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    maxima(const REAL *__restrict__ theta, const REAL *__restrict__ tables, const long long *__restrict__ first,
           const int *__restrict__ length, const long long *__restrict__ table_at, const long long *__restrict__ mu_at,
           const long long *__restrict__ work_at, unsigned *__restrict__ back, REAL *__restrict__ value,
           REAL *__restrict__ mu, REAL *__restrict__ mu_tables, REAL eps, int n_chains) {
    static_assert(COLS <= 4, "back pointers of a lane are one word");
    constexpr int WAYS = 2;  // searches side by side
    __shared__ Four shared[WARPS * GROUPS * (VECTOR / 4)];
    const Lane me(shared, length, n_chains);
    const int n = me.n, most = longest(n), b = n ? me.b : 0;
    const REAL none = -infinity();
    const REAL *u = theta + first[b] + me.k;
    const REAL *E = tables + table_at[b];
    unsigned *K = back + work_at[b] * LANES + me.k;
    const Four *v4 = reinterpret_cast<const Four *>(me.vector);
    REAL P[COLS][VECTOR], a[COLS], next[AHEAD][COLS];
#pragma unroll
    for (int j = 0; j < COLS; j++) {
#pragma unroll
        for (int s = 0; s < VECTOR; s++) P[j][s] = s < S && me.on(j) ? E[s * S + me.state(j)] : none;
        a[j] = me.on(j) ? u[j * LANES] : none;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) next[i][j] = me.on(j) && i + 1 < n ? u[(i + 1) * S + j * LANES] : none;
    }
    for (int from = 1; from < most; from += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int t = from + i;
            if (t >= most) break;
            me.put(a);
            REAL m[COLS][WAYS];
            int k[COLS][WAYS];
            unsigned word = 0;
#pragma unroll
            for (int j = 0; j < COLS; j++)
#pragma unroll
                for (int h = 0; h < WAYS; h++) {
                    m[j][h] = none;
                    k[j][h] = 0;
                }
#pragma unroll
            for (int s = 0; s < VECTOR; s += 4) {
                const Four v = v4[s / 4];
                const REAL all[4] = {v.x, v.y, v.z, v.w};
                const int h = s * WAYS / VECTOR;
#pragma unroll
                for (int j = 0; j < COLS; j++)
#pragma unroll
                    for (int i4 = 0; i4 < 4; i4++) {
                        if (s + i4 >= S) continue;
                        const REAL w = all[i4] + P[j][s + i4];
                        if (w > m[j][h]) {
                            m[j][h] = w;
                            k[j][h] = s + i4;
                        }
                    }
            }
            __syncwarp();
#pragma unroll
            for (int j = 0; j < COLS; j++) {
#pragma unroll
                for (int w = 1; w < WAYS; w *= 2)  // a later search wins only if it is better
#pragma unroll
                    for (int h = 0; h + w < WAYS; h += 2 * w)
                        if (m[j][h + w] > m[j][h]) {
                            m[j][h] = m[j][h + w];
                            k[j][h] = k[j][h + w];
                        }
                word |= unsigned(k[j][0]) << (8 * j);
                if (t < n) a[j] = m[j][0] + next[i][j];
                if (t + AHEAD < n && me.on(j)) next[i][j] = u[(t + AHEAD) * S + j * LANES];
            }
            if (t < n && me.k < LANES) K[t * LANES] = word;
        }
    }
    REAL best = none;
    int state = 0;
#pragma unroll
    for (int j = 0; j < COLS; j++)
        if (me.on(j) && a[j] > best) {
            best = a[j];
            state = me.state(j);
        }
#pragma unroll
    for (int o = 1; o < LANES; o <<= 1) {
        const REAL other = __shfl_down_sync(FULL, best, o);
        const int there = __shfl_down_sync(FULL, state, o);
        if (me.k + o < LANES && (other > best || (other == best && there < state))) {
            best = other;
            state = there;
        }
    }
    best = __shfl_sync(FULL, best, me.base);
    state = __shfl_sync(FULL, state, me.base);
    if (n && me.k == 0) value[b] = best;
    const bool found = n && best > none;
    constexpr int DEEP = 4;
    unsigned words[DEEP];
#pragma unroll
    for (int i = 0; i < DEEP; i++) words[i] = n - 1 - i > 0 ? K[(n - 1 - i) * LANES] : 0;
    for (int from = 0; from < most; from += DEEP) {
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            const int t = n - 1 - from - i;
            if (from + i >= most) break;
#pragma unroll
            for (int j = 0; j < COLS; j++)
                if (found && t >= 0 && me.on(j))
                    mu[first[b] + (long long)t * S + me.state(j)] = me.state(j) == state ? REAL(1) : REAL(0);
            const int before = (__shfl_sync(FULL, words[i], me.base + state % LANES) >> (8 * (state / LANES))) & 255;
            if (t > 0 && found) {
                if (me.k == 0) atomicAdd(mu_tables + mu_at[b] + before * S + state, REAL(1));
                state = before;
            }
            if (t > DEEP) words[i] = K[(t - DEEP) * LANES];
        }
    }
}
