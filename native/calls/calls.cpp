// Counts the calls of Python functions, so that a window of profiling records no more of them than
// the training can wait for. `stepscope_calls_profile` has the signature of Python's
// `Py_tracefunc`; Python's headers are not needed, as its arguments are only passed through.
#include <atomic>
#include <cstdint>

#define API extern "C" __attribute__((visibility("default")))

namespace {

// `what` of Py_tracefunc, part of Python's documented interface: a call of a Python function, and
// one of a function in C. torch's tracer records both, and their returns with them.
constexpr int kCall = 0;
constexpr int kCallOfC = 4;

using SetProfile = void (*)(void* function, void* object);

std::atomic<std::uint64_t> calls{0};
std::atomic<bool> counts{false};
std::atomic<SetProfile> set_profile{nullptr};

}  // namespace

// Python calls it with the GIL held, so a load and a store are enough. A thread that finds that
// counting is over (another thread ended it, or this process is a forked child) removes it.
API int stepscope_calls_profile(void*, void*, int what, void*) {
    if (!counts.load(std::memory_order_relaxed)) {
        SetProfile remove = set_profile.load(std::memory_order_relaxed);
        if (remove != nullptr) remove(nullptr, nullptr);
        return 0;
    }
    if (what == kCall || what == kCallOfC) {
        calls.store(calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    return 0;
}

// Begins at zero. `remove` is Python's PyEval_SetProfile.
API void stepscope_calls_begin(SetProfile remove) {
    set_profile.store(remove, std::memory_order_relaxed);
    calls.store(0, std::memory_order_relaxed);
    counts.store(true, std::memory_order_relaxed);
}

// Returns how many calls there were.
API std::uint64_t stepscope_calls_end() {
    counts.store(false, std::memory_order_relaxed);
    return calls.load(std::memory_order_relaxed);
}
