#include "rows.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace stepscope {
namespace {

// Rows handled at a time, so that what one hole has written is still in the cache for the next: 100
// B each.
constexpr std::size_t ROWS_AT_ONCE = 256;

// The lowest 56 bits, seven in each byte.
std::uint64_t spread(std::uint64_t value) {
    value = (value & 0x000000000FFFFFFF) | (value & 0x00FFFFFFF0000000) << 4;
    value = (value & 0x00003FFF00003FFF) | (value & 0x0FFFC0000FFFC000) << 2;
    return (value & 0x007F007F007F007F) | (value & 0x3F803F803F803F80) << 1;
}

// Byte by byte, which compilers combine; works with any byte order.
template <std::size_t Bytes>
void store(std::uint64_t value, unsigned char* out) {
    for (std::size_t at = 0; at < Bytes; ++at)
        out[at] = static_cast<unsigned char>(value >> 8 * at);
}

template <std::size_t Width>
void put(std::int64_t number, unsigned char* out) {
    const auto value = static_cast<std::uint64_t>(number);
    constexpr std::uint64_t more = 0x8080808080808080;  // another byte follows
    if constexpr (Width == 0) {
        store<8>(value, out);
    } else if constexpr (Width <= 8) {
        store<Width>(spread(value) | (more & ((std::uint64_t{1} << (8 * Width - 8)) - 1)), out);
    } else {
        store<8>(spread(value) | more, out);
        out[8] = static_cast<unsigned char>((value >> 56 & 0x7F) | (Width == 10 ? 0x80 : 0));
        if constexpr (Width == 10) out[9] = static_cast<unsigned char>(value >> 63);
    }
}

using Put = void (*)(const std::int64_t*, std::size_t, unsigned char*, std::size_t);

template <std::size_t Width>
void put_all(const std::int64_t* values, std::size_t rows, unsigned char* out, std::size_t stride) {
    for (std::size_t row = 0; row < rows; ++row) put<Width>(values[row], out + row * stride);
}

template <std::size_t... Width>
constexpr std::array<Put, sizeof...(Width)> of_widths(std::index_sequence<Width...>) {
    return {put_all<Width>...};
}
constexpr auto PUTS = of_widths(std::make_index_sequence<WIDEST + 1>());

}  // namespace

void write_rows(std::string_view shared, const std::vector<Hole>& holes, std::size_t rows,
                unsigned char* out) {
    const std::size_t length = shared.size();
    for (std::size_t first = 0; first < rows; first += ROWS_AT_ONCE) {
        const std::size_t count = std::min(ROWS_AT_ONCE, rows - first);
        unsigned char* const block = out + first * length;
        for (std::size_t row = 0; row < count; ++row)
            std::memcpy(block + row * length, shared.data(), length);
        for (const Hole& hole : holes)
            PUTS[hole.width](hole.values + first, count, block + hole.at, length);
    }
}

}  // namespace stepscope
