// The packed layouts that the matrix kernels read.
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

const Format* find_format(const std::string& name);
// Repacks rows [0, rows) of a checkpoint matrix (contiguous blocks) into tiles [begin, end).
void pack_tiles(const Format& f, const uint8_t* src, int rows, int cols, uint8_t* dst, int begin, int end);

}  // namespace mill
