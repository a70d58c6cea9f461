// Everything that depends on the instruction set; included once by each compile unit, which names its TM_ISA.
#include <type_traits>

#include "packed.h"
#include "simd.h"

namespace mill {
namespace TM_ISA {
namespace {
#include "linear.inl"
#include "attention.inl"
#include "moe.inl"
#include "ceilings.inl"
}  // namespace
}  // namespace TM_ISA
}  // namespace mill

#define TM_TEXT2(x) #x
#define TM_TEXT(x) TM_TEXT2(x)
