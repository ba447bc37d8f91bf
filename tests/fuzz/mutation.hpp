// A mutation loop of our own: libFuzzer needs clang, sanitizers come with every compiler.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

namespace stepscope::fuzz {

inline std::mt19937_64 chance;
constexpr std::size_t LONGEST = 1 << 16;

inline std::size_t below(std::size_t limit) { return limit == 0 ? 0 : chance() % limit; }

inline std::string changed(std::string text) {
    static const char* const words[] = {"\"", "\\", "{", "}",    "[",     "]",  ",",
                                        ":",  "-",  "1", "1e99", "\\ud8", "ns", "null"};
    for (std::size_t count = 1 + below(8); count > 0; --count) {
        std::size_t at = below(text.size() + 1);
        switch (below(5)) {
            case 0: text.insert(at, words[below(std::size(words))]); break;
            case 1: text.erase(at, below(20)); break;
            case 2: text.insert(at, 1, static_cast<char>(below(256))); break;
            case 3: text.insert(at, text.substr(below(text.size() + 1), below(200))); break;
            default:
                if (at < text.size()) text[at] = static_cast<char>(below(256));
        }
    }
    return text;
}

// Feeds changes of a sample, each of a change before it or of the sample, for so many seconds.
// Prints the seed, so that a failure can be repeated.
template <typename Parse>
void feed(const char* seconds, const char* seed, const std::string& sample, Parse parse) {
    const auto limit = std::chrono::duration<double>(std::atof(seconds));
    chance.seed(std::strtoull(seed, nullptr, 10));
    std::printf("seed %s\n", seed);
    std::fflush(stdout);  // before a sanitizer ends us
    const auto began = std::chrono::steady_clock::now();
    std::string text = sample;
    long runs = 0;
    for (; std::chrono::steady_clock::now() - began < limit; ++runs) {
        text = below(4) == 0 ? sample : changed(text.size() < LONGEST ? text : sample);
        parse(text);
    }
    std::printf("%ld inputs\n", runs);
}

}  // namespace stepscope::fuzz
