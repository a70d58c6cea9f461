// Rotation, cache stores and attention over the paged cache.
//
// Attention of one query row goes through the context in spans of kSplit tokens at fixed positions: scores of the
// span, their maximum, exponentials, weighted sum of values in order of position; then spans are merged in order.
// Nothing in that depends on which other rows are computed beside it, so decode, chunked prefill and any number of
// threads give the same bits.
#include "rows.h"

namespace mill::TM_ISA {

template <DType D>
TM_INLINE V load_cached(const uint8_t* base, size_t i) {
    if constexpr (D == DType::F32) return vload((const float*)base + i);
    if constexpr (D == DType::F16) return vhalf((const uint16_t*)base + i);
    if constexpr (D == DType::I8) return vtofloat(ifrom8((const int8_t*)base + i));
    return vbf16((const uint16_t*)base + i);
}

template <DType D>
TM_INLINE V load_cached_part(const uint8_t* base, size_t i, int n) {
    if (n >= 16) return load_cached<D>(base, i);
    if constexpr (D == DType::F32) {
        return load_part((const float*)base + i, n);
    } else {
        constexpr size_t kSize = D == DType::I8 ? 1 : 2;
        uint8_t t[32] = {};
        std::memcpy(t, base + i * kSize, size_t(n) * kSize);
        return load_cached<D>(t, 0);
    }
}

TM_INLINE size_t element_size(DType d) { return d == DType::F32 ? 4 : d == DType::I8 ? 1 : 2; }

TM_INLINE void store_cached(uint8_t* base, size_t i, float x, DType d) {
    if (d == DType::F32) ((float*)base)[i] = x;
    else ((uint16_t*)base)[i] = d == DType::F16 ? float_to_half(x) : float_to_bf16(x);
}

void rope_table(const RopeTableArgs& a, Thread& thread) {
    int begin, end;
    thread.share(*a.rows, begin, end);
    const int half = a.rotary_dim / 2;
    for (int t = begin; t < end; t++) {
        float* out = a.out + size_t(t) * size_t(a.rotary_dim);
        for (int i = 0; i < half; i++) {
            const float angle = float(a.positions[t]) * a.inv_freq[i];
            out[i] = cosf(angle) * a.scale;
            out[half + i] = sinf(angle) * a.scale;
        }
    }
}

static void rotate(float* x, const float* rope, int rotary_dim) {
    const int half = rotary_dim / 2;
    const float *c = rope, *s = rope + half;
    for (int i = 0; i < half; i += 16) {
        const int n = half - i;
        V x0 = load_part(x + i, n), x1 = load_part(x + half + i, n), cv = load_part(c + i, n), sv = load_part(s + i, n);
        store_part(x + i, vsub(vmul(x0, cv), vmul(x1, sv)), n);
        store_part(x + half + i, vadd(vmul(x1, cv), vmul(x0, sv)), n);
    }
}

// The scale of one head's int8: max |x| / 127, or 0 where the inverse of that might overflow.
static float head_scale(const float* x, int n) {
    V top = vset(0.0f), sum = vset(0.0f);
    for (int i = 0; i < n; i += 16) {
        V v = load_part(x + i, n - i);
        top = vmax(top, vabs(v));
        sum = vadd(sum, v);
    }
    if (any_nan(sum)) return NAN;
    const float scale = vmaximum(top) / 127.0f;
    return scale < FLT_MIN ? 0.0f : scale;
}

void rope_store(const RopeStoreArgs& a, Thread& thread) {
    const int n = *a.rows, heads = a.num_heads + 2 * a.num_kv_heads, hd = a.head_dim;
    int begin, end;
    if (a.whole_norm) {  // a token's heads are normalised together, so before they are shared out
        thread.share(n, begin, end);
        for (int t = begin; t < end; t++) {
            float* q = a.qkv + size_t(t) * size_t(heads) * size_t(hd);
            float* k = q + size_t(a.num_heads) * size_t(hd);
            if (a.q_norm) norm_row(q, a.q_norm, a.eps, a.num_heads * hd, q);
            if (a.k_norm) norm_row(k, a.k_norm, a.eps, a.num_kv_heads * hd, k);
        }
        thread.barrier();
    }
    thread.share(n * heads, begin, end);
    for (int item = begin; item < end; item++) {
        const int t = item / heads, h = item % heads;
        float* x = a.qkv + (size_t(t) * size_t(heads) + size_t(h)) * size_t(hd);
        const bool query = h < a.num_heads, key = !query && h < a.num_heads + a.num_kv_heads;
        const float* norm = query ? a.q_norm : key ? a.k_norm : nullptr;
        if (norm && !a.whole_norm) norm_row(x, norm, a.eps, hd, x);
        if (query || key) rotate(x, a.rope + size_t(t) * size_t(a.rotary_dim), a.rotary_dim);
        if (query) continue;
        const int pos = a.positions[t], slot = pos % kBlock;
        const int block = a.cache.block_table[size_t(a.token_req[t]) * size_t(a.cache.max_blocks) + size_t(pos / kBlock)];
        uint8_t* page = a.cache.pool + int64_t(block) * a.cache.block_bytes + a.cache.offset;
        const size_t head_bytes = size_t(hd) * kBlock * element_size(a.cache.dtype), kv_heads = size_t(a.num_kv_heads);
        const size_t head = size_t(h - a.num_heads);  // values follow num_kv_heads keys
        uint8_t* to = page + head * head_bytes;
        auto index = [&](int d) { return key ? size_t(d) * kBlock + size_t(slot) : size_t(slot) * size_t(hd) + size_t(d); };
        if (a.cache.dtype == DType::I8) {
            const float scale = head_scale(x, hd);
            const V inverse = vset(scale == 0.0f ? 0.0f : 1.0f / scale);
            ((float*)(page + 2 * kv_heads * head_bytes))[head * kBlock + size_t(slot)] = scale;
            for (int d = 0; d < hd; d += 16) {
                alignas(16) int8_t q[16];
                istore8(q, vtoint(vmin(vset(127.0f), vmax(vset(-127.0f), vmul(load_part(x + d, hd - d), inverse)))));
                for (int i = 0; i < 16 && d + i < hd; i++) to[index(d + i)] = uint8_t(q[i]);
            }
        } else {
            for (int d = 0; d < hd; d++) store_cached(to, index(d), x[d], a.cache.dtype);
        }
    }
}

alignas(64) constexpr float kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

constexpr int kQueryRows = 16;  // query rows (tokens of one request times heads of one group) worked on together

// Scores of NR query rows against NB blocks of 16 keys.
template <DType D, int NR, int NB>
TM_INLINE void score_blocks(const float* q, int hd, const uint8_t* const* keys, const float* const* scales, float* out) {
    V acc[NR][NB];
    for (int r = 0; r < NR; r++)
        for (int b = 0; b < NB; b++) acc[r][b] = vset(0.0f);
    for (int d = 0; d < hd; d++) {
        V k[NB];
        for (int b = 0; b < NB; b++) k[b] = load_cached<D>(keys[b], size_t(d) * kBlock);
        for (int r = 0; r < NR; r++) {
            V x = vset(q[size_t(r) * size_t(hd) + size_t(d)]);
            for (int b = 0; b < NB; b++) acc[r][b] = vfma(k[b], x, acc[r][b]);
        }
    }
    for (int r = 0; r < NR; r++)
        for (int b = 0; b < NB; b++) {
            if constexpr (D == DType::I8) acc[r][b] = vmul(acc[r][b], vload(scales[b]));
            vstore(out + r * kSplit + b * kBlock, acc[r][b]);
        }
}

// Asks for pages of a head; what the next span reads lies elsewhere, so the hardware can't foresee it.
TM_INLINE void prefetch_pages(const uint8_t* const* pages, int blocks, size_t bytes) {
    for (int b = 0; b < blocks; b++)
        for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(pages[b] + i, 0, 2);
}

template <DType D, int NR>
static void score_rows(const float* q, int hd, const uint8_t* const* keys, const float* const* scales, int blocks, float* out) {
    constexpr int NB = NR == 1 ? 4 : NR == 2 ? 2 : 1;
    int b = 0;
    for (; b + NB <= blocks; b += NB) score_blocks<D, NR, NB>(q, hd, keys + b, scales + b, out + b * kBlock);
    for (; b < blocks; b++) score_blocks<D, NR, 1>(q, hd, keys + b, scales + b, out + b * kBlock);
}

// out[r][d..] = sum over tokens [t0, t1) of p[r][t] * value[t][d..], in order of t.
template <DType D, int NR, int ND>
TM_INLINE void weigh(const float* p, const uint8_t* const* values, int hd, int t0, int t1, int d, float* out) {
    V acc[NR][ND];
    for (int r = 0; r < NR; r++)
        for (int i = 0; i < ND; i++) acc[r][i] = vset(0.0f);
    for (int t = t0; t < t1; t++) {
        const size_t at = size_t(t % kBlock) * size_t(hd) + size_t(d);
        V v[ND];
        for (int i = 0; i < ND; i++) v[i] = load_cached_part<D>(values[t / kBlock], at + size_t(16 * i), ND > 1 ? 16 : hd - d);
        for (int r = 0; r < NR; r++) {
            V w = vset(p[r * kSplit + t]);
            for (int i = 0; i < ND; i++) acc[r][i] = vfma(w, v[i], acc[r][i]);
        }
    }
    for (int r = 0; r < NR; r++)
        for (int i = 0; i < ND; i++)
            store_part(out + size_t(r) * size_t(hd) + size_t(d + 16 * i), acc[r][i], ND > 1 ? 16 : hd - d);
}

template <DType D, int NR>
static void weigh_rows(const float* p, const uint8_t* const* values, int hd, int t0, int t1, float* out) {
    int d = 0;
    for (; d + 64 <= hd; d += 64) {
#if TM_AVX512
        weigh<D, NR, 4>(p, values, hd, t0, t1, d, out);
#else
        weigh<D, NR, 2>(p, values, hd, t0, t1, d, out);
        weigh<D, NR, 2>(p, values, hd, t0, t1, d + 32, out);
#endif
    }
    for (; d < hd; d += 16) weigh<D, NR, 1>(p, values, hd, t0, t1, d, out);
}

#if TM_AVX512
constexpr int kScoreRows = 8, kWeighRows = 4;
#else
constexpr int kScoreRows = 4, kWeighRows = 2;
#endif

// A work item: `tokens` consecutive tokens of one request, `heads` query heads that share one kv head.
struct Item {
    int req, first, tokens, kv_head, head, heads;
    int rows() const { return tokens * heads; }
};

struct Partial {  // of one span: [rows] maxima, [rows] sums, [rows][head_dim] weighted values
    float *m, *l, *o;
    Partial(float* base) : m(base), l(base + kQueryRows), o(base + 2 * kQueryRows) {}
    static size_t floats(int hd) { return size_t(kQueryRows) * size_t(2 + hd); }
};

TM_INLINE int window_start(const AttentionArgs& a, int pos) {
    return a.window > 0 && pos + 1 > a.window ? pos + 1 - a.window : 0;
}

template <DType D>
static void attend_span(const AttentionArgs& a, const Item& item, const float* q, int span, float* scores, Partial out) {
    const int hd = a.head_dim, group = item.heads, rows = item.rows();
    const int first_pos = a.positions[item.first], last_pos = first_pos + item.tokens - 1;
    const int begin = span * kSplit;
    const int lo = window_start(a, first_pos) > begin ? window_start(a, first_pos) : begin;
    const int hi = last_pos < begin + kSplit - 1 ? last_pos : begin + kSplit - 1;
    const int b0 = (lo - begin) / kBlock, b1 = (hi - begin) / kBlock + 1;
    const uint8_t *keys[kSplit / kBlock], *values[kSplit / kBlock];
    const float *key_scales[kSplit / kBlock], *value_scales[kSplit / kBlock];  // of int8
    const size_t head_bytes = size_t(hd) * kBlock * element_size(D);
    const int32_t* table = a.cache.block_table + size_t(item.req) * size_t(a.cache.max_blocks) + begin / kBlock;
    for (int b = b0; b < b1; b++) {
        keys[b] = a.cache.pool + int64_t(table[b]) * a.cache.block_bytes + a.cache.offset + size_t(item.kv_head) * head_bytes;
        values[b] = keys[b] + size_t(a.num_kv_heads) * head_bytes;
        key_scales[b] = (const float*)(keys[b] + (2 * size_t(a.num_kv_heads) - size_t(item.kv_head)) * head_bytes) +
                        size_t(item.kv_head) * kBlock;
        value_scales[b] = key_scales[b] + size_t(a.num_kv_heads) * kBlock;
    }
    if (item.tokens == 1) {
        prefetch_pages(keys + b0, b1 - b0, head_bytes);
        prefetch_pages(values + b0, b1 - b0, head_bytes);
    }
    int r = 0;
    auto score = [&](auto count) {
        constexpr int NR = decltype(count)::value;
        for (; r + NR <= rows; r += NR)
            score_rows<D, NR>(q + size_t(r) * size_t(hd), hd, keys + b0, key_scales + b0, b1 - b0, scores + r * kSplit + b0 * kBlock);
    };
    score(std::integral_constant<int, kScoreRows>{});
    if constexpr (kScoreRows > 4) score(std::integral_constant<int, 4>{});
    score(std::integral_constant<int, 2>{});
    score(std::integral_constant<int, 1>{});

    for (int row = 0; row < rows; row++) {
        const int pos = first_pos + row / group, from = window_start(a, pos);
        float* s = scores + row * kSplit;
        V top = vset(-INFINITY);
        for (int b = b0; b < b1; b++) {
            V x = vmul(vload(s + b * kBlock), vset(a.scale));
            if (a.softcap > 0.0f) {
                V e = vexp(vmul(vset(2.0f), vdiv(x, vset(a.softcap))));
                x = vmul(vset(a.softcap), vsub(vset(1.0f), vdiv(vset(2.0f), vadd(e, vset(1.0f)))));
            }
            const int t = begin + b * kBlock;
            if (a.slopes) {
                const V distance = vadd(vload(kLanes), vset(float(t - pos)));
                x = vfma(vset(a.slopes[item.head + row % group]), distance, x);
            }
            vstore(s + b * kBlock, x);
            if (t < from || t + kBlock - 1 > pos)
                for (int i = 0; i < kBlock; i++)
                    if (t + i < from || t + i > pos) s[b * kBlock + i] = -INFINITY;
            top = vmax(top, vload(s + b * kBlock));
        }
        const bool seen = pos >= begin && from < begin + kSplit;
        const float m = seen ? vmaximum(top) : -INFINITY;
        V sum = vset(0.0f);
        for (int b = b0; b < b1; b++) {
            const int t = begin + b * kBlock;
            V p = vset(0.0f);
            if (seen && t <= pos && t + kBlock > from) {
                p = vexp(vsub(vload(s + b * kBlock), vset(m)));
                if (t < from || t + kBlock - 1 > pos) {  // the masked keys may be anything, so they must not be multiplied in
                    vstore(s + b * kBlock, p);
                    for (int i = 0; i < kBlock; i++)
                        if (t + i < from || t + i > pos) s[b * kBlock + i] = 0.0f;
                    p = vload(s + b * kBlock);
                }
            }
            sum = vadd(sum, p);
            if constexpr (D == DType::I8) p = vmul(p, vload(value_scales[b]));
            vstore(s + b * kBlock, p);
        }
        out.m[row] = m;
        out.l[row] = seen ? vsum(sum) : -1.0f;  // -1: this row sees nothing of the span
    }
    r = 0;
    auto weigh_all = [&](auto count) {
        constexpr int NR = decltype(count)::value;
        for (; r + NR <= rows; r += NR)
            weigh_rows<D, NR>(scores + r * kSplit, values, hd, lo - begin, hi - begin + 1, out.o + size_t(r) * size_t(hd));
    };
    weigh_all(std::integral_constant<int, kWeighRows>{});
    if constexpr (kWeighRows > 2) weigh_all(std::integral_constant<int, 2>{});
    weigh_all(std::integral_constant<int, 1>{});
}

static void merge(Partial into, const Partial& part, int rows, int hd) {
    for (int r = 0; r < rows; r++) {
        if (part.l[r] == -1.0f) continue;
        const float m = into.m[r] > part.m[r] ? into.m[r] : part.m[r];
        const float a = exp_one(into.m[r] - m), b = exp_one(part.m[r] - m);
        into.m[r] = m;
        into.l[r] = into.l[r] * a + part.l[r] * b;
        float *to = into.o + size_t(r) * size_t(hd), *from = part.o + size_t(r) * size_t(hd);
        for (int d = 0; d < hd; d += 16) {
            const int n = hd - d;
            store_part(to + d, vfma(load_part(from + d, n), vset(b), vmul(load_part(to + d, n), vset(a))), n);
        }
    }
}

static void begin_merge(Partial p, int rows, int hd) {
    for (int r = 0; r < rows; r++) {
        p.m[r] = -INFINITY;
        p.l[r] = 0.0f;
    }
    std::memset(p.o, 0, size_t(rows) * size_t(hd) * sizeof(float));
}

static void finish_item(const AttentionArgs& a, const Item& item, const Partial& p) {
    const int hd = a.head_dim, group = item.heads;
    for (int r = 0; r < item.rows(); r++) {
        float* out = a.out + (size_t(item.first + r / group) * size_t(a.num_heads) + size_t(item.head + r % group)) * size_t(hd);
        const float* from = p.o + size_t(r) * size_t(hd);
        float sum = p.l[r];
        if (a.sinks) sum += exp_one(a.sinks[item.head + r % group] - p.m[r]);
        for (int d = 0; d < hd; d += 16) store_part(out + d, vdiv(load_part(from + d, hd - d), vset(sum)), hd - d);
    }
}

static void gather_queries(const AttentionArgs& a, const Item& item, float* q) {
    const int hd = a.head_dim, group = item.heads;
    for (int r = 0; r < item.rows(); r++)
        std::memcpy(q + size_t(r) * size_t(hd),
                    a.qkv + size_t(item.first + r / group) * size_t(a.qkv_width) + size_t(item.head + r % group) * size_t(hd),
                    size_t(hd) * sizeof(float));
}

TM_INLINE void span_range(const AttentionArgs& a, const Item& item, int& from, int& to) {
    const int pos = a.positions[item.first];
    from = window_start(a, pos) / kSplit;
    to = (pos + item.tokens - 1) / kSplit + 1;
}

template <DType D>
static void attention_as(const AttentionArgs& a, Thread& thread) {
    const int hd = a.head_dim, group = a.num_heads / a.num_kv_heads, num_reqs = *a.num_reqs;
    const int per_item = kQueryRows / group > 0 ? kQueryRows / group : 1;
    const size_t part_floats = Partial::floats(hd);
    const size_t mine = size_t(kQueryRows) * size_t(hd) + size_t(kQueryRows) * kSplit + 2 * part_floats;
    float* q = a.scratch + size_t(thread.index) * mine;
    float* scores = q + size_t(kQueryRows) * size_t(hd);
    Partial part(scores + kQueryRows * kSplit), total(scores + kQueryRows * kSplit + part_floats);
    float* shared = a.scratch + size_t(thread.count) * mine;

    int items = 0, pieces = 0;  // pieces: items times spans
    auto each = [&](auto&& visit) {
        for (int r = 0; r < num_reqs; r++)
            for (int t = a.query_start[r]; t < a.query_start[r + 1]; t += per_item) {
                const int left = a.query_start[r + 1] - t;
                for (int h = 0; h < a.num_kv_heads; h++)
                    for (int g = 0; g < group; g += kQueryRows)
                        if (!visit(Item{r, t, left < per_item ? left : per_item, h, h * group + g,
                                        group - g < kQueryRows ? group - g : kQueryRows}))
                            return;
            }
    };
    each([&](const Item& item) {
        int from, to;
        span_range(a, item, from, to);
        items++;
        pieces += to - from;
        return true;
    });
    const bool split = items < 2 * thread.count && pieces > items &&
                       size_t(thread.count) * mine + size_t(pieces) * part_floats <= a.scratch_floats;
    if (!split) {
        int wanted = thread.next(), i = 0;
        each([&](const Item& item) {
            if (i++ < wanted) return true;
            int from, to;
            span_range(a, item, from, to);
            gather_queries(a, item, q);
            begin_merge(total, item.rows(), hd);
            for (int s = from; s < to; s++) {
                attend_span<D>(a, item, q, s, scores, part);
                merge(total, part, item.rows(), hd);
            }
            finish_item(a, item, total);
            wanted = thread.next();
            return wanted < items;
        });
        return;
    }
    int wanted = thread.next(), i = 0;
    each([&](const Item& item) {
        int from, to;
        span_range(a, item, from, to);
        bool gathered = false;
        for (int s = from; s < to; s++, i++) {
            if (i < wanted) continue;
            if (!gathered) gather_queries(a, item, q);
            gathered = true;
            attend_span<D>(a, item, q, s, scores, Partial(shared + size_t(i) * part_floats));
            wanted = thread.next();
        }
        return wanted < pieces;
    });
    thread.barrier();
    i = 0;
    int number = 0;
    each([&](const Item& item) {
        int from, to;
        span_range(a, item, from, to);
        if (number++ % thread.count == thread.index) {
            begin_merge(total, item.rows(), hd);
            for (int s = from; s < to; s++) merge(total, Partial(shared + size_t(i + s - from) * part_floats), item.rows(), hd);
            finish_item(a, item, total);
        }
        i += to - from;
        return true;
    });
}

void attention(const AttentionArgs& a, Thread& thread) {
    switch (a.cache.dtype) {
        case DType::F32: return attention_as<DType::F32>(a, thread);
        case DType::F16: return attention_as<DType::F16>(a, thread);
        case DType::I8: return attention_as<DType::I8>(a, thread);
        default: return attention_as<DType::BF16>(a, thread);
    }
}

}  // namespace mill::TM_ISA
