#include "executor.h"

#if TM_HAVE_AVX2
#include <cpuid.h>
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iterator>
#include <new>
#include <stdexcept>

namespace mill {

extern const Kernels kernels_portable;
#if TM_HAVE_AVX2
extern const Kernels kernels_avx2;
extern const Kernels kernels_avxvnni;
#endif
#if TM_HAVE_AVX512
extern const Kernels kernels_avx512;
#endif

namespace {

template <class T>
T* grow(T* old, size_t count) {
    ::operator delete[](old, std::align_val_t(64));
    return static_cast<T*>(::operator new[](count * sizeof(T), std::align_val_t(64)));
}

template <class T>
void release(T* p) {
    ::operator delete[](p, std::align_val_t(64));
}

template <class F>
void on_pool(ThreadPool& pool, F&& body) {
    pool.run([](void* arg, Thread& thread) { (*static_cast<std::remove_reference_t<F>*>(arg))(thread); }, &body);
}

}  // namespace

void Program::run() {
    on_pool(*pool, [this](Thread& thread) {
        for (const Call& call : calls) {
            call.run(thread);
            thread.barrier();
        }
    });
}

std::vector<std::pair<std::string, int64_t>> Program::profile() {
    std::vector<std::pair<std::string, int64_t>> times;
    times.reserve(calls.size());
    on_pool(*pool, [&](Thread& thread) {
        for (const Call& call : calls) {
            const auto start = std::chrono::steady_clock::now();
            call.run(thread);
            thread.barrier();
            if (thread.index == 0)
                times.emplace_back(call.name, std::chrono::duration_cast<std::chrono::nanoseconds>(
                                                  std::chrono::steady_clock::now() - start).count());
        }
    });
    return times;
}

Executor::~Executor() {
    release(scratch_.x);
    release(scratch_.q);
    release(scratch_.scale);
    release(scratch_.scaled_sum);
    release(scratch_.sum);
    release(scratch_.row);
    release(scratch_.bytes);
    release(attention_scratch_);
    release(sorted_);
    release(gate_up_out_);
    release(down_out_);
}

void Executor::reserve(size_t rows, size_t cols, size_t attention_floats) {
    if (rows * cols > cells_) {
        cells_ = rows * cols;
        scratch_.x = grow(scratch_.x, cells_);
        scratch_.q = grow(scratch_.q, cells_);
    }
    const size_t groups = rows * ((cols + kGroup - 1) / kGroup);
    if (groups > groups_) {
        groups_ = groups;
        scratch_.scale = grow(scratch_.scale, groups);
        scratch_.scaled_sum = grow(scratch_.scaled_sum, groups);
        scratch_.sum = grow(scratch_.sum, 3 * groups);
    }
    const size_t row_cells = size_t(pool_->size()) * cols;
    if (row_cells > row_cells_) {
        row_cells_ = row_cells;
        scratch_.row = grow(scratch_.row, row_cells);
        scratch_.bytes = grow(scratch_.bytes, 2 * kTileRows * row_cells);
    }
    if (attention_floats > attention_floats_) {
        attention_floats_ = attention_floats;
        attention_scratch_ = grow(attention_scratch_, attention_floats);
    }
}

void Executor::submit(std::string name, std::function<void(Thread&)> run) {
    if (recording_) recording_->calls.push_back({std::move(name), std::move(run)});
    else on_pool(*pool_, run);
}

void Executor::begin_recording() {
    recording_ = std::make_unique<Program>();
    recording_->pool = pool_.get();
}

std::unique_ptr<Program> Executor::end_recording() {
    if (!recording_) throw std::logic_error("end_recording() without begin_recording()");
    return std::move(recording_);
}

void Executor::embed(const EmbedArgs& args) {
    submit("embed", [k = kernels_, args](Thread& t) { k->embed(args, t); });
}

void Executor::linear(const LinearArgs& args, int capacity, const std::string& name, const std::vector<const Kernels*>& variants) {
    constexpr size_t kChoices = std::size(kWidths) + 1;
    if (!variants.empty() && variants.size() != kChoices) throw std::invalid_argument("one variant for each width is wanted");
    std::array<const Kernels*, kChoices> chosen;
    for (size_t i = 0; i < kChoices; i++) chosen[i] = variants.empty() ? kernels_ : variants[i];
    reserve(size_t(capacity), size_t(args.weight->cols), 0);
    submit(name, [this, args, chosen](Thread& t) {
        LinearArgs a = args;
        a.scratch = scratch_;
        size_t i = 0;
        while (i + 1 < kChoices && *args.rows > kWidths[i]) i++;
        chosen[i]->linear(a, t);
    });
}

void Executor::route(const RouteArgs& args) {
    submit("route", [k = kernels_, args](Thread& t) { k->route(args, t); });
}

void Executor::experts(const ExpertsArgs& args, std::shared_ptr<const ExpertTables> tables, int capacity) {
    ExpertsArgs a = args;
    a.num_experts = int(tables->gate_up.size());
    a.widest = 0;
    for (const auto& matrices : {tables->gate_up, tables->down})
        for (const Matrix* m : matrices) a.widest = std::max(a.widest, m->cols);
    a.gate_up = tables->gate_up.data();
    a.down = tables->down.data();
    a.gate_up_bias = tables->gate_up_bias.empty() ? nullptr : tables->gate_up_bias.data();
    a.down_bias = tables->down_bias.empty() ? nullptr : tables->down_bias.data();
    constexpr int kRows = 4096;  // bounds the work space; more tokens go through in several passes
    a.tokens_at_once = std::clamp(kRows / a.per_token, 1, std::max(capacity, 1));
    const size_t rows = size_t(a.tokens_at_once) * size_t(a.per_token), widest = size_t(a.widest);
    reserve(rows, (widest + kGroup - 1) / kGroup * kGroup, 0);
    const size_t experts = size_t(a.num_experts) + 1;
    if (experts + 2 * rows > sorted_size_) sorted_ = grow(sorted_, sorted_size_ = experts + 2 * rows);
    if (rows * 2 * widest > gate_up_floats_) gate_up_out_ = grow(gate_up_out_, gate_up_floats_ = rows * 2 * widest);
    if (rows * size_t(a.hidden) > down_floats_) down_out_ = grow(down_out_, down_floats_ = rows * size_t(a.hidden));
    submit("experts", [this, a, tables, experts, rows](Thread& t) {
        ExpertsArgs now = a;
        now.scratch = scratch_;
        now.sorted = {sorted_, sorted_ + experts, sorted_ + experts + rows};
        now.gate_up_out = gate_up_out_;
        now.down_out = down_out_;
        kernels_->experts(now, t);
    });
}

void Executor::rms_norm(const RmsNormArgs& args) {
    submit("rms_norm", [k = kernels_, args](Thread& t) { k->rms_norm(args, t); });
}

void Executor::rope_table(const RopeTableArgs& args) {
    submit("rope_table", [k = kernels_, args](Thread& t) { k->rope_table(args, t); });
}

void Executor::rope_store(const RopeStoreArgs& args) {
    submit("rope_store", [k = kernels_, args](Thread& t) { k->rope_store(args, t); });
}

void Executor::attention(const AttentionArgs& args) {
    // One work space a thread, and room for the partial results of a few long contexts (see attention.inl).
    const size_t rows = 16, hd = size_t(args.head_dim), threads = size_t(pool_->size()), part = rows * (2 + hd);
    const size_t spans = size_t(args.cache.max_blocks) * kBlock / kSplit + 2;
    reserve(0, 0, threads * (rows * hd + rows * kSplit + 2 * part) + 2 * threads * spans * part);
    submit("attention", [this, args](Thread& t) {
        AttentionArgs a = args;
        a.scratch = attention_scratch_;
        a.scratch_floats = attention_floats_;
        kernels_->attention(a, t);
    });
}

void Executor::dense(const DenseArgs& args) {
    on_pool(*pool_, [&](Thread& t) { kernels_->dense(args, t); });
}

std::unique_ptr<Matrix> pack_matrix(ThreadPool& pool, const std::vector<std::string>& formats, const std::vector<int>& rows,
                                    int cols, const std::vector<const uint8_t*>& data) {
    auto m = std::make_unique<Matrix>();
    m->cols = cols;
    size_t bytes = 0;
    std::vector<size_t> starts;
    for (size_t i = 0; i < formats.size(); i++) {
        const Format* f = find_format(formats[i]);
        if (!f || cols % f->block != 0 || rows[i] <= 0) throw std::invalid_argument("cannot pack " + formats[i]);
        const int tiles = (rows[i] + kTileRows - 1) / kTileRows;
        m->segments.push_back({f, rows[i], m->rows, m->tiles, tiles, nullptr});
        starts.push_back(bytes);
        bytes += size_t(tiles) * f->tile_bytes(cols);
        m->rows += rows[i];
        m->tiles += tiles;
        (f->bits ? m->any_quantised : m->any_dense) = true;
    }
    m->bytes = bytes;
    m->storage = static_cast<uint8_t*>(::operator new[](bytes + 64, std::align_val_t(64)));  // kernels may read a little past
    for (size_t i = 0; i < m->segments.size(); i++) m->segments[i].data = m->storage + starts[i];
    // Each thread packs the tiles that it will later multiply, so that their pages are first touched, and therefore
    // placed, on its own memory node.
    on_pool(pool, [&](Thread& thread) {
        int begin, end;
        thread.share(m->tiles, begin, end);
        for (size_t i = 0; i < m->segments.size(); i++) {
            const Segment& s = m->segments[i];
            const int lo = std::max(begin - s.first_tile, 0), hi = std::min(end - s.first_tile, s.tiles);
            if (lo < hi) pack_tiles(*s.format, data[i], s.rows, cols, m->storage + starts[i], lo, hi);
        }
    });
    return m;
}

#if TM_HAVE_AVX2
static bool has_avx_vnni() {  // compilers name this feature only from their newest versions on
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

std::vector<std::string> available_kernels() {
    std::vector<std::string> names;
#if TM_HAVE_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni"))
        names.push_back("avx512");
#endif
#if TM_HAVE_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
        if (has_avx_vnni()) names.push_back("avxvnni");
        names.push_back("avx2");
    }
#endif
    names.push_back("portable");
    return names;
}

const Kernels* find_kernels(const std::string& name) {
    for (const std::string& n : available_kernels()) {
        if (n != name) continue;
#if TM_HAVE_AVX512
        if (name == "avx512") return &kernels_avx512;
#endif
#if TM_HAVE_AVX2
        if (name == "avxvnni") return &kernels_avxvnni;
        if (name == "avx2") return &kernels_avx2;
#endif
        return &kernels_portable;
    }
    return nullptr;
}

namespace {

struct Generator {  // a small linear congruential generator: the same numbers everywhere
    uint64_t state = 1;
    uint32_t next() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return uint32_t(state >> 33);
    }
    float real() { return float(int32_t(next() & 0xffffff) - 0x800000) / 4194304.0f; }
};

// One small forward step's worth of operators; everything they wrote, for comparison.
std::vector<float> exercise(const Kernels* kernels, int threads) {
    auto pool = std::make_shared<ThreadPool>(threads, std::vector<int>{});
    Executor ex(pool, kernels);
    std::vector<float> all;
    auto keep = [&](const std::vector<float>& v) { all.insert(all.end(), v.begin(), v.end()); };
    const int cols = 256, rows = 18, tokens = 9;
    Generator gen;
    auto reals = [&](size_t n) {
        std::vector<float> v(n);
        for (float& x : v) x = gen.real();
        return v;
    };
    const int32_t count = tokens;
    const std::vector<float> x = reals(size_t(tokens) * 2 * cols), norm = reals(cols), bias = reals(rows);
    for (const char* name : {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"}) {
        const Format& f = *find_format(name);
        const size_t row_bytes = size_t(cols / f.block) * size_t(f.block_bytes);
        std::vector<uint8_t> raw(row_bytes * rows);
        // Bytes below 0x3c keep every fp16, bf16 and fp32 in them finite and moderate.
        for (uint8_t& b : raw) b = uint8_t(gen.next() % 0x3c);
        auto m = pack_matrix(*pool, {name}, {rows}, cols, {raw.data()});
        std::vector<float> out(size_t(tokens) * rows, 0.5f);
        LinearArgs a{&count, x.data(), nullptr, m.get(), norm.data(), bias.data(), out.data(), 1e-5f, 30.0f, Act::None, true, {}};
        ex.linear(a, tokens, "linear");
        keep(out);
        a.norm = a.bias = nullptr;
        a.softcap = 0.0f;
        a.act = f.bits % 2 ? Act::Silu : Act::GeluTanh;
        a.accumulate = false;
        ex.linear(a, tokens, "linear");
        keep(out);
        a.gated = false;
        a.act = f.bits % 2 ? Act::Relu2 : Act::Relu;
        a.scale = 0.3f;
        ex.linear(a, tokens, "linear");
        keep(out);
        a.act = Act::None;
        a.norm = a.norm_bias = norm.data();
        a.centre = true;
        ex.linear(a, tokens, "linear");
        keep(out);
    }
    {  // four experts and a shared one
        const int experts = 4, hidden = 64, inner = 32, per_token = 3;
        std::vector<std::unique_ptr<Matrix>> matrices;
        auto tables = std::make_shared<ExpertTables>();
        for (int e = 0; e <= experts; e++)
            for (bool up : {true, false}) {
                const Format& f = *find_format(e % 2 ? "Q8_0" : "F32");
                const int m = up ? 2 * inner : hidden, k = up ? hidden : inner;
                std::vector<uint8_t> raw(size_t(m) * size_t(k / f.block) * size_t(f.block_bytes));
                for (uint8_t& b : raw) b = uint8_t(gen.next() % 0x3c);
                matrices.push_back(pack_matrix(*pool, {f.name}, {m}, k, {raw.data()}));
                (up ? tables->gate_up : tables->down).push_back(matrices.back().get());
            }
        const std::vector<float> logits = reals(size_t(tokens) * (experts + 1)), hot = reals(size_t(tokens) * hidden), router = reals(experts);
        std::vector<int32_t> ids(size_t(tokens) * per_token);
        std::vector<float> weights(size_t(tokens) * per_token), out(size_t(tokens) * hidden, 0.5f);
        RouteArgs r{};
        r.rows = &count;
        r.logits = logits.data();
        r.bias = router.data();
        r.ids = ids.data();
        r.weights = weights.data();
        r.num_experts = experts;
        r.top_k = 2;
        r.shared = 1;
        r.num_groups = 2;
        r.top_groups = 1;
        r.scoring = Scoring::Sigmoid;
        r.group_sum = r.renormalise = r.shared_gate = true;
        r.scale = 1.5f;
        ex.route(r);
        keep(weights);
        ExpertsArgs x{};
        x.rows = &count;
        x.x = hot.data();
        x.ids = ids.data();
        x.weights = weights.data();
        x.out = out.data();
        x.per_token = per_token;
        x.hidden = hidden;
        x.act = Act::SwigluOai;
        ex.experts(x, tables, tokens);
        keep(out);
    }
    std::vector<float> normed(size_t(tokens) * 250, 0.5f);
    ex.rms_norm({&count, x.data(), norm.data(), normed.data(), 250, 1e-5f, true, norm.data(), true});
    keep(normed);
    const int hd = 40, kv_heads = 1, heads = 3, width = (heads + 2 * kv_heads) * hd, context = 264, max_blocks = 24;
    const std::vector<float> inv_freq = reals(18), q_norm = reals(size_t(heads) * hd), k_norm = reals(hd);
    for (DType dtype : {DType::F32, DType::F16, DType::BF16, DType::I8}) {
        const int element = dtype == DType::F32 ? 4 : dtype == DType::I8 ? 1 : 2;
        const int64_t block_bytes = int64_t(2) * kv_heads * kBlock * (hd * element + (dtype == DType::I8 ? 4 : 0));
        std::vector<uint8_t> cache(size_t(block_bytes) * max_blocks, 0);
        std::vector<int32_t> table(max_blocks), positions(context), reqs(context, 0);
        for (int i = 0; i < max_blocks; i++) table[size_t(i)] = max_blocks - 1 - i;
        for (int i = 0; i < context; i++) positions[size_t(i)] = i;
        const int32_t n = context, one = 1, start[2] = {0, context};
        std::vector<float> qkv = reals(size_t(context) * width), rope(size_t(context) * 36), out(size_t(context) * heads * hd);
        ex.rope_table({&n, positions.data(), inv_freq.data(), rope.data(), 36, 1.1f});
        const CacheArgs c{cache.data(), block_bytes, 0, table.data(), max_blocks, dtype};
        ex.rope_store({&n, positions.data(), reqs.data(), rope.data(), qkv.data(), q_norm.data(), k_norm.data(), c, heads, kv_heads, hd, 36, 1e-6f,
                       dtype == DType::F16});
        ex.attention({&n, &one, positions.data(), start, qkv.data(), out.data(), c, width, heads, kv_heads, hd,
                      dtype == DType::F32 ? 0 : 40, 0.1f, dtype == DType::F16 ? 20.0f : 0.0f,
                      dtype == DType::BF16 ? bias.data() : nullptr, nullptr, 0,
                      dtype == DType::I8 ? bias.data() : nullptr});
        keep(out);
    }
    return all;
}

}  // namespace

std::string self_check(const std::string& name) {
    const Kernels* kernels = find_kernels(name);
    if (!kernels) return "not built, or not supported by this CPU";
    const std::vector<float> got = exercise(kernels, 2), want = exercise(&kernels_portable, 1);
    for (size_t i = 0; i < want.size(); i++)
        if (std::memcmp(&got[i], &want[i], sizeof(float)) != 0)
            return "value " + std::to_string(i) + " is " + std::to_string(got[i]) + ", the portable kernels say " + std::to_string(want[i]);
    return "";
}

namespace {

template <class F>
double best_seconds(F&& body) {
    double best = 1e30;
    for (int i = 0; i < 5; i++) {
        const auto start = std::chrono::steady_clock::now();
        body();
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool, const Kernels& kernels, size_t bytes) {
    constexpr size_t kPiece = 512;
    const size_t pieces = bytes / kPiece;
    std::vector<int32_t> data(pieces * kPiece / 4, 1);
    std::vector<int32_t> sums(size_t(pool.size()) * 16);
    const double s = best_seconds([&] {
        on_pool(pool, [&](Thread& t) {
            const size_t begin = pieces * size_t(t.index) / size_t(t.count), end = pieces * size_t(t.index + 1) / size_t(t.count);
            sums[size_t(t.index) * 16] =
                kernels.read_bytes(reinterpret_cast<const uint8_t*>(data.data()) + begin * kPiece, (end - begin) * kPiece);
        });
    });
    uint32_t total = 0;
    for (int i = 0; i < pool.size(); i++) total += uint32_t(sums[size_t(i) * 16]);
    if (total != uint32_t(data.size())) throw std::logic_error("the bandwidth measurement read wrong data");
    return double(pieces * kPiece) / s;
}

static double measure_operations(ThreadPool& pool, double (*operations)(int)) {
    std::vector<double> counts(size_t(pool.size()) * 8);
    const double s = best_seconds([&] {
        on_pool(pool, [&](Thread& t) { counts[size_t(t.index) * 8] = operations(2000000); });
    });
    double total = 0;
    for (double c : counts) total += c;
    return total / s;
}

double measure_fp32(ThreadPool& pool, const Kernels& kernels) { return measure_operations(pool, kernels.fp32_operations); }
double measure_int8(ThreadPool& pool, const Kernels& kernels) { return measure_operations(pool, kernels.int8_operations); }

}  // namespace mill
