// Belief propagation on grids of H x W variables of S states: one block per grid, all messages in shared memory, all
// sweeps in one launch. Compiled with
//
//     H, W, S      height, width, states
//     T, SPLIT     threads of a block, and whether half of them serve each axis
//     BLOCKS       blocks per multiprocessor
//     PRODUCT      sums, maxima, mixed (eps_y = 0), or mixed with outputs at their own temperature
//     FLOODING     all messages at once, from one half of the memory to the other; else the nodes of one colour, then
//                  those of the other
//     TABLES       0: two tables for all grids, passed by value; 1: two for each grid; 2: one for each edge, as
//                  [axis][entry][position of the first variable], scaled
//
// Positions are grouped by colour, so that neighbours in memory send together. A message is stored as the ratios to its
// first entry, S - 1 numbers. Slots 0 to 3 of a node hold the messages from the left, the right, above and below. The
// message of an output to a hidden neighbour depends on the neighbour's last message to it. In mixed products threads
// take the hidden nodes of a colour first, so that most warps do not diverge. Maxima in single precision are computed
// on integers (logs in steps of 2^-22), for which there is a single instruction.
constexpr int SUMS = 0, MAXIMA = 1, MIXED = 2, TEMPERED = 3;
constexpr int N = H * W, HALF = (W + 1) / 2, NH = H * HALF, PLACES = 2 * NH, SS = S * S, R = S - 1;
constexpr int TH = T / (SPLIT ? 2 : 1), ROUNDS = (NH + TH - 1) / TH, SLOT = R * PLACES, BUFFER = 4 * SLOT;
constexpr bool WIDE = S > 8;  // too many states for registers: tables in shared memory, fields in global memory
constexpr int COLUMNS = WIDE ? (S + 3) / 4 * 4 : S;
constexpr bool WHOLE = PRODUCT == MAXIMA && sizeof(REAL) == 4;
template <bool> struct Kind {
    typedef REAL type;
};
template <> struct Kind<true> {
    typedef int type;
};
typedef Kind<WHOLE>::type M;  // an entry of a message, a table or a field: a factor, or its log
struct Tables {
    M p[TABLES == 0 ? 2 : 1][TABLES == 0 ? SS : 1];
};
struct alignas(16) Four {
    M x, y, z, w;
};
constexpr M UNIT = WHOLE ? 0 : 1;
constexpr float STEPS = 4194304;

__device__ __forceinline__ float pow_(float x, float y) { return __powf(x, y); }
__device__ __forceinline__ double pow_(double x, double y) { return pow(x, y); }
__device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ REAL times(REAL a, REAL b) { return a * b; }
__device__ __forceinline__ int times(int a, int b) { return a + b; }
__device__ __forceinline__ REAL inverse(REAL a) { return inv_(a); }
__device__ __forceinline__ int inverse(int a) { return -a; }
__device__ __forceinline__ REAL log_ratio(REAL a, REAL b) { return log_(a / b); }
__device__ __forceinline__ REAL log_ratio(int a, int b) { return (a - b) * REAL(1 / STEPS); }
__device__ __forceinline__ REAL mean(REAL a, REAL b, REAL share) {
    return a > 0 && b > 0 ? pow_(a, 1 - share) * pow_(b, share) : a;
}
__device__ __forceinline__ int mean(int a, int b, REAL share) { return __float2int_rn((1 - share) * a + share * b); }
__device__ __forceinline__ void from_log(REAL log, REAL &x) { x = exp_(log); }
__device__ __forceinline__ void from_log(REAL log, int &x) {
    x = log > -64 ? __float2int_rn(STEPS * (log < 64 ? log : REAL(64))) : -(1 << 29);
}
// Positive floats compare like their bits as integers, and one instruction takes the largest of three integers.
__device__ __forceinline__ float largest(float a, float b, float c) {
    return __int_as_float(__vimax3_s32(__float_as_int(a), __float_as_int(b), __float_as_int(c)));
}
__device__ __forceinline__ double largest(double a, double b, double c) { return fmax(fmax(a, b), c); }
__device__ __forceinline__ int largest(int a, int b, int c) { return __vimax3_s32(a, b, c); }
template <int HOW> __device__ __forceinline__ void add(M &o, M x, M y) {
    o = HOW == SUMS ? o + x * y : larger(o, times(x, y));
}

// Position of variable n.
__device__ __forceinline__ int place(int n) {
    const int i = n / W, j = n % W;
    return ((i + j) & 1) * NH + i * HALF + j / 2;
}

// Variable number k of a colour: its row, column and position, and its neighbours' positions along an axis (-1: none).
struct Node {
    int i, j, at, other;
    __device__ __forceinline__ Node(int colour, int k) {
        i = k / HALF;
        j = 2 * (k % HALF) + ((i + colour) & 1);
        at = colour * NH + k;
        other = (1 - colour) * NH + k;
    }
    __device__ __forceinline__ bool there() const { return i < H && j < W; }
    __device__ __forceinline__ int n() const { return i * W + j; }
    template <int AXIS> __device__ __forceinline__ int after() const {
        if (AXIS) return i < H - 1 ? other + HALF : -1;
        return j < W - 1 ? other + (j & 1) : -1;
    }
    template <int AXIS> __device__ __forceinline__ int before() const {
        if (AXIS) return i > 0 ? other - HALF : -1;
        return j > 0 ? other - 1 + (j & 1) : -1;
    }
    // 1 if it is an output; 2, 4, 8, 16 if those to the right, to the left, below and above are.
    __device__ __forceinline__ int roles(const unsigned char *output) const {
        const unsigned char *at = output + n();
        return (at[0] ? 1 : 0) + (j < W - 1 && at[1] ? 2 : 0) + (j > 0 && at[-1] ? 4 : 0) +
               (i < H - 1 && at[W] ? 8 : 0) + (i > 0 && at[-W] ? 16 : 0);
    }
};

// Damps a new message x by the old one; with `measure`, raises `change` to the largest change of its logs (both
// messages normalised to largest entry 1).
__device__ __forceinline__ void settle(const M *old, M *x, bool measure, REAL damping, REAL &change) {
    if (damping > 0)
#pragma unroll
        for (int s = 0; s < R; s++) x[s] = mean(x[s], old[s], damping);
    if (measure) {
        M top = UNIT, before = UNIT;
        bool fine = true;
#pragma unroll
        for (int s = 0; s < R; s++) {
            fine = fine && (WHOLE || (x[s] > 0 && old[s] > 0));
            top = larger(top, x[s]);
            before = larger(before, old[s]);
        }
        const REAL by = log_ratio(before, top);
        REAL low = by, high = by;
#pragma unroll
        for (int s = 0; s < R; s++) {
            const REAL moved = log_ratio(x[s], old[s]) + by;
            low = moved < low ? moved : low;
            high = larger(high, moved);
        }
        change = larger(change, fine ? larger(high, -low) : infinity());
    }
}

__device__ __forceinline__ void put(const M *was, M *now, int slot, int to, M *x, bool measure, REAL damping,
                                    REAL &change) {
    if (to < 0) return;
    if (measure || damping > 0) {
        M old[R];
#pragma unroll
        for (int s = 0; s < R; s++) old[s] = was[slot * SLOT + s * PLACES + to];
        settle(old, x, measure, damping, change);
    }
#pragma unroll
    for (int s = 0; s < R; s++) now[slot * SLOT + s * PLACES + to] = x[s];
}

struct Memory {
    const M *was;
    M *now;
    const M *tables;
    const M *fields;
    const unsigned short *listed;
    REAL ratio;
};

// Entry e of the table of an axis: of all grids, of this one, or of the edge whose first end is at a position.
template <int AXIS> __device__ __forceinline__ M entry(const Tables &all, const Memory &at, int position, int e) {
    return TABLES == 0 ? all.p[TABLES ? 0 : AXIS][TABLES ? 0 : e]
                       : at.tables[TABLES == 1 ? AXIS * SS + e : (AXIS * SS + e) * PLACES + position];
}

// o[t] = sum (or maximum, or power sum) over s of v[s] times the table's (s, t), or (t, s) if BACK.
template <int AXIS, int HOW, bool BACK> __device__ __forceinline__ void through(const Tables &all, const Memory &at,
                                                                                int position, const M *v, M *o) {
    const auto product = [&](int s, int t) {
        return times(v[s], entry<AXIS>(all, at, position, BACK ? t * S + s : s * S + t));
    };
    if constexpr (HOW == MAXIMA && PRODUCT == MIXED) {
#pragma unroll
        for (int t = 0; t < S; t++) o[t] = S % 2 ? product(0, t) : larger(product(0, t), product(1, t));
#pragma unroll
        for (int s = 2 - S % 2; s < S; s += 2)
#pragma unroll
            for (int t = 0; t < S; t++) o[t] = largest(o[t], product(s, t), product(s + 1, t));
    } else {
#pragma unroll
        for (int s = 0; s < S; s++)
#pragma unroll
            for (int t = 0; t < S; t++) {
                if (s) add<HOW>(o[t], v[s], entry<AXIS>(all, at, position, BACK ? t * S + s : s * S + t));
                else o[t] = product(s, t);
            }
    }
    if constexpr (HOW == TEMPERED) {
#pragma unroll
        for (int t = 0; t < S; t++) {
            const REAL scale = inverse(o[t]);
            REAL total = 0;
#pragma unroll
            for (int s = 0; s < S; s++)
                total +=
                    pow_(REAL(v[s]) * entry<AXIS>(all, at, position, BACK ? t * S + s : s * S + t) * scale, at.ratio);
            o[t] *= pow_(total, REAL(1) / at.ratio);
        }
    }
}

// The message `o` to a neighbour, from `v`: the product of a node's field and all messages but the neighbour's. The
// message of an output to a hidden neighbour is restricted to its best states (or weighted by them), divided by the
// neighbour's last message `received`; with a single best state it is that state's row of the table, and the division
// is a constant factor.
template <int AXIS, bool BACK>
__device__ __forceinline__ void tell(const Tables &all, const Memory &at, int position, bool from_output,
                                     bool to_output, const M *received, M *v, M *o) {
    if constexpr (PRODUCT < MIXED) {
        through<AXIS, PRODUCT, BACK>(all, at, position, v, o);
        return;
    }
    if (from_output && to_output) {
        through<AXIS, PRODUCT == TEMPERED ? TEMPERED : MAXIMA, BACK>(all, at, position, v, o);
        return;
    }
    if (from_output) {
        M belief[S];
        unsigned int best = 0;  // a bit for every best state
#pragma unroll
        for (int s = 0; s < S; s++) belief[s] = s ? v[s] * received[s ? s - 1 : 0] : v[0];
        M top = S % 2 ? belief[0] : larger(belief[0], belief[1]);
#pragma unroll
        for (int s = 2 - S % 2; s < S; s += 2) top = largest(top, belief[s], belief[s + 1]);
#pragma unroll
        for (int s = 0; s < S; s++) best |= (belief[s] == top ? 1u : 0u) << s;
        if (PRODUCT == MIXED && (best & (best - 1)) == 0) {
            const int state = __ffs(best) - 1;
            const M *row = at.tables + (TABLES == 2 ? PLACES : 1) * (AXIS * SS + (BACK ? state : state * S)) +
                           (TABLES == 2 ? position : 0);
#pragma unroll
            for (int t = 0; t < S; t++) o[t] = row[(TABLES == 2 ? PLACES : 1) * (BACK ? t * S : t)];
            return;
        }
#pragma unroll
        for (int s = 0; s < S; s++) {
            const M over = s ? inverse(received[s ? s - 1 : 0]) : UNIT;
            if (PRODUCT == MIXED) v[s] = belief[s] == top ? over : M(0);
            else v[s] = M(pow_(REAL(belief[s] * inverse(top)), at.ratio)) * over;
        }
    }
    through<AXIS, SUMS, BACK>(all, at, position, v, o);
}

__device__ __forceinline__ void hear(const Memory &at, const Node &node, M in[4][R]) {
#pragma unroll
    for (int k = 0; k < 4 * R; k++) in[k / R][k % R] = at.was[k / R * SLOT + k % R * PLACES + node.at];
}

// For many states: sum[t] is the sum over s of ahead(s) table(s, t), and back[s] that over t of behind[t] table(s, t).
// The table is read once for both.
template <int HOW, class Field> __device__ __forceinline__ void both_ways(const M *table, const Field &ahead,
                                                                          const M *behind, M *sum, M *back) {
    constexpr M NONE = WHOLE ? -(1 << 29) : 0;
    const Four *rows = reinterpret_cast<const Four *>(table);
#pragma unroll
    for (int s = 0; s < S; s++) {
        M o0 = NONE, o1 = NONE;
        const M c = ahead(s);
#pragma unroll
        for (int t = 0; t < COLUMNS; t += 4) {
            const Four p = rows[(s * COLUMNS + t) / 4];
            add<HOW>(sum[t], c, p.x);
            add<HOW>(sum[t + 1], c, p.y);
            add<HOW>(sum[t + 2], c, p.z);
            add<HOW>(sum[t + 3], c, p.w);
            add<HOW>(o0, behind[t], p.x);
            add<HOW>(o1, behind[t + 1], p.y);
            add<HOW>(o0, behind[t + 2], p.z);
            add<HOW>(o1, behind[t + 3], p.w);
        }
        add<HOW>(o0, o1, UNIT);
        back[s] = o0;
    }
}

// The same for the maxima of products, two rows at a time: one instruction takes the largest of three.
template <class Field> __device__ __forceinline__ void both_maxima(const M *table, const Field &ahead, const M *behind,
                                                                   M *sum, M *back) {
    const Four *rows = reinterpret_cast<const Four *>(table);
#pragma unroll
    for (int s = 0; s < S; s += 2) {
        const bool two = s + 1 < S;
        const M c = ahead(s), d = two ? ahead(two ? s + 1 : s) : M(0);
        M o = 0, q = 0;
#pragma unroll
        for (int t = 0; t < COLUMNS; t += 4) {
            const Four p = rows[(s * COLUMNS + t) / 4], r = rows[((two ? s + 1 : s) * COLUMNS + t) / 4];
            sum[t] = largest(sum[t], c * p.x, d * r.x);
            sum[t + 1] = largest(sum[t + 1], c * p.y, d * r.y);
            sum[t + 2] = largest(sum[t + 2], c * p.z, d * r.z);
            sum[t + 3] = largest(sum[t + 3], c * p.w, d * r.w);
            o = largest(o, behind[t] * p.x, behind[t + 1] * p.y);
            o = largest(o, behind[t + 2] * p.z, behind[t + 3] * p.w);
            q = largest(q, behind[t] * r.x, behind[t + 1] * r.y);
            q = largest(q, behind[t + 2] * r.z, behind[t + 3] * r.w);
        }
        back[s] = o;
        if (two) back[two ? s + 1 : s] = q;
    }
}

// The best of the states seen so far: a bit for every state whose belief is the largest.
struct Best {
    M top = 0;
    unsigned int states = 0;
    __device__ __forceinline__ void see(int s, M belief) {
        if (belief > top) states = 0;
        if (belief >= top) states |= 1u << s;
        top = larger(top, belief);
    }
};

// The two messages of a node along an axis: its field without the receiver's message, summed through the tables.
template <int AXIS> __device__ __forceinline__ void send(const Tables &all, const Memory &at, const Node &node,
                                                         const M *U, M in[4][R], int roles, bool measure, REAL damping,
                                                         REAL &change) {
    const int before = node.template before<AXIS>(), after = node.template after<AXIS>();
    M on[S], back[S];
    if (!WIDE) {
        M ahead[S], behind[S];
        if (SPLIT) hear(at, node, in);
        ahead[0] = behind[0] = U[0];
#pragma unroll
        for (int s = 1; s < S; s++) {
            const M f = times(times(U[s], in[2 - 2 * AXIS][s - 1]), in[3 - 2 * AXIS][s - 1]);
            ahead[s] = times(f, in[2 * AXIS][s - 1]);
            behind[s] = times(f, in[2 * AXIS + 1][s - 1]);
        }
        tell<AXIS, false>(all, at, node.at, roles & 1, roles & (2 << 2 * AXIS), in[2 * AXIS + 1], ahead, on);
        tell<AXIS, true>(all, at, before < 0 ? 0 : before, roles & 1, roles & (4 << 2 * AXIS), in[2 * AXIS], behind,
                         back);
        const M there = inverse(on[0]), here = inverse(back[0]);
#pragma unroll
        for (int s = 1; s < S; s++) {
            on[s] = times(on[s], there);
            back[s] = times(back[s], here);
        }
    } else {
        constexpr int BEFORE = 2 * AXIS * SLOT, AFTER = BEFORE + SLOT, CROSS = 2 * (1 - AXIS) * SLOT;
        const M *u = at.fields + node.at, *m = at.was + node.at;
        constexpr M NONE = WHOLE ? -(1 << 29) : 0;
        const auto field = [&](int s, int side) {
            const int e = (s - 1) * PLACES;
            return s ? times(times(times(u[s * PLACES], m[CROSS + e]), m[CROSS + SLOT + e]), m[side + e]) : u[0];
        };
        M behind[COLUMNS], sum[COLUMNS];
        Best best;
#pragma unroll
        for (int s = 0; s < COLUMNS; s++) {
            sum[s] = NONE;
            behind[s] = s < S ? field(s, AFTER) : NONE;
        }
        const M *table = at.tables + AXIS * S * COLUMNS;
        const auto ahead = [&](int s) { return field(s, BEFORE); };
        const auto received = [&](int s, int side) { return s ? m[side + (s - 1) * PLACES] : UNIT; };
        if constexpr (PRODUCT != MIXED) both_ways<PRODUCT>(table, ahead, behind, sum, back);
        else if (!(roles & 1)) both_ways<SUMS>(table, ahead, behind, sum, back);
        else {
            both_maxima(table, ahead, behind, sum, back);
#pragma unroll
            for (int s = 0; s < S; s++) best.see(s, times(behind[s], received(s, BEFORE)));
            // To hidden neighbours, as in `tell`: the row (or column) of each best state, divided by the neighbour's
            // message.
            const bool on_hidden = !(roles & (2 << 2 * AXIS)), back_hidden = !(roles & (4 << 2 * AXIS));
            const bool tied = best.states & (best.states - 1);
            const int state = __ffs(best.states) - 1;
#pragma unroll
            for (int t = 0; t < S; t++) {
                if (on_hidden) sum[t] = tied ? NONE : table[state * COLUMNS + t];
                if (back_hidden) back[t] = tied ? NONE : table[t * COLUMNS + state];
            }
            for (unsigned int left_over = tied ? best.states : 0u; left_over; left_over &= left_over - 1) {
                const int s = __ffs(left_over) - 1;
                const M right = inverse(received(s, AFTER)), left = inverse(received(s, BEFORE));
#pragma unroll
                for (int t = 0; t < S; t++) {
                    if (on_hidden) sum[t] += right * table[s * COLUMNS + t];
                    if (back_hidden) back[t] += left * table[t * COLUMNS + s];
                }
            }
        }
        const M here = inverse(back[0]);
#pragma unroll
        for (int s = 0; s < S; s++) back[s] = times(back[s], here);
        const M there = inverse(sum[0]);
#pragma unroll
        for (int s = 0; s < S; s++) on[s] = times(sum[s], there);
    }
    put(at.was, at.now, 2 * AXIS, after, on + 1, measure, damping, change);
    put(at.was, at.now, 2 * AXIS + 1, before, back + 1, measure, damping, change);
}

// The node of a colour that a thread has in a round.
__device__ __forceinline__ int number(const unsigned short *listed, int colour, int r) {
    const int k = r * TH + threadIdx.x % TH;
    return PRODUCT >= MIXED && k < NH ? listed[colour * NH + k] : k;
}

// All nodes by colour, hidden ones first: a warp for each colour.
__device__ __forceinline__ void list_nodes(const unsigned char *output, unsigned short *listed) {
    const int colour = threadIdx.x / 32, lane = threadIdx.x % 32;
    int n = 0;
    for (int k = lane; k < 2 * (NH + 31) / 32 * 32; k += 32) {
        const int round = (NH + 31) / 32 * 32, second = k >= round;
        const Node node(colour, k - second * round);
        const bool in = node.there() && (output[node.n()] != 0) == second;
        const unsigned int mask = __ballot_sync(0xffffffffu, in);
        if (in) listed[colour * NH + n + __popc(mask & ((1u << lane) - 1))] = k - second * round;
        n += __popc(mask);
    }
    for (int k = n + lane; k < NH; k += 32) listed[colour * NH + k] = NH;
}

__device__ __forceinline__ void phase(const Tables &all, const Memory &at, int colour, M U[ROUNDS][S], const int *roles,
                                      bool measure, REAL damping, REAL &change) {
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const Node node(colour, number(at.listed, colour, r));
        if (!node.there()) continue;
        M in[4][R];  // few states: the messages to the node, read once if one thread sends along both axes
        if (!WIDE && !SPLIT) hear(at, node, in);
        if (!SPLIT || threadIdx.x < TH) send<0>(all, at, node, U[r], in, roles[r], measure, damping, change);
        if (!SPLIT || threadIdx.x >= TH) send<1>(all, at, node, U[r], in, roles[r], measure, damping, change);
    }
}

// Slots of the batch: edge f of the grid is 2 f (to its first end) and 2 f + 1; edges across, then edges down.
__device__ __forceinline__ int slot_of(int k) {
    constexpr int ACROSS = H * (W - 1);
    const int f = k / 2, second = k & 1;
    if (f < ACROSS) return (second ? 0 : 1) * SLOT + place(f / (W - 1) * W + f % (W - 1) + second);
    return (second ? 2 : 3) * SLOT + place(f - ACROSS + second * W);
}

extern "C" __global__ void __launch_bounds__(T, BLOCKS)
    sweep(const __grid_constant__ Tables all, const REAL *__restrict__ unary, const void *__restrict__ tables,
          const long long *__restrict__ table_at, const int *__restrict__ grids, M *fields,
          REAL *__restrict__ log_messages, REAL *__restrict__ residual, int *__restrict__ swept,
          const unsigned char *__restrict__ outputs, REAL eps, REAL ratio, REAL damping, REAL tolerance, int n_sweeps,
          int check_every) {
    extern __shared__ __align__(16) unsigned char raw[];
    M *m = reinterpret_cast<M *>(raw);
    constexpr int EDGES = H * (W - 1) + (H - 1) * W;
    __shared__ __align__(16) M kept[TABLES < 2 ? 2 * S * COLUMNS : 1];
    __shared__ REAL worst[32], tops[2];
    __shared__ unsigned short listed[PRODUCT >= MIXED ? 2 * NH : 1];
    __shared__ int done;
    const int b = grids[blockIdx.x];
    const REAL c = REAL(1) / eps;
    if (residual[b] <= tolerance) return;
    if (TABLES == 1) {
        const REAL *theta = static_cast<const REAL *>(tables) + table_at[2 * b + (threadIdx.x / 32 & 1)];
        REAL top = -infinity();
        if (threadIdx.x < 64)
            for (int k = threadIdx.x % 32; k < SS; k += 32) top = larger(top, theta[k]);
#pragma unroll
        for (int k = 16; k; k >>= 1) top = larger(top, __shfl_xor_sync(0xffffffffu, top, k));
        if (threadIdx.x < 64) tops[threadIdx.x / 32] = top;
        __syncthreads();
        for (int k = threadIdx.x; k < 2 * S * COLUMNS; k += T) {
            const int axis = k / (S * COLUMNS), s = k / COLUMNS % S, t = k % COLUMNS;
            theta = static_cast<const REAL *>(tables) + table_at[2 * b + axis];
            from_log(t < S ? (theta[s * S + t] - tops[axis]) * c : -infinity(), kept[k]);
        }
    }
    if (PRODUCT >= MIXED && threadIdx.x < 64) list_nodes(outputs + (long long)b * N, listed);
    if (TABLES == 0 && PRODUCT == MIXED)
        for (int k = threadIdx.x; k < 2 * SS; k += T) kept[k] = all.p[TABLES ? 0 : k / SS][TABLES ? 0 : k % SS];
    REAL *mine = log_messages + (long long)b * 2 * EDGES * S;
    for (int k = threadIdx.x; k < (FLOODING ? 2 : 1) * BUFFER; k += T) m[k] = UNIT;
    __syncthreads();
    for (int k = threadIdx.x; k < 2 * EDGES; k += T) {
        const int to = slot_of(k);
        const REAL *row = mine + k * S;
        const REAL first = row[0] > -infinity() ? row[0] : REAL(0);
        for (int s = 1; s < S; s++)
            if (row[s] > -infinity()) from_log((row[s] - first) * c, m[to + (s - 1) * PLACES]);
    }
    M U[2][ROUNDS][S];
    int roles[2][ROUNDS];
    M *field = fields + (WIDE ? (long long)blockIdx.x * S * PLACES : 0);
#pragma unroll
    for (int colour = 0; colour < 2; colour++)
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            const Node node(colour, number(listed, colour, r));
            REAL top = -infinity();
            roles[colour][r] = 0;
            if (!node.there()) continue;
            if (PRODUCT >= MIXED) roles[colour][r] = node.roles(outputs + (long long)b * N);
            const REAL *u = unary + ((long long)b * N + node.n()) * S;
            for (int s = 0; s < S; s++) top = larger(top, u[s]);
#pragma unroll
            for (int s = 0; s < S; s++) {
                M x;
                from_log(top > -infinity() ? (u[s] - top) * c : -infinity(), x);
                if (WIDE) field[s * PLACES + node.at] = x;
                else U[colour][r][s] = x;
            }
        }
    __syncthreads();
    int made = 0;
    REAL change = 0;
    Memory at{m,
              FLOODING ? m + BUFFER : m,
              TABLES == 2 ? static_cast<const M *>(tables) + table_at[b] : kept,
              field,
              listed,
              ratio};
    for (int it = 0; it < n_sweeps; it++) {
        const bool looking = it + 1 == n_sweeps || (it + 1) % check_every == 0;
        change = 0;
        made++;
#pragma unroll SPLIT ? 2 : 1  // short code for many grids, few branches for few grids
        for (int colour = 1; colour >= 0; colour--) {  // colour 1 sends first, to the variables of colour 0
            M mine[ROUNDS][S];
            int kinds[ROUNDS];
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                kinds[r] = colour ? roles[1][r] : roles[0][r];
#pragma unroll
                for (int s = 0; s < S; s++) mine[r][s] = colour ? U[1][r][s] : U[0][r][s];
            }
            if (looking || !SPLIT) phase(all, at, colour, mine, kinds, looking, damping, change);
            else phase(all, at, colour, mine, kinds, false, damping, change);
            if (colour == 0 || !FLOODING) __syncthreads();
        }
        if (FLOODING) {
            M *now = at.now;
            at.now = const_cast<M *>(at.was);
            at.was = now;
        }
        if (looking) {
#pragma unroll
            for (int k = 16; k; k >>= 1) change = larger(change, __shfl_xor_sync(0xffffffffu, change, k));
            if ((threadIdx.x & 31) == 0) worst[threadIdx.x >> 5] = change;
            __syncthreads();
            if (threadIdx.x == 0) {
                for (int k = 0; k < T / 32; k++) change = larger(change, worst[k]);
                worst[0] = change;
                done = change <= tolerance;
            }
            __syncthreads();
            change = worst[0];
            if (done) break;
        }
    }
    for (int k = threadIdx.x; k < 2 * EDGES; k += T) {
        const M *from = at.was + slot_of(k);
        REAL *row = mine + k * S;
        M top = UNIT;
        for (int s = 1; s < S; s++) top = larger(top, from[(s - 1) * PLACES]);
        for (int s = 0; s < S; s++) row[s] = eps * log_ratio(s ? from[(s - 1) * PLACES] : UNIT, top);
    }
    if (threadIdx.x == 0) {
        residual[b] = change;
        swept[b] += made;
    }
}
