#include "gather.hpp"

#include <algorithm>

namespace stepscope {
namespace {

constexpr std::size_t SHORT = 8;    // copied by a loop: a call of memcpy takes as long
constexpr std::size_t AHEAD = 256;  // rows until memory that is asked for has come (measured)

// Asks for an element that is wanted soon, wherever it is: this cannot fail.
template <class Element>
void ask_for(const Element* column, std::int64_t row) {
    const auto place = reinterpret_cast<std::uintptr_t>(column) +
                       static_cast<std::uintptr_t>(row) * sizeof(Element);
    __builtin_prefetch(reinterpret_cast<const void*>(place));
}

// The end of the run of adjacent rows that begins here.
std::size_t run_end(const std::int64_t* rows, std::size_t at, std::size_t count) {
    std::size_t end = at + 1;
    while (end < count && rows[end] == rows[end - 1] + 1) ++end;
    return end;
}

template <class Element>
bool gathered(const void* column, std::size_t size, const std::int64_t* rows, std::size_t count,
              void* out) {
    const auto* from = static_cast<const Element*>(column);
    auto* to = static_cast<Element*>(out);
    for (std::size_t at = 0; at < count;) {
        if (count - at > AHEAD) ask_for(from, rows[at + AHEAD]);
        const std::size_t end = run_end(rows, at, count), length = end - at;
        const auto first = static_cast<std::size_t>(rows[at]);
        // a negative row is larger than any size
        if (first >= size || length > size - first) return false;
        if (length < SHORT)
            for (std::size_t one = 0; one < length; ++one) to[at + one] = from[first + one];
        else
            std::copy_n(from + first, length, to + at);
        at = end;
    }
    return true;
}

}  // namespace

bool gather(const void* column, std::size_t size, std::size_t width, const std::int64_t* rows,
            std::size_t count, void* out) {
    switch (width) {
        case 1: return gathered<std::uint8_t>(column, size, rows, count, out);
        case 2: return gathered<std::uint16_t>(column, size, rows, count, out);
        case 4: return gathered<std::uint32_t>(column, size, rows, count, out);
        case 8: return gathered<std::uint64_t>(column, size, rows, count, out);
        default: return false;
    }
}

}  // namespace stepscope
