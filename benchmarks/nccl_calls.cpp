// How long NCCL's threads are held up by a call of the plugin: see nccl.py, which compiles and runs
// it. Processor time of the calling threads; the sender's is its own.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "nccl/abi.hpp"
#include "sender/clock.hpp"

extern "C" const stepscope::nccl::ProfilerV5 ncclProfiler_v6;

namespace {

using namespace stepscope;
using namespace stepscope::nccl;

constexpr int OPERATORS_PER_THREAD = 1500;  // 8 threads' have room
constexpr int STEPS = 4;

struct Described {
    char bytes[112] = {};

    Described(std::uint64_t type, void* parent) {
        put(0, type);
        put(8, parent);
    }
    template <class T>
    Described& put(std::size_t offset, T value) {
        std::memcpy(bytes + offset, &value, sizeof value);
        return *this;
    }
};

struct Times {
    std::int64_t operators_ns = 0, proxies_ns = 0, steps_ns = 0, channels_ns = 0;
};

// Calls what it is told to and says how long that took.
template <class Call>
std::int64_t timed(Call call) {
    const std::int64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    call();
    return clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
}

void* start(void* context, Described& event) {
    void* handle = nullptr;
    ncclProfiler_v6.start_event(context, &handle, event.bytes);
    return handle;
}

std::vector<void*> started(void* context, std::uint64_t count) {
    std::vector<void*> handles;
    handles.reserve(count);
    Described event(COLL, nullptr);
    event.put(32, "AllReduce").put(56, std::uint64_t{1024}).put(72, "ncclBfloat16");
    event.put(88, "RING").put(96, "SIMPLE");
    for (std::uint64_t at = 0; at < count; ++at)
        handles.push_back(start(context, event.put(24, at)));
    return handles;
}

void stop_all(const std::vector<void*>& handles) {
    for (void* handle : handles) ncclProfiler_v6.stop_event(handle);
}

std::vector<void*> proxies_of(void* context, const std::vector<void*>& operators) {
    std::vector<void*> handles;
    handles.reserve(operators.size());
    const int pid = getpid();
    for (void* one : operators) {
        Described event(PROXY_OP, one);
        handles.push_back(start(context, event.put(24, pid).put(32, 1).put(44, 1)));
    }
    return handles;
}

void steps_of(void* proxy) {
    std::uint64_t bytes = 512;
    for (int at = 0; at < STEPS; ++at) {
        void* step = start(nullptr, Described(PROXY_STEP, proxy).put(24, at));
        for (const int state : {8, 20, static_cast<int>(SEND_WAIT)}) {
            ncclProfiler_v6.record_state(step, state, &bytes);
        }
        ncclProfiler_v6.stop_event(step);
    }
}

void channel_of(void* op) {
    std::uint64_t end = 8000;
    void* handle = start(nullptr, Described(KERNEL_CH, op).put(32, std::uint64_t{5000}));
    ncclProfiler_v6.record_state(handle, KERNEL_CH_STOP, &end);
    ncclProfiler_v6.stop_event(handle);
}

Times run(void* context) {
    Times times;
    std::vector<void*> operators, proxies;
    times.operators_ns = timed([&] {
        operators = started(context, OPERATORS_PER_THREAD);
        stop_all(operators);
    });
    // in portions: proxies are in flight for a while only
    constexpr std::size_t PORTION = 100;
    for (std::size_t at = 0; at < operators.size(); at += PORTION) {
        const auto first = operators.begin() + static_cast<std::ptrdiff_t>(at);
        const std::vector<void*> some(first, first + PORTION);
        times.proxies_ns += timed([&] { proxies = proxies_of(context, some); });
        times.steps_ns += timed([&] { std::for_each(proxies.begin(), proxies.end(), steps_of); });
        times.proxies_ns += timed([&] { stop_all(proxies); });
        times.channels_ns += timed([&] { std::for_each(some.begin(), some.end(), channel_of); });
    }
    return times;
}

double per_call(std::int64_t ns, int threads, int calls) {
    return static_cast<double>(ns) / (static_cast<double>(threads) * OPERATORS_PER_THREAD * calls);
}

int mask = 0;  // as long as the process lives, like NCCL's

}  // namespace

int main(int, char** arguments) {
    const int threads = std::atoi(arguments[1]);
    std::vector<Times> times(static_cast<std::size_t>(threads));
    std::vector<std::thread> all;
    for (std::size_t at = 0; at < times.size(); ++at) {
        void* context = nullptr;
        ncclProfiler_v6.init(&context, at, &mask, "benchmark", 2, 2, 0, nullptr);
        all.emplace_back([&times, at, context] { times[at] = run(context); });
    }
    Times sum;
    for (std::thread& one : all) one.join();
    for (const Times& one : times) {
        sum.operators_ns += one.operators_ns;
        sum.proxies_ns += one.proxies_ns;
        sum.steps_ns += one.steps_ns;
        sum.channels_ns += one.channels_ns;
    }
    std::printf("%.0f %.0f %.0f %.0f\n", per_call(sum.operators_ns, threads, 2),
                per_call(sum.proxies_ns, threads, 2), per_call(sum.steps_ns, threads, STEPS * 5),
                per_call(sum.channels_ns, threads, 3));
}
