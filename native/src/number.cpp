#include "number.hpp"

#include <array>
#include <cmath>

namespace stepscope {
namespace {

constexpr int MOST_DIGITS = 19;        // of any uint64
constexpr std::int32_t FAR = 1 << 20;  // larger exponents make no difference
constexpr std::uint64_t LATEST_NS = std::uint64_t{1} << 61;
constexpr std::uint64_t EXACT_DOUBLE = std::uint64_t{1} << 53;

constexpr std::array<std::uint64_t, MOST_DIGITS + 1> powers_of_ten() {
    std::array<std::uint64_t, MOST_DIGITS + 1> powers{1};
    for (std::size_t at = 1; at < powers.size(); ++at) powers[at] = powers[at - 1] * 10;
    return powers;
}
constexpr auto POWER = powers_of_ten();

std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(" \t\r\n\v\f");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r\n\v\f") - first + 1);
}

// Removes the digits at the beginning of the text; returns how many there were.
std::size_t take_digits(std::string_view& text, int& room, bool fraction, Decimal& found) {
    std::size_t count = 0;
    for (; count < text.size() && text[count] >= '0' && text[count] <= '9'; ++count) {
        const auto digit = static_cast<std::uint64_t>(text[count] - '0');
        if (room > 0) {
            found.digits = found.digits * 10 + digit;
            if (found.digits != 0) --room;
            found.exponent -= fraction;
        } else {
            found.inexact |= digit != 0;
            if (!fraction && found.exponent < FAR) ++found.exponent;
        }
    }
    text.remove_prefix(count);
    return count;
}

bool take_sign(std::string_view& text) {
    const bool negative = !text.empty() && text.front() == '-';
    if (negative || (!text.empty() && text.front() == '+')) text.remove_prefix(1);
    return negative;
}

bool take_exponent(std::string_view text, Decimal& found) {
    if (text.empty()) return true;
    if (text.front() != 'e' && text.front() != 'E') return false;
    text.remove_prefix(1);
    const bool negative = take_sign(text);
    if (text.empty()) return false;
    std::int32_t exponent = 0;
    for (const char digit : text) {
        if (digit < '0' || digit > '9') return false;
        if (exponent < FAR) exponent = exponent * 10 + (digit - '0');
    }
    found.exponent += negative ? -exponent : exponent;
    return true;
}

bool parse(std::string_view text, Decimal& found) {
    found = {};
    found.negative = take_sign(text);
    int room = MOST_DIGITS;
    std::size_t count = take_digits(text, room, false, found);
    if (!text.empty() && text.front() == '.') {
        text.remove_prefix(1);
        count += take_digits(text, room, true, found);
    }
    return count != 0 && take_exponent(text, found);
}

// digits * 10^shift, or `limit` if it would reach that.
std::uint64_t scaled_up(std::uint64_t digits, std::int32_t shift, std::uint64_t limit) {
    for (; shift > 0 && digits != 0 && digits < limit; --shift) {
        if (digits > limit / 10) return limit;
        digits *= 10;
    }
    return digits < limit ? digits : limit;
}

std::uint64_t rounded_down(std::uint64_t digits, std::int32_t places) {
    return places > MOST_DIGITS ? 0 : digits / POWER[static_cast<std::size_t>(places)];
}

std::uint64_t rounded(const Decimal& number, std::int32_t places) {
    // after a shift by twenty places, nineteen digits are less than a fifth
    if (places > MOST_DIGITS) return 0;
    const std::uint64_t unit = POWER[static_cast<std::size_t>(places)];
    const std::uint64_t below = number.digits / unit, rest = number.digits % unit;
    const std::uint64_t half = unit / 2;
    const bool up = rest > half || (rest == half && unit > 1 && (number.inexact || below % 2 == 1));
    return below + up;
}

std::int64_t with_sign(std::uint64_t value, bool negative) {
    const auto number = static_cast<std::int64_t>(value);
    return negative ? -number : number;
}

}  // namespace

double Decimal::rough() const {
    return static_cast<double>(digits) * std::pow(10.0, exponent) * (negative ? -1 : 1);
}

bool read_decimal(const json::Token& token, Decimal& found) {
    if (token.kind == json::number) return parse(token.raw, found);
    if (token.kind == json::text) return parse(trimmed(token.inside()), found);
    return false;
}

std::int64_t nanoseconds(const Decimal& time, int power) {
    const std::int32_t shift = time.exponent + power;
    const std::uint64_t value =
        shift >= 0 ? scaled_up(time.digits, shift, LATEST_NS) : rounded(time, -shift);
    return value < LATEST_NS ? with_sign(value, time.negative) : NULL_INT;
}

std::int64_t whole_number(const json::Token& token) {
    Decimal number;
    if (!read_decimal(token, number)) return NULL_INT;
    const std::uint64_t value = number.exponent >= 0
                                    ? scaled_up(number.digits, number.exponent, EXACT_DOUBLE)
                                    : rounded_down(number.digits, -number.exponent);
    return value < EXACT_DOUBLE ? with_sign(value, number.negative) : NULL_INT;
}

}  // namespace stepscope
