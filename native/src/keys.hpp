// Numbers keys (rank, kernel, stream) in the order in which they are first seen.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stepscope {

struct Key {
    std::int64_t rank, kernel, stream;
    bool operator==(const Key& other) const {
        return rank == other.rank && kernel == other.kernel && stream == other.stream;
    }
};

class Keys {
 public:
    static constexpr std::uint32_t NO_ROOM = ~std::uint32_t{0};

    explicit Keys(std::size_t most);

    // The number of each event's key; NO_ROOM for a new key if the limit is reached.
    void codes(std::int64_t rank, const std::int64_t* kernels, const std::int64_t* streams,
               std::size_t events, std::uint32_t* codes);
    const std::vector<Key>& keys() const { return keys_; }

 private:
    struct Slot {
        std::uint64_t hash = 0;
        std::uint32_t code = NO_ROOM;  // empty
    };
    std::uint32_t code(const Key& key);
    std::uint64_t hash(const Key& key) const;
    void grow();

    std::size_t most_;
    std::array<std::uint64_t, 2> seeds_;  // random: no producer can craft keys that collide
    std::vector<Slot> slots_;
    std::vector<Key> keys_;
};

}  // namespace stepscope
