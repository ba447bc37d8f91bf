// What we use of CUPTI, declared by ourselves: one binary for CUDA 12.4 to 13.x, and for none.
//
// Names, values and offsets are those of NVIDIA's cupti_activity.h and cupti_result.h. The offsets
// are the same from CUDA 12.4 to 13.5; sizes of records are not, so CUPTI's own
// cuptiActivityGetNextRecord walks over them.
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
    CONCURRENT_KERNEL = 10,  // KERNEL, which is 3, would run one kernel at a time
    SYNCHRONIZATION = 38,
    GRAPH_TRACE = 51,
};

constexpr std::uint32_t FLUSH_COMPLETED = 0, FLUSH_FORCED = 1;
constexpr std::uint32_t DECLINES_SAFELY = 27;  // cuptiGetVersion of CUDA 12.9: NULL for no buffer

using BufferRequested = void (*)(std::uint8_t** buffer, std::size_t* size, std::size_t* most);
using BufferCompleted = void (*)(void* context, std::uint32_t stream, std::uint8_t* buffer,
                                 std::size_t size, std::size_t valid);

// A record as it lies in a buffer: fields by their place.
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

// Where a kind of record has its fields.
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
