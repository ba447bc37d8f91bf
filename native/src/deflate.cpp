#include "deflate.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include "huffman.hpp"

namespace stepscope {
namespace {

constexpr std::size_t SHORTEST = 3, LONGEST = 258;  // matches
constexpr std::size_t END = 256, FIRST_LENGTH = 257;
constexpr std::size_t SAMPLE = 256;  // rows; all rows of a trace look similar

// A number in a range of numbers that share a symbol: the symbol, the extra bits, and their count.
struct Ranged {
    unsigned symbol, extra, value;
};

// RFC 1951, section 3.2.5: from 1 on there are `steps` ranges of each size, and then the size
// doubles.
constexpr Ranged ranged(unsigned number, unsigned steps) {
    unsigned symbol = 0, extra = 0, first = 0;
    for (;;) {
        const unsigned ranges = extra == 0 ? 2 * steps : steps;
        const unsigned here = (number - first) >> extra;
        if (here < ranges) return {symbol + here, extra, (number - first) & ((1u << extra) - 1)};
        first += ranges << extra;
        symbol += ranges;
        ++extra;
    }
}

constexpr Ranged of_length(std::size_t length) {
    if (length == LONGEST) return {28, 0, 0};  // it has its own symbol
    return ranged(static_cast<unsigned>(length - SHORTEST), 4);
}

constexpr Ranged of_distance(std::size_t distance) {
    return ranged(static_cast<unsigned>(distance - 1), 2);
}

constexpr std::array<Ranged, LONGEST + 1> lengths_of_matches() {
    std::array<Ranged, LONGEST + 1> out{};
    for (std::size_t length = SHORTEST; length <= LONGEST; ++length)
        out[length] = of_length(length);
    return out;
}
constexpr auto OF_LENGTH = lengths_of_matches();

// A bit stream, starting with the lowest bit of each byte. Never holds more than 56 bits.
class Bits {
 public:
    explicit Bits(unsigned char* out) : out_(out) {}

    void add(std::uint64_t bits, unsigned count) {
        waiting_ |= bits << count_;
        count_ += count;
        for (std::size_t at = 0; at < 8; ++at)  // written so that compilers make one store of it
            out_[at] = static_cast<unsigned char>(waiting_ >> 8 * at);
        out_ += count_ / 8;
        waiting_ >>= count_ & ~7u;
        count_ %= 8;
    }

    unsigned char* end() const { return out_; }
    unsigned missing() const { return (8 - count_) % 8; }  // to a whole byte

 private:
    unsigned char* out_;
    std::uint64_t waiting_ = 0;
    unsigned count_ = 0;
};

// Neighbouring columns that differ in some rows.
struct Span {
    std::size_t at, width;
};

std::vector<Span> spans(const unsigned char* data, std::size_t rows, std::size_t row) {
    std::vector<unsigned char> differs(row);
    for (const unsigned char* at = data + row; at < data + rows * row; at += row)
        for (std::size_t column = 0; column < row; ++column)
            differs[column] |= static_cast<unsigned char>(at[column] ^ (at - row)[column]);
    std::vector<Span> found;
    for (std::size_t column = 0; column < row; ++column) {
        if (differs[column] == 0) continue;
        // a run of equal bytes that is too short for a match becomes part of its neighbours
        if (!found.empty() && column < found.back().at + found.back().width + SHORTEST)
            found.back().width = column + 1 - found.back().at;
        else
            found.push_back({column, 1});
    }
    return found;
}

// The number of first bytes up to the last one that differs.
std::size_t changed(const unsigned char* now, const unsigned char* before, std::size_t width) {
    while (width > 0 && now[width - 1] == before[width - 1]) --width;
    return width;
}

// Encodes bytes that equal those one row before as matches; `end` is the first byte after them.
template <class Sink>
void repeat(std::size_t bytes, const unsigned char* end, Sink& sink) {
    for (; bytes >= LONGEST + SHORTEST; bytes -= LONGEST) sink.match(LONGEST);
    if (bytes > LONGEST) {
        sink.match(LONGEST - SHORTEST);
        bytes -= LONGEST - SHORTEST;
    }
    if (bytes >= SHORTEST)
        sink.match(bytes);
    else
        sink.literals(end - bytes, bytes);
}

// Encodes rows as literals and matches, which it passes to a sink.
template <class Sink>
void tell(const unsigned char* data, std::size_t rows, std::size_t row,
          const std::vector<Span>& spans, Sink& sink) {
    sink.literals(data, row);
    std::size_t alike = 0;  // bytes up to here equal those of the row before
    for (const unsigned char* now = data + row; now < data + rows * row; now += row) {
        std::size_t here = 0;
        for (const Span& span : spans) {
            alike += span.at - here;
            here = span.at + span.width;
            const unsigned char* from = now + span.at;
            const std::size_t differ = changed(from, from - row, span.width);
            if (differ > 0) {
                repeat(alike, from, sink);
                sink.literals(from, differ);
                alike = 0;
            }
            alike += span.width - differ;
        }
        alike += row - here;
    }
    repeat(alike, data + rows * row, sink);
}

struct Counting {
    std::array<std::uint32_t, SYMBOLS> counts{};

    void literals(const unsigned char* from, std::size_t count) {
        for (std::size_t at = 0; at < count; ++at) ++counts[from[at]];
    }
    void match(std::size_t length) { ++counts[FIRST_LENGTH + OF_LENGTH[length].symbol]; }
};

// The codes of a match of each length; the only distance has the one-bit code 0.
class Writing {
 public:
    Writing(const Codes& codes, std::size_t row, unsigned char* out) : codes_(codes), bits_(out) {
        const Ranged back = of_distance(row);
        for (std::size_t length = SHORTEST; length <= LONGEST; ++length) {
            const Ranged& told = OF_LENGTH[length];
            const Code& code = codes[FIRST_LENGTH + told.symbol];
            std::uint64_t bits = code.bits | std::uint64_t{told.value} << code.length;
            const unsigned before = code.length + told.extra + 1;
            matches_[length] = {bits | std::uint64_t{back.value} << before, before + back.extra};
        }
        head(back.symbol);
    }

    void literals(const unsigned char* from, std::size_t count) {
        for (; count >= 3; count -= 3, from += 3) {  // at most 45 bits
            const Code &one = codes_[from[0]], &two = codes_[from[1]], &three = codes_[from[2]];
            const std::uint64_t pair = one.bits | std::uint64_t{two.bits} << one.length;
            const unsigned length = one.length + two.length;
            bits_.add(pair | std::uint64_t{three.bits} << length, length + three.length);
        }
        for (; count > 0; --count) put(codes_[*from++]);
    }
    void match(std::size_t length) { bits_.add(matches_[length].bits, matches_[length].length); }

    unsigned char* finish() {
        put(codes_[END]);
        bits_.add(0, 3);
        bits_.add(0, bits_.missing());
        bits_.add(0xFFFF0000, 32);
        return bits_.end();
    }

 private:
    struct Match {
        std::uint64_t bits;
        unsigned length;
    };

    void put(const Code& code) { bits_.add(code.bits, code.length); }

    // RFC 1951, section 3.2.7. The code lengths are written directly in four bits each: encoding
    // them would save 60 bytes.
    void head(unsigned distance) {
        bits_.add(0b100, 3);
        bits_.add(SYMBOLS - 257, 5);
        bits_.add(distance, 5);
        bits_.add(19 - 4, 4);
        bits_.add(0, 9);                                  // no runs: 16, 17, 18
        for (int at = 0; at < 16; ++at) bits_.add(4, 3);  // 0 to 15
        for (const Code& code : codes_) length(code.length);
        for (unsigned at = 0; at < distance; ++at) length(0);
        length(1);
    }

    void length(unsigned number) {
        constexpr std::array<unsigned char, 16> REVERSED = {0, 8, 4, 12, 2, 10, 6, 14,
                                                            1, 9, 5, 13, 3, 11, 7, 15};
        bits_.add(REVERSED[number], 4);
    }

    Codes codes_;
    std::array<Match, LONGEST + 1> matches_{};
    Bits bits_;
};

// No literal takes more than LONGEST_CODE bits, and no match more than its bytes would as literals;
// the header takes less than 200 bytes, and eight bytes are written at once.
std::size_t most(std::size_t bytes) { return bytes * 2 + 512; }

}  // namespace

std::vector<unsigned char> deflate_rows(std::string_view data, std::size_t row) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
    const std::size_t rows = data.size() / row;
    const std::vector<Span> differing = spans(bytes, rows, row);
    Counting sample;
    tell(bytes, std::min(rows, SAMPLE), row, differing, sample);
    const std::unique_ptr<unsigned char[]> room(new unsigned char[most(data.size())]);
    Writing out(huffman(sample.counts), row, room.get());
    tell(bytes, rows, row, differing, out);
    return {room.get(), out.finish()};
}

}  // namespace stepscope
