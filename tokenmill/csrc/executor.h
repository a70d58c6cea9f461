// Runs operators on the pool, or records them into a program that replays the whole forward step in one call.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"

namespace mill {

struct Call {
    std::string name;
    std::function<void(Thread&)> run;
};

struct Program {
    ThreadPool* pool;
    std::vector<Call> calls;
    void run();
    // Runs once and returns (name, nanoseconds) per call, in order.
    std::vector<std::pair<std::string, int64_t>> profile();
};

constexpr int kWidths[] = {1, 8, 64};  // as in ops/choice.py

// The matrices and biases of a layer's experts.
struct ExpertTables {
    std::vector<const Matrix*> gate_up, down;
    std::vector<const float*> gate_up_bias, down_bias;
};

class Executor {
public:
    Executor(std::shared_ptr<ThreadPool> pool, const Kernels* kernels) : pool_(std::move(pool)), kernels_(kernels) {}
    ~Executor();
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    void embed(const EmbedArgs& args);
    // variants: the kernels for each of kWidths of rows and for more; empty: this executor's own.
    void linear(const LinearArgs& args, int capacity, const std::string& name, const std::vector<const Kernels*>& variants = {});
    void route(const RouteArgs& args);
    // tables: every expert's matrices and biases, which the call keeps.
    void experts(const ExpertsArgs& args, std::shared_ptr<const ExpertTables> tables, int capacity);
    void rms_norm(const RmsNormArgs& args);
    void rope_table(const RopeTableArgs& args);
    void rope_store(const RopeStoreArgs& args);
    void attention(const AttentionArgs& args);
    void dense(const DenseArgs& args);

    void begin_recording();
    std::unique_ptr<Program> end_recording();

    ThreadPool& pool() { return *pool_; }
    const Kernels& kernels() const { return *kernels_; }

private:
    void submit(std::string name, std::function<void(Thread&)> run);
    void reserve(size_t rows, size_t cols, size_t attention_floats);

    std::shared_ptr<ThreadPool> pool_;
    const Kernels* kernels_;
    std::unique_ptr<Program> recording_;
    // Shared by all operators, since they run one after another. Grown when an operator is called or recorded,
    // never while one runs; recorded calls look the address up when they run.
    size_t cells_ = 0, groups_ = 0, row_cells_ = 0, attention_floats_ = 0;
    Scratch scratch_;
    float* attention_scratch_ = nullptr;
    // Of experts: sorted rows, and what their two matrices answer.
    size_t sorted_size_ = 0, gate_up_floats_ = 0, down_floats_ = 0;
    int32_t* sorted_ = nullptr;
    float *gate_up_out_ = nullptr, *down_out_ = nullptr;
};

std::unique_ptr<Matrix> pack_matrix(ThreadPool& pool, const std::vector<std::string>& formats, const std::vector<int>& rows,
                                    int cols, const std::vector<const uint8_t*>& data);

const Kernels* find_kernels(const std::string& name);       // null: not built, or not for this CPU
std::vector<std::string> available_kernels();               // best first
std::string self_check(const std::string& name);            // empty: agrees with the portable kernels to the bit

double measure_read_bandwidth(ThreadPool& pool, const Kernels& kernels, size_t bytes);  // bytes per second
double measure_fp32(ThreadPool& pool, const Kernels& kernels);  // multiply-adds count as two operations, per second
double measure_int8(ThreadPool& pool, const Kernels& kernels);

}  // namespace mill
