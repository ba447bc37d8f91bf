#include "records.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace stepscope {
namespace {

constexpr std::size_t WORDS = RECORD_BYTES / sizeof(std::uint64_t);

// The lowest sixteen bits of the first word, regardless of the byte order.
unsigned kind_of(const char* record) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(record);
    return std::min(bytes[0] + 256U * bytes[1], LAST_KIND);
}

}  // namespace

Survey survey(std::string_view records, std::int64_t limit) {
    const auto above = static_cast<std::uint64_t>(limit);
    std::uint64_t kinds = 0;
    std::uint64_t beyond = 0;
    for (std::size_t at = 0; at + RECORD_BYTES <= records.size(); at += RECORD_BYTES) {
        std::array<std::uint64_t, WORDS> words{};
        std::memcpy(words.data(), records.data() + at, RECORD_BYTES);
        kinds |= std::uint64_t{1} << kind_of(records.data() + at);
        // maps -limit..limit to 0..2 * limit
        for (std::size_t word = 1; word < WORDS; ++word)
            beyond |= static_cast<std::uint64_t>(words[word] + above > 2 * above);
    }
    return {kinds, beyond != 0};
}

}  // namespace stepscope
