// A pool of threads for one call at a time: fixed blocks, taken in order by an atomic counter.
//
// Calls often follow one another within microseconds, and waking a thread takes as long as a short call. Threads
// therefore spin for a while (PATIENCE) before they sleep, if there is a processor for each of them.
//
// Which thread runs a block never changes what the block computes, so results have the same bits on any number of
// threads. A forked child starts a pool of its own: threads do not survive a fork.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>
#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace mssvm {

constexpr std::chrono::microseconds PATIENCE{100};

// Tells the processor that a thread waits in a loop.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Pool {
public:
    // Runs work(block) for block = 0 .. blocks - 1 on up to `threads` threads, the caller's among them. The error of
    // the lowest failed block is thrown when all threads have finished.
    void run(int64_t blocks, int threads, const std::function<void(int64_t)> &work) {
        std::unique_lock<std::mutex> busy(exclusive_, std::try_to_lock);
        if (threads <= 1 || blocks <= 1 || !busy.owns_lock()) {  // the pool is busy: the caller runs all blocks
            for (int64_t block = 0; block < blocks; ++block) work(block);
            return;
        }
        share(blocks, threads, work);
    }

    // Runs work(member, members) for all members at the same time, so that they may wait for one another: on `threads`
    // threads, or with a single member if the pool is busy. Members must not throw.
    void together(int threads, const std::function<void(int, int)> &work) {
        std::unique_lock<std::mutex> busy(exclusive_, std::try_to_lock);
        if (threads <= 1 || !busy.owns_lock()) return work(0, 1);
        share(threads, threads, [&](int64_t member) { work(int(member), threads); });
    }

    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        for (std::thread &thread : threads_) thread.join();
    }

private:
    // With the pool held: blocks are taken in order by the caller and its helpers.
    void share(int64_t blocks, int threads, const std::function<void(int64_t)> &work) {
        int helpers = int(std::min<int64_t>(threads, blocks)) - 1;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            while (int(threads_.size()) < helpers)
                threads_.emplace_back([this, id = int(threads_.size())] { serve(id); });
            work_ = &work;
            blocks_ = blocks;
            next_ = 0;
            failed_ = blocks;
            error_ = nullptr;
            wanted_ = helpers;
            running_ = helpers;
            patient_ = threads <= int(std::thread::hardware_concurrency());
            ++generation_;
        }
        wake_.notify_all();
        take_blocks();
        wait_until([this] { return running_ == 0; });
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return running_ == 0; });
        work_ = nullptr;
        if (error_) std::rethrow_exception(error_);
    }

    void serve(int id) {
        uint64_t seen = 0;
        for (;;) {
            wait_until([&] { return stop_ || generation_ != seen; });
            {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return stop_ || (generation_ != seen && id < wanted_); });
                if (stop_) return;
                seen = generation_;
            }
            take_blocks();
            std::lock_guard<std::mutex> lock(mutex_);
            if (--running_ == 0) done_.notify_one();
        }
    }

    // Spins until ready() or for PATIENCE; the caller has to check again under the lock.
    template <class Ready> void wait_until(Ready ready) const {
        auto end = std::chrono::steady_clock::now() + PATIENCE;
        while (patient_ && !ready()) {
            for (int k = 0; k < 32 && !ready(); ++k) relax();
            if (std::chrono::steady_clock::now() > end) return;
        }
    }

    void take_blocks() {
        for (int64_t block; (block = next_.fetch_add(1)) < blocks_;) {
            try {
                (*work_)(block);
            } catch (...) {
                std::lock_guard<std::mutex> lock(mutex_);
                if (block < failed_) {
                    failed_ = block;
                    error_ = std::current_exception();
                }
                next_ = blocks_;  // no thread begins another block
            }
        }
    }

    std::mutex exclusive_;  // one call at a time
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> threads_;
    const std::function<void(int64_t)> *work_ = nullptr;
    int64_t blocks_ = 0, failed_ = 0;
    std::atomic<int64_t> next_{0};
    std::exception_ptr error_;
    int wanted_ = 0;
    std::atomic<int> running_{0};
    std::atomic<uint64_t> generation_{0};
    std::atomic<bool> stop_{false}, patient_{false};
};

// The pool of this process. Never destroyed: a child after a fork could not join its parent's threads, and at exit
// the system ends waiting threads.
inline Pool &pool() {
    static std::mutex mutex;
    static Pool *current = nullptr;
    static int64_t owner = -1;
#if defined(_WIN32)
    int64_t process = 0;
#else
    int64_t process = getpid();
#endif
    std::lock_guard<std::mutex> lock(mutex);
    if (owner != process) {
        current = new Pool();
        owner = process;
    }
    return *current;
}

inline void together(int threads, const std::function<void(int, int)> &work) { pool().together(threads, work); }

inline void parallel_for(int64_t blocks, int threads, const std::function<void(int64_t)> &work) {
    pool().run(blocks, threads, work);
}

}  // namespace mssvm
