// Deflate (RFC 1951) of rows of equal length that share most of their bytes. What a byte repeats is
// looked for in one place, a row before it:
//
//     0A 1B 40 93 D2 AA 81 B4 … 50 05 68 02       the row before
//     0A 1B 40 17 E0 AA 81 B4 … 50 05 68 02       this one
//     └ match ┘└ two ┘└ match, `row` bytes back … into the next row
//
// Columns that differ in any row are found first; of neighbouring ones the first few differ, as far
// as the last that does: numbers are written from their lowest byte on. Any bytes come out as they
// went in; others than such rows as well come out larger than from a packer that looks everywhere.
//
//     BFINAL 0, BTYPE 2, codes of lengths     one block; its codes are made for what the first
//     literals and matches … end              rows hold, so that one pass is enough
//     BFINAL 0, BTYPE 0, 00 00 FF FF          an empty block: the next one begins with a byte
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace stepscope {

constexpr std::size_t FARTHEST = 32768;  // that a match may lie back

// `data` holds whole rows of `row` bytes, 1 to FARTHEST, and at least one of them.
std::vector<unsigned char> deflate_rows(std::string_view data, std::size_t row);

}  // namespace stepscope
