// Reads JSON from foreign programs value by value, without building objects.
//
// It is never stricter than the standard, and more tolerant in one point: `NaN`, `-inf` and
// similar, which C++ and Python print for non-numbers, count as null.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stepscope::json {

enum class Outcome : std::uint8_t {
    whole,      // it was complete
    cut,        // the bytes end in the middle of it
    malformed,  // no continuation of these bytes makes it JSON, or it is nested too deeply
};

enum Kind : std::uint8_t {
    missing = 0,
    null = 1,
    boolean = 2,
    number = 4,
    text = 8,
    list = 16,
    object = 32,
};

struct Token {
    Kind kind = missing;
    bool escaped = false;    // a text that contains a backslash
    std::string_view raw{};  // as written; a text including its quotes

    std::string_view inside() const { return raw.substr(1, raw.size() - 2); }
};

// A position in a buffer, which must outlive it.
class Cursor {
 public:
    explicit Cursor(std::string_view bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}

    const char* at() const { return at_; }
    bool ended() const { return at_ == end_; }

    // Skips white space; returns whether a byte follows.
    bool space() {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
        return at_ != end_;
    }

    // One byte after white space.
    Outcome expect(char wanted) {
        if (!space()) return Outcome::cut;
        if (*at_ != wanted) return Outcome::malformed;
        ++at_;
        return Outcome::whole;
    }

    // Any value, including everything in it. A number is complete only if a byte follows it.
    Outcome value(Token& found);
    // The name of an object's member, and its colon.
    Outcome key(Token& found);

 private:
    Outcome scalar(Token& found);
    Outcome string(Token& found);
    Outcome escape();
    Outcome digits();
    Outcome number_(Token& found);
    Outcome word(Token& found, bool is_signed);
    Outcome nested();

    const char* at_;
    const char* end_;
};

// Calls `take(key, cursor)` for each member of an object; `take` must read the value.
template <class Take>
Outcome members(Cursor& in, Take&& take) {
    if (Outcome opened = in.expect('{'); opened != Outcome::whole) return opened;
    if (!in.space()) return Outcome::cut;
    if (*in.at() == '}') return in.expect('}');
    for (;;) {
        Token key;
        if (Outcome named = in.key(key); named != Outcome::whole) return named;
        if (Outcome taken = take(key, in); taken != Outcome::whole) return taken;
        if (in.expect(',') == Outcome::whole) continue;
        return in.expect('}');
    }
}

// A text with its escapes resolved; false if one of them is half a surrogate pair.
bool unescape(std::string_view inside, std::string& to);

}  // namespace stepscope::json
