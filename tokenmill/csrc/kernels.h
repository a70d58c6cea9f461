// The table of kernels that each instruction set has. They are compiled once for every set, which names its TM_ISA, from
// a unit a family of operators.
#pragma once

#include "args.h"

namespace mill {

struct Kernels {
    const char* name;
    void (*embed)(const EmbedArgs&, Thread&);
    void (*linear)(const LinearArgs&, Thread&);
    void (*route)(const RouteArgs&, Thread&);
    void (*experts)(const ExpertsArgs&, Thread&);
    void (*rms_norm)(const RmsNormArgs&, Thread&);
    void (*rope_table)(const RopeTableArgs&, Thread&);
    void (*rope_store)(const RopeStoreArgs&, Thread&);
    void (*attention)(const AttentionArgs&, Thread&);
    void (*dense)(const DenseArgs&, Thread&);
    double (*fp32_operations)(int rounds);  // runs that many rounds of independent arithmetic, answers the count
    double (*int8_operations)(int rounds);
    int32_t (*read_bytes)(const uint8_t* data, size_t bytes);  // reads all of it (a multiple of 512), answers a checksum
};

}  // namespace mill
