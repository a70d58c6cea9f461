// From the blocks of a checkpoint (GGML's formats, or plain floats) to the tiles of packed.h.
//
// Each block is decoded to plain integers and scales exactly as the format describes them; nothing is rounded.
#include <cstring>
#include <new>

#include "packed.h"

namespace mill {

namespace {

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// One block of one row: integers as the kernels read them, and scales.
struct Block {
    uint8_t q[kSuper];
    uint16_t d, m;          // fp16
    uint8_t s[16], mins[16];  // second level, one per group or half group
};

uint16_t read16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
}

uint32_t read32(const uint8_t* p) {
    uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
}

void nibbles(const uint8_t* src, int n, uint8_t* q) {
    for (int i = 0; i < n; i++) {
        q[i] = src[i] & 15;
        q[n + i] = src[i] >> 4;
    }
}

void fifth_bits(uint32_t high, uint8_t* q) {
    for (int i = 0; i < 32; i++) q[i] = uint8_t(q[i] | ((high >> i & 1) << 4));
}

// Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minimums in twelve bytes.
void scales_k4(const uint8_t* s, Block& b) {
    for (int i = 0; i < 4; i++) {
        b.s[i] = s[i] & 63;
        b.mins[i] = s[i + 4] & 63;
        b.s[i + 4] = uint8_t((s[i + 8] & 15) | (s[i] >> 6 << 4));
        b.mins[i + 4] = uint8_t((s[i + 8] >> 4) | (s[i + 4] >> 6 << 4));
    }
}

void decode_iq4_nl(const uint8_t* p, Block& b) {
    b.d = read16(p);
    nibbles(p + 2, 16, b.q);
    for (int i = 0; i < 32; i++) b.q[i] = uint8_t(kIq4Values[b.q[i]]);
}

void decode_iq4_xs(const uint8_t* p, Block& b) {
    b.d = read16(p);
    const uint16_t high = read16(p + 2);
    for (int i = 0; i < 8; i++) {
        const int low = p[4 + i / 2] >> (4 * (i % 2)) & 15;
        b.s[i] = uint8_t((low | (high >> (2 * i) & 3) << 4) - 32);
        nibbles(p + 8 + 16 * i, 16, b.q + 32 * i);
    }
    for (uint8_t& q : b.q) q = uint8_t(kIq4Values[q]);
}

void decode_q4_0(const uint8_t* p, Block& b) {
    b.d = read16(p);
    nibbles(p + 2, 16, b.q);
}

void decode_q4_1(const uint8_t* p, Block& b) {
    b.d = read16(p);
    b.m = read16(p + 2);
    nibbles(p + 4, 16, b.q);
}

void decode_q5_0(const uint8_t* p, Block& b) {
    b.d = read16(p);
    nibbles(p + 6, 16, b.q);
    fifth_bits(read32(p + 2), b.q);
}

void decode_q5_1(const uint8_t* p, Block& b) {
    b.d = read16(p);
    b.m = read16(p + 2);
    nibbles(p + 8, 16, b.q);
    fifth_bits(read32(p + 4), b.q);
}

void decode_q8_0(const uint8_t* p, Block& b) {
    b.d = read16(p);
    std::memcpy(b.q, p + 2, 32);
}

void decode_q2_k(const uint8_t* p, Block& b) {
    for (int i = 0; i < 16; i++) {
        b.s[i] = p[i] & 15;
        b.mins[i] = p[i] >> 4;
    }
    for (int i = 0; i < kSuper; i++) b.q[i] = p[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    b.d = read16(p + 80);
    b.m = read16(p + 82);
}

void decode_q3_k(const uint8_t* p, Block& b) {
    const uint8_t *mask = p, *low = p + 32, *s = p + 96;
    for (int i = 0; i < kSuper; i++)
        b.q[i] = uint8_t((low[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) | (mask[i % 32] >> (i / 32) & 1) << 2);
    for (int i = 0; i < 16; i++)
        b.s[i] = uint8_t(((i < 8 ? s[i] & 15 : s[i - 8] >> 4) | (s[8 + i % 4] >> (i / 4 * 2) & 3) << 4) - 32);
    b.d = read16(p + 108);
}

void decode_q4_k(const uint8_t* p, Block& b) {
    b.d = read16(p);
    b.m = read16(p + 2);
    scales_k4(p + 4, b);
    for (int c = 0; c < 4; c++) nibbles(p + 16 + 32 * c, 32, b.q + 64 * c);
}

void decode_q5_k(const uint8_t* p, Block& b) {
    b.d = read16(p);
    b.m = read16(p + 2);
    scales_k4(p + 4, b);
    for (int c = 0; c < 4; c++) nibbles(p + 48 + 32 * c, 32, b.q + 64 * c);
    for (int i = 0; i < kSuper; i++) b.q[i] = uint8_t(b.q[i] | (p[16 + i % 32] >> (i / 32) & 1) << 4);
}

void decode_q6_k(const uint8_t* p, Block& b) {
    for (int n = 0; n < 2; n++)
        for (int l = 0; l < 32; l++) {
            const uint8_t high = p[128 + 32 * n + l], a = p[64 * n + l], c = p[64 * n + 32 + l];
            uint8_t* q = b.q + 128 * n + l;
            q[0] = uint8_t((a & 15) | (high & 3) << 4);
            q[32] = uint8_t((c & 15) | (high >> 2 & 3) << 4);
            q[64] = uint8_t((a >> 4) | (high >> 4 & 3) << 4);
            q[96] = uint8_t((c >> 4) | (high >> 6) << 4);
        }
    std::memcpy(b.s, p + 192, 16);
    b.d = read16(p + 208);
}

struct Coding {
    Format format;
    void (*decode)(const uint8_t* block, Block& out);
};

//    name, bits, dtype, half_group, two_level, has_min, offset, block, block_bytes
constexpr Coding kCodings[] = {
    {{"F32", 0, DType::F32, false, false, false, 0, 1, 4}, nullptr},
    {{"F16", 0, DType::F16, false, false, false, 0, 1, 2}, nullptr},
    {{"BF16", 0, DType::BF16, false, false, false, 0, 1, 2}, nullptr},
    {{"Q4_0", 4, DType::F32, false, false, false, 8, 32, 18}, decode_q4_0},
    {{"Q4_1", 4, DType::F32, false, false, true, 0, 32, 20}, decode_q4_1},
    {{"Q5_0", 5, DType::F32, false, false, false, 16, 32, 22}, decode_q5_0},
    {{"Q5_1", 5, DType::F32, false, false, true, 0, 32, 24}, decode_q5_1},
    {{"Q8_0", 8, DType::F32, false, false, false, 0, 32, 34}, decode_q8_0},
    {{"Q2_K", 4, DType::F32, true, true, true, 0, 256, 84}, decode_q2_k},
    {{"Q3_K", 4, DType::F32, true, true, false, 4, 256, 110}, decode_q3_k},
    {{"Q4_K", 4, DType::F32, false, true, true, 0, 256, 144}, decode_q4_k},
    {{"Q5_K", 5, DType::F32, false, true, true, 0, 256, 176}, decode_q5_k},
    {{"Q6_K", 6, DType::F32, true, true, false, 32, 256, 210}, decode_q6_k},
    {{"IQ4_NL", 8, DType::F32, false, false, false, 0, 32, 18}, decode_iq4_nl},
    {{"IQ4_XS", 8, DType::F32, false, true, false, 0, 256, 136}, decode_iq4_xs},
};

void place(const Format& f, const Block& b, int block, int r, uint8_t* tile) {
    const int groups = f.block / kGroup;
    for (int k = 0; k < groups; k++) {
        uint8_t* w = tile + f.group_at(block * groups + k);
        uint32_t quad[8], h0 = 0, h1 = 0;
        std::memcpy(quad, b.q + kGroup * k, 32);
        if (f.bits == 8) {
            for (int j = 0; j < 8; j++) std::memcpy(w + 64 * j + 4 * r, &quad[j], 4);
            continue;
        }
        for (int j = 0; j < 4; j++) {
            const uint32_t v = (quad[j] & 0x0f0f0f0fu) | (quad[j + 4] & 0x0f0f0f0fu) << 4;
            std::memcpy(w + 64 * j + 4 * r, &v, 4);
        }
        if (f.bits == 5) {
            for (int j = 0; j < 8; j++) h0 |= (quad[j] >> 4 & 0x01010101u) << j;
            std::memcpy(w + 256 + 4 * r, &h0, 4);
        } else if (f.bits == 6) {
            for (int j = 0; j < 4; j++) {
                h0 |= (quad[j] >> 4 & 0x03030303u) << (2 * j);
                h1 |= (quad[j + 4] >> 4 & 0x03030303u) << (2 * j);
            }
            std::memcpy(w + 256 + 4 * r, &h0, 4);
            std::memcpy(w + 320 + 4 * r, &h1, 4);
        }
    }
    const auto put_halves = [&](uint8_t* to) {
        std::memcpy(to + 2 * r, &b.d, 2);
        if (f.has_min) std::memcpy(to + 32 + 2 * r, &b.m, 2);
    };
    uint8_t* first = tile + f.group_at(block * groups);
    if (!f.two_level) {
        put_halves(first + f.group_bytes());
        return;
    }
    put_halves(first - f.header_bytes());
    const int halves = f.half_group ? 2 : 1;
    for (int k = 0; k < groups; k++) {
        uint8_t* s = tile + f.group_at(block * groups + k) + f.group_bytes();
        for (int h = 0; h < halves; h++) {
            s[16 * h + r] = b.s[halves * k + h];
            if (f.has_min) s[16 * (halves + h) + r] = b.mins[halves * k + h];
        }
    }
}

}  // namespace

const Format* find_format(const std::string& name) {
    for (const Coding& c : kCodings)
        if (name == c.format.name) return &c.format;
    return nullptr;
}

void pack_tiles(const Format& f, const uint8_t* src, int rows, int cols, uint8_t* dst, int begin, int end) {
    const auto decode = ((const Coding&)f).decode;  // every Format lives in kCodings, as the first member
    const size_t row_bytes = size_t(cols / f.block) * size_t(f.block_bytes), tile_bytes = f.tile_bytes(cols);
    for (int tile = begin; tile < end; tile++) {
        uint8_t* to = dst + size_t(tile) * tile_bytes;
        const int left = rows - tile * kTileRows, used = left < kTileRows ? left : kTileRows;
        if (used < kTileRows) std::memset(to, 0, tile_bytes);
        for (int r = 0; r < used; r++) {
            const uint8_t* row = src + size_t(tile * kTileRows + r) * row_bytes;
            if (f.bits) {
                Block b;
                for (int i = 0; i < cols / f.block; i++) {
                    decode(row + size_t(i) * size_t(f.block_bytes), b);
                    place(f, b, i, r, to);
                }
            } else if (f.dtype == DType::F32) {
                for (int k = 0; k < cols; k++) std::memcpy(to + 4 * (size_t(k) * kTileRows + size_t(r)), row + 4 * size_t(k), 4);
            } else {
                for (int k = 0; k < cols; k++) std::memcpy(to + 2 * (size_t(k) * kTileRows + size_t(r)), row + 2 * size_t(k), 2);
            }
        }
    }
}

Matrix::~Matrix() { operator delete[](storage, std::align_val_t(64)); }

}  // namespace mill
