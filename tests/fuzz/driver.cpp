// Stands in for libFuzzer, where the compiler has none: feeds kept inputs, then random changes of
// them, guided by nothing.
//
//     PROGRAM [-max_total_time=SECONDS] [-runs=INPUTS] [-seed=SEED] FOLDER…
//
// Other options are libFuzzer's alone and are refused if they write inputs (-set_cover_merge=1).
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::size_t LONGEST = 1 << 16;

struct Options {
    double seconds = std::numeric_limits<double>::infinity();
    double runs = std::numeric_limits<double>::infinity();
    std::uint64_t seed = std::random_device{}();
    std::vector<std::string> inputs;
};

bool starts_with(const std::string& text, const std::string& start) {
    return text.compare(0, start.size(), start) == 0;
}

void read_folder(const std::string& folder, std::vector<std::string>& inputs) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        std::ifstream file(entry.path(), std::ios::binary);
        inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
}

Options read(int count, char** given) {
    Options options;
    for (int at = 1; at < count; ++at) {
        const std::string word = given[at], value = word.substr(word.find('=') + 1);
        if (starts_with(word, "-max_total_time=")) options.seconds = std::atof(value.c_str());
        if (starts_with(word, "-runs=")) options.runs = std::atof(value.c_str());
        if (starts_with(word, "-seed=")) options.seed = std::strtoull(value.c_str(), nullptr, 10);
        if (starts_with(word, "-set_cover_merge=")) {
            std::fprintf(stderr, "this compiler has no libFuzzer, which chooses inputs to keep\n");
            std::exit(2);
        }
        if (word[0] != '-') read_folder(word, options.inputs);
    }
    if (options.inputs.empty()) options.inputs.emplace_back();
    return options;
}

class Changes {
 public:
    explicit Changes(std::uint64_t seed) : chance_(seed) {}

    std::size_t below(std::size_t limit) { return limit == 0 ? 0 : chance_() % limit; }

    std::string changed(std::string text) {
        static const char* const words[] = {"\"", "\\", "{", "}",    "[",     "]",  ",",
                                            ":",  "-",  "1", "1e99", "\\ud8", "ns", "null"};
        for (std::size_t count = 1 + below(8); count > 0; --count) {
            const std::size_t at = below(text.size() + 1);
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

 private:
    std::mt19937_64 chance_;
};

void run(const std::string& text) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
}

}  // namespace

int main(int count, char** given) {
    const Options options = read(count, given);
    std::printf("seed %llu\n", static_cast<unsigned long long>(options.seed));
    std::fflush(stdout);  // before a sanitizer ends us
    for (const std::string& text : options.inputs) run(text);
    const auto limit = std::chrono::duration<double>(options.seconds);
    const auto began = std::chrono::steady_clock::now();
    Changes changes(options.seed);
    std::string text;
    auto runs = static_cast<double>(options.inputs.size());
    for (; runs < options.runs && std::chrono::steady_clock::now() - began < limit; ++runs) {
        const bool afresh = text.size() > LONGEST || changes.below(4) == 0;
        text = changes.changed(afresh ? options.inputs[changes.below(options.inputs.size())]
                                      : std::move(text));
        run(text);
    }
    std::printf("%.0f inputs\n", runs);
}
