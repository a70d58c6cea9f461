#include "thread_pool.h"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mill {

namespace {

inline void pause_cpu() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

// Long enough to bridge the gap between two decode steps, short enough not to be seen by `top`.
constexpr int kSpinsBeforeSleep = 6000;
// Inside a job the others are expected within microseconds; past this they have lost their core, so give ours up.
constexpr int kSpinsBeforeYield = 4000;

}  // namespace

void Thread::barrier() {
    if (count == 1) {
        pool.reset(epoch++);
        return;
    }
    uint32_t now = epoch++;
    if (pool.arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(count)) {
        pool.arrived_.store(0, std::memory_order_relaxed);
        pool.reset(now);  // its counters serve the phase after next
        pool.epoch_.store(now + 1, std::memory_order_release);
        return;
    }
    for (int spins = 0; pool.epoch_.load(std::memory_order_acquire) == now; spins++) {
        if (spins < kSpinsBeforeYield) {
            pause_cpu();
        } else {
            std::this_thread::yield();
        }
    }
}

int Thread::next() { return pool.counters_[epoch & 1].fetch_add(1, std::memory_order_relaxed); }

bool Thread::take(int total, int most, int& begin, int& end) {
    for (int i = 0; i < count; i++) {
        const int who = index + i < count ? index + i : index + i - count;
        int first, last;
        share_of(who, total, first, last);
        std::atomic<int>& taken = pool.taken_[size_t(who)].pieces[epoch & 1];
        if (taken.load(std::memory_order_relaxed) >= last - first) continue;
        begin = first + taken.fetch_add(most, std::memory_order_relaxed);
        if (begin >= last) continue;
        end = begin + most < last ? begin + most : last;
        return true;
    }
    return false;
}

void ThreadPool::reset(uint32_t phase) {
    counters_[phase & 1].store(0, std::memory_order_relaxed);
    for (Taken& t : taken_) t.pieces[phase & 1].store(0, std::memory_order_relaxed);
}

ThreadPool::ThreadPool(int count, const std::vector<int>& cpus) : count_(count), taken_(size_t(count)) {
    for (int i = 1; i < count; i++)
        workers_.emplace_back(&ThreadPool::work, this, i, i < int(cpus.size()) ? cpus[size_t(i)] : -1);
}

ThreadPool::~ThreadPool() {
    stop_.store(true);
    job_number_.fetch_add(1, std::memory_order_release);
    job_number_.notify_all();
    for (auto& t : workers_) t.join();
}

void ThreadPool::run(Job job, void* arg) {
    std::lock_guard<std::mutex> lock(turn_);
    job_ = job;
    arg_ = arg;
    Thread self{*this, 0, count_, epoch_.load(std::memory_order_relaxed)};
    if (count_ > 1) {
        job_number_.fetch_add(1, std::memory_order_release);
        job_number_.notify_all();
    }
    job(arg, self);
    self.barrier();
    if (count_ == 1) epoch_.store(self.epoch, std::memory_order_relaxed);
}

void ThreadPool::work(int index, int cpu) {
#if defined(__linux__)
    if (cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // refused in some sandboxes: then unpinned
    }
#else
    (void)cpu;
#endif
    uint32_t seen = 0;
    for (;;) {
        for (int spins = 0; job_number_.load(std::memory_order_acquire) == seen; spins++) {
            if (spins < kSpinsBeforeSleep) {
                pause_cpu();
            } else {
                job_number_.wait(seen, std::memory_order_acquire);
            }
        }
        seen++;
        if (stop_.load()) return;
        Thread self{*this, index, count_, epoch_.load(std::memory_order_acquire)};
        job_(arg_, self);
        self.barrier();
    }
}

}  // namespace mill
