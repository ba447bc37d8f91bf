// Feeds mutated traces to the scanner, which reads bytes of others, under sanitizers.
//
//     scanner SECONDS SEED FILE_OF_EVENTS
#include "scanner.hpp"

#include "deflate.hpp"
#include "mutation.hpp"

using stepscope::Kind;
using stepscope::Scanner;
using stepscope::fuzz::below;

namespace {

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
    std::ifstream file(given[3], std::ios::binary);
    const std::string sample{std::istreambuf_iterator<char>(file), {}};
    stepscope::fuzz::feed(given[1], given[2], sample, parse);
}
