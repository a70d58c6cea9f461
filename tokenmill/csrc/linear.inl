// Matrix product: prologue (norm or activation, then int8 quantisation) and tiles of 16 rows times blocks of tokens.
//
// The value of one output is one chain of fused multiply-adds over K in ascending order (per group of 32 for
// quantised weights, whose sums within a group are exact integers). It does not depend on how many tokens share the
// call, nor on the threads.

TM_INLINE V activate(Act act, V x) {
    switch (act) {
        case Act::Silu:
            return vdiv(x, vadd(vset(1.0f), vexp(vsub(vset(0.0f), x))));
        case Act::GeluTanh: {  // x * (1 + tanh(u)) / 2 = x / (1 + exp(-2u))
            V cube = vmul(vmul(x, x), x);
            V u = vmul(vset(0.79788456080286535588f), vfma(cube, vset(0.044715f), x));
            return vdiv(x, vadd(vset(1.0f), vexp(vmul(vset(-2.0f), u))));
        }
        case Act::Gelu: {
            alignas(64) float t[16];
            vstore(t, x);
            for (float& v : t) v = 0.5f * v * (1.0f + erff(v * 0.70710678118654752440f));
            return vload(t);
        }
        default:
            return x;
    }
}

// Rows narrower than a vector, or their tails, go through a padded copy, so the arithmetic is the same.
TM_INLINE V load_part(const float* p, int n) {
    if (n >= 16) return vload(p);
    alignas(64) float t[16] = {};
    for (int i = 0; i < n; i++) t[i] = p[i];
    return vload(t);
}

TM_INLINE void store_part(float* p, V x, int n) {
    if (n >= 16) {
        vstore(p, x);
        return;
    }
    alignas(64) float t[16];
    vstore(t, x);
    for (int i = 0; i < n; i++) p[i] = t[i];
}

TM_INLINE float inverse_rms(const float* x, int n, float eps) {
    V sum = vset(0.0f);
    for (int i = 0; i < n; i += 16) {
        V v = load_part(x + i, n - i);
        sum = vfma(v, v, sum);
    }
    return 1.0f / std::sqrt(vsum(sum) / float(n) + eps);
}

static void norm_row(const float* x, const float* weight, float eps, int n, float* out) {
    V inv = vset(inverse_rms(x, n, eps));
    for (int i = 0; i < n; i += 16)
        store_part(out + i, vmul(vmul(load_part(x + i, n - i), inv), load_part(weight + i, n - i)), n - i);
}

static void act_row(const float* x, Act act, int n, float* out) {
    for (int i = 0; i < n; i += 16)
        store_part(out + i, vmul(activate(act, load_part(x + i, n - i)), load_part(x + n + i, n - i)), n - i);
}

static void quantise_row(const float* x, int n, int8_t* q, float* scale, float* scaled_sum, int32_t* sum) {
    for (int g = 0; g < n / kGroup; g++) {
        V a = vload(x + g * kGroup), b = vload(x + g * kGroup + 16);
        float s = vmaximum(vmax(vabs(a), vabs(b))) / 127.0f;
        if (std::isnan(vsum(vadd(a, b)))) s = NAN;  // a maximum may lose a NaN; the scale carries it on
        scale[g] = s;
        int32_t total = 0;
        for (int h = 0; h < 2; h++) {
            V v = h ? b : a;
            I r = iset(0);
            if (s != 0.0f) r = vtoint(vmin(vset(127.0f), vmax(vset(-127.0f), vdiv(v, vset(s)))));
            istore8(q + g * kGroup + h * 16, r);
            int32_t t = 0;
            for (int i = 0; i < 16; i++) t += q[g * kGroup + h * 16 + i];
            sum[2 * g + h] = t;
            total += t;
        }
        scaled_sum[g] = s * float(total);
    }
}

TM_INLINE int32_t quad_of(const int8_t* x) {
    int32_t v;
    std::memcpy(&v, x, 4);
    return v;
}

// A tile of 4, 5 or 6 bits with every integer in a byte of its own, laid out as 8 bits are. Many tokens share the cost.
template <int BITS>
static void spread_tile(const uint8_t* w, int groups, uint8_t* out) {
    constexpr size_t kBytes = BITS == 6 ? 384 : BITS == 5 ? 320 : 256;
    for (int g = 0; g < groups; g++, w += kBytes, out += 512) {
        for (int i = 0; i < 256; i++) {
            out[i] = w[i] & 15;
            out[256 + i] = w[i] >> 4;
        }
        if constexpr (BITS == 5 || BITS == 6)
            for (int j = 0; j < 8; j++)
                for (int r = 0; r < 16; r++) {
                    uint32_t high, v;
                    std::memcpy(&high, w + 256 + (BITS == 6 && j >= 4 ? 64 : 0) + 4 * r, 4);
                    std::memcpy(&v, out + 64 * j + 4 * r, 4);
                    v |= BITS == 5 ? (high >> j & 0x01010101u) << 4 : (high >> (2 * (j & 3)) & 0x03030303u) << 4;
                    std::memcpy(out + 64 * j + 4 * r, &v, 4);
                }
    }
}

// dot[t] (columns 0..15 if HALF, else 0..31) and dot2[t] (columns 16..31 if HALF) += exact integer sums of one group.
// SPREAD: the weights come from spread_tile.
template <int BITS, bool HALF, bool SPREAD, int T>
TM_INLINE void group_dot(const uint8_t* w, const int8_t* x, size_t ldx, I* dot, I* dot2) {
#if TM_AVX512
    const __m512i low = _mm512_set1_epi8(15);
    __m512i hi0 = _mm512_setzero_si512(), hi1 = hi0;
    if constexpr (!SPREAD && BITS >= 5 && BITS < 8) hi0 = _mm512_loadu_si512(w + 256);
    if constexpr (!SPREAD && BITS == 6) hi1 = _mm512_loadu_si512(w + 320);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        __m512i v;
        if constexpr (SPREAD) {
            v = _mm512_loadu_si512(w + 64 * j);
        } else if constexpr (BITS == 8) {
            v = _mm512_xor_si512(_mm512_loadu_si512(w + 64 * j), _mm512_set1_epi8(char(0x80)));
        } else {
            v = _mm512_loadu_si512(w + 64 * (j & 3));
            v = j < 4 ? _mm512_and_si512(v, low) : _mm512_and_si512(_mm512_srli_epi32(v, 4), low);
            if constexpr (BITS == 5) {
                __m512i h = j <= 4 ? _mm512_slli_epi32(hi0, unsigned(j <= 4 ? 4 - j : 0)) : _mm512_srli_epi32(hi0, unsigned(j > 4 ? j - 4 : 0));
                v = _mm512_or_si512(v, _mm512_and_si512(h, _mm512_set1_epi8(0x10)));
            }
            if constexpr (BITS == 6) {
                int s = 4 - 2 * (j & 3);
                __m512i h = j < 4 ? hi0 : hi1;
                h = s >= 0 ? _mm512_slli_epi32(h, unsigned(s >= 0 ? s : 0)) : _mm512_srli_epi32(h, unsigned(s < 0 ? -s : 0));
                v = _mm512_or_si512(v, _mm512_and_si512(h, _mm512_set1_epi8(0x30)));
            }
        }
        for (int t = 0; t < T; t++) {
            __m512i b = _mm512_set1_epi32(quad_of(x + size_t(t) * ldx + 4 * j));
            I& d = HALF && j >= 4 ? dot2[t] : dot[t];
            d.v = _mm512_dpbusd_epi32(d.v, v, b);
        }
    }
#elif TM_AVX2
    // vpmaddubsw adds pairs into 16 bits; `kept` quads fit before they must be widened.
    constexpr int kept = BITS == 8 ? 1 : BITS == 6 ? 2 : BITS == 5 || HALF ? 4 : 8;
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i sa[T], sb[T];
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        __m256i va, vb;
        if constexpr (SPREAD || BITS == 8) {
            va = _mm256_loadu_si256((const __m256i*)(w + 64 * j));
            vb = _mm256_loadu_si256((const __m256i*)(w + 64 * j + 32));
        } else {
            va = _mm256_loadu_si256((const __m256i*)(w + 64 * (j & 3)));
            vb = _mm256_loadu_si256((const __m256i*)(w + 64 * (j & 3) + 32));
            if (j >= 4) {
                va = _mm256_srli_epi32(va, 4);
                vb = _mm256_srli_epi32(vb, 4);
            }
            va = _mm256_and_si256(va, low);
            vb = _mm256_and_si256(vb, low);
            if constexpr (BITS == 5 || BITS == 6) {
                const uint8_t* h = w + 256 + (BITS == 6 && j >= 4 ? 64 : 0);
                const __m256i bits = _mm256_set1_epi8(BITS == 5 ? 0x10 : 0x30);
                int s = BITS == 5 ? 4 - j : 4 - 2 * (j & 3);
                __m256i ha = _mm256_loadu_si256((const __m256i*)h), hb = _mm256_loadu_si256((const __m256i*)(h + 32));
                ha = s >= 0 ? _mm256_slli_epi32(ha, s >= 0 ? s : 0) : _mm256_srli_epi32(ha, s < 0 ? -s : 0);
                hb = s >= 0 ? _mm256_slli_epi32(hb, s >= 0 ? s : 0) : _mm256_srli_epi32(hb, s < 0 ? -s : 0);
                va = _mm256_or_si256(va, _mm256_and_si256(ha, bits));
                vb = _mm256_or_si256(vb, _mm256_and_si256(hb, bits));
            }
        }
        for (int t = 0; t < T; t++) {
            __m256i b = _mm256_set1_epi32(quad_of(x + size_t(t) * ldx + 4 * j)), pa, pb;
            if constexpr (BITS == 8) {
                pa = _mm256_maddubs_epi16(_mm256_abs_epi8(va), _mm256_sign_epi8(b, va));
                pb = _mm256_maddubs_epi16(_mm256_abs_epi8(vb), _mm256_sign_epi8(b, vb));
            } else {
                pa = _mm256_maddubs_epi16(va, b);
                pb = _mm256_maddubs_epi16(vb, b);
            }
            sa[t] = j % kept == 0 ? pa : _mm256_add_epi16(sa[t], pa);
            sb[t] = j % kept == 0 ? pb : _mm256_add_epi16(sb[t], pb);
            // Keeps the sums in two registers; left alone, the compiler computes all products first and spills them.
            asm volatile("" : "+x"(sa[t]), "+x"(sb[t]));
            if (j % kept == kept - 1) {
                I& d = HALF && j >= 4 ? dot2[t] : dot[t];
                d.a = _mm256_add_epi32(d.a, _mm256_madd_epi16(sa[t], ones));
                d.b = _mm256_add_epi32(d.b, _mm256_madd_epi16(sb[t], ones));
            }
        }
    }
#else
    for (int j = 0; j < 8; j++)
        for (int r = 0; r < 16; r++)
            for (int i = 0; i < 4; i++) {
                int v;
                if (SPREAD) {
                    v = w[64 * j + 4 * r + i];
                } else if (BITS == 8) {
                    v = int8_t(w[64 * j + 4 * r + i]);
                } else {
                    v = w[64 * (j & 3) + 4 * r + i];
                    v = j < 4 ? v & 15 : v >> 4;
                    if (BITS == 5 || BITS == 6) {
                        uint32_t h;
                        std::memcpy(&h, w + 256 + (BITS == 6 && j >= 4 ? 64 : 0) + 4 * r, 4);
                        v |= BITS == 5 ? int(h >> (8 * i + j) & 1) << 4 : int(h >> (8 * i + 2 * (j & 3)) & 3) << 4;
                    }
                }
                for (int t = 0; t < T; t++) {
                    I& d = HALF && j >= 4 ? dot2[t] : dot[t];
                    d.v[r] += v * x[size_t(t) * ldx + size_t(4 * j + i)];
                }
            }
#endif
}

// What the kernel's unsigned reading of the weights adds to each one.
template <int BITS>
TM_INLINE int reading_offset(int offset) {
#if TM_AVX512
    return BITS == 8 ? offset + 128 : offset;
#else
    return offset;
#endif
}

// Asks for memory that will be read soon. Few enough instructions fit into the time of one cache line that the hardware's
// own prefetching does not keep a core's memory queue full.
template <int LINES>
TM_INLINE void prefetch(const uint8_t* p) {
    for (int i = 0; i < LINES; i++) __builtin_prefetch(p + 64 * i, 0, 2);
}

// ahead: also prefetch what lies so many bytes further on (the next tile); 0: do not.
template <int BITS, bool HALF, bool TWO, bool MIN, bool SPREAD, int T>
TM_INLINE void quant_tile(const uint8_t* w, const uint8_t* s, int offset, int cols, size_t ahead, const Scratch& a, int t0,
                          V* acc) {
    constexpr size_t kBytes = SPREAD || BITS == 8 ? 512 : BITS == 6 ? 384 : BITS == 5 ? 320 : 256;
    const int groups = cols / kGroup;
    const size_t ldx = size_t(cols), ldg = size_t(groups);
    const int8_t* x = a.q + size_t(t0) * ldx;
    const float *sx = a.scale + size_t(t0) * ldg, *xs = a.scaled_sum + size_t(t0) * ldg;
    const int32_t* sum = a.sum + size_t(t0) * ldg * 2;
    const int off = -reading_offset<BITS>(offset);
    for (int t = 0; t < T; t++) acc[t] = vset(0.0f);
    if constexpr (!TWO) {
        for (int g = 0; g < groups; g++, w += kBytes, x += kGroup, s += MIN ? 64 : 32) {
            if (ahead) {
                prefetch<kBytes / 64>(w + ahead);
                prefetch<1>(s + ahead);
            }
            I dot[T];
            for (int t = 0; t < T; t++) {
                const int32_t* q = sum + size_t(t) * ldg * 2 + 2 * g;
                dot[t] = iset(off * (q[0] + q[1]));
            }
            group_dot<BITS, false, SPREAD, T>(w, x, ldx, dot, dot);
            V scale = vhalf((const uint16_t*)s);
            for (int t = 0; t < T; t++)
                acc[t] = vfma(vmul(scale, vset(sx[size_t(t) * ldg + size_t(g)])), vtofloat(dot[t]), acc[t]);
            if constexpr (MIN) {
                V minimum = vhalf((const uint16_t*)(s + 32));
                for (int t = 0; t < T; t++) acc[t] = vfma(minimum, vset(xs[size_t(t) * ldg + size_t(g)]), acc[t]);
            }
        }
    } else {
        constexpr size_t kLane = HALF ? 32 : 16;
        for (int b = 0; b < cols / kSuper; b++) {
            V d = vhalf((const uint16_t*)s), dmin = vset(0.0f), sums[T], mins[T];
            s += 32;
            if constexpr (MIN) {
                dmin = vhalf((const uint16_t*)s);
                s += 32;
            }
            for (int t = 0; t < T; t++) sums[t] = mins[t] = vset(0.0f);
            for (int k = 0; k < 8; k++, w += kBytes, x += kGroup) {
                const int g = 8 * b + k;
                if (ahead) {
                    prefetch<kBytes / 64>(w + ahead);
                    prefetch<1>(s + ahead);
                }
                I dot[T], dot2[T];
                for (int t = 0; t < T; t++) {
                    const int32_t* q = sum + size_t(t) * ldg * 2 + 2 * g;
                    dot[t] = iset(off * (HALF ? q[0] : q[0] + q[1]));
                    if constexpr (HALF) dot2[t] = iset(off * q[1]);
                }
                group_dot<BITS, HALF, SPREAD, T>(w, x, ldx, dot, dot2);
                V s0 = vtofloat(ifrom8((const int8_t*)s)), s1 = s0;
                if constexpr (HALF) s1 = vtofloat(ifrom8((const int8_t*)s + 16));
                s += kLane;
                for (int t = 0; t < T; t++) {
                    V f = vmul(vtofloat(dot[t]), s0);
                    if constexpr (HALF) f = vfma(vtofloat(dot2[t]), s1, f);
                    sums[t] = vfma(f, vset(sx[size_t(t) * ldg + size_t(g)]), sums[t]);
                }
                if constexpr (MIN) {
                    V m0 = vtofloat(ifromu8(s)), m1 = m0;
                    if constexpr (HALF) m1 = vtofloat(ifromu8(s + 16));
                    s += kLane;
                    for (int t = 0; t < T; t++) {
                        if constexpr (HALF) {
                            const int32_t* q = sum + size_t(t) * ldg * 2 + 2 * g;
                            float scale = sx[size_t(t) * ldg + size_t(g)];
                            mins[t] = vfma(m0, vset(scale * float(q[0])), mins[t]);
                            mins[t] = vfma(m1, vset(scale * float(q[1])), mins[t]);
                        } else {
                            mins[t] = vfma(m0, vset(xs[size_t(t) * ldg + size_t(g)]), mins[t]);
                        }
                    }
                }
            }
            for (int t = 0; t < T; t++) {
                acc[t] = vfma(d, sums[t], acc[t]);
                if constexpr (MIN) acc[t] = vfnma(dmin, mins[t], acc[t]);
            }
        }
    }
}

template <DType D>
TM_INLINE V velement(const uint8_t* p) {
    if constexpr (D == DType::F32) return vload((const float*)p);
    if constexpr (D == DType::F16) return vhalf((const uint16_t*)p);
    return vbf16((const uint16_t*)p);
}

// N neighbouring tiles at once: more independent chains to hide the latency of the multiply-adds.
template <DType D, int N, int T>
TM_INLINE void dense_tiles(const uint8_t* w, size_t tile_bytes, int cols, const float* x, V (*acc)[N]) {
    constexpr size_t kStep = 16 * (D == DType::F32 ? 4 : 2);
    for (int t = 0; t < T; t++)
        for (int n = 0; n < N; n++) acc[t][n] = vset(0.0f);
    for (int k = 0; k < cols; k++, w += kStep) {
        V v[N];
        for (int n = 0; n < N; n++) v[n] = velement<D>(w + size_t(n) * tile_bytes);
        for (int t = 0; t < T; t++) {
            V b = vset(x[size_t(t) * size_t(cols) + size_t(k)]);
            for (int n = 0; n < N; n++) acc[t][n] = vfma(v[n], b, acc[t][n]);
        }
    }
}

struct Output {
    const LinearArgs& a;
    int rows_out;
    TM_INLINE void write(const Segment& s, int tile, int t, V y) const {
        const int row = tile * kTileRows, n = s.rows - row, col = s.out_offset + row;
        if (a.bias) y = vadd(y, load_part(a.bias + col, n));
        if (a.softcap > 0.0f) {
            V u = vdiv(y, vset(a.softcap));  // tanh(u) = 1 - 2 / (exp(2u) + 1)
            V e = vexp(vmul(vset(2.0f), u));
            y = vmul(vset(a.softcap), vsub(vset(1.0f), vdiv(vset(2.0f), vadd(e, vset(1.0f)))));
        }
        float* out = a.out + size_t(t) * size_t(rows_out) + col;
        if (a.accumulate) y = vadd(load_part(out, n), y);
        store_part(out, y, n);
    }
};

// One tile of a segment: its integers (spread out or as packed) and its scales.
struct QuantTile {
    const Segment& segment;
    int tile, cols;
    const uint8_t *integers, *scales;
    size_t ahead;  // bytes to the next tile, while that is still to be asked for
};

template <int BITS, bool HALF, bool TWO, bool MIN, bool SPREAD, int T>
static void quant_block(QuantTile& q, const Scratch& x, int t0, const Output& out) {
    V acc[T];
    quant_tile<BITS, HALF, TWO, MIN, SPREAD, T>(q.integers, q.scales, q.segment.format->offset, q.cols, q.ahead, x, t0, acc);
    q.ahead = 0;
    for (int t = 0; t < T; t++) out.write(q.segment, q.tile, t0 + t, acc[t]);
}

#if TM_AVX512
constexpr int kTokens = 8;
#else
constexpr int kTokens = 4;
#endif
constexpr int kSpreadFrom = 48;  // tokens from which spreading a tile out pays

template <int BITS, bool HALF, bool TWO, bool MIN>
static void quant_tokens(const Segment& s, int tile, int cols, const Scratch& x, int begin, int end, const Output& out) {
    const Format& f = *s.format;
    const uint8_t* w = s.data + size_t(tile) * f.tile_bytes(cols);
    QuantTile q{s, tile, cols, w, w + f.quant_bytes(cols), f.tile_bytes(cols)};
    int t = begin;
    if constexpr (BITS < 8) {
        if (end - begin >= kSpreadFrom) {
            spread_tile<BITS>(w, cols / kGroup, x.bytes);
            q.integers = x.bytes;
            q.ahead = 0;
            for (; t + kTokens <= end; t += kTokens) quant_block<BITS, HALF, TWO, MIN, true, kTokens>(q, x, t, out);
            q.integers = w;
        }
    }
    for (; t + kTokens <= end; t += kTokens) quant_block<BITS, HALF, TWO, MIN, false, kTokens>(q, x, t, out);
    if constexpr (kTokens > 4)
        for (; t + 4 <= end; t += 4) quant_block<BITS, HALF, TWO, MIN, false, 4>(q, x, t, out);
    for (; t + 2 <= end; t += 2) quant_block<BITS, HALF, TWO, MIN, false, 2>(q, x, t, out);
    for (; t < end; t++) quant_block<BITS, HALF, TWO, MIN, false, 1>(q, x, t, out);
}

template <DType D, int N, int T>
static void dense_block(const Segment& s, int tile, int cols, const float* x, int t0, const Output& out) {
    const size_t bytes = s.format->tile_bytes(cols);
    V acc[T][N];
    dense_tiles<D, N, T>(s.data + size_t(tile) * bytes, bytes, cols, x + size_t(t0) * size_t(cols), acc);
    for (int t = 0; t < T; t++)
        for (int n = 0; n < N; n++) out.write(s, tile + n, t0 + t, acc[t][n]);
}

template <DType D, int N>
static void dense_tokens(const Segment& s, int tile, int cols, const float* x, int begin, int end, const Output& out) {
    constexpr int T = kTokens == 8 ? 8 : N == 1 ? 6 : 3;
    int t = begin;
    for (; t + T <= end; t += T) dense_block<D, N, T>(s, tile, cols, x, t, out);
    if constexpr (T > 4)
        for (; t + 4 <= end; t += 4) dense_block<D, N, 4>(s, tile, cols, x, t, out);
    for (; t + 2 <= end; t += 2) dense_block<D, N, 2>(s, tile, cols, x, t, out);
    for (; t < end; t++) dense_block<D, N, 1>(s, tile, cols, x, t, out);
}

constexpr int kDenseTiles = 2;  // tiles that the dense kernel takes together

static void tile_tokens(const Segment& s, int tile, int tiles, int cols, const Scratch& scratch, const float* x,
                        int begin, int end, const Output& out) {
    const Format& f = *s.format;
    if (f.bits == 0) {
        auto run = [&](auto dtype) {
            constexpr DType D = decltype(dtype)::value;
            int i = tile;
            for (; i + kDenseTiles <= tile + tiles; i += kDenseTiles)
                dense_tokens<D, kDenseTiles>(s, i, cols, x, begin, end, out);
            for (; i < tile + tiles; i++) dense_tokens<D, 1>(s, i, cols, x, begin, end, out);
        };
        if (f.dtype == DType::F32) run(std::integral_constant<DType, DType::F32>{});
        else if (f.dtype == DType::F16) run(std::integral_constant<DType, DType::F16>{});
        else run(std::integral_constant<DType, DType::BF16>{});
        return;
    }
    for (int i = tile; i < tile + tiles; i++) {
#define TM_CASE(B, H, W, M)                                                      \
    if (f.bits == B && f.half_group == H && f.two_level == W && f.has_min == M) \
    quant_tokens<B, H, W, M>(s, i, cols, scratch, begin, end, out)
        TM_CASE(4, false, false, false);       // Q4_0
        else TM_CASE(4, false, false, true);   // Q4_1
        else TM_CASE(5, false, false, false);  // Q5_0
        else TM_CASE(5, false, false, true);   // Q5_1
        else TM_CASE(8, false, false, false);  // Q8_0, IQ4_NL
        else TM_CASE(4, false, true, true);    // Q4_K
        else TM_CASE(5, false, true, true);    // Q5_K
        else TM_CASE(6, true, true, false);    // Q6_K
        else TM_CASE(4, true, true, false);    // Q3_K
        else TM_CASE(4, true, true, true);     // Q2_K
        else TM_CASE(8, false, true, false);   // IQ4_XS
#undef TM_CASE
    }
}

static void linear(const LinearArgs& a, Thread& thread) {
    const int n = *a.rows, cols = a.weight->cols;
    const Matrix& w = *a.weight;
    const size_t width = a.act == Act::None ? size_t(cols) : 2 * size_t(cols);
    Scratch x = a.scratch;
    x.bytes += size_t(thread.index) * kTileRows * size_t(cols);
    const float* dense_x = a.x;
    const bool rewritten = a.norm || a.act != Act::None || a.row_index;
    auto prologue = [&](int t, const Scratch& to, int slot) {
        const float* row = a.x + size_t(a.row_index ? a.row_index[t] : t) * width;
        float* fp = to.x + size_t(slot) * size_t(cols);
        if (a.norm) norm_row(row, a.norm, a.eps, cols, fp);
        else if (a.act != Act::None) act_row(row, a.act, cols, fp);
        else if (a.row_index) std::memcpy(fp, row, size_t(cols) * sizeof(float));
        if (w.any_quantised) {
            const size_t groups = size_t(cols / kGroup);
            quantise_row(rewritten ? fp : row, cols, to.q + size_t(slot) * size_t(cols), to.scale + size_t(slot) * groups,
                         to.scaled_sum + size_t(slot) * groups, to.sum + size_t(slot) * groups * 2);
        }
    };
    if (rewritten || w.any_quantised) {
        int begin, end;
        thread.share(n, begin, end);
        for (int t = begin; t < end; t++) prologue(t, x, t);
        thread.barrier();
        if (rewritten) dense_x = x.x;
    }
    // A piece is a few tiles times a span of tokens; tokens vary fastest so that a tile stays in cache.
    constexpr int kSpan = 64 * kTokens;
    const int spans = (n + kSpan - 1) / kSpan;
    const int even = w.tiles / (thread.count * 8), most = even < 1 ? 1 : even > 8 ? 8 : even;
    const Output out{a, w.rows};
    if (spans == 0) return;
    for (int first, last; thread.take(w.tiles, most, first, last);) {
        for (const Segment& s : w.segments) {
            const int lo = first > s.first_tile ? first : s.first_tile;
            const int hi = last < s.first_tile + s.tiles ? last : s.first_tile + s.tiles;
            if (lo >= hi) continue;
            for (int span = 0; span < spans; span++) {
                const int end = (span + 1) * kSpan < n ? (span + 1) * kSpan : n;
                tile_tokens(s, lo - s.first_tile, hi - lo, cols, x, dense_x, span * kSpan, end, out);
            }
        }
    }
}

static void rms_norm(const RmsNormArgs& a, Thread& thread) {
    int begin, end;
    thread.share(*a.rows, begin, end);
    for (int t = begin; t < end; t++) {
        const float* x = a.x + size_t(t) * size_t(a.width);
        float* out = a.out + size_t(t) * size_t(a.width);
        V inv = vset(inverse_rms(x, a.width, a.eps));
        for (int i = 0; i < a.width; i += 16) {
            const int n = a.width - i;
            V y = vmul(vmul(load_part(x + i, n), inv), load_part(a.weight + i, n));
            if (a.accumulate) y = vadd(load_part(out + i, n), y);
            store_part(out + i, y, n);
        }
    }
}

// One weight, rounded as the checkpoint's own dequantisation rounds it.
static float weight_at(const Format& f, const uint8_t* tile, int cols, int r, int k) {
    if (f.bits == 0) {
        const size_t i = size_t(k) * kTileRows + size_t(r);
        if (f.dtype == DType::F32) return ((const float*)tile)[i];
        const uint16_t h = ((const uint16_t*)tile)[i];
        return f.dtype == DType::F16 ? half_to_float(h) : bf16_to_float(h);
    }
    const int g = k / kGroup, c = k % kGroup, j = c / 4, i = c % 4;
    const uint8_t* w = tile + size_t(g) * f.group_bytes();
    int q;
    if (f.bits == 8) {
        q = int8_t(w[64 * j + 4 * r + i]);
    } else {
        q = w[64 * (j & 3) + 4 * r + i];
        q = j < 4 ? q & 15 : q >> 4;
        if (f.bits >= 5) {
            uint32_t h;
            std::memcpy(&h, w + 256 + (f.bits == 6 && j >= 4 ? 64 : 0) + 4 * r, 4);
            q |= f.bits == 5 ? int(h >> (8 * i + j) & 1) << 4 : int(h >> (8 * i + 2 * (j & 3)) & 3) << 4;
        }
    }
    q -= f.offset;
    const uint8_t* s = tile + f.quant_bytes(cols);
    auto half_at = [&](size_t at) {
        uint16_t h;
        std::memcpy(&h, s + at + 2 * size_t(r), 2);
        return half_to_float(h);
    };
    const size_t per = f.has_min ? 2 : 1;
    if (!f.two_level) {
        const size_t at = size_t(g) * 32 * per;
        float v = half_at(at) * float(q);
        return f.has_min ? v + half_at(at + 32) : v;
    }
    const size_t lane = f.half_group ? 32 : 16;
    const size_t super = size_t(g / 8) * (32 * per + 8 * lane * per);
    const size_t level = super + 32 * per + size_t(g % 8) * lane * per + size_t(f.half_group ? c / 16 * 16 : 0) + size_t(r);
    float v = half_at(super) * float(int8_t(s[level])) * float(q);
    return f.has_min ? v - half_at(super + 32) * float(s[level + lane]) : v;
}

static void embed(const EmbedArgs& a, Thread& thread) {
    const Matrix& w = *a.weight;
    int begin, end;
    thread.share(*a.rows, begin, end);
    for (int t = begin; t < end; t++) {
        const int id = a.token_ids[t];
        for (const Segment& s : w.segments) {
            if (id < s.out_offset || id >= s.out_offset + s.rows) continue;
            const int row = id - s.out_offset;
            const uint8_t* tile = s.data + size_t(row / kTileRows) * s.format->tile_bytes(w.cols);
            for (int k = 0; k < w.cols; k++)
                a.out[size_t(t) * size_t(w.cols) + size_t(k)] =
                    weight_at(*s.format, tile, w.cols, row % kTileRows, k) * a.scale;
        }
    }
}

static void dense(const DenseArgs& a, Thread& thread) {
    const Matrix& w = *a.weight;
    for (const Segment& s : w.segments) {
        int begin, end;
        thread.share(s.rows, begin, end);
        for (int row = begin; row < end; row++) {
            const uint8_t* tile = s.data + size_t(row / kTileRows) * s.format->tile_bytes(w.cols);
            for (int k = 0; k < w.cols; k++)
                a.out[size_t(s.out_offset + row) * size_t(w.cols) + size_t(k)] =
                    weight_at(*s.format, tile, w.cols, row % kTileRows, k);
        }
    }
}
