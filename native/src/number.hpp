// Numbers as a trace writes them, kept exact: nanoseconds since 1970 do not fit a double.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "json.hpp"

namespace stepscope {

constexpr std::int64_t NULL_INT = std::numeric_limits<std::int64_t>::min();  // as window.NULL

// digits * 10^exponent; of more than nineteen digits the rest are left out, and that is noted.
struct Decimal {
    bool negative = false;
    bool inexact = false;
    std::uint64_t digits = 0;
    std::int32_t exponent = 0;

    double rough() const;
};

// A number, or a text that holds one; false for everything else.
bool read_decimal(const json::Token& token, Decimal& found);

// A time in nanoseconds, given in units of 10^power ns and rounded to the nearest (to even between
// two); NULL_INT beyond 2^61 either way, which is the year 2043 and 73 years of duration.
std::int64_t nanoseconds(const Decimal& time, int power);

// A number without its fraction; NULL_INT where a double could not tell it from its neighbours.
std::int64_t whole_number(const json::Token& token);

}  // namespace stepscope
