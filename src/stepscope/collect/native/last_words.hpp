// What a C++ exception says that nobody caught, before the process aborts.

#pragma once

#include <cxxabi.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "faults.hpp"
#include "shared.hpp"

// The sender wakes ten times a second, and needs two turns.
constexpr std::int64_t kLastWordsNs = 500'000'000;

// What a C++ exception that nobody caught says: libraries throw on threads of their own, for
// example gloo if a peer sent another size than expected. The process is about to abort, and with
// it would go all that was recorded in the last half second, so our sender gets a moment to send
// it.
class LastWords {
 public:
    // `is_told`: whether there is a sender that could be waited for.
    void watch(bool (*is_told)()) {
        is_told_ = is_told;
        next_ = std::set_terminate([] { one().terminate(); });
    }

    // Copies the text, cut to `room` bytes; returns its length, 0 while the process is well.
    int copy(char* out, int room) {
        if (!spoken_.load(std::memory_order_acquire)) return 0;
        const std::size_t length = std::min(text_.size(), static_cast<std::size_t>(room));
        std::memcpy(out, text_.data(), length);
        return static_cast<int>(length);
    }

    void sent() { sent_ = true; }

    static LastWords& one() {
        static LastWords& only = *new LastWords;
        return only;
    }

 private:
    void terminate() {
        if (stepscope_shared.enabled && is_told_() && !begun_.exchange(true)) {
            try {
                text_ = describe();
                spoken_.store(true, std::memory_order_release);
                wait();
            } catch (...) {
                Faults::one().count("last words");
            }
        }
        if (next_ != nullptr) next_();
        std::abort();
    }

    static std::string describe() {
        const std::type_info* type = abi::__cxa_current_exception_type();
        if (type == nullptr) return "std::terminate: called without an exception";
        int status = 0;
        char* name = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
        std::string text = status == 0 ? name : type->name();
        std::free(name);
        try {
            throw;
        } catch (const std::exception& error) {
            return text + ": " + error.what();
        } catch (...) {
            return text + ": ";
        }
    }

    // Bounded: a thread that holds the GIL keeps the sender from running.
    void wait() const {
        const std::int64_t until_ns = now_ns() + kLastWordsNs;
        const timespec turn{0, 2'000'000};
        while (!sent_.load() && now_ns() < until_ns) nanosleep(&turn, nullptr);
    }

    bool (*is_told_)() = nullptr;
    std::terminate_handler next_ = nullptr;
    std::string text_;
    std::atomic<bool> begun_{false}, spoken_{false}, sent_{false};
};
