// Names of kernels, copies and sets, as the sender numbers them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../sender/sender.hpp"
#include "abi.hpp"

namespace stepscope::cupti {

// The name of a copy, as torch.profiler writes it.
std::string name_of_copy(const Record& record);
std::string name_of_set(const Record& record);
// As people write it: `f<int>(float*)` for `_Z1fIiEvPf`.
std::string demangled(const char* name);

// The number of a kernel's name by where the name lies, which is the same for all its executions.
// A module that is unloaded takes its names along, and another may lie there later: a name is read
// anew once per buffer.
class KernelNames {
 public:
    explicit KernelNames(Sender& sender) : sender_(sender), slots_(SLOTS) {}

    // A buffer begins.
    void next_buffer() { ++buffer_; }
    std::int64_t number(const char* name) {
        Slot& slot = slots_[place(name)];
        if (slot.at == name && slot.buffer == buffer_) return slot.number;
        return look(slot, name);
    }

 private:
    // Where the name of another kernel falls on the same slot both are looked up again and again,
    // rightly and more slowly: one in a hundred of a thousand kernels.
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
