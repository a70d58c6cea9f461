// Sixteen fp32 or int32 lanes, on whatever the compile unit's instruction set offers.
//
// Every kernel is written once over these types and compiled several times (AVX-512, AVX2 with VNNI, AVX2, portable).
// Each operation rounds the same way in all of them, and reductions use one fixed tree, so the variants agree
// to the bit; the self-check at start relies on that.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#define TM_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define TM_AVX2 1
#if defined(__AVXVNNI__)
#define TM_AVXVNNI 1
#endif
#endif

#ifndef TM_ISA
#define TM_ISA portable
#endif

#define TM_INLINE inline __attribute__((always_inline))

namespace mill {
namespace TM_ISA {

inline float half_to_float(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000u) << 16, mant = h & 0x3ffu, exp = (h >> 10) & 0x1f, bits;
    if (exp == 0x1f) {
        bits = sign | 0x7f800000u | (mant << 13);
    } else if (exp == 0) {
        float f = float(mant) * 5.9604644775390625e-8f;  // 2^-24: subnormals are exact in fp32
        std::memcpy(&bits, &f, 4);
        bits |= sign;
    } else {
        bits = sign | ((exp + 112) << 23) | (mant << 13);
    }
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

inline uint16_t float_to_half(float f) {  // round to nearest even, as the hardware does
    uint32_t x;
    std::memcpy(&x, &f, 4);
    uint16_t sign = uint16_t((x >> 16) & 0x8000u);
    x &= 0x7fffffffu;
    if (x > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((x >> 13) & 0x3ffu));
    if (x >= 0x477ff000u) return uint16_t(sign | 0x7c00u);
    if (x < 0x38800000u) {
        float a;
        std::memcpy(&a, &x, 4);
        return uint16_t(sign | uint16_t(std::nearbyintf(a * 16777216.0f)));
    }
    uint32_t r = x + 0xfffu + ((x >> 13) & 1u);
    return uint16_t(sign | ((r - 0x38000000u) >> 13));
}

inline float bf16_to_float(uint16_t h) {
    uint32_t bits = uint32_t(h) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

inline uint16_t float_to_bf16(float f) {
    uint32_t x;
    std::memcpy(&x, &f, 4);
    if ((x & 0x7fffffffu) > 0x7f800000u) return uint16_t((x >> 16) | 0x40u);
    return uint16_t((x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
}

#if TM_AVX512

struct V { __m512 v; };
struct I { __m512i v; };

TM_INLINE V vload(const float* p) { return {_mm512_loadu_ps(p)}; }
TM_INLINE void vstore(float* p, V a) { _mm512_storeu_ps(p, a.v); }
TM_INLINE V vset(float x) { return {_mm512_set1_ps(x)}; }
TM_INLINE V vadd(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
TM_INLINE V vsub(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
TM_INLINE V vmul(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
TM_INLINE V vdiv(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
TM_INLINE V vfma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TM_INLINE V vfnma(V a, V b, V c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
TM_INLINE V vmax(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
TM_INLINE V vmin(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
TM_INLINE V vabs(V a) { return {_mm512_abs_ps(a.v)}; }
TM_INLINE V vround(V a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
TM_INLINE I vtoint(V a) { return {_mm512_cvtps_epi32(a.v)}; }
TM_INLINE V vtofloat(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
TM_INLINE V vhalf(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
TM_INLINE V vbf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
TM_INLINE I iset(int32_t x) { return {_mm512_set1_epi32(x)}; }
TM_INLINE I iload(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
TM_INLINE void istore(int32_t* p, I a) { _mm512_storeu_si512(p, a.v); }
TM_INLINE I iadd(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
TM_INLINE I isub(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
TM_INLINE I imul(I a, I b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
TM_INLINE I ifrom8(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
TM_INLINE I ifromu8(const uint8_t* p) { return {_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
template <int N>
TM_INLINE I ishl(I a) { return {_mm512_slli_epi32(a.v, N)}; }
TM_INLINE V vcast(I a) { return {_mm512_castsi512_ps(a.v)}; }
TM_INLINE void istore8(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(a.v)); }

#elif TM_AVX2

struct V { __m256 a, b; };
struct I { __m256i a, b; };

TM_INLINE V vload(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
TM_INLINE void vstore(float* p, V x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
TM_INLINE V vset(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TM_INLINE V vadd(V x, V y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
TM_INLINE V vsub(V x, V y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
TM_INLINE V vmul(V x, V y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
TM_INLINE V vdiv(V x, V y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
TM_INLINE V vfma(V x, V y, V z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
TM_INLINE V vfnma(V x, V y, V z) { return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)}; }
TM_INLINE V vmax(V x, V y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
TM_INLINE V vmin(V x, V y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
TM_INLINE V vabs(V x) {
    __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
}
TM_INLINE V vround(V x) {
    return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
TM_INLINE I vtoint(V x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
TM_INLINE V vtofloat(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
TM_INLINE V vhalf(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
TM_INLINE V vbf16(const uint16_t* p) {
    __m256i x = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
    __m256i y = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + 8))), 16);
    return {_mm256_castsi256_ps(x), _mm256_castsi256_ps(y)};
}
TM_INLINE I iset(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
TM_INLINE I iload(const int32_t* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
TM_INLINE void istore(int32_t* p, I x) {
    _mm256_storeu_si256((__m256i*)p, x.a);
    _mm256_storeu_si256((__m256i*)(p + 8), x.b);
}
TM_INLINE I iadd(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
TM_INLINE I isub(I x, I y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
TM_INLINE I imul(I x, I y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
TM_INLINE I ifrom8(const int8_t* p) {
    return {_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)),
            _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
TM_INLINE I ifromu8(const uint8_t* p) {
    return {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
template <int N>
TM_INLINE I ishl(I x) { return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)}; }
TM_INLINE V vcast(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
TM_INLINE void istore8(int8_t* p, I x) {
    __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}

#else

struct V { float v[16]; };
struct I { int32_t v[16]; };
#define TM_EACH(T, expr) T r; for (int i = 0; i < 16; i++) r.v[i] = (expr); return r

TM_INLINE V vload(const float* p) { TM_EACH(V, p[i]); }
TM_INLINE void vstore(float* p, V a) { for (int i = 0; i < 16; i++) p[i] = a.v[i]; }
TM_INLINE V vset(float x) { TM_EACH(V, x); }
TM_INLINE V vadd(V a, V b) { TM_EACH(V, a.v[i] + b.v[i]); }
TM_INLINE V vsub(V a, V b) { TM_EACH(V, a.v[i] - b.v[i]); }
TM_INLINE V vmul(V a, V b) { TM_EACH(V, a.v[i] * b.v[i]); }
TM_INLINE V vdiv(V a, V b) { TM_EACH(V, a.v[i] / b.v[i]); }
TM_INLINE V vfma(V a, V b, V c) { TM_EACH(V, fmaf(a.v[i], b.v[i], c.v[i])); }
TM_INLINE V vfnma(V a, V b, V c) { TM_EACH(V, fmaf(-a.v[i], b.v[i], c.v[i])); }
TM_INLINE V vmax(V a, V b) { TM_EACH(V, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
TM_INLINE V vmin(V a, V b) { TM_EACH(V, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
TM_INLINE V vabs(V a) { TM_EACH(V, std::fabs(a.v[i])); }
TM_INLINE V vround(V a) { TM_EACH(V, std::nearbyintf(a.v[i])); }
TM_INLINE int32_t to_int(float x) {  // what the hardware answers where the value does not fit
    return x >= -2147483648.0f && x < 2147483648.0f ? int32_t(std::nearbyintf(x)) : INT32_MIN;
}
TM_INLINE I vtoint(V a) { TM_EACH(I, to_int(a.v[i])); }
TM_INLINE V vtofloat(I a) { TM_EACH(V, float(a.v[i])); }
TM_INLINE V vhalf(const uint16_t* p) { TM_EACH(V, half_to_float(p[i])); }
TM_INLINE V vbf16(const uint16_t* p) { TM_EACH(V, bf16_to_float(p[i])); }
TM_INLINE I iset(int32_t x) { TM_EACH(I, x); }
TM_INLINE I iload(const int32_t* p) { TM_EACH(I, p[i]); }
TM_INLINE void istore(int32_t* p, I a) { for (int i = 0; i < 16; i++) p[i] = a.v[i]; }
TM_INLINE I iadd(I a, I b) { TM_EACH(I, int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i]))); }
TM_INLINE I isub(I a, I b) { TM_EACH(I, int32_t(uint32_t(a.v[i]) - uint32_t(b.v[i]))); }
TM_INLINE I imul(I a, I b) { TM_EACH(I, int32_t(uint32_t(a.v[i]) * uint32_t(b.v[i]))); }
TM_INLINE I ifrom8(const int8_t* p) { TM_EACH(I, p[i]); }
TM_INLINE I ifromu8(const uint8_t* p) { TM_EACH(I, p[i]); }
template <int N>
TM_INLINE I ishl(I a) { TM_EACH(I, int32_t(uint32_t(a.v[i]) << N)); }
TM_INLINE V vcast(I a) { V r; std::memcpy(&r, &a, sizeof r); return r; }
TM_INLINE void istore8(int8_t* p, I a) { for (int i = 0; i < 16; i++) p[i] = int8_t(a.v[i] < -128 ? -128 : a.v[i] > 127 ? 127 : a.v[i]); }
#undef TM_EACH

#endif

// One fixed tree: 16 -> 8 -> 4 -> 2 -> 1, lane i with lane i + half.
#if TM_AVX512 || TM_AVX2
TM_INLINE __m256 low_half(V x) {
#if TM_AVX512
    return _mm512_castps512_ps256(x.v);
#else
    return x.a;
#endif
}
TM_INLINE __m256 high_half(V x) {
#if TM_AVX512
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x.v), 1));
#else
    return x.b;
#endif
}
TM_INLINE float vsum(V x) {
    __m256 a = _mm256_add_ps(low_half(x), high_half(x));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
TM_INLINE float vmaximum(V x) {
    __m256 a = _mm256_max_ps(low_half(x), high_half(x));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
TM_INLINE int32_t isum(I x) {
#if TM_AVX512
    __m256i a = _mm256_add_epi32(_mm512_castsi512_si256(x.v), _mm512_extracti64x4_epi64(x.v, 1));
#else
    __m256i a = _mm256_add_epi32(x.a, x.b);
#endif
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}
TM_INLINE bool any_nan(V x) {
#if TM_AVX512
    return _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q) != 0;
#else
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))) != 0;
#endif
}
#else
TM_INLINE float vsum(V x) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) x.v[i] += x.v[i + half];
    return x.v[0];
}
TM_INLINE float vmaximum(V x) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) x.v[i] = x.v[i] > x.v[i + half] ? x.v[i] : x.v[i + half];
    return x.v[0];
}
TM_INLINE int32_t isum(I x) {
    int32_t total = 0;
    for (int32_t v : x.v) total += v;
    return total;
}
TM_INLINE bool any_nan(V x) {
    for (float v : x.v)
        if (v != v) return true;
    return false;
}
#endif

// exp to about 2 ulp: x = n ln2 + r, a degree-6 minimax-like Taylor polynomial on |r| <= ln2 / 2, and 2^n by two
// exponent additions so that the ends of the range are right. Below -104 the answer is 0, above 88.73 infinity,
// NaN stays NaN (min and max answer their second operand when one is NaN).
TM_INLINE V vexp(V x) {
    V c = vmin(vset(89.0f), vmax(vset(-104.0f), x));
    V n = vround(vmul(c, vset(1.44269504088896341f)));
    V r = vfnma(n, vset(0.693145751953125f), c);
    r = vfnma(n, vset(1.42860682030941723212e-6f), r);
    V p = vset(1.0f / 5040.0f);
    p = vfma(p, r, vset(1.0f / 720.0f));
    p = vfma(p, r, vset(1.0f / 120.0f));
    p = vfma(p, r, vset(1.0f / 24.0f));
    p = vfma(p, r, vset(1.0f / 6.0f));
    p = vfma(p, r, vset(0.5f));
    p = vfma(p, r, vset(1.0f));
    p = vfma(p, r, vset(1.0f));
    V half = vround(vmul(n, vset(0.5f)));
    I a = vtoint(half), b = vtoint(vsub(n, half));
    V s = vcast(ishl<23>(iadd(a, iset(127)))), t = vcast(ishl<23>(iadd(b, iset(127))));
    return vmul(vmul(p, s), t);
}

}  // namespace TM_ISA
}  // namespace mill
