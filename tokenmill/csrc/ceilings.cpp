// The most arithmetic this instruction set can do: independent chains that never leave the registers.
#include "rows.h"

namespace mill::TM_ISA {

template <class T>
TM_INLINE void keep(T& x) {
    asm volatile("" : "+m"(x) : : "memory");
}

double fp32_operations(int rounds) {
#if TM_AVX512
    constexpr int N = 12;
#else
    constexpr int N = 6;
#endif
    V acc[N], a = vset(0.999f), b = vset(1e-3f);
    for (V& v : acc) v = vset(1.0f);
    for (int i = 0; i < rounds; i++)
        for (V& v : acc) v = vfma(v, a, b);
    for (V& v : acc) keep(v);
    return double(rounds) * N * 16 * 2;
}

double int8_operations(int rounds) {
#if TM_AVX512
    constexpr int N = 12;
    __m512i acc[N], a = _mm512_set1_epi8(3), x = _mm512_set1_epi8(1);
    for (int n = 0; n < N; n++) acc[n] = _mm512_set1_epi32(n);
    for (int i = 0; i < rounds; i++)
        for (int n = 0; n < N; n++) acc[n] = _mm512_dpbusd_epi32(acc[n], a, x);
    for (auto& v : acc) keep(v);
    return double(rounds) * N * 64 * 2;
#elif TM_AVXVNNI
    constexpr int N = 12;
    __m256i acc[N], a = _mm256_set1_epi8(3), x = _mm256_set1_epi8(1);
    for (int n = 0; n < N; n++) acc[n] = _mm256_set1_epi32(n);
    for (int i = 0; i < rounds; i++)
        for (int n = 0; n < N; n++) acc[n] = _mm256_dpbusd_avx_epi32(acc[n], a, x);
    for (auto& v : acc) keep(v);
    return double(rounds) * N * 32 * 2;
#elif TM_AVX2
    constexpr int N = 6;
    __m256i acc[N], a = _mm256_set1_epi8(3), x = _mm256_set1_epi8(1);
    for (int n = 0; n < N; n++) acc[n] = _mm256_set1_epi16(short(n));
    for (int i = 0; i < rounds; i++) {
        for (int n = 0; n < N; n++) acc[n] = _mm256_add_epi16(acc[n], _mm256_maddubs_epi16(a, x));
        asm volatile("" : "+x"(x));  // or the product would be computed once
    }
    for (auto& v : acc) keep(v);
    return double(rounds) * N * 32 * 2;
#else
    int32_t acc[16] = {};
    for (int i = 0; i < rounds; i++)
        for (int n = 0; n < 16; n++) acc[n] += int8_t(acc[n]) * int8_t(i);
    keep(acc);
    return double(rounds) * 16 * 2;
#endif
}

int32_t read_bytes(const uint8_t* data, size_t bytes) {
    constexpr int N = 8;
    I sums[N];
    for (I& s : sums) s = iset(0);
    for (size_t i = 0; i < bytes; i += N * 64)
        for (int n = 0; n < N; n++) sums[n] = iadd(sums[n], iload((const int32_t*)(data + i) + 16 * n));
    alignas(64) int32_t lanes[16];
    uint32_t total = 0;
    for (I& s : sums) {
        istore(lanes, s);
        for (int32_t x : lanes) total += uint32_t(x);
    }
    return int32_t(total);
}

}  // namespace mill::TM_ISA
