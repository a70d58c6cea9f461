#define TM_ISA avxvnni
#include "kernels.inl"

namespace mill {
extern const Kernels kernels_avxvnni{TM_TEXT(TM_ISA), avxvnni::embed, avxvnni::linear, avxvnni::route, avxvnni::experts, avxvnni::rms_norm, avxvnni::rope_table,
                              avxvnni::rope_store, avxvnni::attention, avxvnni::dense, avxvnni::fp32_operations, avxvnni::int8_operations,
                              avxvnni::read_bytes};
}  // namespace mill
