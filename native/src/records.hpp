// Checks all records of a packet before any of them is used.
//
//     0        2        4                8
//     | kind   | flags  | ordinal        |  seven int64
#pragma once

#include <cstdint>
#include <string_view>

namespace stepscope {

constexpr std::size_t RECORD_BYTES = 64;
constexpr unsigned LAST_KIND = 62;  // a larger one counts as this one

struct Survey {
    std::uint64_t kinds;  // bit k: there is a record of kind k
    bool beyond;          // a number is above the limit, or below its negative
};

// Whole records only; the limit must be positive and below 2^62.
Survey survey(std::string_view records, std::int64_t limit);

}  // namespace stepscope
