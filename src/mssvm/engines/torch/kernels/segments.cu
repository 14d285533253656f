// Semi-Markov models without hidden states: the power sum over all segmentations of a sequence, and its derivatives.
// There is one block per instance, and one warp per label. Compiled with C (labels, at most 32).
//
// The recursion is that of the native engine (cpp/segments.hpp). With P the sum of a label's scores of sites up to b,
//
//     A(b, c)     = PS_d [eps] G(b - d, c) + duration(d, c)
//     alpha(b, c) = P(b, c) + last(b - 1, c) + A(b, c)
//     G(b, c)     = PS_c' [eps] alpha(b, c') + transition(c', c)  + first(b, c) + start(b) - P(b, c)
//
// A label's G is read by its own warp only, so that a position needs one barrier, for alpha. Sums of scores over long
// sequences are double; exponentials are of REAL, of differences from their largest.
constexpr unsigned int WARP = 0xffffffffu;
constexpr int AT_ONCE = 8;  // lengths of a lane that are added at a time, after one update of the largest score

// Arrays of a batch (core/segments.py has the layout of an instance), and by instance where its parts begin.
struct Segmentations {
    const REAL *unary, *tables;
    const bool *allowed;
    const long long *sites, *unary_at, *table_at, *mu_at, *work_at;
    REAL *mu, *mu_tables;  // null: values only
    double *work, *value;
    long long longest, borders;
};

__device__ __forceinline__ double nothing() { return -double(infinity()); }
__device__ __forceinline__ double highest(double x) {
#pragma unroll
    for (int o = 16; o; o >>= 1) x = fmax(x, __shfl_xor_sync(WARP, x, o));
    return x;
}
template <class T> __device__ __forceinline__ T total(T x) {
#pragma unroll
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(WARP, x, o);
    return x;
}
__device__ __forceinline__ REAL above(double x, double top, REAL scale) { return exp_(REAL(x - top) * scale); }

// A running power sum of a lane, and that of all lanes of a warp.
struct Sum {
    double top = nothing();
    REAL sum = 0;
    __device__ __forceinline__ void add(const double *x, REAL scale) {
        double higher = top;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) higher = fmax(higher, x[i]);
        if (!(higher > nothing())) return;
        sum = top > nothing() ? sum * above(top, higher, scale) : REAL(0);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) sum += above(x[i], higher, scale);
        top = higher;
    }
    __device__ __forceinline__ double over_lanes(REAL eps, REAL scale) const {
        const double best = highest(top);
        if (!(best > nothing()) || !(eps > 0)) return best;
        return best + double(eps) * log(double(total(top > nothing() ? sum * above(top, best, scale) : REAL(0))));
    }
};
// The power sum of one number per lane.
__device__ __forceinline__ double power(double x, REAL eps, REAL scale) {
    const double top = highest(x);
    if (!(top > nothing()) || !(eps > 0)) return top;
    return top + double(eps) * log(double(total(above(x, top, scale))));
}
// Its derivative; at temperature zero the first of the largest has weight one.
__device__ __forceinline__ REAL weight(double x, REAL eps, REAL scale) {
    const double top = highest(x);
    if (!(top > nothing())) return 0;
    if (eps > 0) {
        const REAL e = above(x, top, scale);
        return e / total(e);
    }
    return REAL(__ffs(int(__ballot_sync(WARP, x == top))) - 1 == int(threadIdx.x % 32));
}

// One instance, seen by the warp of label c.
struct Sequence {
    const Segmentations &in;
    int T, K, c, lane;
    const REAL *u;
    const bool *ok;
    const REAL *transition, *duration;
    double *G;

    __device__ __forceinline__ int boundary(int t) const { return T * C + 2 * t; }
    __device__ __forceinline__ int first_at(int t) const { return T * (C + 2) + t * C + c; }
    __device__ __forceinline__ int last_at(int t) const { return T * (C + 2) + T * C + t * C + c; }
    __device__ __forceinline__ int begin_at() const { return T * (C + 2) + (in.borders ? 2 * T * C : 0) + c; }
    __device__ __forceinline__ int end_at() const { return begin_at() + C; }
    __device__ __forceinline__ double score(int at) const { return ok[at] ? double(u[at]) : nothing(); }
    __device__ __forceinline__ double first(int t) const { return in.borders ? double(u[first_at(t)]) : 0.0; }
    __device__ __forceinline__ double last(int t) const { return in.borders ? double(u[last_at(t)]) : 0.0; }
    __device__ __forceinline__ bool open(int t) const { return score(t * C + c) > nothing(); }
    __device__ __forceinline__ double step(int t) const { return open(t) ? double(u[t * C + c]) : 0.0; }
    __device__ __forceinline__ double inside(int t) const {
        const double x = t > 0 ? score(boundary(t)) : nothing();
        return x > nothing() ? x : 0.0;
    }
    // The score of beginning a segment at t minus that of being inside one.
    __device__ __forceinline__ double start(int t) const { return score(boundary(t) + 1) - inside(t); }
    __device__ __forceinline__ double length(int d) const { return double(duration[(d - 1) * C + c]); }
    // The longest length that has a score.
    __device__ __forceinline__ int longest() const {
        int most = 0;
        for (int d = 1 + lane; d <= K; d += 32)
            if (length(d) > nothing()) most = d;
#pragma unroll
        for (int o = 16; o; o >>= 1) most = max(most, __shfl_xor_sync(WARP, most, o));
        return most;
    }
    // Segments [b - d, b): the scores of a lane's lengths from `from` on.
    __device__ __forceinline__ void scores(int b, int n, int from, double *x) const {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int d = from + 32 * i;
            x[i] = d <= n ? G[b - d] + length(d) : nothing();
        }
    }
};

// Workspace of a label: A, the largest lengths (`limit`), expected counts of lengths, and the weights of the last K + 1
// positions (`back`). A and `limit` have a column for every label.
struct Space {
    double *A, *counts, *back;
    int *limit;
};

// A and G of all positions; returns P of the last one. `base` is the score of being inside a segment at every site.
__device__ __forceinline__ double forward(const Sequence &me, const Space &space, double (*alpha)[C], double enter,
                                          REAL eps, REAL scale, double &base) {
    const int T = me.T, c = me.c, lane = me.lane, longest = me.longest();
    double P = 0;
    base = 0;
    int run = 0, known = 0;  // sites that allow the label; the last boundary that is known
    if (lane == 0) me.G[0] = me.score(me.begin_at()) + me.first(0) + me.start(0);
    __syncwarp();
    for (int b = 1; b <= T; b++) {
        const int t = b - 1;
        base += me.inside(t);
        if (t > 0 && !(me.score(me.boundary(t)) > nothing())) known = t;
        run = me.open(t) ? run + 1 : 0;
        P += me.step(t);
        const int n = min(run, min(b - known, longest));
        Sum sum;
        for (int d = 1 + lane; d <= n; d += 32 * AT_ONCE) {
            double x[AT_ONCE];
            me.scores(b, n, d, x);
            sum.add(x, scale);
        }
        const double a = sum.over_lanes(eps, scale);
        if (lane == 0) {
            space.limit[(long long)b * C] = n;
            space.A[(long long)b * C] = a;
            alpha[b % 2][c] = P + me.last(t) + a;
        }
        __syncthreads();
        const double before = lane < C ? alpha[b % 2][lane] : nothing();
        if (b < T) {
            const double e = power(before + enter, eps, scale);
            if (lane == 0) me.G[b] = e + me.first(b) + me.start(b) - P;
            __syncwarp();
        }
    }
    return P;
}

// Marginals, from the forward pass: `ended` is the score of ending in the label of each lane, P is that of the last
// site. gE: weight of the segments of a label that begin at b; g: of those that end there.
__device__ __forceinline__ void backward(const Sequence &me, const Space &space, double (*alpha)[C], double enter,
                                         double ended, double P, int instance, REAL eps, REAL scale) {
    const Segmentations &in = me.in;
    const int T = me.T, K = me.K, c = me.c, lane = me.lane;
    __shared__ REAL to_before[2][C][C], begins[2][C];
    REAL *mu = in.mu + in.unary_at[instance];
    REAL *mu_transition = in.mu_tables + in.mu_at[2 * instance];
    REAL *mu_duration = in.mu_tables + in.mu_at[2 * instance + 1];
    for (int d = lane; d < K; d += 32) space.counts[d] = 0;
    for (int d = lane; d <= K; d += 32) space.back[d] = 0;
    __syncwarp();
    double entered = 0;  // in lane k: expected transitions from label k to c
    double covered = 0;  // weight of the segments of c that cover a site
    REAL g = __shfl_sync(WARP, weight(ended, eps, scale), c);
    if (lane == 0) mu[me.end_at()] = g;
    __syncthreads();  // alpha of the last position was read
    for (int b = T; b >= 0; b--) {
        const int here = b % (K + 1);
        REAL gE = 0;
        if (b > 1) {  // for the next position; P is not rounded as in the forward pass, which hardly changes weights
            P -= me.step(b - 1);
            if (lane == 0) alpha[(b - 1) % 2][c] = P + me.last(b - 2) + space.A[(long long)(b - 1) * C];
        }
        if (b < T) {
            gE = REAL(space.back[here]);
            covered -= double(gE);
            if (in.borders && lane == 0) mu[me.first_at(b)] = gE;
            REAL share = 0;
            if (b > 0) {
                const double before = lane < C ? alpha[b % 2][lane] : nothing();
                share = gE * weight(before + enter, eps, scale);
                entered += double(share);
            }
            if (lane < C) to_before[b % 2][c][lane] = share;
            if (lane == 0) begins[b % 2][c] = gE;
        }
        __syncthreads();
        if (b < T) {
            g = total(lane < C ? to_before[b % 2][lane][c] : REAL(0));
            if (c == 0) {
                const REAL starts = total(lane < C ? begins[b % 2][lane] : REAL(0));
                if (lane == 0) mu[me.boundary(b) + 1] = starts;
                if (lane == 0 && b > 0) mu[me.boundary(b)] = larger(1 - starts, REAL(0));
            }
        }
        if (b == 0) {
            if (lane == 0) mu[me.begin_at()] = gE;
            break;
        }
        const int n = space.limit[(long long)b * C];
        const double a = space.A[(long long)b * C];
        if (in.borders && lane == 0) mu[me.last_at(b - 1)] = g;
        if (lane == 0 && b >= K) space.back[(b - K) % (K + 1)] = 0;
        __syncwarp();
        int best = 0;
        if (!(eps > 0) && g > 0) {  // the longest of the lengths with the largest score
            for (int d = 1 + lane; d <= n; d += 32)
                if (me.G[b - d] + me.length(d) == a) best = d;
#pragma unroll
            for (int o = 16; o; o >>= 1) best = max(best, __shfl_xor_sync(WARP, best, o));
        }
        for (int d = 1 + lane; g > 0 && d <= n; d += 32) {
            REAL p = d == best ? g : REAL(0);
            if (eps > 0) p = g * above(me.G[b - d] + me.length(d), a, scale);
            const int slot = here >= d ? here - d : here - d + K + 1;
            space.back[slot] += double(p);
            space.counts[d - 1] += double(p);
        }
        covered += double(g);
        if (lane == 0) mu[(b - 1) * C + c] = larger(REAL(covered), REAL(0));
        __syncwarp();
    }
    if (lane < C) atomicAdd(mu_transition + lane * C + c, REAL(entered));
    for (int d = lane; d < K; d += 32) atomicAdd(mu_duration + (long long)d * C + c, REAL(space.counts[d]));
}

extern "C" __global__ void __launch_bounds__(32 * C)
    segments(const __grid_constant__ Segmentations in, REAL eps, int n_instances) {
    const int instance = blockIdx.x;
    if (instance >= n_instances) return;
    const int c = threadIdx.x / 32, lane = threadIdx.x % 32;
    const REAL scale = eps > 0 ? 1 / eps : REAL(1);
    const int T = int(in.sites[instance]), K = int(in.longest);
    // Workspace: A (T + 1, C), G (C, T + 1), counts (C, K), back (C, K + 1), limits (T + 1, C).
    double *work = in.work + in.work_at[instance];
    const long long positions = (long long)(T + 1) * C;
    double *counts = work + 2 * positions;
    double *back = counts + (long long)C * K;
    int *limit = (int *)(back + (long long)C * (K + 1));
    const Space space{work + c, counts + (long long)c * K, back + (long long)c * (K + 1), limit + c};
    __shared__ double alpha[2][C];  // alpha of even and of odd positions
    const Sequence me{in,
                      T,
                      K,
                      c,
                      lane,
                      in.unary + in.unary_at[instance],
                      in.allowed + in.unary_at[instance],
                      in.tables + in.table_at[2 * instance],
                      in.tables + in.table_at[2 * instance + 1],
                      work + positions + (long long)c * (T + 1)};
    const double enter = lane < C ? double(me.transition[lane * C + c]) : nothing();  // from label `lane`
    double base = 0;
    const double P = forward(me, space, alpha, enter, eps, scale, base);
    const int end_states = me.end_at() - c;
    double ended = nothing();
    if (lane < C) ended = alpha[T % 2][lane] + me.score(end_states + lane);
    const double value = T > 0 ? power(ended, eps, scale) : 0.0;
    if (threadIdx.x == 0) in.value[instance] = value + base;
    if (!in.mu || !(value > nothing()) || T == 0) return;
    backward(me, space, alpha, enter, ended, P, instance, eps, scale);
}
