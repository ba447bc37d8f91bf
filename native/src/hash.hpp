// Hashing of 64-bit numbers.
#pragma once

#include <cstdint>

namespace stepscope {

constexpr std::uint64_t ODD = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio: Knuth, TAOCP 3, 6.4

// The two halves of a product, combined: every bit of both factors affects every bit of it.
inline std::uint64_t folded(std::uint64_t one, std::uint64_t other) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(one) * other;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

}  // namespace stepscope
