// In front of every kernel, behind REAL and the constants: fast functions in single precision, exact ones in double.
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

// One visit of a variable of a forest, children before their parents and one child directly before: where its states
// and its parent's begin (the latter -1 for a root), the visit of the parent, and its numbers of states and flags
// (`Postorder.of` in trees.py).
struct alignas(16) Visit {
    int v, p, parent, cards;
    __device__ __forceinline__ int own() const { return cards & 255; }
    __device__ __forceinline__ int up() const { return (cards >> 8) & 255; }
    __device__ __forceinline__ bool leaf() const { return cards >> 16 & 1; }
    __device__ __forceinline__ bool first() const { return cards >> 17 & 1; }   // child of its parent
    __device__ __forceinline__ bool second() const { return cards >> 18 & 1; }  // variable of its factor
    // Entry of the table for the variable's state s and its parent's q.
    __device__ __forceinline__ int at(int s, int q) const { return second() ? q * own() + s : s * up() + q; }
};

// The forests of a batch: visits of every kind with their factors and variables; of each instance where its scores,
// visits, factors, variables and room for work begin; of each factor its table and the marginals of its pairs.
struct Forests {
    const Visit *visits;
    const int *factors, *variables;
    const long long *first;
    const int *length, *visits_at;
    const long long *factor_at, *var_at, *work_at;
    const long long *table_at, *mu_at;
};
