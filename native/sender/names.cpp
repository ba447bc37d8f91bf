#include "names.hpp"

#include "text.hpp"

namespace stepscope {
namespace {

// As in collect/session.py.
constexpr std::size_t MOST_NAMES = 10'000;
// Names of C++ kernels are long. This is a quarter of what the wire allows, hence 10 MB at most.
constexpr std::size_t LONGEST_NAME = 1'000;
constexpr const char* OTHER = "(other)";

std::string clean(std::string_view text) {
    std::string out(text.substr(0, LONGEST_NAME));
    for (char& letter : out) {
        if (letter < ' ' || letter > '~') letter = '?';
    }
    return out;
}

}  // namespace

std::int64_t Names::number(std::string_view text) {
    const std::string cleaned = clean(text);
    const std::lock_guard<std::mutex> hold(mutex_);
    const auto known = numbers_.find(cleaned);
    if (known != numbers_.end()) return known->second;
    return held(texts_.size() < MOST_NAMES ? cleaned : OTHER);
}

std::size_t Names::size() const {
    const std::lock_guard<std::mutex> hold(mutex_);
    return texts_.size();
}

std::string Names::told_from(std::size_t& first, std::size_t most_bytes) const {
    const std::lock_guard<std::mutex> hold(mutex_);
    std::string out = "{\"names\":{";
    for (std::string one; first < texts_.size(); ++first) {
        one = out.back() == '{' ? "\"" : ",\"";
        one += std::to_string(first) + "\":";
        append_string(one, texts_[first]);
        if (out.size() + one.size() + 2 > most_bytes) break;
        out += one;
    }
    return out + "}}";
}

// The caller holds the lock.
std::int64_t Names::held(const std::string& text) {
    const auto fresh = static_cast<std::int64_t>(texts_.size());
    const auto [place, is_new] = numbers_.emplace(text, fresh);
    if (is_new) texts_.push_back(text);
    return place->second;
}

}  // namespace stepscope
