#define TM_ISA avx512
#include "kernels.inl"

namespace mill {
extern const Kernels kernels_avx512{TM_TEXT(TM_ISA), avx512::embed, avx512::linear, avx512::route, avx512::experts, avx512::rms_norm, avx512::rope_table,
                              avx512::rope_store, avx512::attention, avx512::dense, avx512::fp32_operations, avx512::int8_operations,
                              avx512::read_bytes};
}  // namespace mill
