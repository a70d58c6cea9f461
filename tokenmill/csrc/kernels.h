// The kernels of one instruction set. Each is compiled once for every set, which names its TM_ISA, from a unit a family
// of operators.
#pragma once

#ifndef TM_ISA
#define TM_ISA portable
#endif

#include "args.h"
#include "simd.h"

namespace mill::TM_ISA {

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

}  // namespace mill::TM_ISA
