#include "target.hpp"

#include <utility>

namespace stepscope::pm {
namespace {

constexpr std::size_t BUFFER_BYTES = 64 << 20;  // for raw samples
constexpr std::uint32_t SAMPLES_AT_ONCE = 1024;

OfSampling of(SamplingObject* sampling) {
    auto with = params<OfSampling>();
    with.sampling = sampling;
    return with;
}

}  // namespace

std::string chip_of(const Library& cupti, std::size_t gpu) {
    auto initialize = params<ProfilerInitialize>();
    check(cupti.profiler_initialize(&initialize), "cuptiProfilerInitialize");
    auto with = params<ChipName>();
    with.device = gpu;
    check(cupti.chip_name(&with), "cuptiDeviceGetChipName");
    const std::string chip = with.name;
    if (chip == "GA100" || chip.rfind("TU", 0) == 0) {
        throw Trouble(chip + " cannot sample its counters at a fixed rate: GA10x and later can");
    }
    return chip;
}

Bytes availability_of(const Library& cupti, std::size_t gpu) {
    auto with = params<CounterAvailability>();
    with.device = gpu;
    check(cupti.availability(&with), "cuptiPmSamplingGetCounterAvailability");
    Bytes image(with.bytes);
    with.priv = nullptr;
    with.image = image.data();
    check(cupti.availability(&with), "cuptiPmSamplingGetCounterAvailability");
    return image;
}

Target::Target(const Library& cupti, std::size_t gpu, Chosen& chosen, std::uint64_t interval_ns)
    : cupti_(cupti), chosen_(chosen) {
    auto with = params<Enable>();
    with.device = gpu;
    check(cupti.enable(&with), "cuptiPmSamplingEnable");
    sampling_ = with.sampling;
    try {
        configure(interval_ns);
        prepare_image();
    } catch (...) {
        auto off = of(sampling_);
        cupti_.disable(&off);
        throw;
    }
}

Target::~Target() {
    auto with = of(sampling_);
    if (running_) cupti_.stop(&with);
    cupti_.disable(&with);
}

void Target::configure(std::uint64_t interval_ns) {
    auto with = params<SetConfig>();
    if (cupti_.version < KNOWS_APPEND) with.size = SET_CONFIG_WITHOUT_APPEND;
    with.sampling = sampling_;
    with.bytes = chosen_.config.size();
    with.image = chosen_.config.data();
    with.buffer_bytes = BUFFER_BYTES;
    with.interval = interval_ns;
    with.trigger = TRIGGER_TIME_INTERVAL;
    with.append = KEEP_LATEST;
    check(cupti_.set_config(&with), "cuptiPmSamplingSetConfig");
}

void Target::prepare_image() {
    auto with = params<CounterDataSize>();
    with.sampling = sampling_;
    with.names = chosen_.counters.data();
    with.count = chosen_.counters.size();
    with.most_samples = SAMPLES_AT_ONCE;
    check(cupti_.counter_data_size(&with), "cuptiPmSamplingGetCounterDataSize");
    image_.resize(with.bytes);
    reset_image();
}

void Target::reset_image() {
    auto with = params<CounterDataInitialize>();
    with.sampling = sampling_;
    with.bytes = image_.size();
    with.image = image_.data();
    check(cupti_.counter_data_initialize(&with), "cuptiPmSamplingCounterDataImageInitialize");
}

void Target::start() {
    auto with = of(sampling_);
    check(cupti_.start(&with), "cuptiPmSamplingStart");
    running_ = true;
}

void Target::stop() {
    auto with = of(sampling_);
    running_ = false;
    check(cupti_.stop(&with), "cuptiPmSamplingStop");
}

Decoded Target::decode() {
    Decoded decoded;
    auto with = params<Decode>();
    do {
        with.sampling = sampling_;
        with.image = image_.data();
        with.bytes = image_.size();
        check(cupti_.decode(&with), "cuptiPmSamplingDecodeData");
        decoded.overflowed = decoded.overflowed || with.overflow != 0;
        take(decoded);
        reset_image();
    } while (with.stop_reason == COUNTER_DATA_FULL);
    return decoded;
}

void Target::take(Decoded& decoded) {
    auto info = params<CounterDataInfo>();
    info.image = image_.data();
    info.bytes = image_.size();
    check(cupti_.counter_data_info(&info), "cuptiPmSamplingGetCounterDataInfo");
    for (std::size_t sample = 0; sample < info.completed; ++sample) {
        auto with = params<SampleInfo>();
        with.sampling = sampling_;
        with.image = image_.data();
        with.bytes = image_.size();
        with.sample = sample;
        check(cupti_.sample_info(&with), "cuptiPmSamplingCounterDataGetSampleInfo");
        Raw raw{with.start, with.end, std::vector<double>(chosen_.counters.size())};
        chosen_.host->evaluate(image_, sample, chosen_.counters, raw.values.data());
        decoded.samples.push_back(std::move(raw));
    }
}

}  // namespace stepscope::pm
