// Deflate (RFC 1951) for rows of equal length that share most of their bytes. A byte's repetition
// is looked for in one place only, one row before:
//
//     0A 1B 40 93 D2 AA 81 B4 … 50 05 68 02       the row before
//     0A 1B 40 17 E0 AA 81 B4 … 50 05 68 02       this one
//     └ match ┘└ two ┘└ match, `row` bytes back … into the next row
//
// Columns that differ in any row are found first. Of a group of neighbouring columns, in each row
// the first few differ, up to the last one that does: numbers are written from their lowest byte
// on. Any other data is encoded correctly too, but larger than by a compressor that looks
// everywhere.
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

constexpr std::size_t FARTHEST = 32768;  // the farthest distance of a match

// `data` consists of whole rows of `row` bytes (1 to FARTHEST), at least one.
std::vector<unsigned char> deflate_rows(std::string_view data, std::size_t row);

}  // namespace stepscope
