// The 64-byte records that producers send, in the format of src/stepscope/wire/records.py.
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

// The value of a field that cannot be filled.
constexpr std::int64_t UNKNOWN = -1;
// The number of optimizer steps is unknown here: the processor derives the step from the time.
constexpr std::uint32_t UNKNOWN_ORDINAL = 0xFFFFFFFF;

struct Record {
    Kind kind;
    std::uint16_t flags;
    std::uint32_t ordinal;
    std::int64_t field[7];
};
static_assert(sizeof(Record) == 64, "records are 64 bytes on the wire");

// The table that loses a row when a record of this kind is lost; null for unknown kinds.
const char* table_of(std::size_t kind);

}  // namespace stepscope
