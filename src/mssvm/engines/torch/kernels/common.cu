// Prefix of every kernel's source, after REAL and the constants: fast functions in single precision, exact ones in
// double.
__device__ __forceinline__ float exp_(float x) { return __expf(x); }
__device__ __forceinline__ double exp_(double x) { return exp(x); }
__device__ __forceinline__ float log_(float x) { return __logf(x); }
__device__ __forceinline__ double log_(double x) { return log(x); }
__device__ __forceinline__ float inv_(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ double inv_(double x) { return 1.0 / x; }
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }
__device__ __forceinline__ REAL infinity() { return REAL(__int_as_float(0x7f800000)); }

// One visit of a variable of a forest, in postorder: children before parents, and each parent directly after one of its
// children (`Postorder.of` in trees.py fills these).
struct alignas(16) Visit {
    int state_at;         // offset of the variable's states in the instance
    int parent_state_at;  // and of its parent's; -1 for a root
    int parent_visit;     // position of the parent in the postorder
    int packed;           // numbers of states, then flags
    __device__ __forceinline__ int n_states() const { return packed & 255; }
    __device__ __forceinline__ int n_parent_states() const { return (packed >> 8) & 255; }
    __device__ __forceinline__ bool is_leaf() const { return packed >> 16 & 1; }
    __device__ __forceinline__ bool is_first_child() const { return packed >> 17 & 1; }      // of its parent
    __device__ __forceinline__ bool is_second_variable() const { return packed >> 18 & 1; }  // of its factor
    // Entry of the table for the variable's state s and its parent's state q.
    __device__ __forceinline__ int entry(int s, int q) const {
        return is_second_variable() ? q * n_states() + s : s * n_parent_states() + q;
    }
};

// The forests of a batch. `visits`, `factors` and `variables` are the postorders of all topologies; then, by instance,
// the offsets of its scores, postorder, factors, variables and workspace; then, by factor, those of its table and of
// its pairwise marginals.
struct Forests {
    const Visit *visits;
    const int *factors, *variables;
    const long long *first;
    const int *length, *visits_at;
    const long long *factor_at, *var_at, *work_at;
    const long long *table_at, *mu_at;
};
