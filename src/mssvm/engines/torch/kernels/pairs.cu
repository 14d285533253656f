// Belief propagation on any pairwise graph. A sweep is one launch for the fields of the variables (score plus all
// messages) and one for the messages, in place; one thread updates both messages of a factor. Compiled with
//
//     S, THREADS   states, and threads of a block
//     TABLES       number of distinct tables, kept in shared memory; 0: too many
//     STAGED       whether a block copies its tables to shared memory
//     PRODUCT      sums, maxima, mixed (eps_y = 0), or mixed with outputs at their own temperature
//     COLOURED     whether only messages to the variables of one colour are sent
//     ONE          whether there is one instance
//     NARROW       whether the first state of every variable is allowed
//     LANES        threads that add up the messages to one variable
//     AT_ONCE      messages that each of them reads at once
//
// Factors are sorted by their first variable; messages to first variables are stored first, in that order. Messages and
// fields are logs over eps. The first entry of a message is 0 and not stored; so it is for fields if NARROW. Tables are
// exp(theta / eps) and must be positive.
constexpr int SUMS = 0, MAXIMA = 1, MIXED = 2, TEMPERED = 3;
constexpr int R = S - 1, ROW = R < 3 ? R : (R + 3) / 4 * 4, SS = S * S;
constexpr int COLUMNS = (S + 3) / 4 * 4, FIELD = NARROW ? ROW : COLUMNS, FIRST = NARROW ? 0 : 1;
struct alignas(16) Four {
    REAL x, y, z, w;
};

__device__ __forceinline__ void raise(float *at, float x) { atomicMax(reinterpret_cast<int *>(at), __float_as_int(x)); }
__device__ __forceinline__ void raise(double *at, double x) {
    atomicMax(reinterpret_cast<long long *>(at), __double_as_longlong(x));
}
__device__ __forceinline__ float pow_(float x, float y) { return __powf(x, y); }
__device__ __forceinline__ double pow_(double x, double y) { return pow(x, y); }

template <int N> __device__ __forceinline__ void load(const REAL *row, REAL *x) {
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int s = 0; s < N; s += 4) {
            const Four v = *reinterpret_cast<const Four *>(row + s);
            x[s] = v.x;
            x[s + 1] = v.y;
            x[s + 2] = v.z;
            x[s + 3] = v.w;
        }
    } else {
#pragma unroll
        for (int s = 0; s < N; s++) x[s] = row[s];
    }
}

template <int N> __device__ __forceinline__ void store(REAL *row, const REAL *x) {
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int s = 0; s < N; s += 4) *reinterpret_cast<Four *>(row + s) = Four{x[s], x[s + 1], x[s + 2], x[s + 3]};
    } else {
#pragma unroll
        for (int s = 0; s < N; s++) row[s] = x[s];
    }
}

// As `load`, for rows that are read once: a streaming access that does not displace other data from the cache.
template <int N> __device__ __forceinline__ void load_once(const REAL *row, REAL *x) {
    if constexpr (N % 4 == 0 && sizeof(REAL) == 4) {
#pragma unroll
        for (int s = 0; s < N; s += 4) {
            const float4 v = __ldcs(reinterpret_cast<const float4 *>(row + s));
            x[s] = v.x;
            x[s + 1] = v.y;
            x[s + 2] = v.z;
            x[s + 3] = v.w;
        }
    } else load<N>(row, x);
}

template <int N> __device__ __forceinline__ void store_once(REAL *row, const REAL *x) {
    if constexpr (N % 4 == 0 && sizeof(REAL) == 4) {
#pragma unroll
        for (int s = 0; s < N; s += 4)
            __stcs(reinterpret_cast<float4 *>(row + s), make_float4(x[s], x[s + 1], x[s + 2], x[s + 3]));
    } else store<N>(row, x);
}

// field = score + all messages to the variable, for n variables from `first` on. of[k].x is the variable; messages to
// it as a first variable are the rows of[k].y .. of[k].z - 1, and as a second variable the rows slot[of[k].w] ..
// slot[of[k + 1].w - 1]. LANES lanes share a variable, and their sums are added in a fixed order.
extern "C" __global__ void __launch_bounds__(THREADS)
    fields(const REAL *__restrict__ scores, const REAL *__restrict__ m, const int4 *__restrict__ of,
           const int *__restrict__ slot, REAL *__restrict__ field, int first, int n, int n_factors) {
    const int at = (blockIdx.x * THREADS + threadIdx.x) / LANES, lane = threadIdx.x % LANES, k = first + min(at, n - 1);
    const int4 mine = of[k];
    const int last = of[k + 1].w;
    const REAL *second = m + (long long)n_factors * ROW;
    REAL total[ROW], out[FIELD], own[AT_ONCE][ROW], other[AT_ONCE][ROW];
    int row[AT_ONCE];
#pragma unroll
    for (int s = 0; s < ROW; s++) total[s] = 0;
    // AT_ONCE loads are in flight together; loads beyond the end are not added.
    for (int i = mine.y + lane, j = mine.w + lane; i < mine.z || j < last; i += AT_ONCE * LANES, j += AT_ONCE * LANES) {
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) row[k] = slot[max(min(j + k * LANES, last - 1), 0)];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            load_once<ROW>(m + (long long)max(min(i + k * LANES, mine.z - 1), 0) * ROW, own[k]);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) load<ROW>(second + (long long)row[k] * ROW, other[k]);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
#pragma unroll
            for (int s = 0; s < R; s++)
                total[s] +=
                    (i + k * LANES < mine.z ? own[k][s] : REAL(0)) + (j + k * LANES < last ? other[k][s] : REAL(0));
    }
    load<FIELD>(scores + (long long)mine.x * FIELD, out);
#pragma unroll
    for (int s = 0; s < R; s++)
#pragma unroll
        for (int by = 1; by < LANES; by *= 2) total[s] += __shfl_xor_sync(0xffffffffu, total[s], by);
    if (lane || at >= n) return;
#pragma unroll
    for (int s = 0; s < R; s++) out[FIRST + s] += total[s];
    store<FIELD>(field + (long long)mine.x * FIELD, out);
}

// The cavity exp(field - message), with largest entry 1 (all 1 where no state is allowed).
__device__ __forceinline__ void cavity(const REAL *field, const REAL *message, REAL *e) {
    REAL x[FIELD], top = NARROW ? REAL(0) : -infinity();
    load<FIELD>(field, x);
    e[0] = NARROW ? REAL(0) : x[0];
    top = larger(top, e[0]);
#pragma unroll
    for (int s = 0; s < R; s++) {
        e[s + 1] = x[FIRST + s] - message[s];
        top = larger(top, e[s + 1]);
    }
#pragma unroll
    for (int s = 0; s < S; s++) e[s] = NARROW || top > -infinity() ? exp_(e[s] - top) : REAL(1);
}

// Weights of an output's states in its message to a hidden neighbour: softmax at eps_y of its belief e * back, divided
// by the neighbour's message `back`.
__device__ __forceinline__ void share(const REAL *e, const REAL *back, REAL ratio, REAL *w) {
    REAL top = 0;
#pragma unroll
    for (int s = 0; s < S; s++) top = larger(top, e[s] * back[s]);
#pragma unroll
    for (int s = 0; s < S; s++) {
        const REAL b = e[s] * back[s];
        w[s] = (PRODUCT == MIXED ? REAL(b == top) : pow_(b / top, ratio)) / back[s];
    }
}

// o[t] = sum (or maximum, or power sum) over s of e[s] P[s][t]; the other way round with TURNED.
template <int HOW, bool TURNED> __device__ __forceinline__ void through(const REAL *e, const REAL *P, int width,
                                                                        REAL ratio, REAL *o) {
    if (S > 8) asm volatile("" ::: "memory");  // a table that is read again is not kept in registers
#pragma unroll
    for (int t = 0; t < S; t++) o[t] = 0;
#pragma unroll
    for (int s = 0; s < S; s++)
#pragma unroll
        for (int t = 0; t < S; t++) {
            const REAL q = e[TURNED ? t : s] * P[s * width + t];
            REAL &to = o[TURNED ? s : t];
            to = HOW == SUMS ? to + q : larger(to, q);
        }
    if (HOW == TEMPERED) {
        REAL total[S], scale[S];
#pragma unroll
        for (int t = 0; t < S; t++) {
            total[t] = 0;
            scale[t] = inv_(o[t]);
        }
#pragma unroll
        for (int s = 0; s < S; s++)
#pragma unroll
            for (int t = 0; t < S; t++) {
                const int k = TURNED ? s : t;
                total[k] += pow_(e[TURNED ? t : s] * P[s * width + t] * scale[k], ratio);
            }
#pragma unroll
        for (int t = 0; t < S; t++) o[t] *= pow_(total[t], REAL(1) / ratio);
    }
}

// The new message o (unscaled) in the place of the old one; the largest change of the message, its largest entry at 0.
__device__ __forceinline__ REAL put(const REAL *o, REAL *old, REAL damping) {
    const REAL first = log_(o[0]);
    REAL top = 0, before = 0, x[ROW];
#pragma unroll
    for (int s = 0; s < R; s++) {
        x[s] = (1 - damping) * (log_(o[s + 1]) - first) + damping * old[s];
        top = larger(top, x[s]);
        before = larger(before, old[s]);
    }
    REAL by = fabs(before - top);
#pragma unroll
    for (int s = 0; s < R; s++) {
        by = larger(by, fabs(x[s] - old[s] + before - top));
        old[s] = x[s];
    }
    return by;
}

// Both messages of every factor of instances that have not converged. kinds: 1 if the first end is an output, plus 2 if
// the second is; plus 4 and 8 for their colours.
extern "C" __global__ void __launch_bounds__(THREADS)
    messages(const REAL *__restrict__ field, REAL *__restrict__ m, const REAL *__restrict__ tables,
             const int *__restrict__ number, const int2 *__restrict__ ends, const int *__restrict__ owner,
             const unsigned char *__restrict__ kinds, const signed char *__restrict__ active, REAL *__restrict__ change,
             REAL eps, REAL damping, REAL ratio, int colour, int measure, int n_factors) {
    constexpr int WITHOUT_TABLES = STAGED ? THREADS * SS : 4;
    __shared__ __align__(16) REAL kept[TABLES ? TABLES * S * COLUMNS : WITHOUT_TABLES];
    __shared__ REAL worst;
    const int first = blockIdx.x * THREADS, n = min(THREADS, n_factors - first), f = first + threadIdx.x;
    for (int k = threadIdx.x; k < TABLES * S * COLUMNS; k += THREADS)
        kept[k] = k % COLUMNS < S ? tables[k / COLUMNS * S + k % COLUMNS] : REAL(0);
    if (STAGED)
        for (int k = threadIdx.x; k < n * SS; k += THREADS)
            kept[k] = tables[(long long)number[first + k / SS] * SS + k % SS];
    if (threadIdx.x == 0) worst = 0;
    const bool one = ONE || owner[first] == owner[first + n - 1];
    __syncthreads();
    REAL moved = 0;
    const bool on = threadIdx.x < n && active[ONE ? 0 : owner[f]];
    if (on) {
        constexpr int WIDTH = TABLES ? COLUMNS : S;
        const REAL *P = tables + (long long)number[f] * SS;
        if (TABLES) P = kept + (TABLES > 1 ? number[f] : 0) * S * COLUMNS;
        else if (STAGED) P = kept + threadIdx.x * SS;
        const int kind = PRODUCT >= MIXED || COLOURED ? kinds[f] : 0;
        const int2 end = __ldcs(ends + f);
        REAL m0[ROW], m1[ROW], e0[S], e1[S], o0[S], o1[S];
        REAL *at = m + (long long)f * ROW;
        REAL *second = at + (long long)n_factors * ROW;
        load_once<ROW>(at, m0);
        load<ROW>(second, m1);
        cavity(field + (long long)end.x * FIELD, m0, e0);
        cavity(field + (long long)end.y * FIELD, m1, e1);
        constexpr int PLAIN = PRODUCT == MAXIMA ? MAXIMA : SUMS, BOTH = PRODUCT == TEMPERED ? TEMPERED : MAXIMA;
        if (PRODUCT < MIXED || (kind & 3) != 3) {
            through<PLAIN, false>(e0, P, WIDTH, ratio, o1);
            through<PLAIN, true>(e1, P, WIDTH, ratio, o0);
            if (PRODUCT >= MIXED && (kind & 3)) {
                REAL w[S];
                if (kind & 1) {
                    share(e0, o0, ratio, w);
                    through<SUMS, false>(w, P, WIDTH, ratio, o1);
                } else {
                    share(e1, o1, ratio, w);
                    through<SUMS, true>(w, P, WIDTH, ratio, o0);
                }
            }
        } else {
            through<BOTH, false>(e0, P, WIDTH, ratio, o1);
            through<BOTH, true>(e1, P, WIDTH, ratio, o0);
        }
        if (!COLOURED || ((kind >> 2) & 1) == colour) {
            moved = put(o0, m0, damping);
            store_once<ROW>(at, m0);
        }
        if (!COLOURED || ((kind >> 3) & 1) == colour) {
            moved = larger(moved, put(o1, m1, damping));
            store<ROW>(second, m1);
        }
        if (measure && !one) raise(change + owner[f], eps * moved);
    }
    if (!measure || !one) return;
#pragma unroll
    for (int k = 16; k; k >>= 1) moved = larger(moved, __shfl_xor_sync(0xffffffffu, moved, k));
    if (threadIdx.x % 32 == 0) raise(&worst, moved);
    __syncthreads();
    if (threadIdx.x == 0) raise(change + (ONE ? 0 : owner[first]), eps * worst);
}
