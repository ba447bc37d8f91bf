#include "connections.hpp"

#include "../sender/clock.hpp"
#include "../sender/sender.hpp"

namespace stepscope::nccl {
namespace {

constexpr std::size_t MOST_TRIES = 32;

std::uint64_t key_of(std::int64_t communicator, int peer) {
    return static_cast<std::uint64_t>(communicator) << 32 | static_cast<std::uint32_t>(peer + 1);
}

// Fibonacci hashing (Knuth, volume 3, section 6.4).
std::size_t hash(std::uint64_t key) { return (key * 0x9E3779B97F4A7C15) >> 32; }

}  // namespace

Connections::Connections(std::size_t size)
    : size_(size), all_(new Connection[size]), told_ns_(now_ns()) {}

Connections::Connection* Connections::find(std::int64_t communicator, int peer) noexcept {
    const std::uint64_t key = key_of(communicator, peer);
    for (std::size_t tried = 0; tried < MOST_TRIES; ++tried) {
        Connection& one = all_[(hash(key) + tried) % size_];
        std::uint64_t found = one.key.load(std::memory_order_relaxed);
        if (found == 0 && one.key.compare_exchange_strong(found, key)) return &one;
        if (found == key) return &one;
    }
    return nullptr;
}

void Connections::tell(Sender& sender, std::int64_t now_ns) noexcept {
    for (std::size_t at = 0; at < size_; ++at) {
        if (all_[at].key.load(std::memory_order_relaxed) != 0) tell_of(all_[at], sender, now_ns);
    }
    told_ns_ = now_ns;
}

bool Connections::tell_of(Connection& one, Sender& sender, std::int64_t now_ns) noexcept {
    // read `completed` first, so that it cannot exceed `posted`
    const std::int64_t bytes = one.bytes.load(std::memory_order_acquire);
    const std::int64_t completed = one.completed.load(std::memory_order_acquire);
    const std::int64_t posted = one.posted.load(std::memory_order_acquire);
    if (posted == one.posted_told && completed == posted && completed == one.completed_told) {
        return false;
    }
    const std::uint64_t key = one.key.load(std::memory_order_relaxed);
    const auto peer = static_cast<std::int64_t>(key & 0xFFFFFFFF) - 1;
    Record record{Kind::transfer,
                  static_cast<std::uint16_t>(key >> 32),
                  UNKNOWN_ORDINAL,
                  {UNKNOWN, peer, told_ns_, now_ns, bytes - one.bytes_told,
                   posted - one.posted_told, completed - one.completed_told}};
    // without room, it is reported the next time, with the counts of a longer interval
    if (!sender.try_put(record)) return false;
    one.posted_told = posted;
    one.completed_told = completed;
    one.bytes_told = bytes;
    return true;
}

}  // namespace stepscope::nccl
