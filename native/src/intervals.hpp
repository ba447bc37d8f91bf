// Unions of intervals: merging them, and how much of them lies before a position.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepscope {

// Merges intervals in order of their starts that touch or overlap; empty ones are left out.
//
// Returns the number of merged ones, no more than there were, or -1 if they are not in order.
std::int64_t merge(const std::int64_t* start, const std::int64_t* end, std::size_t count,
                   std::int64_t* merged_start, std::int64_t* merged_end);

// Disjoint intervals in order, with the length that they cover before each of them.
struct Union {
    const std::int64_t* start;
    const std::int64_t* end;
    const std::int64_t* before;
    std::size_t size;
};

// How many of some numbers in order are no larger than each of others. Each search begins where the
// last one ended: limits that rise take a step or two, others as many as a binary search and its
// doublings.
void count_until(const std::int64_t* ordered, std::size_t size, const std::int64_t* limit,
                 std::size_t count, std::int64_t* out);

// The length covered left of each position, which are looked for likewise.
void covered(const Union& intervals, const std::int64_t* position, std::size_t count,
             std::int64_t* out);

}  // namespace stepscope
