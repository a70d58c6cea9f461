#define TM_ISA avx2
#include "kernels.inl"

namespace mill {
extern const Kernels kernels_avx2{TM_TEXT(TM_ISA), avx2::embed, avx2::linear, avx2::route, avx2::experts, avx2::rms_norm, avx2::rope_table,
                              avx2::rope_store, avx2::attention, avx2::dense, avx2::fp32_operations, avx2::int8_operations,
                              avx2::read_bytes};
}  // namespace mill
