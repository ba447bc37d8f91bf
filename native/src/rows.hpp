// Writes rows of equal length that share most of their bytes, such as one protobuf message per row.
//
//     shared   0A 1B 40 .. .. .. .. .. .. .. .. .. 50 05 …    the same in every row
//     hole              └ a number per row: a varint padded to a width, or its eight bytes
//
// A varint may be longer than necessary: all bytes but the last have their top bit set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace stepscope {

constexpr std::size_t WIDEST = 10;  // bytes of a varint of any 64 bits

struct Hole {
    std::size_t at;
    std::size_t width;  // bytes of the varint; 0: eight bytes, little-endian
    const std::int64_t* values;

    std::size_t end() const { return at + (width == 0 ? sizeof(std::int64_t) : width); }
};

// Writes the rows one after the other to `out`; every hole must end within the shared bytes.
void write_rows(std::string_view shared, const std::vector<Hole>& holes, std::size_t rows,
                unsigned char* out);

}  // namespace stepscope
