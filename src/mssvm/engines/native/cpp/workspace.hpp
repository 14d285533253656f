// A workspace of each thread.
#pragma once
#include <cstddef>
#include <memory>
#include <new>

namespace mssvm {

// Memory that a thread keeps between calls: allocating it anew would take longer than a small pass.
inline void *workspace(size_t bytes) {
    constexpr std::align_val_t line{64};
    struct Free {
        void operator()(void *p) const { ::operator delete(p, line); }
    };
    thread_local std::unique_ptr<void, Free> memory;
    thread_local size_t size = 0;
    if (bytes > size) {
        memory.reset();
        size = 0;
        size_t wanted = (bytes + 63) / 64 * 64;
        memory.reset(::operator new(wanted, line));  // Windows has no aligned_alloc
        size = wanted;
    }
    return memory.get();
}

}  // namespace mssvm
