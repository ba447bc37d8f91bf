// The parts of CUPTI that we use, declared by ourselves, so that one binary works with CUDA 12.4 to
// 13.x, and without CUDA.
//
// Names, values and offsets are those of NVIDIA's cupti_activity.h and cupti_result.h. The offsets
// are the same from CUDA 12.4 to 13.5. The sizes of records are not, so CUPTI's own
// cuptiActivityGetNextRecord is used to walk over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stepscope::cupti {

using Result = int;
constexpr Result SUCCESS = 0;

enum Kind : std::uint32_t {
    MEMCPY = 1,
    MEMSET = 2,
    CONCURRENT_KERNEL = 10,  // KERNEL, which is 3, would serialise kernels
    SYNCHRONIZATION = 38,
    GRAPH_TRACE = 51,
};

constexpr std::uint32_t FLUSH_COMPLETED = 0, FLUSH_FORCED = 1;
// cuptiGetVersion of CUDA 12.9: from then on NULL is a valid answer to a request for a buffer.
constexpr std::uint32_t DECLINES_SAFELY = 27;

using BufferRequested = void (*)(std::uint8_t** buffer, std::size_t* size, std::size_t* most);
using BufferCompleted = void (*)(void* context, std::uint32_t stream, std::uint8_t* buffer,
                                 std::size_t size, std::size_t valid);

// What a subscriber is called with: its data, a domain, a call, and a structure that begins with
// where in the call (0: at its begin, 1: at its end).
using Subscriber = void (*)(void* data, std::uint32_t domain, std::uint32_t call, const void*);

// A record in a buffer; its fields are read by offset.
class Record {
 public:
    explicit Record(const std::uint8_t* at) : at_(at) {}

    std::uint32_t kind() const { return field<std::uint32_t>(0); }
    template <class T>
    T field(std::size_t offset) const {
        T value;
        std::memcpy(&value, at_ + offset, sizeof value);
        return value;
    }

 private:
    const std::uint8_t* at_;
};

// The offsets of the fields of one kind of record.
struct Layout {
    std::size_t start, end, stream;
};
constexpr Layout OF_KERNEL{16, 24, 48};
constexpr Layout OF_COPY{16, 24, 40};  // memcpy and memset
constexpr Layout OF_SYNCHRONIZATION{8, 16, 32};
constexpr Layout OF_GRAPH{8, 16, 36};
constexpr std::size_t KERNEL_NAME = 104;  // const char*
constexpr std::size_t KERNEL_CORRELATION = 92, KERNEL_GRAPH = 156;
constexpr std::size_t COPY_KIND = 4, COPY_FROM = 5, COPY_TO = 6, SET_MEMORY = 50;
constexpr std::size_t GRAPH_ID = 28;

}  // namespace stepscope::cupti
