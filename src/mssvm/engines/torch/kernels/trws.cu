// Sequential tree-reweighted messages on monotone chains: the decomposition bound at one temperature (maxima at 0).
//
// The recursion is that of the native engine (cpp/trws.hpp). With G the scores of a variable plus all messages to it,
// an item of weight rho sends
//
//     M(z) = PS[eps rho] over x of (rho G(x) - the message received from there + theta(x, z))
//
// to the next item of its chain (forwards: F) or to the one before it (backwards: B).
#include "cover.cu"

constexpr int EACH = (W + LANES - 1) / LANES;  // states of a message that one thread computes

struct Sweeps {
    const Instance &me;
    double eps;
    double *F, *B;
    int S, lane;

    __device__ __forceinline__ Sweeps(const Instance &instance, double eps)
        : me(instance),
          eps(eps),
          F(instance.of_items(instance.in.forward, W)),
          B(instance.of_items(instance.in.backward, W)),
          S(instance.n_items),
          lane(threadIdx.x % LANES) {}

    // Scores plus all messages of a variable.
    __device__ __forceinline__ void totals(int variable, int level, double *G) const {
#pragma unroll
        for (int x = 0; x < W; x++) G[x] = me.scores[(long long)x * me.n_vars + variable];
        me.each_chain(variable, level, [&](int i) {
#pragma unroll
            for (int x = 0; x < W; x++) G[x] += F[(long long)x * S + i] + B[(long long)x * S + i];
        });
    }
    __device__ __forceinline__ void totals(int variable, double *G) const {
        totals(variable, me.variables[variable].level, G);
    }

    // Sends the message of an item whose scores are `from`; returns its normaliser. Called by whole warps.
    template <bool forward> __device__ __forceinline__ double send(int i, const Item &item, bool active, double rho,
                                                                   const double *from, double *to) const {
        double sent[EACH], top = lowest();
        const int there = forward ? item.after : item.before;
        const int k = item.card();
        int n = 0;
        if (active) n = forward ? item.card_after() : item.card_before();
        const double *table = me.in.tables + (forward ? me.table[i] : me.table_before[i]);
        const bool second = item.second >> (forward ? 0 : 1) & 1;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int z = lane + j * LANES;
            sent[j] = lowest();
            if (z >= n) continue;
            double score[W];
#pragma unroll
            for (int x = 0; x < W; x++)
                score[x] = SAME || x < k ? from[x] + table[Instance::entry(second, x, k, z, n)] : lowest();
            sent[j] = power_sum<W>(score, eps * rho);
            top = fmax(top, sent[j]);
        }
#pragma unroll
        for (int o = LANES / 2; o; o >>= 1) top = fmax(top, __shfl_xor_sync(WARP, top, o));
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (lane + j * LANES < n) to[(long long)(lane + j * LANES) * S + there] = sent[j] - or_zero(top);
        return top;
    }

    // work(number, item, G of its variable, its weight, whether there is an item) for all items of a level.
    template <class Work> __device__ __forceinline__ void each_item(int level, Work work) const {
        const Level here = me.levels[level];
        const int begin = here.item, end = begin + here.n * here.chains;
        const int whole = (end - begin + 32 / LANES - 1) / (32 / LANES) * (32 / LANES);
        for (int j = threadIdx.x / LANES; j < whole; j += THREADS / LANES) {
            const bool inside = begin + j < end;
            const int i = inside ? begin + j : begin;
            const Item item = me.items[i];
            const double rho = me.rho[i];
            double G[W];
            totals(item.variable, level, G);
            work(i, item, G, rho, inside);
        }
    }

    // A pass over all levels; returns this thread's part of the sum of normalisers.
    template <bool forward> __device__ __forceinline__ double pass() const {
        if constexpr (FEW) return quick<forward, false>(nullptr, nullptr);
        double sum = 0;
        const int n_levels = int(me.at.n_levels);
        for (int step = 0; step < n_levels; step++) {
            each_item(forward ? step : n_levels - 1 - step,
                      [&](int i, const Item &item, const double *G, double rho, bool inside) {
                          const bool active = inside && (forward ? item.after : item.before) >= 0;
                          const double *back = forward ? B : F;
                          double from[W];
#pragma unroll
                          for (int x = 0; x < W; x++)
                              from[x] = G[x] > lowest() ? rho * G[x] - back[(long long)x * S + i] : lowest();
                          const double top = send<forward>(i, item, active, rho, from, forward ? F : B);
                          if (active && lane == 0) sum += top;
                      });
            __syncthreads();
        }
        return sum;
    }

    // What a thread needs for one item, loaded before the level before it has ended: first where its numbers are, then
    // the numbers: scores, messages of the other direction (reading: of both), and the table from here.
    struct Head {
        int i, table;
        Item item;
        double rho;
    };
    template <bool reading> struct Body {
        double u[W], other[CHAINS][W], same[reading ? CHAINS : 1][W], T[W][W];
    };
    template <bool forward> __device__ __forceinline__ Head head(const Step &step) const {
        Head found;
        found.i = step.item(me);
        if (found.i < 0) return found;
        found.item = me.items[found.i];
        found.rho = me.rho[found.i];
        found.table = forward ? me.table[found.i] : me.table_before[found.i];
        return found;
    }
    template <bool forward, bool reading>
    __device__ __forceinline__ void fill(const Step &step, const Head &head, Body<reading> &body) const {
        if (head.i < 0) return;
        const Item &item = head.item;
        const double *other = forward ? B : F, *same = forward ? F : B;
        const int there = forward ? item.after : item.before, first = head.i - item.rank() * step.here.n;
        const int k = item.card(), n = forward ? item.card_after() : item.card_before();
        const bool second = item.second >> (forward ? 0 : 1) & 1;
#pragma unroll
        for (int x = 0; x < W; x++) {
            body.u[x] = me.scores[(long long)x * me.n_vars + item.variable];
#pragma unroll
            for (int c = 0; c < CHAINS; c++) {
                const bool has = c < step.here.chains;
                const long long at = (long long)x * S + first + c * step.here.n;
                body.other[c][x] = has ? other[at] : 0.0;
                if (reading) body.same[c][x] = has ? same[at] : 0.0;
            }
#pragma unroll
            for (int z = 0; z < W; z++) {
                const bool has = there >= 0 && (SAME || (x < k && z < n));
                body.T[x][z] = has ? me.in.tables[head.table + Instance::entry(second, x, k, z, n)] : lowest();
            }
        }
    }

    // A pass over all levels, as `pass` and `reading`; messages of this direction come from the ring.
    template <bool forward, bool reading> __device__ __forceinline__ double quick(double *R, double *Q) const {
        __shared__ double ring[RING ? W * SLOTS : 1];
        double *to = forward ? F : B, sum = 0;
        if (reading) to = R;
        Step now(me, forward ? 0 : int(me.at.n_levels) - 1);
        Step next = now.next<forward>(me), later = next.next<forward>(me);
        Head head_now = head<forward>(now), head_next = head<forward>(next);
        Body<reading> body;
        fill<forward, reading>(now, head_now, body);
        while (now.inside(me)) {
            const Head head_later = head<forward>(later);
            Body<reading> body_next;
            fill<forward, reading>(next, head_next, body_next);
            const Step latest = later.next<forward>(me);
            if (head_now.i >= 0 && (forward ? head_now.item.after : head_now.item.before) >= 0) {
                const double top = visit<forward, reading>(now, head_now, body, ring, to, Q);
                if (!reading) sum += top;
            }
            if (next.level != now.level) __syncthreads();
            now = next;
            next = later;
            later = latest;
            head_now = head_next;
            head_next = head_later;
            body = body_next;
        }
        return sum;
    }
    template <bool forward, bool reading>
    __device__ __forceinline__ double visit(const Step &step, const Head &head, const Body<reading> &body, double *ring,
                                            double *to, double *Q) const {
        const Item &item = head.item;
        const int there = forward ? item.after : item.before;
        const int arrivals = item.place >> (forward ? 8 : 16);  // bit c: a message comes to the variable in its chain c
        const int rank = item.rank(), first = head.i - rank * step.here.n;
        const int slot = step.ring() + first - step.here.item;
        double from[W], sent[W], top = lowest();
#pragma unroll
        for (int x = 0; x < W; x++) {
            double G = body.u[x], own = 0, back = 0, swept = 0;
#pragma unroll
            for (int c = 0; c < CHAINS; c++) {
                double arrived = 0;
                if (arrivals >> c & 1 && (!reading || c == rank))
                    arrived = RING ? ring[x * SLOTS + slot + c * step.here.n]
                                   : to[(long long)x * S + first + c * step.here.n];
                G += body.other[c][x] + (reading ? body.same[reading ? c : 0][x] : arrived);
                if (c != rank) continue;
                own = arrived;
                back = body.other[c][x];
                if (reading) swept = body.same[reading ? c : 0][x];
            }
            from[x] = G > lowest() ? head.rho * G - back : lowest();
            if (reading && arrivals >> rank & 1 && G > lowest()) from[x] += own - swept;
        }
#pragma unroll
        for (int z = 0; z < W; z++) {
            double score[W];
#pragma unroll
            for (int x = 0; x < W; x++) score[x] = from[x] + body.T[x][z];
            sent[z] = power_sum<W>(score, eps * head.rho);
            top = fmax(top, sent[z]);
        }
        const int n = forward ? item.card_after() : item.card_before();
#pragma unroll
        for (int z = 0; z < W; z++) {
            if (!SAME && z >= n) continue;
            const double message = sent[z] - or_zero(top);
            to[(long long)z * S + there] = message;
            if (RING) ring[z * SLOTS + (forward ? item.ring_after : item.ring_before)] = message;
        }
        if (reading)
#pragma unroll
            for (int x = 0; x < W; x++) Q[(long long)x * S + head.i] = from[x] - top;
        return top;
    }

    // Weight of PS[eps] G in the bound: of the chains that begin at a variable, and what is left.
    __device__ __forceinline__ double root(int v) const {
        double weight = me.in.left[me.at.variables + v];
        me.each_chain(v, me.variables[v].level, [&](int i) {
            if (me.items[i].before < 0 && me.items[i].after >= 0) weight += me.rho[i];
        });
        return weight;
    }
    __device__ __forceinline__ double roots() const {
        double sum = 0, G[W];
        for (int v = threadIdx.x; v < me.n_vars; v += THREADS) {
            const double weight = root(v);
            if (!(weight > 0)) continue;
            totals(v, G);
            sum += weight * power_sum<W>(G, eps);
        }
        return sum;
    }

    // Messages R from before, all chains exact, by a forward pass that leaves F and B as they are; Q: what was sent.
    __device__ __forceinline__ void reading(double *R, double *Q) const {
        if constexpr (FEW) {
            quick<true, true>(R, Q);
            return;
        }
        const int n_levels = int(me.at.n_levels);
        for (int level = 0; level < n_levels; level++) {
            each_item(level, [&](int i, const Item &item, const double *G, double rho, bool inside) {
                const bool active = inside && item.after >= 0;
                double from[W];
#pragma unroll
                for (int x = 0; x < W; x++) {
                    from[x] = G[x] > lowest() ? rho * G[x] - B[(long long)x * S + i] : lowest();
                    if (item.before >= 0 && from[x] > lowest())
                        from[x] += R[(long long)x * S + i] - F[(long long)x * S + i];
                }
                const double top = send<true>(i, item, active, rho, from, R);
                if (active)
                    for (int x = lane; x < W; x += LANES) Q[(long long)x * S + i] = from[x] - top;
            });
            __syncthreads();
        }
    }

    // Marginals of every item, into R, and of the factor to the item before it.
    __device__ __forceinline__ void marginals(double *R, const double *Q) const {
        for (int i = threadIdx.x; i < S; i += THREADS) {
            const Item item = me.items[i];
            if (item.before < 0) continue;
            const double rho = me.rho[i], unit = 1.0 / (eps * rho);
            double G[W], mine[W], swept[W];
            totals(item.variable, G);
#pragma unroll
            for (int x = 0; x < W; x++) {
                swept[x] = R[(long long)x * S + i];
                mine[x] = G[x] > lowest() ? rho * G[x] + (swept[x] - F[(long long)x * S + i]) : lowest();
            }
            softmax<W>(mine, eps * rho, mine);
            const int k = item.card(), n = item.card_before();
            const double *table = me.in.tables + me.table_before[i];
            long long step;
            double *to = me.pairs_of(item.before, step);
            for (int z = 0; z < n; z++) {
                const double sent = Q[(long long)z * S + item.before];
#pragma unroll
                for (int x = 0; x < W; x++) {
                    if (!SAME && x >= k) continue;
                    const int entry = Instance::entry(item.second >> 1 & 1, x, k, z, n);
                    const double gap = fmin((sent + table[entry] - swept[x]) * unit, 0.0);
                    to[entry * step] = swept[x] > lowest() && mine[x] > 0 ? exp(gap) * mine[x] : 0.0;
                }
            }
#pragma unroll
            for (int x = 0; x < W; x++) R[(long long)x * S + i] = mine[x];
        }
        __syncthreads();
    }

    // Marginals of variables; returns the largest difference between those of two chains.
    __device__ __forceinline__ double unary(const double *R) const {
        double apart = 0;
        for (int v = threadIdx.x; v < me.n_vars; v += THREADS) {
            const Variable &mine = me.variables[v];
            double G[W], belief[W], mu[W];
            totals(v, G);
            softmax<W>(G, eps, belief);
            const double weight = root(v);
#pragma unroll
            for (int x = 0; x < W; x++) mu[x] = weight * belief[x];
            me.each_chain(v, mine.level, [&](int i) {
                if (me.items[i].before < 0) return;
                const double rho = me.rho[i];
#pragma unroll
                for (int x = 0; x < W; x++) {
                    const double p = R[(long long)x * S + i];
                    mu[x] += rho * p;
                    apart = fmax(apart, fabs(p - belief[x]));
                }
            });
            for (int x = 0; x < mine.card; x++) me.in.mu_unary[me.at.states_at + mine.states_at + x] = mu[x];
        }
        return apart;
    }
};

// Loads scores, sweeps, and writes the bounds before and after the last sweep; then marginals.
extern "C" __global__ void __launch_bounds__(THREADS)
    trws(const __grid_constant__ Cover in, REAL eps, int load, int sweeps, int read) {
    const Instance me(in);
    if (load) me.load();
    const Sweeps run(me, eps);
    for (int sweep = 1; sweep <= sweeps; sweep++) {
        run.pass<true>();
        double bound = run.pass<false>();
        if (sweep < sweeps - 1) continue;
        bound = over_block<true>(bound + run.roots());
        if (threadIdx.x == 0) in.answer[3 * blockIdx.x + (sweep == sweeps)] = bound;
    }
    if (!read) return;
    double *R = me.of_items(in.read, W), *Q = me.of_items(in.sent, W);
    run.reading(R, Q);
    run.marginals(R, Q);
    if (in.pairs) me.sum_pairs();
    const double apart = over_block<false>(run.unary(R));
    if (threadIdx.x == 0) in.answer[3 * blockIdx.x + 2] = apart;
}

// States one by one in order: the best given the earlier neighbours' states and the messages of later ones.
extern "C" __global__ void __launch_bounds__(THREADS) decode(const __grid_constant__ Cover in, REAL eps, int load) {
    const Instance me(in);
    if (load) me.load();
    const double *B = me.of_items(in.backward, W);
    long long *states = in.states + me.at.number_at;
    for (int level = 0; level < int(me.at.n_levels); level++) {
        const Level here = me.levels[level];
        for (int v = here.variable + threadIdx.x; v < here.variable + here.n; v += THREADS) {
            const Variable &mine = me.variables[v];
            double best = lowest();
            int state = 0;
            for (int x = 0; x < mine.card; x++) {
                double score = me.scores[(long long)x * me.n_vars + v];
                me.each_chain(v, level, [&](int i) {
                    const Item &item = me.items[i];
                    if (item.before < 0) return;
                    const Variable &other = me.variables[me.items[item.before].variable];
                    const int z = int(states[other.number]);
                    score += in.tables[me.table_before[i] +
                                       Instance::entry(item.second >> 1 & 1, x, mine.card, z, other.card)];
                });
                me.each_chain(v, level, [&](int i) {
                    if (me.items[i].after >= 0) score += B[(long long)x * me.n_items + i];
                });
                if (score > best) {
                    best = score;
                    state = x;
                }
            }
            states[mine.number] = state;
        }
        __syncthreads();
    }
}

// E_q[theta] + H(q) at the temperatures of the variables' roles (`hidden`: at `eps_h`), q being independent variables
// with the marginals of `mu_unary`: a lower bound on the power sum.
extern "C" __global__ void __launch_bounds__(THREADS)
    product(const __grid_constant__ Cover in, REAL eps_y, REAL eps_h) {
    const Instance me(in);
    const double *q = in.mu_unary + me.at.states_at, *unary = in.unary + me.at.states_at;
    double sum = 0;
    for (int v = threadIdx.x; v < me.n_vars; v += THREADS) {
        const Variable &mine = me.variables[v];
        const double eps = in.hidden[me.at.vars_at + v] ? eps_h : eps_y;
        for (int x = mine.states_at; x < mine.states_at + mine.card; x++)
            if (q[x] > 0) sum += q[x] * (unary[x] - eps * log(q[x]));
    }
    for (int i = threadIdx.x; i < me.n_items; i += THREADS) {
        const Item &item = me.items[i];
        if (item.after < 0) continue;
        const Variable &one = me.variables[item.variable], &two = me.variables[me.items[item.after].variable];
        for (int x = 0; x < one.card; x++)
            for (int z = 0; z < two.card; z++) {
                const double p = q[one.states_at + x] * q[two.states_at + z];
                const int entry = Instance::entry(item.second & 1, x, one.card, z, two.card);
                if (p > 0) sum += p * in.tables[me.table[i] + entry];
            }
    }
    sum = over_block<true>(sum);
    if (threadIdx.x == 0) in.answer[3 * blockIdx.x + 1] = sum;
}
