// The functions that the sampler's process calls. They throw nothing: trouble is written as a
// frame.
#include <exception>
#include <string>

#include "host.hpp"
#include "pipe.hpp"
#include "target.hpp"
#include "window.hpp"

#define API extern "C" __attribute__((visibility("default")))

namespace stepscope::pm {
namespace {

template <class Work>
int told(Pipe& pipe, Work work) {
    try {
        work();
        return 0;
    } catch (const std::exception& error) {
        pipe.said(error.what());
        return 1;
    }
}

std::string joined(const std::vector<std::string>& words, const char* between) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
    return text;
}

void tell(const Chosen& chosen, const std::string& chip, Pipe& pipe) {
    std::vector<std::string> names;
    for (const Metric* metric : chosen.metrics) names.push_back(metric->name);
    pipe.metrics(joined(names, "\n"));
    if (!chosen.unknown.empty()) pipe.note(chip + " has no " + joined(chosen.unknown, ", "));
    if (!chosen.other_pass.empty()) {
        pipe.note("not sampled, no room in one pass: " + joined(chosen.other_pass, ", "));
    }
}

void tell_end(const Window& window, Pipe& pipe) {
    if (window.overflows() > 0) {
        pipe.note("the GPU's buffer overflowed " + std::to_string(window.overflows()) + " times");
    }
    if (window.has_foreign_clock()) pipe.note("times are not on CUPTI's clock: estimated");
}

}  // namespace
}  // namespace stepscope::pm

// Samples a GPU (its index among all, in the order of the PCI bus) every `interval_ns` for
// `window_ns`, or until `stop` is readable or closed, and writes frames to `out`. `folders`: where
// to look for libcupti first. Returns 0, or 1 if trouble was reported.
API int stepscope_pm_sample(const char* folders, int gpu, long long interval_ns,
                            long long window_ns, int out, int stop) {
    using namespace stepscope::pm;
    Pipe pipe(out);
    return told(pipe, [&] {
        start_driver();  // first: without it CUDA 13.2's libcupti crashes at its first call
        const Library cupti = find(folders);
        const auto device = static_cast<std::size_t>(gpu);
        const std::string chip = chip_of(cupti, device);
        const Bytes availability = availability_of(cupti, device);
        Chosen chosen = choose(cupti, chip, availability.data());
        Target target(cupti, device, chosen, static_cast<std::uint64_t>(interval_ns));
        tell(chosen, chip, pipe);
        Window window(cupti, target, chosen, interval_ns);
        window.run(window_ns, pipe, stop);
        tell_end(window, pipe);
    });
}

// Reports what would be sampled on a chip; needs no GPU.
API int stepscope_pm_choose(const char* folders, const char* chip, int out) {
    using namespace stepscope::pm;
    Pipe pipe(out);
    return told(pipe, [&] {
        const Library cupti = find(folders);
        tell(choose(cupti, chip, nullptr), chip, pipe);
    });
}
