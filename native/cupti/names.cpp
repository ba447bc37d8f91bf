#include "names.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <memory>

namespace stepscope::cupti {
namespace {

// CUpti_ActivityMemcpyKind and CUpti_ActivityMemoryKind.
constexpr const char* COPIES[] = {"Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA",
                                  "AtoD",    "DtoA", "DtoD", "HtoH", "PtoP"};
constexpr const char* MEMORIES[] = {"Unknown", "Pageable", "Pinned",        "Device",
                                    "Array",   "Managed",  "Device Static", "Managed Static"};

template <std::size_t N>
const char* word(const char* const (&words)[N], std::size_t at) {
    return words[at < N ? at : 0];
}

}  // namespace

std::string name_of_copy(const Record& record) {
    const auto memory = [&](std::size_t field) {
        return std::string(word(MEMORIES, record.field<std::uint8_t>(field)));
    };
    return "Memcpy " + std::string(word(COPIES, record.field<std::uint8_t>(COPY_KIND))) + " (" +
           memory(COPY_FROM) + " -> " + memory(COPY_TO) + ")";
}

std::string name_of_set(const Record& record) {
    return "Memset (" + std::string(word(MEMORIES, record.field<std::uint16_t>(SET_MEMORY))) + ")";
}

std::string demangled(const char* name) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> text(
        abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
    return status == 0 ? text.get() : name;
}

std::int64_t KernelNames::look(Slot& slot, const char* name) {
    const char* text = name == nullptr ? "(unnamed)" : name;
    if (slot.at != name || slot.text != text) {
        slot.text = text;
        slot.number = sender_.name(demangled(text));
        slot.at = name;
    }
    slot.buffer = buffer_;
    return slot.number;
}

}  // namespace stepscope::cupti
