// Huffman codes as deflate wants them: no longer than a limit, told by their lengths alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace stepscope {

constexpr unsigned LONGEST_CODE = 15;  // RFC 1951, section 3.2.7
constexpr std::size_t SYMBOLS = 286;   // bytes, the end of a block, and lengths of matches

struct Code {
    std::uint32_t bits;  // as they are written: the first one is the lowest
    unsigned length;
};

using Codes = std::array<Code, SYMBOLS>;

// A code for every symbol, the shorter the more often it comes; also for those that never do.
Codes huffman(const std::array<std::uint32_t, SYMBOLS>& counts);

}  // namespace stepscope
