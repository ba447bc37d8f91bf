// Numbers texts in the order in which they are first seen.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace stepscope {

class Interner {
 public:
    Interner();

    std::int64_t code(std::string_view text);

    const std::deque<std::string>& texts() const { return texts_; }
    // The memory of the texts, each including its entries in the tables here and in Python.
    std::size_t size_bytes() const { return size_bytes_; }

 private:
    struct Slot {
        std::uint64_t hash = 0;
        std::int64_t code = -1;
    };
    std::uint64_t hash(std::string_view text) const;
    void grow();

    std::uint64_t seed_;  // random: no file can be crafted to collide
    std::vector<Slot> slots_;
    std::deque<std::string> texts_;
    std::size_t size_bytes_ = 0;
};

}  // namespace stepscope
