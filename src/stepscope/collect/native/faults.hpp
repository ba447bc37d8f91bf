// Exceptions of our own code, which must not reach the training.

#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "shared.hpp"

// Counts exceptions by place, and keeps the first text of each for Python to log.
class Faults {
 public:
    // Called where an exception was caught. Under test it is thrown on, and ends the training.
    void swallow(const char* where) {
        count(where);
        if (raises_) throw;
    }

    // The same on a thread of a backend, where a thrown exception would end the process.
    void count(const char* where) noexcept {
        try {
            const std::string text = describe();
            const std::lock_guard<std::mutex> hold(mutex_);
            add(where, text);
        } catch (...) {
            // no memory is left for the text
        }
        ++stepscope_shared.faults;
    }

    void raise(bool yes) { raises_ = yes; }

    // Copies "place\nfirst text" of one place, cut to `room` bytes, and how often something failed
    // there; returns the length, 0 if there are not so many places.
    int copy(int at, char* out, int room, std::int64_t* times) {
        const std::lock_guard<std::mutex> hold(mutex_);
        if (at < 0 || static_cast<std::size_t>(at) >= places_.size()) return 0;
        const Place& place = places_[static_cast<std::size_t>(at)];
        const std::string text = std::string(place.where) + '\n' + place.text;
        const std::size_t length = std::min(text.size(), static_cast<std::size_t>(room));
        std::memcpy(out, text.data(), length);
        *times = place.times;
        return static_cast<int>(length);
    }

    static Faults& one() {
        static Faults& only = *new Faults;
        return only;
    }

 private:
    struct Place {
        const char* where;
        std::string text;
        std::int64_t times;
    };

    void add(const char* where, const std::string& text) {
        for (Place& place : places_) {
            if (std::strcmp(place.where, where) != 0) continue;
            ++place.times;
            return;
        }
        places_.push_back({where, text, 1});
    }

    static std::string describe() {
        try {
            throw;
        } catch (const c10::Error& error) {
            return error.what_without_backtrace();
        } catch (const std::exception& error) {
            return error.what();
        } catch (...) {
            return "an exception that says nothing";
        }
    }

    std::mutex mutex_;
    std::vector<Place> places_;
    bool raises_ = false;
};
