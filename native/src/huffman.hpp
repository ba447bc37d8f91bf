// Huffman codes as deflate needs them: limited in length, and defined by their lengths alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace stepscope {

constexpr unsigned LONGEST_CODE = 15;  // RFC 1951, section 3.2.7
constexpr std::size_t SYMBOLS = 286;   // bytes, the end of a block, and lengths of matches

struct Code {
    std::uint32_t bits;  // in the order in which they are written: the first one is the lowest
    unsigned length;
};

using Codes = std::array<Code, SYMBOLS>;

// A code for every symbol, even unused ones; symbols that occur more often get shorter codes.
Codes huffman(const std::array<std::uint32_t, SYMBOLS>& counts);

}  // namespace stepscope
