// Matrix product: prologue (norm or activation, then int8 quantisation) and tiles of 16 rows times blocks of tokens.
//
// The value of one output is one chain of fused multiply-adds over K in ascending order (per group of 32 for
// quantised weights, whose sums within a group are exact integers). It does not depend on how many tokens share the
// call, nor on the threads.

// Tokens are worked on in blocks of kTokens, and what is left over in blocks of half the size, a quarter, and so on.
#if TM_AVX512
constexpr int kTokens = 8;
#else
constexpr int kTokens = 4;
#endif

struct Block {
    int first, size;
};

TM_INLINE Block block_of(int t, int n) {
    Block b{t / kTokens * kTokens, kTokens};
    while (b.first + b.size > n || t >= b.first + b.size) {
        if (b.first + b.size <= n) b.first += b.size;
        else b.size /= 2;
    }
    return b;
}

// One row of n to int8 in groups of 32, as token `slot` of a block of `size` tokens; q, scale and the rest are the block's.
static void quantise_row(const float* x, int n, int size, int slot, int8_t* q, float* scale, float* scaled_sum, int32_t* sum) {
    q += slot * kGroup;
    for (int g = 0; g < n / kGroup; g++, q += size * kGroup) {
        V a = vload(x + g * kGroup), b = vload(x + g * kGroup + 16);
        float s = vmaximum(vmax(vabs(a), vabs(b))) / 127.0f;
        if (any_nan(vadd(a, b))) s = NAN;  // a maximum may lose a NaN; the scale carries it on
        if (s < FLT_MIN) s = 0.0f;         // its inverse may be infinite
        const V inverse = vset(s == 0.0f ? 0.0f : 1.0f / s);
        I r[2] = {vtoint(vmin(vset(127.0f), vmax(vset(-127.0f), vmul(a, inverse)))),
                  vtoint(vmin(vset(127.0f), vmax(vset(-127.0f), vmul(b, inverse))))};
        istore8(q, r[0]);
        istore8(q + 16, r[1]);
        const int at = g * size + slot, first = isum(r[0]), second = isum(r[1]);
        scale[at] = s;
        scaled_sum[at] = s * float(first + second);
        sum[3 * g * size + slot] = -(first + second);
        sum[(3 * g + 1) * size + slot] = -first;
        sum[(3 * g + 2) * size + slot] = -second;
    }
}

TM_INLINE int32_t quad_of(const int8_t* x) {
    int32_t v;
    std::memcpy(&v, x, 4);
    return v;
}

// A tile of 4, 5 or 6 bits with every integer in a byte of its own, laid out as 8 bits are. Many tokens share the cost.
template <int BITS>
static void spread_tile(const Format& f, const uint8_t* tile, int groups, uint8_t* out) {
    for (int g = 0; g < groups; g++, out += 512) {
        const uint8_t* w = tile + f.group_at(g);
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

// dot[n][t] (columns 0..15 if HALF, else 0..31) and dot2[n][t] (columns 16..31 if HALF) += exact integer sums of one group.
// SPREAD: the weights come from spread_tile. w: of each of N tiles; x: [T][32].
template <int BITS, bool HALF, bool SPREAD, int N, int T>
TM_INLINE void group_dot(const uint8_t* const* w, const int8_t* x, I (*dot)[T], I (*dot2)[T]) {
#if TM_AVX512
    const __m512i low = _mm512_set1_epi8(15);
    __m512i hi0[N], hi1[N];
    for (int n = 0; n < N; n++) {
        hi0[n] = hi1[n] = _mm512_setzero_si512();
        if constexpr (!SPREAD && BITS >= 5 && BITS < 8) hi0[n] = _mm512_loadu_si512(w[n] + 256);
        if constexpr (!SPREAD && BITS == 6) hi1[n] = _mm512_loadu_si512(w[n] + 320);
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        __m512i v[N];
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) {
            if constexpr (SPREAD) {
                v[n] = _mm512_loadu_si512(w[n] + 64 * j);
            } else if constexpr (BITS == 8) {
                v[n] = _mm512_xor_si512(_mm512_loadu_si512(w[n] + 64 * j), _mm512_set1_epi8(char(0x80)));
            } else {
                v[n] = _mm512_loadu_si512(w[n] + 64 * (j & 3));
                v[n] = j < 4 ? _mm512_and_si512(v[n], low) : _mm512_and_si512(_mm512_srli_epi32(v[n], 4), low);
                if constexpr (BITS == 5) {
                    __m512i h = j <= 4 ? _mm512_slli_epi32(hi0[n], unsigned(j <= 4 ? 4 - j : 0))
                                       : _mm512_srli_epi32(hi0[n], unsigned(j > 4 ? j - 4 : 0));
                    v[n] = _mm512_or_si512(v[n], _mm512_and_si512(h, _mm512_set1_epi8(0x10)));
                }
                if constexpr (BITS == 6) {
                    int s = 4 - 2 * (j & 3);
                    __m512i h = j < 4 ? hi0[n] : hi1[n];
                    h = s >= 0 ? _mm512_slli_epi32(h, unsigned(s >= 0 ? s : 0)) : _mm512_srli_epi32(h, unsigned(s < 0 ? -s : 0));
                    v[n] = _mm512_or_si512(v[n], _mm512_and_si512(h, _mm512_set1_epi8(0x30)));
                }
            }
        }
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            __m512i b = _mm512_set1_epi32(quad_of(x + 32 * t + 4 * j));
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) {
                I& d = HALF && j >= 4 ? dot2[n][t] : dot[n][t];
                d.v = _mm512_dpbusd_epi32(d.v, v[n], b);
            }
        }
    }
#elif TM_AVX2
    // vpmaddubsw adds pairs into 16 bits; `kept` quads fit before they must be widened.
    [[maybe_unused]] constexpr int kept = BITS == 8 ? 1 : BITS == 6 ? 2 : BITS == 5 || HALF ? 4 : 8;
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    static_assert(N == 1, "there are registers for one tile only");
    __m256i sa[T], sb[T];
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        __m256i va, vb;
        if constexpr (SPREAD || BITS == 8) {
            va = _mm256_loadu_si256((const __m256i*)(w[0] + 64 * j));
            vb = _mm256_loadu_si256((const __m256i*)(w[0] + 64 * j + 32));
        } else {
            va = _mm256_loadu_si256((const __m256i*)(w[0] + 64 * (j & 3)));
            vb = _mm256_loadu_si256((const __m256i*)(w[0] + 64 * (j & 3) + 32));
            if (j >= 4) {
                va = _mm256_srli_epi32(va, 4);
                vb = _mm256_srli_epi32(vb, 4);
            }
            va = _mm256_and_si256(va, low);
            vb = _mm256_and_si256(vb, low);
            if constexpr (BITS == 5 || BITS == 6) {
                const uint8_t* h = w[0] + 256 + (BITS == 6 && j >= 4 ? 64 : 0);
                const __m256i bits = _mm256_set1_epi8(BITS == 5 ? 0x10 : 0x30);
                int s = BITS == 5 ? 4 - j : 4 - 2 * (j & 3);
                __m256i ha = _mm256_loadu_si256((const __m256i*)h), hb = _mm256_loadu_si256((const __m256i*)(h + 32));
                ha = s >= 0 ? _mm256_slli_epi32(ha, s >= 0 ? s : 0) : _mm256_srli_epi32(ha, s < 0 ? -s : 0);
                hb = s >= 0 ? _mm256_slli_epi32(hb, s >= 0 ? s : 0) : _mm256_srli_epi32(hb, s < 0 ? -s : 0);
                va = _mm256_or_si256(va, _mm256_and_si256(ha, bits));
                vb = _mm256_or_si256(vb, _mm256_and_si256(hb, bits));
            }
        }
#if TM_AVXVNNI
        if constexpr (BITS == 8) {
            va = _mm256_xor_si256(va, _mm256_set1_epi8(char(0x80)));
            vb = _mm256_xor_si256(vb, _mm256_set1_epi8(char(0x80)));
        }
#endif
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            __m256i b = _mm256_set1_epi32(quad_of(x + 32 * t + 4 * j));
            I& d = HALF && j >= 4 ? dot2[0][t] : dot[0][t];
#if TM_AVXVNNI
            (void)sa, (void)sb, (void)ones;
            d.a = _mm256_dpbusd_avx_epi32(d.a, va, b);
            d.b = _mm256_dpbusd_avx_epi32(d.b, vb, b);
#else
            __m256i pa, pb;
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
                d.a = _mm256_add_epi32(d.a, _mm256_madd_epi16(sa[t], ones));
                d.b = _mm256_add_epi32(d.b, _mm256_madd_epi16(sb[t], ones));
            }
#endif
        }
    }
#else
    for (int j = 0; j < 8; j++)
        for (int r = 0; r < 16; r++)
            for (int i = 0; i < 4; i++) {
                int v;
                if (SPREAD) {
                    v = w[0][64 * j + 4 * r + i];
                } else if (BITS == 8) {
                    v = int8_t(w[0][64 * j + 4 * r + i]);
                } else {
                    v = w[0][64 * (j & 3) + 4 * r + i];
                    v = j < 4 ? v & 15 : v >> 4;
                    if (BITS == 5 || BITS == 6) {
                        uint32_t h;
                        std::memcpy(&h, w[0] + 256 + (BITS == 6 && j >= 4 ? 64 : 0) + 4 * r, 4);
                        v |= BITS == 5 ? int(h >> (8 * i + j) & 1) << 4 : int(h >> (8 * i + 2 * (j & 3)) & 3) << 4;
                    }
                }
                for (int t = 0; t < T; t++) {
                    I& d = HALF && j >= 4 ? dot2[0][t] : dot[0][t];
                    d.v[r] += v * x[32 * t + 4 * j + i];
                }
            }
#endif
}

// log2 of what a weight's integer is read too large by, or -1 for nothing: the format's offset, and the 128 that turn signed
// bytes into the unsigned ones that VNNI wants.
template <int BITS, bool HALF, bool MIN>
constexpr int excess() {
#if TM_AVX512 || TM_AVXVNNI
    if (BITS == 8) return 7;
#endif
    return MIN || BITS == 8 ? -1 : BITS == 4 && HALF ? 2 : BITS - 1;
}

// Where a sum starts so that the excess is taken out.
template <int EXCESS>
TM_INLINE I start_of(const int32_t* negative_sum) {
    if constexpr (EXCESS < 0) return iset(0);
    else return ishl<EXCESS>(iset(*negative_sum));
}

// Asks for memory that will be read soon. So much arithmetic goes with each cache line that the hardware's own prefetching
// does not keep a core's memory queue full.
template <int LINES>
TM_INLINE void prefetch(const uint8_t* p) {
    for (int i = 0; i < LINES; i++) __builtin_prefetch(p + 64 * i, 0, 2);
}

// What T tokens, from number `slot` on, of a block of SIZE tokens left in the scratch.
struct Tokens {
    const int8_t* q;
    const float *scale, *scaled_sum;
    const int32_t* sum;
    Tokens(const Scratch& s, int cols, int first, int slot)
        : q(s.q + size_t(first) * size_t(cols) + slot * kGroup),
          scale(s.scale + size_t(first) * size_t(cols / kGroup) + slot),
          scaled_sum(s.scaled_sum + size_t(first) * size_t(cols / kGroup) + slot),
          sum(s.sum + 3 * size_t(first) * size_t(cols / kGroup) + slot) {}
};

// N tiles, as packed and, if SPREAD, their integers as spread_tile leaves them, times T tokens out of a block of SIZE.
// ahead: also prefetch what lies so many bytes further on (the next tile); 0: do not.
template <int BITS, bool HALF, bool TWO, bool MIN, bool SPREAD, int N, int T, int SIZE>
TM_INLINE void quant_tile(const uint8_t* const* packed, const uint8_t* const* spread, int cols, size_t ahead, Tokens x,
                          V (*acc)[T]) {
    constexpr size_t kIntegers = BITS == 8 ? 512 : BITS == 6 ? 384 : BITS == 5 ? 320 : 256;
    constexpr size_t kLane = TWO && !HALF ? 16 : 32, kStride = kIntegers + kLane * (MIN ? 2 : 1);
    constexpr int kExcess = excess<BITS, HALF, MIN>();
    const int groups = cols / kGroup;
    const uint8_t *p[N], *w[N];  // this group, and its integers
    for (int n = 0; n < N; n++) {
        p[n] = packed[n];
        w[n] = SPREAD ? spread[n] : p[n];
        for (int t = 0; t < T; t++) acc[n][t] = vset(0.0f);
    }
    auto fetch = [&] {
        if (!ahead) return;
        for (int n = 0; n < N; n++) prefetch<(kStride + 63) / 64>(p[n] + ahead);
    };
    auto next = [&] {
        for (int n = 0; n < N; n++) {
            p[n] += kStride;
            w[n] = SPREAD ? w[n] + 512 : p[n];
        }
        x.q += SIZE * kGroup;
        x.scale += SIZE;
        x.scaled_sum += SIZE;
        x.sum += 3 * SIZE;
    };
    if constexpr (!TWO) {
        for (int g = 0; g < groups; g++, next()) {
            fetch();
            I dot[N][T];
            for (int n = 0; n < N; n++)
                for (int t = 0; t < T; t++) dot[n][t] = start_of<kExcess>(x.sum + t);
            group_dot<BITS, false, SPREAD, N, T>(w, x.q, dot, dot);
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) {
                const uint8_t* s = p[n] + kIntegers;
                const V scale = vhalf((const uint16_t*)s);
                for (int t = 0; t < T; t++) acc[n][t] = vfma(vmul(scale, vset(x.scale[t])), vtofloat(dot[n][t]), acc[n][t]);
                if constexpr (MIN) {
                    const V minimum = vhalf((const uint16_t*)(s + 32));
                    for (int t = 0; t < T; t++) acc[n][t] = vfma(minimum, vset(x.scaled_sum[t]), acc[n][t]);
                }
            }
        }
    } else {
        for (int b = 0; b < cols / kSuper; b++) {
            const uint8_t* head[N];
            V sums[N][T], mins[N][T];
            for (int n = 0; n < N; n++) {
                head[n] = p[n];
                p[n] += MIN ? 64 : 32;
                if constexpr (!SPREAD) w[n] = p[n];
                for (int t = 0; t < T; t++) sums[n][t] = mins[n][t] = vset(0.0f);
            }
            for (int k = 0; k < 8; k++, next()) {
                fetch();
                I dot[N][T], dot2[N][T];
                for (int n = 0; n < N; n++)
                    for (int t = 0; t < T; t++) {
                        dot[n][t] = start_of<kExcess>(x.sum + (HALF ? SIZE : 0) + t);
                        if constexpr (HALF) dot2[n][t] = start_of<kExcess>(x.sum + 2 * SIZE + t);
                    }
                group_dot<BITS, HALF, SPREAD, N, T>(w, x.q, dot, dot2);
#pragma GCC unroll 2
                for (int n = 0; n < N; n++) {
                    const uint8_t* s = p[n] + kIntegers;
                    V s0 = vtofloat(ifrom8((const int8_t*)s)), s1 = s0;
                    if constexpr (HALF) s1 = vtofloat(ifrom8((const int8_t*)s + 16));
                    for (int t = 0; t < T; t++) {
                        V f = vmul(vtofloat(dot[n][t]), s0);
                        if constexpr (HALF) f = vfma(vtofloat(dot2[n][t]), s1, f);
                        sums[n][t] = vfma(f, vset(x.scale[t]), sums[n][t]);
                    }
                    if constexpr (MIN) {
                        V m0 = vtofloat(ifromu8(s + kLane)), m1 = m0;
                        if constexpr (HALF) m1 = vtofloat(ifromu8(s + kLane + 16));
                        for (int t = 0; t < T; t++) {
                            if constexpr (HALF) {
                                mins[n][t] = vfnma(m0, vset(x.scale[t] * float(x.sum[SIZE + t])), mins[n][t]);
                                mins[n][t] = vfnma(m1, vset(x.scale[t] * float(x.sum[2 * SIZE + t])), mins[n][t]);
                            } else {
                                mins[n][t] = vfma(m0, vset(x.scaled_sum[t]), mins[n][t]);
                            }
                        }
                    }
                }
            }
            for (int n = 0; n < N; n++) {
                const V d = vhalf((const uint16_t*)head[n]);
                for (int t = 0; t < T; t++) acc[n][t] = vfma(d, sums[n][t], acc[n][t]);
                if constexpr (MIN) {
                    const V dmin = vhalf((const uint16_t*)(head[n] + 32));
                    for (int t = 0; t < T; t++) acc[n][t] = vfnma(dmin, mins[n][t], acc[n][t]);
                }
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

// N neighbouring tiles at once: more independent chains to hide the latency of the multiply-adds. x: the block's [K][T].
template <DType D, int N, int T>
TM_INLINE void dense_tiles(const uint8_t* w, size_t tile_bytes, int cols, bool ahead, const float* x, V (*acc)[T]) {
    constexpr size_t kStep = 16 * (D == DType::F32 ? 4 : 2);
    for (int n = 0; n < N; n++)
        for (int t = 0; t < T; t++) acc[n][t] = vset(0.0f);
    for (int k = 0; k < cols; k++, w += kStep, x += T) {
        V v[N];
        for (int n = 0; n < N; n++) v[n] = velement<D>(w + size_t(n) * tile_bytes);
        if (ahead)
            for (int n = 0; n < N; n++) prefetch<1>(w + (size_t(n) + N) * tile_bytes);
        for (int t = 0; t < T; t++) {
            V b = vset(x[t]);
            for (int n = 0; n < N; n++) acc[n][t] = vfma(v[n], b, acc[n][t]);
        }
    }
}

struct Output {
    const LinearArgs& a;
    int rows_out;
    TM_INLINE void write(const Segment& s, int tile, int t, V y) const {
        const int row = tile * kTileRows, n = s.rows - row, col = s.out_offset + row;
        if (a.bias) y = vadd(y, load_part(a.bias + col, n));
        if (a.scale != 1.0f) y = vmul(y, vset(a.scale));
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

// N tiles of a segment: as packed and, if they are, with their integers spread out.
template <int N>
struct QuantTiles {
    const Segment& segment;
    int tile, cols;
    const uint8_t *packed[N], *spread[N];
    size_t ahead;  // bytes to the next tile, while that is still to be asked for
};

// Tokens t0 .. t0 + T of a block of SIZE that begins with token `first`.
template <int BITS, bool HALF, bool TWO, bool MIN, bool SPREAD, int N, int T, int SIZE = T>
static void quant_block(QuantTiles<N>& q, const Scratch& x, int first, int t0, const Output& out) {
    V acc[N][T];
    quant_tile<BITS, HALF, TWO, MIN, SPREAD, N, T, SIZE>(q.packed, q.spread, q.cols, q.ahead, Tokens(x, q.cols, first, t0 - first),
                                                         acc);
    q.ahead = 0;
    for (int n = 0; n < N; n++)
        for (int t = 0; t < T; t++) out.write(q.segment, q.tile + n, t0 + t, acc[n][t]);
}

constexpr int kSpreadFrom = 48;  // tokens from which spreading a tile out pays

// Whole blocks of tokens from `begin`, as far as `end` allows, with tiles spread out; answers where it stopped.
template <int BITS, bool HALF, bool TWO, bool MIN, int N>
static int quant_spread(const Segment& s, int tile, int cols, const Scratch& x, int begin, int end, const Output& out) {
    const Format& f = *s.format;
    QuantTiles<N> q{s, tile, cols, {}, {}, 0};
    for (int n = 0; n < N; n++) {
        const uint8_t* w = s.data + size_t(tile + n) * f.tile_bytes(cols);
        uint8_t* bytes = x.bytes + size_t(n) * kTileRows * size_t(cols);
        spread_tile<BITS>(f, w, cols / kGroup, bytes);
        q.packed[n] = w;
        q.spread[n] = bytes;
    }
    int t = begin;
    for (; t + kTokens <= end; t += kTokens) {
        if constexpr (N == 1) {
            quant_block<BITS, HALF, TWO, MIN, true, N, kTokens>(q, x, t, t, out);
        } else {  // half as many tokens, so that the sums still fit into the registers
            quant_block<BITS, HALF, TWO, MIN, true, N, kTokens / 2, kTokens>(q, x, t, t, out);
            quant_block<BITS, HALF, TWO, MIN, true, N, kTokens / 2, kTokens>(q, x, t, t + kTokens / 2, out);
        }
    }
    return t;
}

template <int BITS, bool HALF, bool TWO, bool MIN>
static void quant_rest(const Segment& s, int tile, int cols, const Scratch& x, int t, int end, const Output& out) {
    const Format& f = *s.format;
    const uint8_t* w = s.data + size_t(tile) * f.tile_bytes(cols);
    QuantTiles<1> q{s, tile, cols, {w}, {}, f.tile_bytes(cols)};
    for (; t + kTokens <= end; t += kTokens) quant_block<BITS, HALF, TWO, MIN, false, 1, kTokens>(q, x, t, t, out);
    if constexpr (kTokens > 4)
        for (; t + 4 <= end; t += 4) quant_block<BITS, HALF, TWO, MIN, false, 1, 4>(q, x, t, t, out);
    for (; t + 2 <= end; t += 2) quant_block<BITS, HALF, TWO, MIN, false, 1, 2>(q, x, t, t, out);
    for (; t < end; t++) quant_block<BITS, HALF, TWO, MIN, false, 1, 1>(q, x, t, t, out);
}

#if TM_AVX512
constexpr int kSpreadTiles = 2;  // tiles that share each load of the tokens' integers
#else
constexpr int kSpreadTiles = 1;
#endif

template <int BITS, bool HALF, bool TWO, bool MIN>
static void quant_tokens(const Segment& s, int tile, int tiles, int cols, const Scratch& x, int begin, int end, const Output& out) {
    if constexpr (BITS < 8) {
        if (end - begin >= kSpreadFrom) {
            const int last = tile + tiles;
            for (; tile + kSpreadTiles <= last; tile += kSpreadTiles) {
                const int t = quant_spread<BITS, HALF, TWO, MIN, kSpreadTiles>(s, tile, cols, x, begin, end, out);
                for (int n = 0; n < kSpreadTiles; n++) quant_rest<BITS, HALF, TWO, MIN>(s, tile + n, cols, x, t, end, out);
            }
            for (; tile < last; tile++) {
                const int t = quant_spread<BITS, HALF, TWO, MIN, 1>(s, tile, cols, x, begin, end, out);
                quant_rest<BITS, HALF, TWO, MIN>(s, tile, cols, x, t, end, out);
            }
            return;
        }
    }
    for (int i = tile; i < tile + tiles; i++) quant_rest<BITS, HALF, TWO, MIN>(s, i, cols, x, begin, end, out);
}

template <DType D, int N, int T>
static void dense_block(const Segment& s, int tile, int cols, bool ahead, const float* x, int t0, const Output& out) {
    const size_t bytes = s.format->tile_bytes(cols);
    V acc[N][T];
    dense_tiles<D, N, T>(s.data + size_t(tile) * bytes, bytes, cols, ahead, x + size_t(t0) * size_t(cols), acc);
    for (int n = 0; n < N; n++)
        for (int t = 0; t < T; t++) out.write(s, tile + n, t0 + t, acc[n][t]);
}

#if TM_AVX512
constexpr int kDenseTiles = 2;  // tiles that the dense kernel takes together
#else
constexpr int kDenseTiles = 1;
#endif

template <DType D, int N>
static void dense_tokens(const Segment& s, int tile, int cols, const float* x, int begin, int end, const Output& out) {
    int t = begin;
    for (; t + kTokens <= end; t += kTokens) dense_block<D, N, kTokens>(s, tile, cols, t == begin, x, t, out);
    if constexpr (kTokens > 4)
        for (; t + 4 <= end; t += 4) dense_block<D, N, 4>(s, tile, cols, t == begin, x, t, out);
    for (; t + 2 <= end; t += 2) dense_block<D, N, 2>(s, tile, cols, t == begin, x, t, out);
    for (; t < end; t++) dense_block<D, N, 1>(s, tile, cols, t == begin, x, t, out);
}

static void tile_tokens(const Segment& s, int tile, int tiles, int cols, const Scratch& x, int begin, int end, const Output& out) {
    const Format& f = *s.format;
    if (f.bits == 0) {
        auto run = [&](auto dtype) {
            constexpr DType D = decltype(dtype)::value;
            int i = tile;
            for (; i + kDenseTiles <= tile + tiles; i += kDenseTiles)
                dense_tokens<D, kDenseTiles>(s, i, cols, x.x, begin, end, out);
            for (; i < tile + tiles; i++) dense_tokens<D, 1>(s, i, cols, x.x, begin, end, out);
        };
        if (f.dtype == DType::F32) run(std::integral_constant<DType, DType::F32>{});
        else if (f.dtype == DType::F16) run(std::integral_constant<DType, DType::F16>{});
        else run(std::integral_constant<DType, DType::BF16>{});
        return;
    }
#define TM_CASE(B, H, W, M)                                                      \
    if (f.bits == B && f.half_group == H && f.two_level == W && f.has_min == M) \
    quant_tokens<B, H, W, M>(s, tile, tiles, cols, x, begin, end, out)
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

// Leave one row (of the matrix's columns) in the scratch, as number `t` of the rows that block `b` is one of.
static void prepare_row(const float* row, const Matrix& w, Block b, int t, const Scratch& x) {
    const int cols = w.cols;
    const size_t first = size_t(b.first), groups = size_t(cols / kGroup);
    if (w.any_quantised)
        quantise_row(row, cols, b.size, t - b.first, x.q + first * size_t(cols), x.scale + first * groups,
                     x.scaled_sum + first * groups, x.sum + 3 * first * groups);
    if (w.any_dense) {
        float* to = x.x + first * size_t(cols) + (t - b.first);
        for (int k = 0; k < cols; k++) to[k * b.size] = row[k];
    }
}

// Tiles [first, last) times all n rows in the scratch. Tokens vary fastest so that a tile stays in cache.
static void multiply_tiles(const LinearArgs& a, const Scratch& x, int n, int first, int last) {
    const Matrix& w = *a.weight;
    const Output out{a, w.rows};
    constexpr int kSpan = 64 * kTokens;
    for (const Segment& s : w.segments) {
        const int lo = first > s.first_tile ? first : s.first_tile;
        const int hi = last < s.first_tile + s.tiles ? last : s.first_tile + s.tiles;
        if (lo >= hi) continue;
        for (int t = 0; t < n; t += kSpan)
            tile_tokens(s, lo - s.first_tile, hi - lo, w.cols, x, t, t + kSpan < n ? t + kSpan : n, out);
    }
}

// Asks for the start of this thread's share of the tiles, at most `bytes` of it, while the tokens are being prepared.
static void prefetch_share(const Matrix& w, const Thread& thread, size_t bytes) {
    int first, last;
    thread.share(w.tiles, first, last);
    for (const Segment& s : w.segments) {
        if (first < s.first_tile || first >= s.first_tile + s.tiles) continue;
        const size_t tile = s.format->tile_bytes(w.cols), left = size_t(s.first_tile + s.tiles - first) * tile;
        const uint8_t* data = s.data + size_t(first - s.first_tile) * tile;
        for (size_t i = 0; i < bytes && i < left; i += 64) prefetch<1>(data + i);
    }
}

constexpr size_t kLeadBytes = 32768;  // that a waiting thread asks for: a part of the smallest second-level caches
constexpr size_t kFirstBytes = 1536;  // that a working one does: what a core can have under way at once

void linear(const LinearArgs& a, Thread& thread) {
    const int n = *a.rows, cols = a.weight->cols;
    const Matrix& w = *a.weight;
    const size_t width = a.act == Act::None || !a.gated ? size_t(cols) : 2 * size_t(cols);
    Scratch x = a.scratch;
    x.bytes += 2 * size_t(thread.index) * kTileRows * size_t(cols);
    x.row += size_t(thread.index) * size_t(cols);
    int begin, end;
    thread.share(n, begin, end);
    if (n > 0 && n < kTokens) prefetch_share(w, thread, begin == end ? kLeadBytes : kFirstBytes);
    for (int t = begin; t < end; t++) {
        const float* row = a.x + size_t(a.row_index ? a.row_index[t] : t) * width;
        if (a.norm && a.centre) layer_norm_row(row, a.norm, a.norm_bias, a.eps, cols, false, x.row);
        else if (a.norm) norm_row(row, a.norm, a.eps, cols, x.row);
        else if (a.act != Act::None) a.gated ? act_row(row, a.act, cols, x.row) : plain_act_row(row, a.act, cols, x.row);
        prepare_row(a.norm || a.act != Act::None ? x.row : row, w, block_of(t, n), t, x);
    }
    thread.barrier();
    if (n == 0) return;
    const int even = w.tiles / (thread.count * 8), most = even < 1 ? 1 : even > 8 ? 8 : even;
    for (int first, last; thread.take(w.tiles, most, first, last);) multiply_tiles(a, x, n, first, last);
}

void rms_norm(const RmsNormArgs& a, Thread& thread) {
    int begin, end;
    thread.share(*a.rows, begin, end);
    for (int t = begin; t < end; t++) {
        const float* x = a.x + size_t(t) * size_t(a.width);
        float* out = a.out + size_t(t) * size_t(a.width);
        if (a.centre) {
            layer_norm_row(x, a.weight, a.bias, a.eps, a.width, a.accumulate, out);
            continue;
        }
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
static float weight_at(const Format& f, const uint8_t* tile, int r, int k) {
    if (f.bits == 0) {
        const size_t i = size_t(k) * kTileRows + size_t(r);
        if (f.dtype == DType::F32) return ((const float*)tile)[i];
        const uint16_t h = ((const uint16_t*)tile)[i];
        return f.dtype == DType::F16 ? half_to_float(h) : bf16_to_float(h);
    }
    const int g = k / kGroup, c = k % kGroup, j = c / 4, i = c % 4;
    const uint8_t* w = tile + f.group_at(g);
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
    const auto half_at = [&](const uint8_t* at) {
        uint16_t h;
        std::memcpy(&h, at + 2 * size_t(r), 2);
        return half_to_float(h);
    };
    const uint8_t* s = w + f.group_bytes();
    if (!f.two_level) {
        float v = half_at(s) * float(q);
        return f.has_min ? v + half_at(s + 32) : v;
    }
    const uint8_t* head = tile + f.group_at(g / 8 * 8) - f.header_bytes();
    const size_t lane = f.half_group ? 32 : 16;
    s += (f.half_group ? c / 16 * 16 : 0) + r;
    float v = half_at(head) * float(int8_t(*s)) * float(q);
    return f.has_min ? v - half_at(head + 32) * float(s[lane]) : v;
}

void embed(const EmbedArgs& a, Thread& thread) {
    const Matrix& w = *a.weight;
    int begin, end;
    thread.share(*a.rows, begin, end);
    for (int t = begin; t < end; t++) {
        const int id = a.token_ids[t];
        for (const Segment& s : w.segments) {
            if (id < s.out_offset || id >= s.out_offset + s.rows) continue;
            const int row = id - s.out_offset;
            const uint8_t* tile = s.data + size_t(row / kTileRows) * s.format->tile_bytes(w.cols);
            float* out = a.out + size_t(t) * size_t(w.cols);
            for (int k = 0; k < w.cols; k++) {
                const float v = weight_at(*s.format, tile, row % kTileRows, k) * a.scale;
                out[k] = a.accumulate ? out[k] + v : v;
            }
        }
    }
}

void dense(const DenseArgs& a, Thread& thread) {
    const Matrix& w = *a.weight;
    for (const Segment& s : w.segments) {
        int begin, end;
        thread.share(s.rows, begin, end);
        for (int row = begin; row < end; row++) {
            const uint8_t* tile = s.data + size_t(row / kTileRows) * s.format->tile_bytes(w.cols);
            for (int k = 0; k < w.cols; k++)
                a.out[size_t(s.out_offset + row) * size_t(w.cols) + size_t(k)] =
                    weight_at(*s.format, tile, row % kTileRows, k);
        }
    }
}
