// The table of an instruction set's kernels.
#include "kernels.h"

#define TM_JOIN2(a, b) a##b
#define TM_JOIN(a, b) TM_JOIN2(a, b)
#define TM_TEXT2(x) #x
#define TM_TEXT(x) TM_TEXT2(x)

namespace mill {
namespace TM_ISA {

void embed(const EmbedArgs&, Thread&);
void linear(const LinearArgs&, Thread&);
void route(const RouteArgs&, Thread&);
void experts(const ExpertsArgs&, Thread&);
void rms_norm(const RmsNormArgs&, Thread&);
void rope_table(const RopeTableArgs&, Thread&);
void rope_store(const RopeStoreArgs&, Thread&);
void attention(const AttentionArgs&, Thread&);
void dense(const DenseArgs&, Thread&);
double fp32_operations(int rounds);
double int8_operations(int rounds);
int32_t read_bytes(const uint8_t* data, size_t bytes);

}  // namespace TM_ISA

using namespace TM_ISA;
extern const Kernels TM_JOIN(kernels_, TM_ISA){TM_TEXT(TM_ISA), embed, linear, route, experts, rms_norm, rope_table, rope_store, attention, dense, fp32_operations, int8_operations, read_bytes};

}  // namespace mill
