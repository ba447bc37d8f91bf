#include "json.hpp"

#include <array>

namespace stepscope::json {
namespace {

constexpr std::size_t DEEPEST = 1024;  // as deep as Python's own decoders go

constexpr std::array<bool, 256> ordinary_bytes() {
    std::array<bool, 256> ordinary{};
    for (int byte = 0x20; byte < 256; ++byte) ordinary[static_cast<std::size_t>(byte)] = true;
    ordinary['"'] = ordinary['\\'] = false;
    return ordinary;
}
constexpr std::array<bool, 256> ORDINARY = ordinary_bytes();  // inside a string

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }
bool is_letter(char byte) { return (byte | 0x20) >= 'a' && (byte | 0x20) <= 'z'; }

int hex(char byte) {
    if (is_digit(byte)) return byte - '0';
    const char lower = static_cast<char>(byte | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

bool same_letters(std::string_view word, std::string_view lower) {
    if (word.size() != lower.size()) return false;
    for (std::size_t at = 0; at < word.size(); ++at)
        if ((word[at] | 0x20) != lower[at]) return false;
    return true;
}

// Which of the open brackets are braces, one bit each, so that nesting uses no stack.
class Levels {
 public:
    bool push(bool brace) {
        if (depth_ == DEEPEST) return false;
        const std::uint64_t bit = std::uint64_t{1} << (depth_ % 64);
        std::uint64_t& word = bits_[depth_++ / 64];
        word = brace ? word | bit : word & ~bit;
        return true;
    }
    void pop() { --depth_; }
    bool empty() const { return depth_ == 0; }
    bool in_object() const { return bits_[(depth_ - 1) / 64] >> ((depth_ - 1) % 64) & 1; }
    char closing() const { return in_object() ? '}' : ']'; }

 private:
    std::array<std::uint64_t, DEEPEST / 64> bits_{};
    std::size_t depth_ = 0;
};

void append_utf8(std::uint32_t point, std::string& to) {
    const auto put = [&to](std::uint32_t byte) { to.push_back(static_cast<char>(byte)); };
    if (point < 0x80) {
        put(point);
    } else if (point < 0x800) {
        put(0xC0 | point >> 6);
        put(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
        put(0xE0 | point >> 12);
        put(0x80 | (point >> 6 & 0x3F));
        put(0x80 | (point & 0x3F));
    } else {
        put(0xF0 | point >> 18);
        put(0x80 | (point >> 12 & 0x3F));
        put(0x80 | (point >> 6 & 0x3F));
        put(0x80 | (point & 0x3F));
    }
}

// The four hexadecimal digits at a position; -1 if they are not there.
std::int32_t four_digits(std::string_view text, std::size_t at) {
    if (text.size() < at + 4) return -1;
    std::int32_t value = 0;
    for (std::size_t place = at; place < at + 4; ++place) {
        const int digit = hex(text[place]);
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

constexpr bool is_high(std::int32_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
constexpr bool is_low(std::int32_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

// `uXXXX` at a position, or a surrogate pair; returns its length, 0 for half a pair.
std::size_t append_unicode(std::string_view text, std::size_t at, std::string& to) {
    const std::int32_t unit = four_digits(text, at + 1);
    if (unit < 0 || is_low(unit)) return 0;
    if (!is_high(unit)) {
        append_utf8(static_cast<std::uint32_t>(unit), to);
        return 5;
    }
    if (text.substr(at + 5, 2) != "\\u") return 0;
    const std::int32_t low = four_digits(text, at + 7);
    if (!is_low(low)) return 0;
    append_utf8(0x10000u + (static_cast<std::uint32_t>(unit - 0xD800) << 10) +
                    static_cast<std::uint32_t>(low - 0xDC00),
                to);
    return 11;
}

char plain_escape(char letter) {
    switch (letter) {
        case 'b': return '\b';
        case 'f': return '\f';
        case 'n': return '\n';
        case 'r': return '\r';
        case 't': return '\t';
        default: return letter;
    }
}

}  // namespace

bool unescape(std::string_view inside, std::string& to) {
    to.clear();
    for (std::size_t at = 0; at < inside.size();) {
        if (inside[at] != '\\') {
            to.push_back(inside[at++]);
        } else if (inside[at + 1] != 'u') {
            to.push_back(plain_escape(inside[at + 1]));
            at += 2;
        } else {
            const std::size_t taken = append_unicode(inside, at + 1, to);
            if (taken == 0) return false;
            at += 1 + taken;
        }
    }
    return true;
}

Outcome Cursor::value(Token& found) {
    if (!space()) return Outcome::cut;
    if (*at_ != '{' && *at_ != '[') return scalar(found);
    const char* begin = at_;
    const Kind kind = *at_ == '{' ? object : list;
    const Outcome outcome = nested();
    found = {kind, false, {begin, static_cast<std::size_t>(at_ - begin)}};
    return outcome;
}

Outcome Cursor::key(Token& found) {
    if (!space()) return Outcome::cut;
    if (*at_ != '"') return Outcome::malformed;
    const Outcome outcome = string(found);
    return outcome == Outcome::whole ? expect(':') : outcome;
}

Outcome Cursor::scalar(Token& found) {
    if (*at_ == '"') return string(found);
    return is_letter(*at_) ? word(found, false) : number_(found);
}

Outcome Cursor::string(Token& found) {
    const char* begin = at_++;
    bool escaped = false;
    for (;;) {
        while (at_ != end_ && ORDINARY[static_cast<unsigned char>(*at_)]) ++at_;
        if (at_ == end_) return Outcome::cut;
        if (*at_ == '"') break;
        if (*at_ != '\\') return Outcome::malformed;
        escaped = true;
        if (const Outcome outcome = escape(); outcome != Outcome::whole) return outcome;
    }
    ++at_;
    found = {text, escaped, {begin, static_cast<std::size_t>(at_ - begin)}};
    return Outcome::whole;
}

Outcome Cursor::escape() {
    if (end_ - at_ < 2) return Outcome::cut;
    const char letter = at_[1];
    at_ += 2;
    if (letter != 'u')
        return std::string_view("\"\\/bfnrt").find(letter) == std::string_view::npos
                   ? Outcome::malformed
                   : Outcome::whole;
    for (int place = 0; place < 4; ++place, ++at_) {
        if (at_ == end_) return Outcome::cut;
        if (hex(*at_) < 0) return Outcome::malformed;
    }
    return Outcome::whole;
}

// At least one digit, and a byte after them.
Outcome Cursor::digits() {
    if (at_ == end_) return Outcome::cut;
    if (!is_digit(*at_)) return Outcome::malformed;
    while (at_ != end_ && is_digit(*at_)) ++at_;
    return at_ == end_ ? Outcome::cut : Outcome::whole;
}

Outcome Cursor::number_(Token& found) {
    const char* begin = at_;
    if (*at_ == '-' && ++at_ == end_) return Outcome::cut;
    if (is_letter(*at_)) return word(found, true);
    const bool zero = *at_ == '0';
    const char* first = at_;
    if (const Outcome outcome = digits(); outcome != Outcome::whole) return outcome;
    if (zero && at_ - first > 1) return Outcome::malformed;
    if (*at_ == '.') {
        ++at_;
        if (const Outcome outcome = digits(); outcome != Outcome::whole) return outcome;
    }
    if (*at_ == 'e' || *at_ == 'E') {
        if (++at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
        if (const Outcome outcome = digits(); outcome != Outcome::whole) return outcome;
    }
    found = {number, false, {begin, static_cast<std::size_t>(at_ - begin)}};
    return Outcome::whole;
}

// `true`, `false`, `null` or a non-number; a sign before it is already skipped.
Outcome Cursor::word(Token& found, bool is_signed) {
    const char* begin = at_;
    while (at_ != end_ && is_letter(*at_) && at_ - begin < 9) ++at_;
    if (at_ == end_) return Outcome::cut;
    const std::string_view word(begin, static_cast<std::size_t>(at_ - begin));
    found = {null, false, "null"};
    if (same_letters(word, "nan") && *at_ == '(') {
        do {
            if (++at_ == end_) return Outcome::cut;
        } while (is_letter(*at_) || is_digit(*at_) || *at_ == '_');
        return expect(')');
    }
    if (same_letters(word, "nan") || same_letters(word, "inf") || same_letters(word, "infinity"))
        return Outcome::whole;
    if (is_signed) return Outcome::malformed;
    if (word == "null") return Outcome::whole;
    found = {boolean, false, word};
    return word == "true" || word == "false" ? Outcome::whole : Outcome::malformed;
}

// From an opening bracket to the byte after its closing one, without recursion.
Outcome Cursor::nested() {
    Levels levels;
    Token ignored;
    for (;;) {
        bool emptied = false;
        if (*at_ == '{' || *at_ == '[') {
            if (!levels.push(*at_++ == '{')) return Outcome::malformed;
            if (!space()) return Outcome::cut;
            emptied = *at_ == levels.closing();
        } else if (const Outcome outcome = scalar(ignored); outcome != Outcome::whole) {
            return outcome;
        } else {
            if (!space()) return Outcome::cut;
            emptied = true;
        }
        if (emptied) {
            while (*at_ == levels.closing()) {
                ++at_;
                levels.pop();
                if (levels.empty()) return Outcome::whole;
                if (!space()) return Outcome::cut;
            }
            if (*at_++ != ',') return Outcome::malformed;
        }
        if (levels.in_object()) {
            if (const Outcome outcome = key(ignored); outcome != Outcome::whole) return outcome;
        }
        if (!space()) return Outcome::cut;
    }
}

}  // namespace stepscope::json
