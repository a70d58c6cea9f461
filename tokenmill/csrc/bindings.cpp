// The Python module. It takes addresses and sizes, no tensors, so it does not depend on any torch version.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "argmax.h"
#include "executor.h"

namespace nb = nanobind;
using namespace mill;

namespace {

template <class T>
T* at(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

DType dtype_of(const std::string& name) {
    if (name == "float32") return DType::F32;
    if (name == "float16") return DType::F16;
    if (name == "bfloat16") return DType::BF16;
    if (name == "int8") return DType::I8;
    throw std::invalid_argument("unknown dtype " + name);
}

Act act_of(const std::string& name) {
    if (name.empty()) return Act::None;
    if (name == "silu") return Act::Silu;
    if (name == "gelu") return Act::Gelu;
    if (name == "gelu_tanh") return Act::GeluTanh;
    if (name == "swiglu_oai") return Act::SwigluOai;
    if (name == "relu") return Act::Relu;
    if (name == "relu2") return Act::Relu2;
    throw std::invalid_argument("unknown activation " + name);
}

Scoring scoring_of(const std::string& name) {
    if (name == "softmax") return Scoring::Softmax;
    if (name == "sigmoid") return Scoring::Sigmoid;
    if (name == "softmax_of_chosen") return Scoring::SoftmaxOfChosen;
    throw std::invalid_argument("unknown scoring " + name);
}

const Kernels& kernels_named(const std::string& name) {
    const Kernels* k = find_kernels(name);
    if (!k) throw std::invalid_argument("kernels " + name + " were not built, or do not run on this CPU");
    return *k;
}

const uint8_t* first_byte(const Matrix& m) { return m.segments.empty() ? nullptr : m.segments.front().data; }

// A matrix whose tiles are somewhere else, one segment's after the other's, as pack_matrix lays them out.
std::unique_ptr<Matrix> view_tiles(const std::vector<std::string>& formats, const std::vector<int>& rows, int cols, const uint8_t* tiles,
                                   size_t bytes) {
    if (formats.empty() || formats.size() != rows.size() || cols <= 0) throw std::invalid_argument("a matrix needs formats, rows and columns");
    auto m = std::make_unique<Matrix>();
    m->cols = cols;
    for (size_t i = 0; i < formats.size(); i++) {
        const Format* f = find_format(formats[i]);
        if (!f || cols % f->block != 0 || rows[i] <= 0) throw std::invalid_argument("there are no tiles of " + formats[i]);
        const int count = (rows[i] + kTileRows - 1) / kTileRows;
        m->segments.push_back({f, rows[i], m->rows, m->tiles, count, tiles + m->bytes});
        m->bytes += size_t(count) * f->tile_bytes(cols);
        m->rows += rows[i];
        m->tiles += count;
        (f->bits ? m->any_quantised : m->any_dense) = true;
    }
    if (m->bytes != bytes) throw std::invalid_argument("the tiles have " + std::to_string(bytes) + " bytes, not " + std::to_string(m->bytes));
    if (reinterpret_cast<uintptr_t>(tiles) % 64) throw std::invalid_argument("the tiles are not aligned to 64 bytes");
    return m;
}

}  // namespace

NB_MODULE(_native, m) {
    // Where numpy is missing, torch keeps the frames of its first import until the process ends, and with them whatever
    // they refer to; nanobind would report that as a leak.
    nb::set_leak_warnings(false);
    m.doc() = "Native operators of tokenmill; called through tokenmill.ops.native.";

    nb::class_<ThreadPool>(m, "ThreadPool")
        .def(nb::init<int, const std::vector<int>&>(), nb::arg("count"), nb::arg("cpus"))
        .def_prop_ro("size", &ThreadPool::size);

    nb::class_<Matrix>(m, "Matrix")
        .def_ro("rows", &Matrix::rows)
        .def_ro("cols", &Matrix::cols)
        .def_ro("nbytes", &Matrix::bytes)
        .def_prop_ro("address", [](const Matrix& w) { return reinterpret_cast<uintptr_t>(first_byte(w)); })
        .def_ro("any_quantised", &Matrix::any_quantised);

    nb::class_<Program>(m, "Program")
        .def("run", &Program::run, nb::call_guard<nb::gil_scoped_release>())
        .def("profile", &Program::profile, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("num_calls", [](const Program& p) { return p.calls.size(); });

    nb::class_<CacheArgs>(m, "Cache")
        .def("__init__",
             [](CacheArgs* self, uintptr_t pool, int64_t block_bytes, int64_t offset, uintptr_t block_table, int max_blocks,
                const std::string& dtype) {
                 new (self) CacheArgs{at<uint8_t>(pool), block_bytes, offset, at<const int32_t>(block_table), max_blocks, dtype_of(dtype)};
             });

    nb::class_<ExpertTables>(m, "ExpertTables")
        .def("__init__", [](ExpertTables* self, std::vector<const Matrix*> gate_up, std::vector<const Matrix*> down,
                            const std::vector<uintptr_t>& gate_up_bias, const std::vector<uintptr_t>& down_bias) {
            new (self) ExpertTables{std::move(gate_up), std::move(down), {}, {}};
            for (uintptr_t p : gate_up_bias) self->gate_up_bias.push_back(at<const float>(p));
            for (uintptr_t p : down_bias) self->down_bias.push_back(at<const float>(p));
        });

    nb::class_<Executor>(m, "Executor")
        .def("__init__",
             [](Executor* self, std::shared_ptr<ThreadPool> pool, const std::string& kernels) {
                 new (self) Executor(std::move(pool), &kernels_named(kernels));
             })
        .def_prop_ro("kernels", [](const Executor& e) { return std::string(e.kernels().name); })
        .def("begin_recording", &Executor::begin_recording)
        .def("end_recording", &Executor::end_recording, nb::keep_alive<0, 1>())
        .def(
            "embed",
            [](Executor& e, uintptr_t rows, uintptr_t ids, const Matrix& w, uintptr_t out, float scale, bool accumulate) {
                e.embed({at<const int32_t>(rows), at<const int32_t>(ids), &w, at<float>(out), scale, accumulate});
            },
            nb::call_guard<nb::gil_scoped_release>())
        .def(
            "linear",
            [](Executor& e, uintptr_t rows, uintptr_t x, uintptr_t row_index, const Matrix& w, uintptr_t norm, uintptr_t bias,
               uintptr_t out, float eps, float softcap, const std::string& act, bool accumulate, int capacity,
               const std::string& name, uintptr_t norm_bias, bool centre, bool gated, float scale,
               const std::vector<std::string>& variants) {
                std::vector<const Kernels*> kernels;
                for (const std::string& variant : variants) kernels.push_back(&kernels_named(variant));
                e.linear({at<const int32_t>(rows), at<const float>(x), at<const int32_t>(row_index), &w, at<const float>(norm),
                          at<const float>(bias), at<float>(out), eps, softcap, act_of(act), accumulate, {}, at<const float>(norm_bias),
                          centre, gated, scale},
                         capacity, name, kernels);
            },
            nb::call_guard<nb::gil_scoped_release>())
        .def(
            "route",
            [](Executor& e, uintptr_t rows, uintptr_t logits, uintptr_t bias, uintptr_t ids, uintptr_t weights, int num_experts, int top_k,
               int shared, int num_groups, int top_groups, const std::string& scoring, bool group_sum, bool renormalise,
               bool shared_gate, float scale) {
                e.route({at<const int32_t>(rows), at<const float>(logits), at<const float>(bias), at<int32_t>(ids), at<float>(weights),
                         num_experts, top_k, shared, num_groups, top_groups, scoring_of(scoring), group_sum, renormalise, shared_gate,
                         scale});
            },
            nb::call_guard<nb::gil_scoped_release>())
        .def(
            "experts",
            [](Executor& e, uintptr_t rows, uintptr_t x, uintptr_t ids, uintptr_t weights, const ExpertTables& tables, uintptr_t out,
               int per_token, int hidden, const std::string& act, bool weigh_input, int capacity) {
                ExpertsArgs a{};
                a.rows = at<const int32_t>(rows);
                a.x = at<const float>(x);
                a.ids = at<const int32_t>(ids);
                a.weights = at<const float>(weights);
                a.out = at<float>(out);
                a.per_token = per_token;
                a.hidden = hidden;
                a.act = act_of(act);
                a.weigh_input = weigh_input;
                e.experts(a, std::make_shared<ExpertTables>(tables), capacity);
            },
            nb::call_guard<nb::gil_scoped_release>())
        .def(
            "rms_norm",
            [](Executor& e, uintptr_t rows, uintptr_t x, uintptr_t w, uintptr_t out, int width, float eps, bool accumulate,
               uintptr_t bias, bool centre) {
                e.rms_norm({at<const int32_t>(rows), at<const float>(x), at<const float>(w), at<float>(out), width, eps, accumulate,
                            at<const float>(bias), centre});
            },
            nb::call_guard<nb::gil_scoped_release>())
        .def(
            "rope_table",
            [](Executor& e, uintptr_t rows, uintptr_t positions, uintptr_t inv_freq, uintptr_t out, int rotary_dim, float scale) {
                e.rope_table({at<const int32_t>(rows), at<const int32_t>(positions), at<const float>(inv_freq), at<float>(out), rotary_dim, scale});
            },
            nb::call_guard<nb::gil_scoped_release>())
        .def(
            "rope_store",
            [](Executor& e, uintptr_t rows, uintptr_t positions, uintptr_t token_req, uintptr_t rope, uintptr_t qkv, uintptr_t q_norm,
               uintptr_t k_norm, const CacheArgs& cache, int num_heads, int num_kv_heads, int head_dim, int rotary_dim, float eps,
               bool whole_norm) {
                e.rope_store({at<const int32_t>(rows), at<const int32_t>(positions), at<const int32_t>(token_req), at<const float>(rope),
                              at<float>(qkv), at<const float>(q_norm), at<const float>(k_norm), cache, num_heads, num_kv_heads,
                              head_dim, rotary_dim, eps, whole_norm});
            },
            nb::call_guard<nb::gil_scoped_release>())
        .def(
            "attention",
            [](Executor& e, uintptr_t rows, uintptr_t num_reqs, uintptr_t positions, uintptr_t query_start, uintptr_t qkv, uintptr_t out,
               const CacheArgs& cache, int qkv_width, int num_heads, int num_kv_heads, int head_dim, int window, float scale,
               float softcap, uintptr_t sinks, uintptr_t slopes) {
                e.attention({at<const int32_t>(rows), at<const int32_t>(num_reqs), at<const int32_t>(positions),
                             at<const int32_t>(query_start), at<const float>(qkv), at<float>(out), cache, qkv_width, num_heads,
                             num_kv_heads, head_dim, window, scale, softcap, at<const float>(sinks), nullptr, 0,
                             at<const float>(slopes)});
            },
            nb::call_guard<nb::gil_scoped_release>())
        .def(
            "dense", [](Executor& e, const Matrix& w, uintptr_t out) { e.dense({&w, at<float>(out)}); },
            nb::call_guard<nb::gil_scoped_release>());

    m.def(
        "pack",
        [](ThreadPool& pool, const std::vector<std::string>& formats, const std::vector<int>& rows, int cols,
           const std::vector<uintptr_t>& data) {
            std::vector<const uint8_t*> pointers;
            for (uintptr_t p : data) pointers.push_back(at<const uint8_t>(p));
            return pack_matrix(pool, formats, rows, cols, pointers);
        },
        nb::call_guard<nb::gil_scoped_release>());
    m.def(
        "view_tiles",
        [](const std::vector<std::string>& formats, const std::vector<int>& rows, int cols, uintptr_t tiles, size_t bytes, nb::object owner) {
            return view_tiles(formats, rows, cols, at<const uint8_t>(tiles), bytes);
        },
        nb::keep_alive<0, 6>());
    m.def(
        "argmax",
        [](uintptr_t x, int rows, int n, size_t stride, uintptr_t out) { argmax(at<const float>(x), rows, n, stride, at<int64_t>(out)); },
        nb::call_guard<nb::gil_scoped_release>());
    m.def("formats", [] {
        std::vector<std::pair<std::string, int>> known;  // name, columns of a block
        for (const char* name : {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
                                 "IQ4_NL", "IQ4_XS"})
            known.emplace_back(name, find_format(name)->block);
        return known;
    });
    m.def("available_kernels", &available_kernels);
    m.def("self_check", &self_check, nb::call_guard<nb::gil_scoped_release>());
    m.def(
        "measure_read_bandwidth",
        [](ThreadPool& pool, const std::string& kernels, size_t bytes) {
            return measure_read_bandwidth(pool, kernels_named(kernels), bytes);
        },
        nb::call_guard<nb::gil_scoped_release>());
    m.def(
        "measure_fp32", [](ThreadPool& pool, const std::string& kernels) { return measure_fp32(pool, kernels_named(kernels)); },
        nb::call_guard<nb::gil_scoped_release>());
    m.def(
        "measure_int8", [](ThreadPool& pool, const std::string& kernels) { return measure_int8(pool, kernels_named(kernels)); },
        nb::call_guard<nb::gil_scoped_release>());
}
