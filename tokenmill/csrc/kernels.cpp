// The table of an instruction set's kernels.
#include "kernels.h"

#define TM_JOIN2(a, b) a##b
#define TM_JOIN(a, b) TM_JOIN2(a, b)
#define TM_TEXT2(x) #x
#define TM_TEXT(x) TM_TEXT2(x)

namespace mill {

using namespace TM_ISA;
extern const Kernels TM_JOIN(kernels_, TM_ISA){TM_TEXT(TM_ISA), embed, linear, route, experts, rms_norm, rope_table, rope_store, attention, dense, fp32_operations, int8_operations, read_bytes};

}  // namespace mill
