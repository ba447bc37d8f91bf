// Exact numbers from traces: nanoseconds since 1970 do not fit a double.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "json.hpp"

namespace stepscope {

constexpr std::int64_t NULL_INT = std::numeric_limits<std::int64_t>::min();  // as window.NULL

// digits * 10^exponent; digits after the nineteenth are dropped, and that is noted.
struct Decimal {
    bool negative = false;
    bool inexact = false;
    std::uint64_t digits = 0;
    std::int32_t exponent = 0;

    double rough() const;
};

// Parses a number, or a text that contains one; false for everything else.
bool read_decimal(const json::Token& token, Decimal& found);

// A time in nanoseconds, given in units of 10^power ns and rounded to the nearest (half to even);
// NULL_INT if its absolute value exceeds 2^61, which is the year 2043, or 73 years of duration.
std::int64_t nanoseconds(const Decimal& time, int power);

// A number without its fraction; NULL_INT if a double could not distinguish it from its neighbours.
std::int64_t whole_number(const json::Token& token);

}  // namespace stepscope
