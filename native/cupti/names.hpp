// Names of kernels, copies and sets, and their numbers in the sender.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../sender/sender.hpp"
#include "abi.hpp"

namespace stepscope::cupti {

// The name of a copy, as in torch.profiler.
std::string name_of_copy(const Record& record);
std::string name_of_set(const Record& record);
// The demangled name: `f<int>(float*)` for `_Z1fIiEvPf`.
std::string demangled(const char* name);

// The number of a kernel's name, found by the name's address, which is the same for all its
// executions. When a module is unloaded its names are freed, and other names may get their
// addresses: so each name is read again once per buffer.
class KernelNames {
 public:
    explicit KernelNames(Sender& sender) : sender_(sender), slots_(SLOTS) {}

    // Called at the beginning of a buffer.
    void next_buffer() { ++buffer_; }
    std::int64_t number(const char* name) {
        Slot& slot = slots_[place(name)];
        if (slot.at == name && slot.buffer == buffer_) return slot.number;
        return look(slot, name);
    }

 private:
    // If two kernels share a slot, both are looked up again and again, which is correct but slower:
    // it happens to one in a hundred of a thousand kernels.
    static constexpr unsigned SLOT_BITS = 16;
    static constexpr std::size_t SLOTS = std::size_t{1} << SLOT_BITS;

    struct Slot {
        const char* at = nullptr;
        std::uint64_t buffer = 0;
        std::int64_t number = 0;
        std::string text;
    };

    static std::size_t place(const char* name) {
        constexpr std::uint64_t ODD = 0x9E3779B97F4A7C15;  // Knuth, TAOCP 3, 6.4
        return (reinterpret_cast<std::uintptr_t>(name) * ODD) >> (64 - SLOT_BITS);
    }
    std::int64_t look(Slot& slot, const char* name);

    Sender& sender_;
    std::vector<Slot> slots_;
    std::uint64_t buffer_ = 1;
};

}  // namespace stepscope::cupti
