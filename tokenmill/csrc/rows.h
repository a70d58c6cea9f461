// What the kernels of all families do to a row of floats.
#pragma once

#include "args.h"
#include "simd.h"

namespace mill::TM_ISA {

TM_INLINE float exp_one(float x) {
    alignas(64) float t[16];
    vstore(t, vexp(vset(x)));
    return t[0];
}

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
        case Act::Relu:
            return vmax(vset(0.0f), x);
        case Act::Relu2: {
            V y = vmax(vset(0.0f), x);
            return vmul(y, y);
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

inline void norm_row(const float* x, const float* weight, float eps, int n, float* out) {
    V inv = vset(inverse_rms(x, n, eps));
    for (int i = 0; i < n; i += 16)
        store_part(out + i, vmul(vmul(load_part(x + i, n - i), inv), load_part(weight + i, n - i)), n - i);
}

TM_INLINE V centred_part(const float* x, V mean, int n) {
    V v = vsub(load_part(x, n), mean);
    if (n >= 16) return v;
    alignas(64) float t[16];
    vstore(t, v);
    for (int i = n; i < 16; i++) t[i] = 0.0f;
    return vload(t);
}

// out (+)= (x - mean) / sqrt(variance + eps) * weight + bias; bias may be null, out may be x.
inline void layer_norm_row(const float* x, const float* weight, const float* bias, float eps, int n, bool accumulate, float* out) {
    V sum = vset(0.0f), squares = vset(0.0f);
    for (int i = 0; i < n; i += 16) sum = vadd(sum, load_part(x + i, n - i));
    const V mean = vset(vsum(sum) / float(n));
    for (int i = 0; i < n; i += 16) {
        V v = centred_part(x + i, mean, n - i);
        squares = vfma(v, v, squares);
    }
    const V inv = vset(1.0f / std::sqrt(vsum(squares) / float(n) + eps));
    for (int i = 0; i < n; i += 16) {
        V y = vmul(vmul(centred_part(x + i, mean, n - i), inv), load_part(weight + i, n - i));
        if (bias) y = vadd(y, load_part(bias + i, n - i));
        if (accumulate) y = vadd(load_part(out + i, n - i), y);
        store_part(out + i, y, n - i);
    }
}

inline void plain_act_row(const float* x, Act act, int n, float* out) {
    for (int i = 0; i < n; i += 16) store_part(out + i, activate(act, load_part(x + i, n - i)), n - i);
}

inline void act_row(const float* x, Act act, int n, float* out) {
    if (act == Act::SwigluOai) {  // clamped, and with one more added to up (gpt-oss)
        const V limit = vset(7.0f), low = vset(-7.0f), one = vset(1.0f);
        for (int i = 0; i < n; i += 16) {
            V gate = vmin(limit, load_part(x + i, n - i)), up = vmax(low, vmin(limit, load_part(x + n + i, n - i)));
            V glu = vdiv(gate, vadd(one, vexp(vmul(gate, vset(-1.702f)))));
            store_part(out + i, vmul(vadd(up, one), glu), n - i);
        }
        return;
    }
    for (int i = 0; i < n; i += 16)
        store_part(out + i, vmul(activate(act, load_part(x + i, n - i)), load_part(x + n + i, n - i)), n - i);
}

}  // namespace mill::TM_ISA
