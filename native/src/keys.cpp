#include "keys.hpp"

#include <random>

#include "hash.hpp"

namespace stepscope {
namespace {

constexpr std::size_t FIRST_SLOTS = 1024;  // a power of two, like all later sizes

}  // namespace

Keys::Keys(std::size_t most) : most_(most), slots_(FIRST_SLOTS) {
    std::random_device random;
    for (std::uint64_t& seed : seeds_) seed = std::uint64_t{random()} << 32 | random();
}

inline std::uint32_t Keys::code(const Key& key) {
    const std::uint64_t wanted = hash(key);
    std::size_t at = wanted & (slots_.size() - 1);
    for (; slots_[at].code != NO_ROOM; at = (at + 1) & (slots_.size() - 1))
        if (slots_[at].hash == wanted && keys_[slots_[at].code] == key) return slots_[at].code;
    if (keys_.size() >= most_) return NO_ROOM;
    const auto code = static_cast<std::uint32_t>(keys_.size());
    keys_.push_back(key);
    slots_[at] = {wanted, code};
    if (keys_.size() * 2 > slots_.size()) grow();
    return code;
}

void Keys::codes(std::int64_t rank, const std::int64_t* kernels, const std::int64_t* streams,
                 std::size_t events, std::uint32_t* codes) {
    for (std::size_t event = 0; event < events; ++event)
        codes[event] = code({rank, kernels[event], streams[event]});
}

inline std::uint64_t Keys::hash(const Key& key) const {
    const std::uint64_t mixed = (static_cast<std::uint64_t>(key.rank) ^ seeds_[0]) * ODD;
    return folded(static_cast<std::uint64_t>(key.kernel) ^ mixed,
                  static_cast<std::uint64_t>(key.stream) ^ seeds_[1]);
}

void Keys::grow() {
    std::vector<Slot> larger(slots_.size() * 2);
    for (const Slot& slot : slots_) {
        if (slot.code == NO_ROOM) continue;
        std::size_t at = slot.hash & (larger.size() - 1);
        while (larger[at].code != NO_ROOM) at = (at + 1) & (larger.size() - 1);
        larger[at] = slot;
    }
    slots_.swap(larger);
}

}  // namespace stepscope
