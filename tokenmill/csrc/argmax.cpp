#include "argmax.h"

#include <cmath>

namespace {

// Sixteen running maxima, which every compiler turns into vectors.
float maximum(const float* x, int n) {
    float lanes[16];
    for (float& lane : lanes) lane = -INFINITY;
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
    float best = -INFINITY;
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    for (float lane : lanes) best = lane > best ? lane : best;
    return best;
}

int64_t first_of_maximum(const float* x, int n) {
    constexpr int kPiece = 1024;
    float best = -INFINITY;
    int piece = 0;
    for (int start = 0; start < n; start += kPiece) {
        float m = maximum(x + start, n - start < kPiece ? n - start : kPiece);
        if (m > best) {
            best = m;
            piece = start;
        }
    }
    for (int i = piece; i < n; i++)
        if (x[i] == best) return i;
    return 0;
}

}  // namespace

void argmax(const float* x, int rows, int n, size_t stride, int64_t* out) {
    for (int row = 0; row < rows; row++) out[row] = first_of_maximum(x + size_t(row) * stride, n);
}
