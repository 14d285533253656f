// The decomposition bound on a GPU, for both kernels of it (trws.cu, trws_nested.cu). There is one block per instance.
// Compiled with W (the largest number of states), SAME (1: all variables have W states), LANES (threads that share a
// message, a power of two), THREADS, CHAINS (the largest number of chains through a variable), FEW (1: states and
// chains are so few that passes keep an item's numbers in registers), and RING and SLOTS.
//
// An item is one variable of one chain. Chains rise, so that the variables of one level are not neighbours: the block
// visits levels in order, with a barrier between them, and the threads share the items of a level. Items of a level are
// ordered by their number at the variable, then by variable: items i, i + n, i + 2 n, ... of a level of n variables
// belong to one variable. Places that a variable does not need have no neighbours and messages of zero.
//
// F(i, x) is the message to item i from the variable before it in its chain, B(i, x) the one from the variable after
// it. Numbers of an item lie n_items apart, those of a variable n_vars apart, so that neighbouring threads read
// neighbouring numbers. Scores of states that a variable does not have are -inf.
//
// A pass is a chain of short steps, each waiting for the last: with FEW, what does not depend on the level before is
// loaded two levels ahead, and messages also go through shared memory, where the last RING levels have room for SLOTS /
// RING items each. RING is larger than the number of levels that a factor spans; 0: there is not enough shared memory.
constexpr unsigned int WARP = 0xffffffffu;

struct __align__(16) Item {
    int before, after;  // the items of the neighbours in the chain, -1: none
    int variable;
    int second;  // bit 0: the variable is the second one of the factor to `after`; bit 1: of the factor to `before`
    int cards;   // states of the variable, and shifted by 8 and by 16 of those before and after it
    int place;   // number of the item at its variable; shifted by 8 and 16: which of the variable's items have a
                // neighbour before and after
    int ring_before, ring_after;  // where their messages are in shared memory
    __device__ __forceinline__ int card() const { return SAME ? W : cards & 255; }
    __device__ __forceinline__ int card_before() const { return SAME ? W : cards >> 8 & 255; }
    __device__ __forceinline__ int card_after() const { return SAME ? W : cards >> 16 & 255; }
    __device__ __forceinline__ int rank() const { return place & 255; }
};

struct __align__(16) Level {
    int variable, item, n, chains;  // first variable and first item; n variables with so many places for items each
};

struct __align__(16) Variable {
    int states_at, card, level, number;  // first score and number in the instance
};

// Where an instance's parts begin, in the arrays of graphs (first line) and of instances.
struct Place {
    long long levels, n_levels, variables, n_vars, items, n_items;
    long long vars_at, items_at, states_at, number_at, groups, n_groups;
};

struct Cover {
    const Place *places;
    const Level *levels;
    const Variable *variables;
    const double *left;  // weight of a variable beside its chains
    const Item *items;
    const double *rho;  // weight of the item's chain
    const int *table, *table_before,
        *mu;                     // by instance and item: of the factors to the next variable and the one before
    const unsigned char *roles;  // by instance and item: bit 0: hidden; bits 1 and 2: so is the one before, after
    // Items whose factors have one sum of marginals: by group where its items begin, its size and its sum.
    const long long *group_at;
    const int *group_items, *group_size, *group_mu;
    const double *unary, *tables;  // theta
    const bool *allowed;
    const bool *hidden;  // by variable, in the order of levels: whether it is at eps_h; null at one temperature
    double *scores;      // workspace, by variable
    double *forward, *backward;
    double *read, *sent, *pairs;  // workspace of marginals; pairs: null where no two factors share a sum
    double *shifts, *logs, *rest;
    double *answer;  // by instance: the bound before and after the last sweep, and the residual of marginals
    double *mu_unary, *mu_tables;
    long long *states;
};

__device__ __forceinline__ double lowest() { return -double(infinity()); }
__device__ __forceinline__ double or_zero(double x) { return x > lowest() ? x : 0.0; }

template <class T> __device__ __forceinline__ T total_of(T x) {
#pragma unroll
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(WARP, x, o);
    return x;
}
__device__ __forceinline__ double largest_of(double x) {
#pragma unroll
    for (int o = 16; o; o >>= 1) x = fmax(x, __shfl_xor_sync(WARP, x, o));
    return x;
}
// Over all threads of the block, in fixed order; the result is in every thread.
template <bool sum> __device__ __forceinline__ double over_block(double x) {
    __shared__ double parts[32];
    const int warp = threadIdx.x / 32;
    x = sum ? total_of(x) : largest_of(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[warp] = x;
    __syncthreads();
    double all = parts[0];
    for (int w = 1; w < THREADS / 32; w++) all = sum ? all + parts[w] : fmax(all, parts[w]);
    return all;
}

// PS[tau] of N numbers; the largest at tau = 0.
template <int N> __device__ __forceinline__ double power_sum(const double *v, double tau) {
    double top = v[0];
#pragma unroll
    for (int x = 1; x < N; x++) top = fmax(top, v[x]);
    if (!(tau > 0) || !(top > lowest())) return top;
    const double unit = 1.0 / tau;
    double sum = 0;
#pragma unroll
    for (int x = 0; x < N; x++) sum += exp((v[x] - top) * unit);
    return top + tau * log(sum);
}
template <int N> __device__ __forceinline__ void softmax(const double *v, double tau, double *out) {
    double top = v[0], sum = 0;
#pragma unroll
    for (int x = 1; x < N; x++) top = fmax(top, v[x]);
    const double low = or_zero(top), unit = tau > 0 ? 1.0 / tau : 0.0;
#pragma unroll
    for (int x = 0; x < N; x++) {
        out[x] = v[x] > lowest() ? exp((v[x] - low) * unit) : 0.0;
        sum += out[x];
    }
    const double scale = sum > 0 ? 1.0 / sum : 0.0;
#pragma unroll
    for (int x = 0; x < N; x++) out[x] *= scale;
}

// One instance, as all threads of its block see it.
struct Instance {
    const Cover &in;
    Place at;
    int n_items, n_vars;
    const Item *items;
    const Variable *variables;
    const Level *levels;
    const int *table, *table_before;
    const double *rho;
    double *scores;

    __device__ __forceinline__ explicit Instance(const Cover &cover) : in(cover), at(cover.places[blockIdx.x]) {
        n_items = int(at.n_items);
        n_vars = int(at.n_vars);
        items = in.items + at.items;
        variables = in.variables + at.variables;
        levels = in.levels + at.levels;
        table = in.table + at.items_at;
        table_before = in.table_before + at.items_at;
        rho = in.rho + at.items;
        scores = in.scores + at.vars_at * W;
    }
    // Numbers of this instance's items, `each` of them for an item.
    __device__ __forceinline__ double *of_items(double *all, int each) const { return all + at.items_at * each; }

    // work(item) of the items of a variable.
    template <class Work> __device__ __forceinline__ void each_chain(int variable, int level, Work work) const {
        const Level here = levels[level];
        int i = here.item + variable - here.variable;
        for (int c = 0; c < here.chains; c++, i += here.n) work(i);
    }

    __device__ __forceinline__ void load() const {
        const double *unary = in.unary + at.states_at;
        const bool *allowed = in.allowed + at.states_at;
        for (int v = threadIdx.x; v < n_vars; v += THREADS) {
            const Variable &mine = variables[v];
            for (int x = 0; x < W; x++) {
                const bool has = x < mine.card && allowed[mine.states_at + x];
                scores[(long long)x * n_vars + v] = has ? unary[mine.states_at + x] : lowest();
            }
        }
        __syncthreads();
    }

    // The entry of a factor's table for state x of this variable (of k) and z of the other (of n).
    static __device__ __forceinline__ int entry(bool second, int x, int k, int z, int n) {
        return second ? z * k + x : x * n + z;
    }

    // The marginals of all factors, from those of items where factors share their sums.
    __device__ __forceinline__ void sum_pairs() const {
        const double *pairs = in.pairs + at.items_at * W * W;
        const int lane = threadIdx.x % 32;
        for (long long g = at.groups + threadIdx.x / 32; g < at.groups + at.n_groups; g += THREADS / 32) {
            const int size = in.group_size[g];
            for (int e = 0; e < size; e++) {
                double sum = 0;
                for (long long j = in.group_at[g] + lane; j < in.group_at[g + 1]; j += 32)
                    sum += pairs[(long long)e * n_items + in.group_items[j]];
                sum = total_of(sum);
                if (lane == 0) in.mu_tables[in.group_mu[g] + e] = sum;
            }
        }
    }
    // Where the marginals of the factor from item i to the next are written, and how far they are apart.
    __device__ __forceinline__ double *pairs_of(int i, long long &step) const {
        step = in.pairs ? n_items : 1;
        return in.pairs ? in.pairs + at.items_at * W * W + i : in.mu_tables + in.mu[at.items_at + i];
    }
};

// A pass of the block over levels in steps of up to THREADS items.
struct Step {
    int level, offset;
    Level here;
    __device__ __forceinline__ Step(const Instance &me, int level) : level(level), offset(0) { look(me); }
    __device__ __forceinline__ void look(const Instance &me) {
        if (level >= 0 && level < int(me.at.n_levels)) here = me.levels[level];
    }
    template <bool forward> __device__ __forceinline__ Step next(const Instance &me) const {
        Step found = *this;
        found.offset += THREADS;
        if (found.offset >= here.n * here.chains) {
            found.offset = 0;
            found.level += forward ? 1 : -1;
            found.look(me);
        }
        return found;
    }
    __device__ __forceinline__ bool inside(const Instance &me) const {
        return level >= 0 && level < int(me.at.n_levels);
    }
    // This thread's item, -1: none.
    __device__ __forceinline__ int item(const Instance &me) const {
        const int i = offset + int(threadIdx.x);
        return inside(me) && i < here.n * here.chains ? here.item + i : -1;
    }
    // Where the messages of the level are in shared memory.
    __device__ __forceinline__ int ring() const {
        return RING ? level % (RING ? RING : 1) * (SLOTS / (RING ? RING : 1)) : 0;
    }
};
