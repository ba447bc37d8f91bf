// The 64 bytes that producers send, as src/stepscope/wire/records.py lays them down.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepscope {

enum class Kind : std::uint16_t {
    event = 1,
    phase = 2,
    comm = 3,
    pause = 4,
    count = 5,
    kernel = 6,
    transfer = 7,
};
constexpr std::size_t KINDS = 8;

// Of a field that nobody can fill.
constexpr std::int64_t UNKNOWN = -1;
// We do not know how many optimizer steps there were: the processor tells it by the time.
constexpr std::uint32_t UNKNOWN_ORDINAL = 0xFFFFFFFF;

struct Record {
    Kind kind;
    std::uint16_t flags;
    std::uint32_t ordinal;
    std::int64_t field[7];
};
static_assert(sizeof(Record) == 64, "records are 64 bytes on the wire");

// The table that suffers when a record of this kind is lost; null of no kind of ours.
const char* table_of(std::size_t kind);

}  // namespace stepscope
