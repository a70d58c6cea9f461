// The packed layouts that the matrix kernels read, and the arguments of every operator.
//
// A matrix is a list of segments of rows, each of one format. Rows are taken sixteen at a time: a tile holds 16
// rows and all of K, so that vector lanes are rows and no horizontal sum is needed. Missing rows of the last tile
// are zero.
//
// Unquantised tile: [K][16 rows] of fp32, fp16 or bf16.
//
// Quantised tile: along K come groups of 32, each its integers and then its scales, so that a tile is one stream of
// memory: hardware prefetchers follow one stream at twice the speed of two that take turns. With quad j = columns
// 4j .. 4j+3 of a group, four bytes a row:
//   8 bits  quads 0..7, each [16 rows][4] signed bytes                                             512 bytes
//   4 bits  four times [16 rows][4]: low nibbles quad j, high nibbles quad j + 4                      256 bytes
//   5 bits  the 4 bits, then [16 rows] of 32 bits: bit 8i + j is bit 4 of column 4j + i              320 bytes
//   6 bits  the 4 bits, then twice [16 rows] of 32 bits (quads 0..3, 4..7): bits 8i + 2(j mod 4)
//           and the next are bits 4 and 5 of column 4j + i                                           384 bytes
// Scales, one level (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL): each group has fp16 scale[16] and, with a minimum, fp16
// minimum[16]; weight = scale * (q - offset) + minimum.
// Scales, two levels (the K formats and IQ4_XS): each super-block of 256 begins with fp16 d[16] and, with a minimum, fp16
// dmin[16]; each of its 8 groups has int8 s[16] (twice if scales are per 16 columns) and, with a minimum, uint8 m[16]
// (likewise); weight = d * s * (q - offset) - dmin * m.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "thread_pool.h"

namespace mill {

constexpr int kTileRows = 16;
constexpr int kGroup = 32;
constexpr int kSuper = 256;
constexpr int kBlock = 16;   // tokens in a cache block
constexpr int kSplit = 256;  // attention works through the context in spans of this many tokens, at fixed points

enum class DType : int { F32, F16, BF16, I8 };  // I8: of caches only

struct Format {
    const char* name;
    int bits;         // 0: unquantised
    DType dtype;      // if unquantised
    bool half_group;  // scales per 16 columns
    bool two_level;
    bool has_min;
    int offset;
    int block;        // columns of a block in the checkpoint
    int block_bytes;  // and its bytes there

    size_t group_bytes() const { return bits == 8 ? 512 : bits == 6 ? 384 : bits == 5 ? 320 : 256; }  // its integers
    size_t scale_bytes() const { return (two_level && !half_group ? 16 : 32) * (has_min ? 2 : 1); }  // of a group
    size_t header_bytes() const { return two_level ? 32 * (has_min ? 2 : 1) : 0; }                   // of a super-block
    size_t group_at(int g) const {  // where in a tile
        const size_t headers = two_level ? size_t(g / (kSuper / kGroup) + 1) : 0;
        return headers * header_bytes() + size_t(g) * (group_bytes() + scale_bytes());
    }
    size_t tile_bytes(int cols) const {
        if (!bits) return size_t(cols) * kTileRows * (dtype == DType::F32 ? 4 : 2);
        const int last = cols / kGroup - 1;
        return (group_at(last) + group_bytes() + scale_bytes() + 63) / 64 * 64;
    }
};

struct Segment {
    const Format* format;
    int rows;
    int out_offset;  // first output column
    int first_tile;  // among all tiles of the matrix
    int tiles;
    const uint8_t* data;
};

struct Matrix {
    std::vector<Segment> segments;
    int rows = 0, cols = 0, tiles = 0;
    bool any_quantised = false, any_dense = false;
    size_t bytes = 0;
    uint8_t* storage = nullptr;
    ~Matrix();
};

enum class Act : int { None, Silu, Gelu, GeluTanh, SwigluOai, Relu, Relu2 };

// What the prologue of a matrix product leaves for its tiles, for up to `capacity` rows of K columns. Rows (tokens) are
// kept in blocks of T, each block's data together, so that a tile finds all that it needs at fixed distances.
struct Scratch {
    float* x = nullptr;           // of each block [K][T], for unquantised weights
    int8_t* q = nullptr;          // of each block [K / 32][T][32]
    float* scale = nullptr;       // of each block [K / 32][T]
    float* scaled_sum = nullptr;  // of each block [K / 32][T]: scale times the sum of the group's integers
    int32_t* sum = nullptr;       // of each block [K / 32][3][T]: minus the sums of all, the first 16 and the last 16
    float* row = nullptr;         // [threads][K]: a row after norm or activation
    uint8_t* bytes = nullptr;     // [threads][2][16 * K]: tiles with a byte for every integer
};

struct EmbedArgs {
    const int32_t* rows;
    const int32_t* token_ids;
    const Matrix* weight;
    float* out;
    float scale;
    bool accumulate = false;
};

struct LinearArgs {
    const int32_t* rows;
    const float* x;
    const int32_t* row_index;  // may be null
    const Matrix* weight;
    const float* norm;  // may be null
    const float* bias;  // may be null
    float* out;
    float eps, softcap;
    Act act;
    bool accumulate;
    Scratch scratch;
    const float* norm_bias = nullptr;
    bool centre = false;  // the norm is a LayerNorm
    bool gated = true;    // the activation multiplies a second half of the row
    float scale = 1.0f;
};

enum class Scoring : int { Softmax, Sigmoid, SoftmaxOfChosen };

struct RouteArgs {
    const int32_t* rows;
    const float* logits;  // [capacity][num_experts], and one more for each shared expert if shared_gate
    const float* bias;    // [num_experts], may be null
    int32_t* ids;         // [capacity][top_k + shared]
    float* weights;       // likewise
    int num_experts, top_k, shared, num_groups, top_groups;
    Scoring scoring;
    bool group_sum, renormalise, shared_gate;
    float scale;
};

// Rows sorted by expert: start[e] .. start[e + 1] are those of expert e; entry[row] is the place in the ids of this pass;
// place[entry] is the row.
struct ExpertRows {
    int32_t *start, *entry, *place;
};

struct ExpertsArgs {
    const int32_t* rows;
    const float* x;
    const int32_t* ids;
    const float* weights;
    const Matrix* const* gate_up;      // [num_experts]
    const Matrix* const* down;         // [num_experts]
    const float* const* gate_up_bias;  // [num_experts], may be null
    const float* const* down_bias;     // likewise
    float* out;
    int num_experts, per_token, hidden;
    int widest;  // columns of the widest matrix
    Act act;
    bool weigh_input;
    int tokens_at_once;
    Scratch scratch;
    ExpertRows sorted;
    float *gate_up_out, *down_out;
};

struct RmsNormArgs {
    const int32_t* rows;
    const float* x;
    const float* weight;
    float* out;
    int width;
    float eps;
    bool accumulate;
    const float* bias = nullptr;
    bool centre = false;  // LayerNorm
};

struct RopeTableArgs {
    const int32_t* rows;
    const int32_t* positions;
    const float* inv_freq;
    float* out;
    int rotary_dim;
    float scale;
};

struct CacheArgs {
    uint8_t* pool;
    int64_t block_bytes, offset;
    const int32_t* block_table;
    int max_blocks;
    DType dtype;
};

struct RopeStoreArgs {
    const int32_t *rows, *positions, *token_req;
    const float* rope;
    float* qkv;
    const float *q_norm, *k_norm;  // may be null
    CacheArgs cache;
    int num_heads, num_kv_heads, head_dim, rotary_dim;
    float eps;
    bool whole_norm = false;  // norms span all heads
};

struct AttentionArgs {
    const int32_t *rows, *num_reqs, *positions, *query_start;
    const float* qkv;
    float* out;
    CacheArgs cache;
    int qkv_width, num_heads, num_kv_heads, head_dim, window;
    float scale, softcap;
    const float* sinks;  // [num_heads], may be null
    float* scratch;  // [threads][attention_scratch floats], then partial results
    size_t scratch_floats;
    const float* slopes = nullptr;  // [num_heads]: ALiBi
};

struct DenseArgs {
    const Matrix* weight;
    float* out;  // [rows][cols]
};

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

const Format* find_format(const std::string& name);
// Repacks rows [0, rows) of a checkpoint matrix (contiguous blocks) into tiles [begin, end).
void pack_tiles(const Format& f, const uint8_t* src, int rows, int cols, uint8_t* dst, int begin, int end);

}  // namespace mill
