// NCCL's names as the small numbers of wire/records.py, so that the hot path needs no strings.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepscope::nccl {

constexpr std::size_t OPERATORS = 12;
constexpr std::size_t REDUCE_SCATTER = 2;
// The last one stands for unknown operators.
extern const char* const OPERATOR_NAMES[OPERATORS];

std::size_t operator_code(const char* name);

struct Datatype {
    int code;
    std::int64_t bytes;  // UNKNOWN if the code is 0
};
Datatype datatype_of(const char* name);

// Algorithm, protocol and data type of an operator, as flags of its record: `COMM_DETAILS`.
std::uint16_t detail_flags(const char* algorithm, const char* protocol, int datatype);

}  // namespace stepscope::nccl
