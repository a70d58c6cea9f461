#pragma once

#include <cstddef>
#include <cstdint>

// out[row]: the first place of the maximum among the n numbers of each row; 0 if all are -infinity or NaN, which never wins.
void argmax(const float* x, int rows, int n, size_t stride, int64_t* out);
