// CUPTI, loaded at run time.
#pragma once

#include "abi.hpp"

namespace stepscope::cupti {

struct Library {
    Result (*enable)(Kind);
    Result (*disable)(Kind);
    Result (*register_callbacks)(BufferRequested, BufferCompleted);
    Result (*next_record)(std::uint8_t* buffer, std::size_t valid, std::uint8_t** record);
    Result (*flush_all)(std::uint32_t flag);
    Result (*dropped_records)(void* context, std::uint32_t stream, std::size_t* dropped);
    Result (*get_version)(std::uint32_t*);
    // Null in versions that lack it.
    Result (*flush_period)(std::uint32_t milliseconds);
    Result (*all_sync_records)(std::uint8_t wanted);
    Result (*timestamp)(std::uint64_t*);
    Result (*subscribe)(void** subscriber, Subscriber function, void* data);
    Result (*unsubscribe)(void* subscriber);
    Result (*enable_domain)(std::uint32_t wanted, void* subscriber, std::uint32_t domain);
    Result (*finalize)();
    std::uint32_t version;
};

// Fills `library`; false if there is no CUPTI, or one that lacks what we need.
bool find(Library& library);

}  // namespace stepscope::cupti
