// Strings that records refer to by number; each is sent to the processor once per connection.
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
    // The number of a text. Long texts are cut, and beyond a limit all new texts share one number.
    // Bytes that are not ASCII are replaced, because names come from other people's programs. Safe
    // on any thread; takes a lock.
    std::int64_t number(std::string_view text);
    std::size_t size() const;
    // The JSON of a NAMES packet with as many names from `first` on as fit; advances `first`.
    std::string told_from(std::size_t& first, std::size_t most_bytes) const;

 private:
    std::int64_t held(const std::string& text);

    mutable std::mutex mutex_;
    std::unordered_map<std::string, std::int64_t> numbers_;
    std::vector<std::string> texts_;
};

}  // namespace stepscope
