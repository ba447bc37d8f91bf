// The parts of CUPTI's PM sampling and host profiler that we use, declared by ourselves, so that
// one binary works with CUDA 12.6 to 13.x, and without CUDA.
//
// Names, values and fields are those of NVIDIA's cupti_pmsampling.h, cupti_profiler_host.h,
// cupti_profiler_target.h and cupti_result.h. Every parameter structure begins with its size, up to
// the end of its last field, and a pointer that stays null. The size tells CUPTI which version of
// the structure its caller uses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepscope::pm {

using Result = int;
constexpr Result SUCCESS = 0, INVALID_PARAMETER = 1, INVALID_OPERATION = 7, HARDWARE_BUSY = 26,
                 INSUFFICIENT_PRIVILEGES = 35;

struct HostObject;
struct SamplingObject;

constexpr std::uint32_t OF_PM_SAMPLING = 1;         // CUpti_ProfilerType
constexpr std::uint32_t TRIGGER_TIME_INTERVAL = 1;  // CUpti_PmSampling_TriggerMode
constexpr std::uint32_t KEEP_LATEST = 1;            // CUpti_PmSampling_HardwareBuffer_AppendMode
constexpr std::uint32_t COUNTER_DATA_FULL = 1;      // CUpti_PmSampling_DecodeStopReason

struct Head {
    std::size_t size;
    void* priv;
};

struct ProfilerInitialize : Head {};

struct ChipName : Head {
    std::size_t device;
    const char* name;
};

struct HostInitialize : Head {
    std::uint32_t type;
    const char* chip;
    const std::uint8_t* availability;
    HostObject* host;
    const char* single_pass_set;  // from CUDA 13.2 on
};

struct HostDeinitialize : Head {
    HostObject* host;
};

struct ConfigAddMetrics : Head {
    HostObject* host;
    const char** names;
    std::size_t count;
};

struct ConfigImageSize : Head {
    HostObject* host;
    std::size_t bytes;
};

struct ConfigImage : Head {
    HostObject* host;
    std::size_t bytes;
    std::uint8_t* image;
};

struct NumOfPasses : Head {
    std::size_t bytes;
    std::uint8_t* image;
    std::size_t passes;
};

struct Evaluate : Head {
    HostObject* host;
    const std::uint8_t* image;
    std::size_t bytes;
    std::size_t sample;
    const char** names;
    std::size_t count;
    double* values;
};

struct CounterAvailability : Head {
    std::size_t device;
    std::size_t bytes;
    std::uint8_t* image;
};

struct Enable : Head {
    std::size_t device;
    SamplingObject* sampling;
};

struct OfSampling : Head {  // cuptiPmSamplingStart, Stop, Disable
    SamplingObject* sampling;
};

struct SetConfig : Head {
    SamplingObject* sampling;
    std::size_t bytes;
    const std::uint8_t* image;
    std::size_t buffer_bytes;
    std::uint64_t interval;
    std::uint32_t trigger;
    std::uint32_t append;
};

struct CounterDataSize : Head {
    SamplingObject* sampling;
    const char** names;
    std::size_t count;
    std::uint32_t most_samples;
    std::size_t bytes;
};

struct CounterDataInitialize : Head {
    SamplingObject* sampling;
    std::size_t bytes;
    std::uint8_t* image;
};

struct Decode : Head {
    SamplingObject* sampling;
    std::uint8_t* image;
    std::size_t bytes;
    std::uint32_t stop_reason;
    std::uint8_t overflow;
};

struct CounterDataInfo : Head {
    const std::uint8_t* image;
    std::size_t bytes;
    std::size_t total, populated, completed;
};

struct SampleInfo : Head {
    SamplingObject* sampling;
    const std::uint8_t* image;
    std::size_t bytes;
    std::size_t sample;
    std::uint64_t start, end;
};

// Up to the end of the last field; only Decode has padding after it.
template <class Params>
constexpr std::size_t SIZE = sizeof(Params);
template <>
constexpr std::size_t SIZE<Decode> = 45;

// Older versions of CUPTI reject structures that are larger than their own. Versions are those of
// cuptiGetVersion.
constexpr std::size_t SET_CONFIG_WITHOUT_APPEND = 60;  // of CUDA 12.6: it keeps the oldest
constexpr std::uint32_t KNOWS_APPEND = 26;             // CUDA 12.8
constexpr std::size_t HOST_INITIALIZE_WITHOUT_SET = 48;
constexpr std::uint32_t KNOWS_SINGLE_PASS_SET = 130200;  // CUDA 13.2

template <class Params>
Params params() {
    Params made{};
    made.size = SIZE<Params>;
    return made;
}

}  // namespace stepscope::pm
