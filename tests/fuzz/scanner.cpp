// Feeds mutated traces to the scanner, which reads bytes of others, under sanitizers.
//
//     scanner SECONDS SEED FILE_OF_EVENTS
//
// A mutation loop of our own: libFuzzer needs clang, sanitizers come with every compiler. The seed
// is printed first, so that a failure can be repeated.
#include "scanner.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "deflate.hpp"

using stepscope::Kind;
using stepscope::Scanner;

namespace {

std::mt19937_64 chance;

std::size_t below(std::size_t limit) { return limit == 0 ? 0 : chance() % limit; }

std::string changed(std::string text) {
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

void parse(const std::string& text) {
    Scanner scanner(
        {{"kernel", Kind::device}, {"cpu_op", Kind::cpu}, {"user_annotation", Kind::mark}},
        {"nccl:"});
    for (std::size_t at = 0; at < text.size();) {
        const std::string piece = text.substr(at, 1 + below(text.size()));  // ends are checked
        at += piece.size();
        if (!scanner.feed(piece)) break;
    }
    scanner.finish();
    for (std::size_t kind = 0; kind < stepscope::KINDS; ++kind)
        stepscope::in_order(scanner.table(static_cast<Kind>(kind)));
    if (!text.empty()) stepscope::deflate_rows(text, 1);
}

}  // namespace

int main(int count, char** given) {
    if (count != 4) return 2;
    const auto seconds = std::chrono::duration<double>(std::atof(given[1]));
    chance.seed(std::strtoull(given[2], nullptr, 10));
    std::ifstream file(given[3], std::ios::binary);
    const std::string sample{std::istreambuf_iterator<char>(file), {}};
    const auto began = std::chrono::steady_clock::now();
    std::string text = sample;
    long runs = 0;
    for (; std::chrono::steady_clock::now() - began < seconds; ++runs) {
        text = below(4) == 0 ? sample : changed(text.size() < 1 << 16 ? text : sample);
        parse(text);
    }
    std::printf("seed %s: %ld inputs\n", given[2], runs);
}
