// Sorts rows by small numbers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepscope {

// The stable order of numbers from 0 to 2^32 - 1, of fewer than 2^32 rows, by eleven bits at a time
// (least significant digits first; Knuth, The Art of Computer Programming, volume 3, 5.2.5): each
// row goes along with its number, so that no pass looks anything up elsewhere.
//
// Returns whether they were such numbers; otherwise nothing is known of `order`.
bool stable_order(const std::int64_t* values, std::size_t rows, std::int64_t* order);

}  // namespace stepscope
