#include "codes.hpp"

#include <cstring>

#include "../sender/record.hpp"

namespace stepscope::nccl {
namespace {

constexpr const char* ALGORITHMS[] = {
    "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
constexpr const char* PROTOCOLS[] = {"LL", "LL128", "SIMPLE"};

struct Named {
    const char* name;
    std::int64_t bytes;
};
constexpr Named DATATYPES[] = {
    {"ncclInt8", 1},    {"ncclUint8", 1},    {"ncclInt32", 4},      {"ncclUint32", 4},
    {"ncclInt64", 8},   {"ncclUint64", 8},   {"ncclFloat16", 2},    {"ncclFloat32", 4},
    {"ncclFloat64", 8}, {"ncclBfloat16", 2}, {"ncclFloat8e4m3", 1}, {"ncclFloat8e5m2", 1},
};

// The index counted from 1; 0 if the word is not in the list.
template <std::size_t SIZE>
int place(const char* const (&names)[SIZE], const char* name) {
    for (std::size_t at = 0; name != nullptr && at < SIZE; ++at) {
        if (std::strcmp(names[at], name) == 0) return static_cast<int>(at) + 1;
    }
    return 0;
}

}  // namespace

const char* const OPERATOR_NAMES[OPERATORS] = {
    "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce",  "Send",
    "Recv",      "AllToAll",  "Gather",        "Scatter",   "Barrier", "Other"};

std::size_t operator_code(const char* name) {
    if (name == nullptr) return OPERATORS - 1;
    if (std::strcmp(name, "AlltoAll") == 0) name = "AllToAll";
    const int found = place(OPERATOR_NAMES, name);
    return found == 0 ? OPERATORS - 1 : static_cast<std::size_t>(found - 1);
}

Datatype datatype_of(const char* name) {
    int code = 0;
    for (const Named& one : DATATYPES) {
        ++code;
        if (name != nullptr && std::strcmp(one.name, name) == 0) return {code, one.bytes};
    }
    return {0, UNKNOWN};
}

std::uint16_t detail_flags(const char* algorithm, const char* protocol, int datatype) {
    const int flags =
        place(ALGORITHMS, algorithm) << 2 | place(PROTOCOLS, protocol) << 6 | datatype << 8;
    return static_cast<std::uint16_t>(flags);
}

}  // namespace stepscope::nccl
