#define TM_ISA portable
#include "kernels.inl"

namespace mill {
extern const Kernels kernels_portable{TM_TEXT(TM_ISA), portable::embed, portable::linear, portable::route, portable::experts, portable::rms_norm, portable::rope_table,
                              portable::rope_store, portable::attention, portable::dense, portable::fp32_operations, portable::int8_operations,
                              portable::read_bytes};
}  // namespace mill
