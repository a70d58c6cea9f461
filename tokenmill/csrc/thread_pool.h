// A fixed team of threads that runs a job together: every thread executes the same function and meets the others
// at barriers. The caller is thread 0. Waiting threads spin briefly, then sleep, so an idle pool uses no CPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace mill {

class ThreadPool;

struct Thread {
    ThreadPool& pool;
    int index;
    int count;
    uint32_t epoch = 0;

    // All threads of the team meet here.
    void barrier();
    // The next piece of work of this phase (phases are separated by barriers), in the order of the pieces.
    int next();
    // Up to `most` neighbouring pieces of `total`: first of this thread's own even share, in order, then of what others
    // have left of theirs. False when nothing is left. So a thread meets the same weights in every step, and reads them
    // as one stream.
    bool take(int total, int most, int& begin, int& end);
    // An even share of n pieces: [begin, end).
    void share(int n, int& begin, int& end) const { share_of(index, n, begin, end); }

private:
    void share_of(int who, int n, int& begin, int& end) const {
        begin = int(int64_t(n) * who / count);
        end = int(int64_t(n) * (who + 1) / count);
    }
};

class ThreadPool {
public:
    using Job = void (*)(void* arg, Thread& thread);

    // cpus: where to pin the workers (thread i to cpus[i]); empty: not pinned. The caller is never pinned, because
    // threads that other libraries start from it would inherit its mask.
    ThreadPool(int count, const std::vector<int>& cpus);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    // Runs job(arg, thread) on every thread and returns when all are done. Several callers take turns.
    void run(Job job, void* arg);
    int size() const { return count_; }

private:
    friend struct Thread;
    void work(int index, int cpu);

    int count_;
    std::mutex turn_;
    std::vector<std::thread> workers_;
    alignas(64) std::atomic<uint32_t> job_number_{0};
    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> epoch_{0};
    // Work taken in this phase: counters_[phase & 1] by all, taken_[thread][phase & 1] of each thread's share.
    alignas(64) std::atomic<int> counters_[2] = {{0}, {0}};
    struct alignas(64) Taken {
        std::atomic<int> pieces[2] = {{0}, {0}};
    };
    std::vector<Taken> taken_;
    void reset(uint32_t phase);
    std::atomic<bool> stop_{false};
    Job job_ = nullptr;
    void* arg_ = nullptr;
};

}  // namespace mill
