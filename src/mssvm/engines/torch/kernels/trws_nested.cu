// The decomposition bound at two temperatures, every chain exact: shifts of every variable's scores in its chains.
//
// The recursion is that of the native engine (cpp/nested.hpp), in scores. A message to a hidden variable has a row for
// every state of the last output before it (one row where there is none), a message to an output has one row.
//
// A level has two steps. First outputs are balanced, and hidden variables get the logarithms of their marginals in
// every chain; then hidden variables are moved to the mean of these, and messages are sent.
#include "cover.cu"

constexpr double LEAST = 1e-40;  // smaller probabilities are replaced by this one before their logarithms move shifts
constexpr double LOG_LEAST = -92.1;

struct Nested {
    const Instance &me;
    double eps_y, eps_h;
    double *F, *B, *shifts, *logs, *rest;
    int S, N;

    __device__ __forceinline__ Nested(const Instance &instance, double eps_y, double eps_h)
        : me(instance),
          eps_y(eps_y),
          eps_h(eps_h),
          F(instance.of_items(instance.in.forward, W * W)),
          B(instance.of_items(instance.in.backward, W * W)),
          shifts(instance.of_items(instance.in.shifts, W)),
          logs(instance.of_items(instance.in.logs, W)),
          rest(instance.in.rest + instance.at.vars_at * W),
          S(instance.n_items),
          N(instance.n_vars) {}

    __device__ __forceinline__ bool is_hidden(int v) const { return me.in.hidden[me.at.vars_at + v]; }
    __device__ __forceinline__ int role(int i) const { return me.in.roles[me.at.items_at + i]; }
    __device__ __forceinline__ double left(int v) const { return me.in.left[me.at.variables + v]; }
    __device__ __forceinline__ double score(int v, int x) const { return me.scores[(long long)x * N + v]; }
    __device__ __forceinline__ double *row(double *messages, int r, int i) const {
        return messages + (long long)r * W * S + i;
    }

    // The scores u_c of an item.
    __device__ __forceinline__ void take_own(int i, int v, double rho, double *own) const {
#pragma unroll
        for (int x = 0; x < W; x++) {
            const double u = score(v, x);
            own[x] = u > lowest() ? rho * u + shifts[(long long)x * S + i] : lowest();
        }
    }
    // F + u_c + B of an item of an output.
    __device__ __forceinline__ void scores(int i, int v, double rho, double *out) const {
        take_own(i, v, rho, out);
#pragma unroll
        for (int x = 0; x < W; x++) out[x] += F[(long long)x * S + i] + B[(long long)x * S + i];
    }
    // The scores of a variable's remaining weight.
    __device__ __forceinline__ void remaining_scores(int v, int level, double *out) const {
        const double weight = left(v);
#pragma unroll
        for (int x = 0; x < W; x++) out[x] = weight > 0 ? weight * score(v, x) : 0.0;
        me.each_chain(v, level, [&](int i) {
#pragma unroll
            for (int x = 0; x < W; x++) out[x] -= shifts[(long long)x * S + i];
        });
#pragma unroll
        for (int x = 0; x < W; x++)
            if (!(score(v, x) > lowest())) out[x] = lowest();
    }

    // The first `count` rows of a message.
    __device__ __forceinline__ void take_rows(double *messages, int i, int count, double (*out)[W]) const {
#pragma unroll
        for (int r = 0; r < W; r++)
#pragma unroll
            for (int x = 0; x < W; x++) out[r][x] = r < count ? row(messages, r, i)[(long long)x * S] : 0.0;
    }

    // Z(a, b) of a hidden variable with scores `own` and m and n rows around it, into `total`, and p(x | a, b) into
    // `given`.
    __device__ __forceinline__ void condition(const double *own, const double (*before)[W], const double (*after)[W],
                                              int m, int n, double rho, double *total, double (*given)[W]) const {
#pragma unroll
        for (int r = 0; r < W; r++)
#pragma unroll
            for (int q = 0; q < W; q++) {
                const int at = r * W + q;
                total[at] = lowest();
                if (r >= m || q >= n) continue;
                double sum[W];
#pragma unroll
                for (int x = 0; x < W; x++) sum[x] = own[x] + before[r][x] + after[q][x];
                total[at] = close(sum, eps_h * rho, given[at]);
            }
    }
    // PS[tau] of W numbers, and their shares.
    static __device__ __forceinline__ double close(const double *v, double tau, double *share) {
        double top = v[0], sum = 0;
#pragma unroll
        for (int x = 1; x < W; x++) top = fmax(top, v[x]);
        const double low = or_zero(top), unit = 1.0 / tau;
#pragma unroll
        for (int x = 0; x < W; x++) {
            share[x] = exp((v[x] - low) * unit);
            sum += share[x];
        }
        const double scale = sum > 0 ? 1.0 / sum : 0.0;
#pragma unroll
        for (int x = 0; x < W; x++) share[x] *= scale;
        return sum > 0 ? low + tau * log(sum) : lowest();
    }

    // The marginals of an item; of a hidden variable also those with the rows of F.
    __device__ __forceinline__ void marginals(int i, const Item &item, bool hidden, double *mu,
                                              double (*joint)[W]) const {
        const double rho = me.rho[i];
        if (!hidden) {
            double v[W];
            scores(i, item.variable, rho, v);
            softmax<W>(v, eps_y * rho, mu);
            return;
        }
        double own[W], before[W][W], after[W][W];
        const int m = item.before >= 0 ? W : 1, n = item.after >= 0 ? W : 1;
        take_own(i, item.variable, rho, own);
        take_rows(F, i, m, before);
        take_rows(B, i, n, after);
        share(own, before, after, m, n, rho, mu, joint);
    }
    // Those of a hidden variable.
    __device__ __forceinline__ void share(const double *own, const double (*before)[W], const double (*after)[W], int m,
                                          int n, double rho, double *mu, double (*joint)[W]) const {
        double total[W * W], given[W * W][W];
        condition(own, before, after, m, n, rho, total, given);
        softmax<W * W>(total, eps_y * rho, total);
#pragma unroll
        for (int x = 0; x < W; x++) mu[x] = 0;
#pragma unroll
        for (int r = 0; r < W; r++)
#pragma unroll
            for (int x = 0; x < W; x++) {
                double sum = 0;
#pragma unroll
                for (int q = 0; q < W; q++)
                    if (r < m && q < n) sum += total[r * W + q] * given[r * W + q][x];
                joint[r][x] = sum;
                mu[x] += sum;
            }
    }

    __device__ __forceinline__ void balance_output(int v, int level) const {
        double mean[W], free[W];
        remaining_scores(v, level, free);
#pragma unroll
        for (int x = 0; x < W; x++) mean[x] = free[x];
        me.each_chain(v, level, [&](int i) {
            double mine[W];
            scores(i, v, me.rho[i], mine);
#pragma unroll
            for (int x = 0; x < W; x++) mean[x] += mine[x];
        });
        me.each_chain(v, level, [&](int i) {
            const double rho = me.rho[i];
            double mine[W];
            scores(i, v, rho, mine);
#pragma unroll
            for (int x = 0; x < W; x++)
                if (mean[x] > lowest()) shifts[(long long)x * S + i] += rho * mean[x] - mine[x];
        });
        bool any = false;
#pragma unroll
        for (int x = 0; x < W; x++) any = any || (!(mean[x] > lowest()) && score(v, x) > lowest());
        if (any) lower_impossible(v, level, mean, free);
    }

    // A state that is impossible in one chain falls to a probability of LEAST in the others, and the impossible chain
    // takes the difference. Where no state is possible, the variable's scores are -inf.
    __device__ void lower_impossible(int v, int level, const double *mean, const double *free) const {
        double top = mean[0], taken[W];
        for (int x = 1; x < W; x++) top = fmax(top, mean[x]);
        const double least = or_zero(top) + eps_y * LOG_LEAST, weight = left(v);
        auto excess = [&](int x, double score, double weight) {
            const bool falls = !(mean[x] > lowest()) && score > lowest() && top > lowest();
            return falls ? fmax(score - weight * least, 0.0) : 0.0;
        };
        for (int x = 0; x < W; x++) taken[x] = weight > 0 ? excess(x, free[x], weight) : 0.0;
        me.each_chain(v, level, [&](int i) {
            double mine[W];
            scores(i, v, me.rho[i], mine);
            for (int x = 0; x < W; x++) {
                const double fall = excess(x, mine[x], me.rho[i]);
                shifts[(long long)x * S + i] -= fall;
                taken[x] += fall;
            }
        });
        me.each_chain(v, level, [&](int i) {
            double mine[W];
            scores(i, v, me.rho[i], mine);
            for (int x = 0; x < W; x++) {
                if (mine[x] > lowest()) continue;
                shifts[(long long)x * S + i] += taken[x];
                taken[x] = 0;
            }
        });
        if (!(top > lowest()))
            for (int x = 0; x < W; x++) me.scores[(long long)x * N + v] = lowest();
    }

    // The first step of a level.
    __device__ __forceinline__ void balance(int level) const {
        const Level here = me.levels[level];
        const int n = here.n, begin = here.item, end = begin + n * here.chains;
        const bool moves = eps_y > 0 && eps_h > 0;
        for (int i = begin + threadIdx.x; i < end; i += THREADS) {
            const Item item = me.items[i];
            const int v = item.variable;
            const bool hidden = is_hidden(v);
            if (!hidden && i < begin + n) balance_output(v, level);
            if (!hidden || !moves) continue;
            if (item.before >= 0 || item.after >= 0) {
                double mu[W], joint[W][W];
                marginals(i, item, true, mu, joint);
#pragma unroll
                for (int x = 0; x < W; x++) logs[(long long)x * S + i] = log(fmax(mu[x], LEAST));
            }
            if (i >= begin + n) continue;
            const double weight = left(v);
            double free[W];
            if (weight > 0) {
                remaining_scores(v, level, free);
                softmax<W>(free, weight * eps_h, free);
            }
#pragma unroll
            for (int x = 0; x < W; x++)
                rest[(long long)x * N + v] = weight > 0 ? weight * log(fmax(free[x], LEAST)) : 0.0;
        }
        __syncthreads();
    }
    // Moves the shifts of an item of a hidden variable.
    __device__ __forceinline__ void move(int i, int v, int level, double rho) const {
        if (!(eps_y > 0) || !(eps_h > 0)) return;
        double mean[W];
#pragma unroll
        for (int x = 0; x < W; x++) mean[x] = rest[(long long)x * N + v];
        me.each_chain(v, level, [&](int j) {
            if (me.items[j].before < 0 && me.items[j].after < 0) return;
            const double weight = me.rho[j];
#pragma unroll
            for (int x = 0; x < W; x++) mean[x] += weight * logs[(long long)x * S + j];
        });
        const double step = fmin(eps_y, eps_h) * rho;
#pragma unroll
        for (int x = 0; x < W; x++) shifts[(long long)x * S + i] += step * (mean[x] - logs[(long long)x * S + i]);
    }

    // The message of an item with scores `own` and m rows from behind, into `sent`: rows by rows to a hidden variable
    // (`opens`), one row to an output. Adds the message from behind to `own` if the sender is an output; returns the
    // largest entry.
    __device__ __forceinline__ double message(bool hidden, bool opens, int m, double rho, double *own,
                                              const double (*behind)[W], const double (*T)[W],
                                              double (*sent)[W]) const {
        const double tau_h = eps_h * rho, tau_y = eps_y * rho;
        double top = lowest();
        if (!hidden) {
#pragma unroll
            for (int x = 0; x < W; x++) own[x] += behind[0][x];
#pragma unroll
            for (int z = 0; z < W; z++) {
                double v[W];
#pragma unroll
                for (int x = 0; x < W; x++) {
                    v[x] = own[x] + T[x][z];
                    if (opens) sent[x][z] = v[x];
                }
                if (!opens) sent[0][z] = power_sum<W>(v, tau_y);
            }
        } else {
#pragma unroll
            for (int r = 0; r < W; r++)
#pragma unroll
                for (int z = 0; z < W; z++) {
                    sent[r][z] = lowest();
                    if (r >= m) continue;
                    double v[W];
#pragma unroll
                    for (int x = 0; x < W; x++) v[x] = own[x] + behind[r][x] + T[x][z];
                    sent[r][z] = power_sum<W>(v, tau_h);
                }
            if (!opens)
#pragma unroll
                for (int z = 0; z < W; z++) {
                    double v[W];
#pragma unroll
                    for (int r = 0; r < W; r++) v[r] = sent[r][z];
                    sent[0][z] = power_sum<W>(v, tau_y);
                }
        }
#pragma unroll
        for (int r = 0; r < W; r++)
#pragma unroll
            for (int z = 0; z < W; z++)
                if (opens || r == 0) top = fmax(top, sent[r][z]);
        return top;
    }
    // Writes a message less its normaliser; with `kept` also what the sender had. `ring`: null or shared memory.
    template <bool forward> __device__ __forceinline__ void deliver(int i, const Item &item, bool hidden, bool opens,
                                                                    int m, const double *own, const double (*behind)[W],
                                                                    const double (*sent)[W], double top, double *kept,
                                                                    double *ring) const {
        const double low = or_zero(top);
        const int there = forward ? item.after : item.before, slot = forward ? item.ring_after : item.ring_before;
        const int n = forward ? item.card_after() : item.card_before();
        if (kept) {
#pragma unroll
            for (int r = 0; r < W; r++)
#pragma unroll
                for (int x = 0; x < W; x++) {
                    double v = own[x] - low;
                    if (hidden) v = r < m ? v + behind[r][x] : lowest();
                    if (hidden || r == 0) row(kept, r, i)[(long long)x * S] = v;
                }
        }
        double *to = forward ? F : B;
#pragma unroll
        for (int r = 0; r < W; r++)
#pragma unroll
            for (int z = 0; z < W; z++) {
                if ((!opens && r > 0) || (!SAME && z >= n)) continue;
                row(to, r, there)[(long long)z * S] = sent[r][z] - low;
                if (ring) ring[(r * W + z) * SLOTS + slot] = sent[r][z] - low;
            }
    }
    template <bool forward>
    __device__ __forceinline__ void take_table(const Item &item, int at, double (*T)[W]) const {
        const int k = item.card(), n = forward ? item.card_after() : item.card_before();
        const bool second = item.second >> (forward ? 0 : 1) & 1;
#pragma unroll
        for (int x = 0; x < W; x++)
#pragma unroll
            for (int z = 0; z < W; z++) {
                const bool has = SAME || (x < k && z < n);
                T[x][z] = has ? me.in.tables[at + Instance::entry(second, x, k, z, n)] : lowest();
            }
    }

    // Sends the message of an item; returns its normaliser.
    template <bool forward> __device__ __forceinline__ double send(int i, const Item &item, bool hidden, double rho,
                                                                   double *kept) const {
        const bool opens = role(i) >> (forward ? 2 : 1) & 1;
        const int m = hidden && (forward ? item.before : item.after) >= 0 ? W : 1;  // rows of the sender
        double own[W], behind[W][W], T[W][W], sent[W][W];
        take_own(i, item.variable, rho, own);
        take_rows(forward ? F : B, i, m, behind);
        take_table<forward>(item, forward ? me.table[i] : me.table_before[i], T);
        const double top = message(hidden, opens, m, rho, own, behind, T, sent);
        deliver<forward>(i, item, hidden, opens, m, own, behind, sent, top, kept, nullptr);
        return top;
    }

    // What a thread needs for one item, loaded before the level before it has ended: first where its numbers are, then
    // the numbers.
    struct Head {
        int i, table, role;
        Item item;
        double rho;
    };
    struct Body {
        double u[W], d[W], other[W][W], T[W][W], left;
    };
    template <bool forward> __device__ __forceinline__ Head head(const Step &step) const {
        Head found;
        found.i = step.item(me);
        if (found.i < 0) return found;
        found.item = me.items[found.i];
        found.rho = me.rho[found.i];
        found.role = role(found.i);
        found.table = forward ? me.table[found.i] : me.table_before[found.i];
        if (found.item.before < 0 && found.item.after < 0) found.i = -1;
        return found;
    }
    template <bool forward> __device__ __forceinline__ void fill(const Head &head, Body &body) const {
        if (head.i < 0) return;
        const Item &item = head.item;
        const bool rows = head.role & 1 && (forward ? item.after : item.before) >= 0;
        body.left = left(item.variable);
#pragma unroll
        for (int x = 0; x < W; x++) {
            body.u[x] = score(item.variable, x);
            body.d[x] = shifts[(long long)x * S + head.i];
        }
        take_rows(forward ? B : F, head.i, rows ? W : 1, body.other);
        if ((forward ? item.after : item.before) >= 0) take_table<forward>(item, head.table, body.T);
    }

    // A pass as below, for levels of up to THREADS items: in both steps a thread has the same item, and the chains of a
    // variable exchange their proposals for its scores in shared memory.
    template <bool forward> __device__ __forceinline__ double quick(bool update, double *kept) const {
        constexpr int ROOM = RING ? SLOTS / (RING ? RING : 1) : 1;
        __shared__ double ring[RING ? W * W * SLOTS : 1], proposed[W * ROOM], remaining[W * ROOM];
        double sum = 0;
        Step now(me, forward ? 0 : int(me.at.n_levels) - 1);
        Step next = now.next<forward>(me), later = next.next<forward>(me);
        Head head_now = head<forward>(now), head_next = head<forward>(next);
        Body body;
        fill<forward>(head_now, body);
        while (now.inside(me)) {
            const Head head_later = head<forward>(later);
            Body body_next;
            fill<forward>(head_next, body_next);
            const Step latest = later.next<forward>(me);
            const int i = head_now.i;
            const Item &item = head_now.item;
            const bool hidden = i >= 0 && head_now.role & 1;
            int sender = -1;
            if (i >= 0) sender = forward ? item.before : item.after;
            const int m = hidden && sender >= 0 ? W : 1;
            double same[W][W], mine[W];
            if (i >= 0) {
                const int slot = now.ring() + i - now.here.item;
#pragma unroll
                for (int r = 0; r < W; r++)
#pragma unroll
                    for (int x = 0; x < W; x++)
                        same[r][x] = sender >= 0 && r < m ? ring[(r * W + x) * SLOTS + slot] : 0.0;
            }
            if (update) {
                const bool stuck = i >= 0 && propose<forward>(now, head_now, body, same, m, mine, proposed, remaining);
                if (__syncthreads_or(stuck)) {
                    if (i >= 0 && !hidden && item.rank() == 0) balance_output(item.variable, now.level);
                    __syncthreads();
                    if (i >= 0 && !hidden) {
#pragma unroll
                        for (int x = 0; x < W; x++) {
                            body.u[x] = score(item.variable, x);
                            body.d[x] = shifts[(long long)x * S + i];
                        }
                    } else if (hidden) {
                        move_to_mean(now, head_now, body, mine, proposed, remaining);
                    }
                } else if (i >= 0) {
                    move_to_mean(now, head_now, body, mine, proposed, remaining);
                }
            }
            if (i >= 0 && (forward ? item.after : item.before) >= 0) {
                const bool opens = head_now.role >> (forward ? 2 : 1) & 1;
                double own[W], sent[W][W];
#pragma unroll
                for (int x = 0; x < W; x++)
                    own[x] = body.u[x] > lowest() ? head_now.rho * body.u[x] + body.d[x] : lowest();
                const double top = message(hidden, opens, m, head_now.rho, own, same, body.T, sent);
                deliver<forward>(i, item, hidden, opens, m, own, same, sent, top, kept, ring);
                sum += top;
            }
            __syncthreads();
            now = next;
            next = later;
            later = latest;
            head_now = head_next;
            head_next = head_later;
            body = body_next;
        }
        return sum;
    }
    // The first step. A chain proposes, for an output, the scores that it has there less the shift; for a hidden
    // variable, the weighted logarithms of its marginals. `mine` are the scores, or the logarithms. True if a state is
    // impossible in this chain alone.
    template <bool forward>
    __device__ __forceinline__ bool propose(const Step &step, const Head &head, const Body &body,
                                            const double (*same)[W], int m, double *mine, double *proposed,
                                            double *remaining) const {
        constexpr int ROOM = RING ? SLOTS / (RING ? RING : 1) : 1;
        const int local = head.i - step.here.item;
        const Item &item = head.item;
        double own[W];
#pragma unroll
        for (int x = 0; x < W; x++) own[x] = body.u[x] > lowest() ? head.rho * body.u[x] + body.d[x] : lowest();
        bool stuck = false;
        if (!(head.role & 1)) {
#pragma unroll
            for (int x = 0; x < W; x++) {
                mine[x] = own[x] + same[0][x] + body.other[0][x];
                proposed[x * ROOM + local] = mine[x] - body.d[x];
                stuck = stuck || (!(mine[x] > lowest()) && body.u[x] > lowest());
            }
            return stuck;
        }
        const int n = (forward ? item.after : item.before) >= 0 ? W : 1;
        double joint[W][W];
        if (forward) share(own, same, body.other, m, n, head.rho, mine, joint);
        else share(own, body.other, same, n, m, head.rho, mine, joint);
#pragma unroll
        for (int x = 0; x < W; x++) {
            mine[x] = log(fmax(mine[x], LEAST));
            proposed[x * ROOM + local] = head.rho * mine[x];
        }
        if (body.left > 0 && item.rank() == 0) {
            double free[W];
            remaining_scores(item.variable, step.level, free);
            softmax<W>(free, body.left * eps_h, free);
#pragma unroll
            for (int x = 0; x < W; x++) remaining[x * ROOM + local] = body.left * log(fmax(free[x], LEAST));
        }
        return false;
    }
    // The second step: the shifts of an item move to the mean of the proposals of all chains of the variable.
    __device__ __forceinline__ void move_to_mean(const Step &step, const Head &head, Body &body, const double *mine,
                                                 const double *proposed, const double *remaining) const {
        constexpr int ROOM = RING ? SLOTS / (RING ? RING : 1) : 1;
        const Item &item = head.item;
        const bool hidden = head.role & 1;
        if (hidden && (!(eps_y > 0) || !(eps_h > 0))) return;
        const int first = head.i - step.here.item - item.rank() * step.here.n;
        const int chains = item.place >> 8 | item.place >> 16;
        const double pace = hidden ? fmin(eps_y, eps_h) * head.rho : 1.0;
#pragma unroll
        for (int x = 0; x < W; x++) {
            double mean = 0;
            if (body.left > 0) mean = hidden ? remaining[x * ROOM + first] : body.left * body.u[x];
#pragma unroll
            for (int c = 0; c < CHAINS; c++)
                if (chains >> c & 1) mean += proposed[x * ROOM + first + c * step.here.n];
            if (hidden) body.d[x] += pace * (mean - mine[x]);
            else if (mean > lowest()) body.d[x] += head.rho * mean - mine[x];
            shifts[(long long)x * S + head.i] = body.d[x];
        }
    }

    // A pass over all levels; returns this thread's part of the sum of normalisers. `update` moves shifts.
    template <bool forward> __device__ __forceinline__ double pass(bool update, double *kept) const {
        if constexpr (FEW && RING > 0 && SLOTS <= THREADS * RING) return quick<forward>(update, kept);
        double sum = 0;
        const int n_levels = int(me.at.n_levels);
        for (int step = 0; step < n_levels; step++) {
            const int level = forward ? step : n_levels - 1 - step;
            if (update) balance(level);
            const Level here = me.levels[level];
            for (int i = here.item + threadIdx.x; i < here.item + here.n * here.chains; i += THREADS) {
                const Item item = me.items[i];
                if (item.before < 0 && item.after < 0) continue;
                const double rho = me.rho[i];
                const bool hidden = is_hidden(item.variable);
                if (update && hidden) move(i, item.variable, level, rho);
                if ((forward ? item.after : item.before) >= 0) sum += send<forward>(i, item, hidden, rho, kept);
            }
            __syncthreads();
        }
        return sum;
    }

    // What is added to the normalisers of a backward pass: the values of chains at their first variables, and what
    // single variables have left.
    __device__ __forceinline__ double roots() const {
        double sum = 0;
        for (int i = threadIdx.x; i < S; i += THREADS) {
            const Item item = me.items[i];
            if (item.before >= 0 || item.after < 0) continue;
            const double rho = me.rho[i];
            if (!is_hidden(item.variable)) {
                double v[W];
                scores(i, item.variable, rho, v);
                sum += power_sum<W>(v, eps_y * rho);
            } else {
                double own[W], none[W][W] = {}, after[W][W], total[W * W], given[W * W][W];
                take_own(i, item.variable, rho, own);
                take_rows(B, i, W, after);
                condition(own, none, after, 1, W, rho, total, given);
                sum += power_sum<W>(total, eps_y * rho);
            }
        }
        for (int v = threadIdx.x; v < N; v += THREADS) {
            const double weight = left(v);
            if (!(weight > 0)) continue;
            double free[W];
            remaining_scores(v, me.variables[v].level, free);
            sum += power_sum<W>(free, weight * (is_hidden(v) ? eps_h : eps_y));
        }
        return sum;
    }

    static __device__ __forceinline__ double ratio(double part, double whole, double tau) {
        return part > lowest() && whole > lowest() ? exp(fmin((part - whole) / tau, 0.0)) : 0.0;
    }

    // Marginals of every item, into R, and of the factor to the item before it, which sent Q.
    __device__ __forceinline__ void all_marginals(double *R, double *Q) const {
        for (int i = threadIdx.x; i < S; i += THREADS) {
            const Item item = me.items[i];
            if (item.before < 0 && item.after < 0) continue;
            const bool hidden = is_hidden(item.variable);
            double mu[W], joint[W][W];
            marginals(i, item, hidden, mu, joint);
#pragma unroll
            for (int x = 0; x < W; x++) R[(long long)x * S + i] = mu[x];
            if (item.before >= 0) pairs(i, item, hidden, mu, joint, Q);
        }
        __syncthreads();
    }
    __device__ __forceinline__ void pairs(int i, const Item &item, bool hidden, const double *mu,
                                          const double (*joint)[W], double *Q) const {
        const int p = item.before, k = item.card(), n = item.card_before();
        const bool second = item.second >> 1 & 1;
        const double rho = me.rho[i], tau_y = eps_y * rho, tau_h = eps_h * rho;
        const double *table = me.in.tables + me.table_before[i];
        long long step;
        double *to = me.pairs_of(p, step);
        const bool inner = role(i) >> 1 & 1;
#pragma unroll
        for (int x = 0; x < W; x++) {
            if (!SAME && x >= k) continue;
            double pair[W];
#pragma unroll
            for (int z = 0; z < W; z++) pair[z] = 0;
            if (!inner) {
#pragma unroll
                for (int z = 0; z < W; z++) {
                    if (!SAME && z >= n) continue;
                    const double part = Q[(long long)z * S + p] + table[Instance::entry(second, x, k, z, n)];
                    pair[z] = hidden ? joint[z][x] : ratio(part, F[(long long)x * S + i], tau_y) * mu[x];
                }
            } else {
#pragma unroll
                for (int r = 0; r < W; r++) {
                    double v[W], share[W];
#pragma unroll
                    for (int z = 0; z < W; z++) {
                        const bool has = SAME || z < n;
                        v[z] = has ? row(Q, r, p)[(long long)z * S] + table[Instance::entry(second, x, k, z, n)]
                                   : lowest();
                    }
                    const double sum = close(v, tau_h, share);
                    const double weight = hidden ? joint[r][x] : ratio(sum, F[(long long)x * S + i], tau_y) * mu[x];
#pragma unroll
                    for (int z = 0; z < W; z++) pair[z] += weight * share[z];
                }
            }
#pragma unroll
            for (int z = 0; z < W; z++)
                if (SAME || z < n) to[Instance::entry(second, x, k, z, n) * step] = pair[z];
        }
    }

    // Marginals of variables; returns the largest difference between those of two chains.
    __device__ __forceinline__ double unary(const double *R) const {
        double apart = 0;
        for (int v = threadIdx.x; v < N; v += THREADS) {
            const Variable &mine = me.variables[v];
            const double weight = left(v);
            double mu[W], free[W];
#pragma unroll
            for (int x = 0; x < W; x++) mu[x] = 0;
            if (weight > 0) {
                remaining_scores(v, mine.level, free);
                softmax<W>(free, weight * (is_hidden(v) ? eps_h : eps_y), free);
#pragma unroll
                for (int x = 0; x < W; x++) mu[x] = weight * free[x];
            }
            bool any = false;
            me.each_chain(v, mine.level, [&](int i) {
                if (me.items[i].before < 0 && me.items[i].after < 0) return;
                const double rho = me.rho[i];
#pragma unroll
                for (int x = 0; x < W; x++) {
                    const double p = R[(long long)x * S + i];
                    if (!any) free[x] = p;
                    mu[x] += rho * p;
                    apart = fmax(apart, fabs(p - free[x]));
                }
                any = true;
            });
            for (int x = 0; x < mine.card; x++) me.in.mu_unary[me.at.states_at + mine.states_at + x] = mu[x];
        }
        return apart;
    }
};

// Loads scores, brings messages from later variables up to date (unless they are `ready`), sweeps, and writes the
// bounds before and after the last sweep; then marginals.
extern "C" __global__ void __launch_bounds__(THREADS) nested(const __grid_constant__ Cover in, REAL eps_y, REAL eps_h,
                                                             int load, int ready, int measure, int sweeps, int read) {
    const Instance me(in);
    if (load) me.load();
    const Nested run(me, eps_y, eps_h);
    for (int sweep = ready && (sweeps > 0 || !measure); sweep <= sweeps; sweep++) {
        if (sweep > 0) run.pass<true>(true, nullptr);
        double bound = run.pass<false>(sweep > 0, nullptr);
        if (!measure || sweep < sweeps - 1) continue;
        bound = over_block<true>(bound + run.roots());
        if (threadIdx.x == 0) in.answer[3 * blockIdx.x + (sweep == sweeps)] = bound;
    }
    if (!read) return;
    double *R = me.of_items(in.read, W * W), *Q = me.of_items(in.sent, W * W);
    run.pass<true>(false, Q);
    run.all_marginals(R, Q);
    if (in.pairs) me.sum_pairs();
    const double apart = over_block<false>(run.unary(R));
    if (threadIdx.x == 0) in.answer[3 * blockIdx.x + 2] = apart;
}
