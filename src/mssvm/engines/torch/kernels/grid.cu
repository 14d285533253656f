// Belief propagation on grids of H x W variables of S states: one block a grid, all messages in shared memory, all sweeps in
// one launch. Compiled with H, W, S, T (threads), SPLIT (half of them for each axis), BLOCKS (a multiprocessor), PRODUCT (of
// sums, of maxima, mixed, or mixed with outputs at a temperature of their own), FLOODING and TABLES: 0, two for all grids,
// which come by value; 1, two for each grid; 2, one for each edge, laid out as [axis][entry][position of the first end],
// scaled.
// Positions go by colour, so that neighbours in memory send together. A message is its ratios to its first entry: S - 1
// numbers. Slots 0 to 3 of a node hold what comes from the left, the right, above and below. With FLOODING sweeps go from
// one half of the memory to the other; otherwise the nodes of one colour send, then the others. What an output sends to a
// hidden neighbour needs what that neighbour says to it: the message it sent last.
constexpr int SUMS = 0, MAXIMA = 1, MIXED = 2, TEMPERED = 3;
constexpr int N = H * W, HALF = (W + 1) / 2, NH = H * HALF, PLACES = 2 * NH, SS = S * S, R = S - 1;
constexpr int TH = T / (SPLIT ? 2 : 1), ROUNDS = (NH + TH - 1) / TH, SLOT = R * PLACES, BUFFER = 4 * SLOT;
constexpr bool WIDE = S > 8;  // too many states for registers: tables in shared memory, fields in global memory
constexpr int COLUMNS = WIDE ? (S + 3) / 4 * 4 : S;
struct Tables { REAL p[TABLES == 0 ? 2 : 1][TABLES == 0 ? SS : 1]; };
struct alignas(16) Four { REAL x, y, z, w; };

__device__ __forceinline__ float pow_(float x, float y) { return __powf(x, y); }
__device__ __forceinline__ double pow_(double x, double y) { return pow(x, y); }
__device__ __forceinline__ REAL larger(REAL a, REAL b) { return a > b ? a : b; }
template <int HOW> __device__ __forceinline__ void add(REAL& o, REAL x, REAL y) { o = HOW == SUMS ? o + x * y : larger(o, x * y); }

// Position of variable n.
__device__ __forceinline__ int place(int n) {
  const int i = n / W, j = n % W;
  return ((i + j) & 1) * NH + i * HALF + j / 2;
}

// A variable of a colour, number k of them: where it is, and its neighbours' positions along an axis, -1 if there is none.
struct Node {
  int i, j, at, other;
  __device__ __forceinline__ Node(int colour, int k) {
    i = k / HALF; j = 2 * (k % HALF) + ((i + colour) & 1); at = colour * NH + k; other = (1 - colour) * NH + k;
  }
  __device__ __forceinline__ bool there() const { return i < H && j < W; }
  __device__ __forceinline__ int n() const { return i * W + j; }
  template <int AXIS> __device__ __forceinline__ int after() const {
    return AXIS ? (i < H - 1 ? other + HALF : -1) : (j < W - 1 ? other + (j & 1) : -1);
  }
  template <int AXIS> __device__ __forceinline__ int before() const {
    return AXIS ? (i > 0 ? other - HALF : -1) : (j > 0 ? other - 1 + (j & 1) : -1);
  }
};

// Puts ratios into a slot, averaged with what was there; raises the largest change of the message (largest entry 1) if LOOK.
template <bool LOOK> __device__ __forceinline__ void settle(const REAL* old, REAL* x, REAL damping, REAL& change) {
  if (damping > 0)
#pragma unroll
    for (int s = 0; s < R; s++) if (x[s] > 0 && old[s] > 0) x[s] = pow_(x[s], 1 - damping) * pow_(old[s], damping);
  if (LOOK) {
    REAL top = 0, before = 0, low = 0, high = 0; bool fine = true;
#pragma unroll
    for (int s = 0; s < R; s++) { fine = fine && x[s] > 0 && old[s] > 0; top = larger(top, log_(x[s])); before = larger(before, log_(old[s])); }
    low = high = before - top;
#pragma unroll
    for (int s = 0; s < R; s++) {
      const REAL by = log_(x[s] / old[s]) + before - top;
      low = by < low ? by : low; high = by > high ? by : high;
    }
    change = larger(change, fine ? larger(high, -low) : infinity());
  }
}

template <bool LOOK> __device__ __forceinline__ void put(const REAL* was, REAL* now, int slot, int to, REAL* x, REAL damping, REAL& change) {
  if (to < 0) return;
  if (LOOK || damping > 0) {
    REAL old[R];
#pragma unroll
    for (int s = 0; s < R; s++) old[s] = was[slot * SLOT + s * PLACES + to];
    settle<LOOK>(old, x, damping, change);
  }
#pragma unroll
  for (int s = 0; s < R; s++) now[slot * SLOT + s * PLACES + to] = x[s];
}

struct Memory { const REAL* was; REAL* now; const REAL* tables; const REAL* fields; const unsigned char* output; REAL ratio; };

// Entry e of the table of an axis: of all grids, of this one, or of the edge whose first end is at a position.
template <int AXIS> __device__ __forceinline__ REAL entry(const Tables& all, const Memory& at, int position, int e) {
  return TABLES == 0 ? all.p[TABLES ? 0 : AXIS][TABLES ? 0 : e] : at.tables[TABLES == 1 ? AXIS * SS + e : (AXIS * SS + e) * PLACES + position];
}

// o[t] = sum (or maximum, or power sum) over s of v[s] times the table's (s, t), or (t, s) if BACK.
template <int AXIS, int HOW, bool BACK> __device__ __forceinline__ void through(
    const Tables& all, const Memory& at, int position, const REAL* v, REAL* o) {
#pragma unroll
  for (int s = 0; s < S; s++)
#pragma unroll
    for (int t = 0; t < S; t++) {
      const REAL p = entry<AXIS>(all, at, position, BACK ? t * S + s : s * S + t);
      if (s) add<HOW>(o[t], v[s], p); else o[t] = v[s] * p;
    }
  if (HOW == TEMPERED) {
#pragma unroll
    for (int t = 0; t < S; t++) {
      const REAL scale = inv_(o[t]); REAL total = 0;
#pragma unroll
      for (int s = 0; s < S; s++) total += pow_(v[s] * entry<AXIS>(all, at, position, BACK ? t * S + s : s * S + t) * scale, at.ratio);
      o[t] *= pow_(total, REAL(1) / at.ratio);
    }
  }
}

// What goes to a neighbour, given v, all that a node hears from others. To a hidden neighbour an output tells (its share of)
// its best states, over what that neighbour said.
template <int AXIS, bool BACK> __device__ __forceinline__ void tell(
    const Tables& all, const Memory& at, int position, bool mine, int to, const REAL* said, REAL* v, REAL* o) {
  if (PRODUCT < MIXED) { through<AXIS, PRODUCT == MAXIMA ? MAXIMA : SUMS, BACK>(all, at, position, v, o); return; }
  if (mine && to >= 0 && at.output[to]) { through<AXIS, PRODUCT == TEMPERED ? TEMPERED : MAXIMA, BACK>(all, at, position, v, o); return; }
  if (mine) {
    REAL top = v[0];
#pragma unroll
    for (int s = 1; s < S; s++) top = larger(top, v[s] * said[(s - 1) * PLACES]);
#pragma unroll
    for (int s = 0; s < S; s++) {
      const REAL said_s = s ? said[(s ? s - 1 : 0) * PLACES] : REAL(1), belief = v[s] * said_s;
      v[s] = PRODUCT == MIXED ? (belief == top ? inv_(said_s) : REAL(0)) : pow_(belief * inv_(top), at.ratio) * inv_(said_s);
    }
  }
  through<AXIS, SUMS, BACK>(all, at, position, v, o);
}

// What a node sends along an axis, both ways: sums of the field without one of the two through the tables.
template <int AXIS, bool LOOK> __device__ __forceinline__ void send(
    const Tables& all, const Memory& at, const Node& node, const REAL* U, REAL damping, REAL& change) {
  const REAL* m = at.was + node.at;
  constexpr int BEFORE = 2 * AXIS * SLOT, AFTER = BEFORE + SLOT, CROSS = 2 * (1 - AXIS) * SLOT;
  const int before = node.template before<AXIS>(), after = node.template after<AXIS>();
  REAL on[S], back[S];
  if (!WIDE) {
    REAL ahead[S], behind[S]; const bool mine = PRODUCT >= MIXED && at.output[node.at];
    ahead[0] = behind[0] = U[0];
#pragma unroll
    for (int s = 1; s < S; s++) {
      const int e = (s - 1) * PLACES;
      const REAL f = U[s] * m[CROSS + e] * m[CROSS + SLOT + e];
      ahead[s] = f * m[BEFORE + e]; behind[s] = f * m[AFTER + e];
    }
    tell<AXIS, false>(all, at, node.at, mine, after, m + AFTER, ahead, on);
    tell<AXIS, true>(all, at, before < 0 ? 0 : before, mine, before, m + BEFORE, behind, back);
    const REAL there = inv_(on[0]), here = inv_(back[0]);
#pragma unroll
    for (int s = 1; s < S; s++) { on[s] *= there; back[s] *= here; }
  } else {
    const REAL* u = at.fields + node.at;
    REAL behind[COLUMNS], sum[COLUMNS]; REAL here = 0;
#pragma unroll
    for (int s = 0; s < COLUMNS; s++) {
      const int e = (s - 1) * PLACES; sum[s] = 0; behind[s] = 0;
      if (s < S) behind[s] = s ? u[s * PLACES] * m[CROSS + e] * m[CROSS + SLOT + e] * m[AFTER + e] : u[0];
    }
    const Four* rows = reinterpret_cast<const Four*>(at.tables + AXIS * S * COLUMNS);
#pragma unroll
    for (int s = 0; s < S; s++) {
      const int e = (s - 1) * PLACES; REAL o0 = 0, o1 = 0;
      const REAL c = s ? u[s * PLACES] * m[CROSS + e] * m[CROSS + SLOT + e] * m[BEFORE + e] : u[0];
#pragma unroll
      for (int t = 0; t < COLUMNS; t += 4) {
        const Four p = rows[(s * COLUMNS + t) / 4];
        add<PRODUCT>(sum[t], c, p.x); add<PRODUCT>(sum[t + 1], c, p.y);
        add<PRODUCT>(sum[t + 2], c, p.z); add<PRODUCT>(sum[t + 3], c, p.w);
        add<PRODUCT>(o0, behind[t], p.x); add<PRODUCT>(o1, behind[t + 1], p.y);
        add<PRODUCT>(o0, behind[t + 2], p.z); add<PRODUCT>(o1, behind[t + 3], p.w);
      }
      add<PRODUCT>(o0, o1, REAL(1));
      if (s == 0) here = inv_(o0);
      back[s] = o0 * here;
    }
    const REAL there = inv_(sum[0]);
#pragma unroll
    for (int s = 0; s < S; s++) on[s] = sum[s] * there;
  }
  put<LOOK>(at.was, at.now, 2 * AXIS, after, on + 1, damping, change);
  put<LOOK>(at.was, at.now, 2 * AXIS + 1, before, back + 1, damping, change);
}

template <bool LOOK> __device__ __forceinline__ void phase(
    const Tables& all, const Memory& at, int colour, REAL U[ROUNDS][S], REAL damping, REAL& change) {
#pragma unroll
  for (int r = 0; r < ROUNDS; r++) {
    const Node node(colour, r * TH + threadIdx.x % TH);
    if (!node.there()) continue;
    if (!SPLIT || threadIdx.x < TH) send<0, LOOK>(all, at, node, U[r], damping, change);
    if (!SPLIT || threadIdx.x >= TH) send<1, LOOK>(all, at, node, U[r], damping, change);
  }
}

// Slots of the batch: edge f of the grid is 2 f (to its first end) and 2 f + 1; edges across, then edges down.
__device__ __forceinline__ int slot_of(int k) {
  constexpr int ACROSS = H * (W - 1);
  const int f = k / 2, second = k & 1;
  if (f < ACROSS) return (second ? 0 : 1) * SLOT + place(f / (W - 1) * W + f % (W - 1) + second);
  return (second ? 2 : 3) * SLOT + place(f - ACROSS + second * W);
}

extern "C" __global__ void __launch_bounds__(T, BLOCKS) sweep(
    const __grid_constant__ Tables all, const REAL* __restrict__ unary, const REAL* __restrict__ tables,
    const long long* __restrict__ table_at, const int* __restrict__ grids, REAL* fields, REAL* __restrict__ log_messages,
    REAL* __restrict__ residual, int* __restrict__ swept, const unsigned char* __restrict__ outputs, REAL eps, REAL ratio,
    REAL damping, REAL tolerance, int n_sweeps, int look) {
  extern __shared__ __align__(16) unsigned char raw[];
  REAL* m = reinterpret_cast<REAL*>(raw);
  constexpr int EDGES = H * (W - 1) + (H - 1) * W;
  __shared__ __align__(16) REAL kept[TABLES == 1 ? 2 * S * COLUMNS : 1];
  __shared__ REAL worst[32];
  __shared__ unsigned char output[PRODUCT >= MIXED ? PLACES : 1];
  __shared__ int done;
  const int b = grids[blockIdx.x]; const REAL c = REAL(1) / eps;
  if (residual[b] <= tolerance) return;
  if (TABLES == 1)
    for (int k = threadIdx.x; k < 2 * S * COLUMNS; k += T) {
      const int axis = k / (S * COLUMNS), s = k / COLUMNS % S, t = k % COLUMNS;
      kept[k] = t < S ? exp_(tables[table_at[2 * b + axis] + s * S + t] * c) : REAL(0);
    }
  if (PRODUCT >= MIXED) for (int n = threadIdx.x; n < N; n += T) output[place(n)] = outputs[(long long)b * N + n];
  REAL* mine = log_messages + (long long)b * 2 * EDGES * S;
  for (int k = threadIdx.x; k < (FLOODING ? 2 : 1) * BUFFER; k += T) m[k] = 1;
  __syncthreads();
  for (int k = threadIdx.x; k < 2 * EDGES; k += T) {
    const int to = slot_of(k); const REAL* row = mine + k * S; const REAL first = row[0] > -infinity() ? row[0] : REAL(0);
    for (int s = 1; s < S; s++) m[to + (s - 1) * PLACES] = row[s] > -infinity() ? exp_((row[s] - first) * c) : REAL(1);
  }
  REAL U[2][ROUNDS][S];
  REAL* field = fields + (WIDE ? (long long)blockIdx.x * S * PLACES : 0);
#pragma unroll
  for (int colour = 0; colour < 2; colour++)
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
      const Node node(colour, r * TH + threadIdx.x % TH); REAL top = -infinity();
      if (!node.there()) continue;
      const REAL* u = unary + ((long long)b * N + node.n()) * S;
      for (int s = 0; s < S; s++) top = larger(top, u[s]);
#pragma unroll
      for (int s = 0; s < S; s++) {
        const REAL x = top > -infinity() ? exp_((u[s] - top) * c) : REAL(0);
        if (WIDE) field[s * PLACES + node.at] = x; else U[colour][r][s] = x;
      }
    }
  __syncthreads();
  int made = 0; REAL change = 0;
  Memory at{m, FLOODING ? m + BUFFER : m, TABLES == 2 ? tables + table_at[b] : kept, field, output, ratio};
  for (int it = 0; it < n_sweeps; it++) {
    const bool looking = it + 1 == n_sweeps || (it + 1) % look == 0;
    change = 0; made++;
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int colour = 1 - k;  // colour 1 sends first, to the variables of colour 0
      if (looking) phase<true>(all, at, colour, U[colour], damping, change);
      else phase<false>(all, at, colour, U[colour], damping, change);
      if (k == 1 || !FLOODING) __syncthreads();
    }
    if (FLOODING) { REAL* now = at.now; at.now = const_cast<REAL*>(at.was); at.was = now; }
    if (looking) {
#pragma unroll
      for (int k = 16; k; k >>= 1) change = larger(change, __shfl_xor_sync(0xffffffffu, change, k));
      if ((threadIdx.x & 31) == 0) worst[threadIdx.x >> 5] = change;
      __syncthreads();
      if (threadIdx.x == 0) {
        for (int k = 0; k < T / 32; k++) change = larger(change, worst[k]);
        worst[0] = change; done = change <= tolerance;
      }
      __syncthreads();
      change = worst[0];
      if (done) break;
    }
  }
  for (int k = threadIdx.x; k < 2 * EDGES; k += T) {
    const REAL* from = at.was + slot_of(k); REAL* row = mine + k * S; REAL top = 1;
    for (int s = 1; s < S; s++) top = larger(top, from[(s - 1) * PLACES]);
    const REAL scale = REAL(1) / top;
    for (int s = 0; s < S; s++) row[s] = eps * log_(s ? from[(s - 1) * PLACES] * scale : scale);
  }
  if (threadIdx.x == 0) { residual[b] = change; swept[b] += made; }
}
