// libcupti, libnvperf_host and libcuda for machines without a GPU, all in one: the chip of
// MOCK_PM_CHIP was sampled MOCK_PM_SAMPLES times until just now.
//
// Each sample follows the one before without a break, but for one gap of MOCK_PM_GAP samples in
// front of the tenth, which it tells as an overflow. Values are 1, 2, 3, … in the order of the
// counters, and 1000 of what ends in `.sum`. A counter or
// chip whose name holds MOCK_PM_UNKNOWN is not known; each that holds MOCK_PM_EXTRA takes a pass of
// its own. MOCK_PM_REFUSES is what enabling says. MOCK_PM_TICKS: times are of a clock that nobody
// has. MOCK_PM_HANGS: decoding never returns. MOCK_PM_FAILS: so many looks at the buffer succeed.
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "pm/abi.hpp"

#define API extern "C" __attribute__((visibility("default")))

namespace stepscope::pm {
struct HostObject {
    std::size_t passes = 1;
};
struct SamplingObject {
    std::uint64_t interval = 0, began = 0;
    std::uint32_t most = 0;
    bool running = false;
};
}  // namespace stepscope::pm

using namespace stepscope::pm;

namespace {

constexpr Result INVALID_METRIC_NAME = 17, OTHER = 999;
constexpr std::uint64_t TICKS_BEHIND = 1'000'000'000'000'000;

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

bool matches(const char* variable, const char* counter) {
    const char* word = std::getenv(variable);
    return word != nullptr && std::strstr(counter, word) != nullptr;
}

std::uint64_t now() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec);
}

template <class Params>
bool is_well_made(const Params* params) {
    return params->size == SIZE<Params> && params->priv == nullptr;
}

std::uint64_t gap() { return setting("MOCK_PM_GAP", 0); }

// Where a sample stands among those that the hardware took.
std::uint64_t place(std::uint64_t sample) { return sample < 10 ? sample : sample + gap(); }

// What an image of counter data holds.
struct Held {
    std::uint64_t first, count;
};
std::uint64_t decoded = 0, looks = 0;

Held held(const std::uint8_t* image) {
    Held found;
    std::memcpy(&found, image, sizeof found);
    return found;
}

}  // namespace

API int cuInit(unsigned) { return static_cast<int>(setting("MOCK_PM_CUINIT", 0)); }
API Result cuptiGetVersion(std::uint32_t* out) {
    *out = static_cast<std::uint32_t>(setting("MOCK_PM_VERSION", 130001));
    return SUCCESS;
}
API Result cuptiGetTimestamp(std::uint64_t* out) { return *out = now(), SUCCESS; }
API Result cuptiProfilerInitialize(ProfilerInitialize* with) {
    return is_well_made(with) ? SUCCESS : INVALID_PARAMETER;
}
API Result cuptiDeviceGetChipName(ChipName* with) {
    const char* chip = std::getenv("MOCK_PM_CHIP");
    with->name = chip == nullptr ? "GH100" : chip;
    return is_well_made(with) ? SUCCESS : INVALID_PARAMETER;
}
API Result cuptiPmSamplingGetCounterAvailability(CounterAvailability* with) {
    if (with->image != nullptr) with->image[0] = 1;
    with->bytes = 16;
    return is_well_made(with) ? SUCCESS : INVALID_PARAMETER;
}
API Result cuptiProfilerHostInitialize(HostInitialize* with) {
    const bool is_old = setting("MOCK_PM_VERSION", 130001) < KNOWS_SINGLE_PASS_SET;
    const std::size_t size = is_old ? HOST_INITIALIZE_WITHOUT_SET : sizeof(HostInitialize);
    const bool is_known = !matches("MOCK_PM_UNKNOWN", with->chip);
    if (with->size != size || with->type != OF_PM_SAMPLING || !is_known) return INVALID_PARAMETER;
    with->host = new HostObject;
    return SUCCESS;
}
API Result cuptiProfilerHostDeinitialize(HostDeinitialize* with) {
    delete with->host;
    return SUCCESS;
}
API Result cuptiProfilerHostConfigAddMetrics(ConfigAddMetrics* with) {
    for (std::size_t at = 0; at < with->count; ++at) {
        if (matches("MOCK_PM_UNKNOWN", with->names[at])) return INVALID_METRIC_NAME;
        with->host->passes += matches("MOCK_PM_EXTRA", with->names[at]);
    }
    return is_well_made(with) ? SUCCESS : INVALID_PARAMETER;
}
API Result cuptiProfilerHostGetConfigImageSize(ConfigImageSize* with) {
    return with->bytes = sizeof(std::size_t), SUCCESS;
}
API Result cuptiProfilerHostGetConfigImage(ConfigImage* with) {
    std::memcpy(with->image, &with->host->passes, with->bytes);
    return SUCCESS;
}
API Result cuptiProfilerHostGetNumOfPasses(NumOfPasses* with) {
    std::memcpy(&with->passes, with->image, with->bytes);
    return SUCCESS;
}
API Result cuptiProfilerHostEvaluateToGpuValues(Evaluate* with) {
    if (!is_well_made(with) || with->sample >= held(with->image).count) return INVALID_PARAMETER;
    for (std::size_t at = 0; at < with->count; ++at) {
        const std::string name = with->names[at];
        const bool is_sum = name.size() > 4 && name.substr(name.size() - 4) == ".sum";
        with->values[at] = is_sum ? 1000.0 : static_cast<double>(at + 1);
    }
    return SUCCESS;
}
API Result cuptiPmSamplingEnable(Enable* with) {
    const auto refusal = static_cast<Result>(setting("MOCK_PM_REFUSES", 0));
    if (refusal != SUCCESS) return refusal;
    with->sampling = new SamplingObject;
    return is_well_made(with) ? SUCCESS : INVALID_PARAMETER;
}
API Result cuptiPmSamplingDisable(OfSampling* with) {
    if (with->sampling->running) return INVALID_OPERATION;
    delete with->sampling;
    return SUCCESS;
}
API Result cuptiPmSamplingSetConfig(SetConfig* with) {
    const bool is_old = setting("MOCK_PM_VERSION", 130001) < KNOWS_APPEND;
    const std::size_t size = is_old ? SET_CONFIG_WITHOUT_APPEND : sizeof(SetConfig);
    std::size_t passes = 0;
    std::memcpy(&passes, with->image, with->bytes);
    if (with->size != size || passes != 1 || with->trigger != TRIGGER_TIME_INTERVAL) {
        return INVALID_PARAMETER;
    }
    with->sampling->interval = with->interval;
    return SUCCESS;
}
API Result cuptiPmSamplingGetCounterDataSize(CounterDataSize* with) {
    with->sampling->most = with->most_samples;
    with->bytes = sizeof(Held);
    return is_well_made(with) ? SUCCESS : INVALID_PARAMETER;
}
API Result cuptiPmSamplingCounterDataImageInitialize(CounterDataInitialize* with) {
    std::memset(with->image, 0, with->bytes);
    return is_well_made(with) ? SUCCESS : INVALID_PARAMETER;
}
API Result cuptiPmSamplingStart(OfSampling* with) {
    with->sampling->running = true;
    const std::uint64_t taken = setting("MOCK_PM_SAMPLES", 1000) + gap();
    with->sampling->began = now() - taken * with->sampling->interval;
    if (std::getenv("MOCK_PM_TICKS") != nullptr) with->sampling->began -= TICKS_BEHIND;
    return SUCCESS;
}
API Result cuptiPmSamplingStop(OfSampling* with) {
    with->sampling->running = false;
    return SUCCESS;
}
API Result cuptiPmSamplingDecodeData(Decode* with) {
    if (!is_well_made(with)) return INVALID_PARAMETER;
    while (std::getenv("MOCK_PM_HANGS") != nullptr) pause();
    if (looks++ == setting("MOCK_PM_FAILS", ~0ULL)) return OTHER;
    const std::uint64_t left = setting("MOCK_PM_SAMPLES", 1000) - decoded;
    const std::uint64_t most = with->sampling->most;
    const Held found{decoded, left < most ? left : most};
    std::memcpy(with->image, &found, sizeof found);
    with->overflow = gap() > 0 && found.first <= 10 && found.first + found.count > 10;
    with->stop_reason = found.count == most ? COUNTER_DATA_FULL : 2;
    decoded += found.count;
    return SUCCESS;
}
API Result cuptiPmSamplingGetCounterDataInfo(CounterDataInfo* with) {
    with->total = with->populated = with->completed = held(with->image).count;
    return is_well_made(with) ? SUCCESS : INVALID_PARAMETER;
}
API Result cuptiPmSamplingCounterDataGetSampleInfo(SampleInfo* with) {
    if (!is_well_made(with)) return INVALID_PARAMETER;
    const SamplingObject& sampling = *with->sampling;
    const std::uint64_t at = place(held(with->image).first + with->sample);
    with->start = sampling.began + at * sampling.interval;
    with->end = with->start + sampling.interval;
    return SUCCESS;
}
