// The arguments of operators.
#pragma once

#include "packed.h"
#include "thread_pool.h"

namespace mill {

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

}  // namespace mill
