// The functions that CUDA's driver and Python call: see exports.map.
//
// The driver loads the library named by CUDA_INJECTION64_PATH when a process first uses CUDA, and
// calls InitializeInjection. Whatever happens here, the process must go on.

#include <cstdio>
#include <cstdlib>
#include <string>

#include "selection.hpp"
#include "tracer.hpp"

namespace {

using stepscope::cupti::Graphs;
using stepscope::cupti::Tracer;

// Of the 1 % that all of stepscope may cost.
constexpr double SHARE = 0.005;

Graphs wanted_graphs() {
    const char* text = std::getenv("STEPSCOPE_CUDA_GRAPHS");
    const std::string word = text == nullptr ? "graph" : text;
    if (word == "node") return Graphs::node;
    return word == "off" ? Graphs::off : Graphs::graph;
}

// The share of the time that recording may cost; what is no number leaves it as it is.
double wanted_share() {
    const char* text = std::getenv("STEPSCOPE_KERNEL_BUDGET");
    char* end = nullptr;
    const double share = text == nullptr ? SHARE : std::strtod(text, &end);
    return end != text && share > 0 ? share : SHARE;
}

// Not yet by default: seen with no GPU.
bool wants_detaching() {
    const char* text = std::getenv("STEPSCOPE_CUPTI_DETACH");
    return text != nullptr && std::string(text) == "1";
}

void begin() {
    using namespace stepscope::cupti;
    if (refusal(command_line()) != nullptr) return;
    claim();
    const char* why = Tracer::one().start(wanted_graphs(), wanted_share(), wants_detaching());
    if (why != nullptr) std::fprintf(stderr, "stepscope: kernels are not recorded: %s\n", why);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int InitializeInjection() {
    try {
        begin();
    } catch (...) {
        std::fputs("stepscope: kernels are not recorded: no memory\n", stderr);
    }
    return 1;  // success: any other value may end the process
}

// Called before and after another profiler's work (collect/hooks/profiler.py).
__attribute__((visibility("default"))) void stepscope_cupti_pause() { Tracer::one().pause(); }
__attribute__((visibility("default"))) void stepscope_cupti_resume() { Tracer::one().resume(); }
}
