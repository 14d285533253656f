// Version of the library, lanes of its vectors, and the sentence of the last error. Also the pool of threads alone, for
// tests of threads, forks and errors.
#include <string>

#include "boundary.hpp"
#include "parallel.hpp"
#include "simd.hpp"

using namespace mssvm;

namespace {

// Block k adds up term = k, k + 1, ... k + terms - 1; the block `failing` refuses.
struct PoolCall {
    int64_t bytes, threads, terms, failing;
    Floats sums;
};

}  // namespace

MSSVM_API mssvm_version() { return 1; }

MSSVM_API mssvm_lanes() { return L; }

extern "C" __attribute__((visibility("default"))) const char *mssvm_error() { return last_error().c_str(); }

MSSVM_API mssvm_pool_sums(const PoolCall *call) {
    return guarded(call, [](const PoolCall &c) -> int64_t {
        require(c.terms >= 0 && c.terms <= 1 << 24, "a block adds up between none and 2^24 terms.");
        require(c.threads >= 1 && c.threads <= 4096, "between one and 4096 threads can work.");
        parallel_for(c.sums.size, int(c.threads), [&](int64_t block) {
            require(block != c.failing, ("block " + std::to_string(block) + " failed as it was told.").c_str());
            double sum = 0.0;
            for (int64_t term = 0; term < c.terms; ++term) sum += double(block + term);
            c.sums[block] = sum;
        });
        return c.sums.size;
    });
}
