// Strings that records refer to by number, told to the processor once per connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace stepscope {

class Names {
 public:
    // The number of a text. Long ones are cut, beyond so many all share one, and what is no ASCII
    // is replaced: names come from other people's programs. Safe on any thread; takes a lock.
    std::int64_t number(std::string_view text);
    std::size_t size() const;
    // The JSON of a NAMES packet with the names from `first` on that fit; `first` moves behind
    // them.
    std::string told_from(std::size_t& first, std::size_t most_bytes) const;

 private:
    std::int64_t held(const std::string& text);

    mutable std::mutex mutex_;
    std::unordered_map<std::string, std::int64_t> numbers_;
    std::vector<std::string> texts_;
};

}  // namespace stepscope
