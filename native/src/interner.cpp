#include "interner.hpp"

#include <cstring>
#include <random>

#include "hash.hpp"

namespace stepscope {
namespace {

constexpr std::size_t FIRST_SLOTS = 1024;  // a power of two, like all later sizes
constexpr std::size_t PLACE_BYTES = 150;   // memory of a text here, and of a string in Python

std::uint64_t up_to_eight(std::string_view bytes) {
    std::uint64_t value = 0;
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
}

}  // namespace

Interner::Interner() : slots_(FIRST_SLOTS) {
    std::random_device random;
    seed_ = std::uint64_t{random()} << 32 | random();
}

std::int64_t Interner::code(std::string_view text) {
    const std::uint64_t wanted = hash(text);
    std::size_t at = wanted & (slots_.size() - 1);
    for (; slots_[at].code >= 0; at = (at + 1) & (slots_.size() - 1)) {
        const Slot& slot = slots_[at];
        if (slot.hash == wanted && texts_[static_cast<std::size_t>(slot.code)] == text)
            return slot.code;
    }
    const auto code = static_cast<std::int64_t>(texts_.size());
    texts_.emplace_back(text);
    slots_[at] = {wanted, code};
    size_bytes_ += PLACE_BYTES + text.size();
    if (texts_.size() * 2 > slots_.size()) grow();
    return code;
}

std::uint64_t Interner::hash(std::string_view text) const {
    std::uint64_t state = folded(seed_ ^ text.size(), ODD);
    std::size_t at = 0;
    for (; at + 8 <= text.size(); at += 8)
        state = folded(state ^ up_to_eight(text.substr(at, 8)), seed_ | 1);
    return folded(state ^ up_to_eight(text.substr(at)), ODD);
}

void Interner::grow() {
    std::vector<Slot> larger(slots_.size() * 2);
    for (const Slot& slot : slots_) {
        if (slot.code < 0) continue;
        std::size_t at = slot.hash & (larger.size() - 1);
        while (larger[at].code >= 0) at = (at + 1) & (larger.size() - 1);
        larger[at] = slot;
    }
    slots_.swap(larger);
}

}  // namespace stepscope
