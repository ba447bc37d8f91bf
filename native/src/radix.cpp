#include "radix.hpp"

#include <array>
#include <memory>
#include <utility>

namespace stepscope {
namespace {

constexpr unsigned BITS = 11, ROW_BITS = 32;
constexpr std::size_t DIGITS = std::size_t{1} << BITS;
constexpr std::uint64_t MOST = std::uint64_t{1} << ROW_BITS;

using Places = std::array<std::size_t, DIGITS>;

std::size_t digit(std::uint64_t number, unsigned shift) {
    return static_cast<std::size_t>(number >> shift) & (DIGITS - 1);
}

// Where the rows of each digit begin.
template <class NumberOf>
Places begins(std::size_t rows, unsigned shift, NumberOf&& number_of) {
    Places places{};
    for (std::size_t row = 0; row < rows; ++row) ++places[digit(number_of(row), shift)];
    std::size_t before = 0;
    for (std::size_t& place : places) before += std::exchange(place, before);
    return places;
}

bool is_small(const std::int64_t* values, std::size_t rows, std::uint64_t& all_bits) {
    all_bits = 0;
    // a negative number has the highest bits
    for (std::size_t row = 0; row < rows; ++row)
        all_bits |= static_cast<std::uint64_t>(values[row]);
    return all_bits < MOST && rows < MOST;
}

}  // namespace

bool stable_order(const std::int64_t* values, std::size_t rows, std::int64_t* order) {
    std::uint64_t all_bits = 0;
    if (!is_small(values, rows, all_bits)) return false;
    const auto value = [values](std::size_t row) {
        return static_cast<std::uint64_t>(values[row]);
    };
    Places places = begins(rows, 0, value);
    if (all_bits < DIGITS) {
        for (std::size_t row = 0; row < rows; ++row)
            order[places[digit(value(row), 0)]++] = static_cast<std::int64_t>(row);
        return true;
    }
    // the number in the upper half, its row in the lower one
    const std::unique_ptr<std::uint64_t[]> room(new std::uint64_t[rows]);
    std::uint64_t* from = room.get();
    for (std::size_t row = 0; row < rows; ++row)
        from[places[digit(value(row), 0)]++] = value(row) << ROW_BITS | row;
    auto* to = reinterpret_cast<std::uint64_t*>(order);
    for (unsigned shift = BITS; all_bits >> shift != 0; shift += BITS) {
        const auto number = [from](std::size_t row) { return from[row] >> ROW_BITS; };
        places = begins(rows, shift, number);
        for (std::size_t row = 0; row < rows; ++row)
            to[places[digit(number(row), shift)]++] = from[row];
        std::swap(from, to);
    }
    for (std::size_t row = 0; row < rows; ++row)
        order[row] = static_cast<std::int64_t>(from[row] & (MOST - 1));
    return true;
}

}  // namespace stepscope
