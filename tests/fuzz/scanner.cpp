// Fuzzes the scanner of traces, whose bytes are others', and the packing of rows.
//
//     0             1           2
//     | piece size  | row width | the events of a trace, after the opening bracket …
//     (both less one)
#include "scanner.hpp"

#include <algorithm>

#include "deflate.hpp"

using stepscope::Kind;
using stepscope::Scanner;

namespace {

// Pieces of one size, so that chunks end anywhere within an event.
void scan(std::string_view events, std::size_t piece) {
    Scanner scanner(
        {{"kernel", Kind::device}, {"cpu_op", Kind::cpu}, {"user_annotation", Kind::mark}},
        {"nccl:"});
    for (std::size_t at = 0; at < events.size(); at += piece) {
        // a copy of its own, so that the sanitizer sees a read behind its end
        if (!scanner.feed(std::string(events.substr(at, piece)))) break;
    }
    scanner.finish();
    for (std::size_t kind = 0; kind < stepscope::KINDS; ++kind)
        stepscope::in_order(scanner.table(static_cast<Kind>(kind)));
}

void pack(std::string_view data, std::size_t row) {
    const std::size_t rows = data.size() / row;
    if (rows > 0) stepscope::deflate_rows(std::string(data.substr(0, rows * row)), row);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 2) return 0;
    const std::string_view text(reinterpret_cast<const char*>(data + 2), size - 2);
    scan(text, 1 + std::size_t{data[0]});
    pack(text, 1 + std::size_t{data[1]});
    return 0;
}
