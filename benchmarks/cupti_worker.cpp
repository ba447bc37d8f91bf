// How long the worker takes for a kernel's record, and how long CUPTI's callbacks take: see
// cupti.py, which compiles and runs it. Processor time of this thread; the sender's is its own.
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cupti/buffers.hpp"
#include "cupti/parser.hpp"

namespace {

using namespace stepscope;
using namespace stepscope::cupti;

constexpr std::size_t KERNEL_BYTES = 216;  // CUpti_ActivityKernel10, of CUDA 13.0
constexpr std::size_t RECORDS = Buffers::SIZE_BYTES / KERNEL_BYTES;
constexpr int NAMES = 200, BUFFERS = 300;

// Walks as CUPTI does, where there is none.
Result next_kernel(std::uint8_t* buffer, std::size_t valid, std::uint8_t** record) {
    *record = *record == nullptr ? buffer : *record + KERNEL_BYTES;
    return *record + KERNEL_BYTES <= buffer + valid ? SUCCESS : 12;
}

template <class T>
void set(std::uint8_t* record, std::size_t offset, T value) {
    std::memcpy(record + offset, &value, sizeof value);
}

void fill(std::uint8_t* buffer, const std::vector<std::string>& names) {
    const auto now = static_cast<std::uint64_t>(clock_ns(CLOCK_REALTIME));
    for (std::size_t at = 0; at < RECORDS; ++at) {
        std::uint8_t* record = buffer + at * KERNEL_BYTES;
        set(record, 0, std::uint32_t{CONCURRENT_KERNEL});
        set(record, OF_KERNEL.start, now + at);
        set(record, OF_KERNEL.end, now + at + 5000);
        set(record, OF_KERNEL.stream, std::uint32_t{7});
        set(record, KERNEL_NAME, names[at * 7919 % names.size()].c_str());
    }
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (int at = 0; at < NAMES; ++at)
        names.push_back(
            "_ZN2at6native29vectorized_elementwise_kernelILi" + std::to_string(at) +
            "ENS0_13AUnaryFunctorIfffNS0_15binary_internal10MulFunctorIfEEEEEEviT0_T1_");
    return names;
}

double callback_ns(Buffers& buffers) {
    std::uint8_t* buffer = nullptr;
    std::size_t size = 0, most = 0;
    constexpr int TURNS = 100'000;
    const std::int64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    for (int turn = 0; turn < TURNS; ++turn) {
        buffers.requested(&buffer, &size, &most, true);
        buffers.completed(buffer, 0);
        buffers.drain([](std::uint8_t*, std::size_t) {});
    }
    return static_cast<double>(clock_ns(CLOCK_THREAD_CPUTIME_ID) - before) / TURNS;
}

}  // namespace

int main() {
    Library library{};
    const bool real = find(library) && library.version < 130200;  // later ones need a driver
    if (!real) library.next_record = next_kernel;
    SenderOptions options;
    options.source = "cupti";
    Sender* sender = Sender::start(options);
    if (sender == nullptr) return 1;
    Parser parser(library, *sender, Graphs::graph);
    Timeline timeline;
    const ClockPair both = clock_pair();
    timeline.add({both.wall_ns, both.mono_ns});
    parser.begin(both.mono_ns);
    const std::vector<std::string> names = kernel_names();
    std::vector<std::uint8_t> buffer(Buffers::SIZE_BYTES);
    std::vector<double> taken;
    for (int turn = 0; turn < BUFFERS; ++turn) {
        // by another core, as CUPTI does
        std::thread(fill, buffer.data(), std::cref(names)).join();
        while (sender->waiting() > 0) {
            sender->wake();
            ::poll(nullptr, 0, 1);
        }
        const std::int64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        parser.read(buffer.data(), RECORDS * KERNEL_BYTES, timeline);
        taken.push_back(static_cast<double>(clock_ns(CLOCK_THREAD_CPUTIME_ID) - before) / RECORDS);
    }
    std::sort(taken.begin(), taken.end());
    Buffers buffers;
    if (!buffers.allocate()) return 1;
    std::printf("%s %.1f %.1f %.1f %.1f %llu\n", real ? "libcupti" : "stand-in", taken.front(),
                taken[taken.size() / 2], taken[taken.size() * 9 / 10], callback_ns(buffers),
                static_cast<unsigned long long>(sender->dropped()));
}
