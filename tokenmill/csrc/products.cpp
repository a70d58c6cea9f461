// Matrix products, alone and as mixtures of experts, and the row operators beside them.
#include "rows.h"

namespace mill::TM_ISA {

#include "linear.inl"
#include "moe.inl"

}  // namespace mill::TM_ISA
