#include "library.hpp"

#include <dlfcn.h>

#include <sstream>
#include <string>

namespace stepscope::pm {
namespace {

constexpr std::uint32_t OLDEST = 24;  // cuptiGetVersion of CUDA 12.6
constexpr std::uint32_t NEWEST = 0xFFFFFFFF;
const char* const NAMES[] = {"libcupti.so.13", "libcupti.so.12"};
const char* const EVALUATOR = "libnvperf_host.so";

void* opened(const std::string& folders) {
    std::istringstream each(folders);
    for (std::string folder; std::getline(each, folder, ':');) {
        for (const char* name : NAMES) {
            if (void* found = dlopen((folder + "/" + name).c_str(), RTLD_NOW)) return found;
        }
    }
    for (const char* name : NAMES) {
        if (void* found = dlopen(name, RTLD_NOW)) return found;
    }
    throw Trouble(
        "there is no libcupti.so.13 or libcupti.so.12: pip install nvidia-cuda-cupti-cu12, or add "
        "CUDA's extras/CUPTI/lib64 to LD_LIBRARY_PATH");
}

// CUPTI loads it only when it needs it, and then reports failures poorly.
void open_evaluator(void* of_cupti) {
    Dl_info where{};
    dladdr(of_cupti, &where);
    const std::string cupti = where.dli_fname == nullptr ? "" : where.dli_fname;
    const std::string beside = cupti.substr(0, cupti.rfind('/') + 1) + EVALUATOR;
    if (dlopen(beside.c_str(), RTLD_NOW) != nullptr || dlopen(EVALUATOR, RTLD_NOW) != nullptr) {
        return;
    }
    throw Trouble("there is no libnvperf_host.so beside " + cupti +
                  ": install CUPTI whole, as its wheel does");
}

class Symbols {
 public:
    explicit Symbols(void* handle) : handle_(handle) {}

    template <class Function>
    Symbols& get(const char* name, Function*& function) {
        function = reinterpret_cast<Function*>(dlsym(handle_, name));
        complete_ = complete_ && function != nullptr;
        return *this;
    }
    bool complete() const { return complete_; }

 private:
    void* handle_;
    bool complete_ = true;
};

bool look_up(void* handle, Library& found) {
    return Symbols(handle)
        .get("cuptiGetTimestamp", found.get_timestamp)
        .get("cuptiProfilerInitialize", found.profiler_initialize)
        .get("cuptiDeviceGetChipName", found.chip_name)
        .get("cuptiProfilerHostInitialize", found.host_initialize)
        .get("cuptiProfilerHostDeinitialize", found.host_deinitialize)
        .get("cuptiProfilerHostConfigAddMetrics", found.add_metrics)
        .get("cuptiProfilerHostGetConfigImageSize", found.config_image_size)
        .get("cuptiProfilerHostGetConfigImage", found.config_image)
        .get("cuptiProfilerHostGetNumOfPasses", found.num_of_passes)
        .get("cuptiProfilerHostEvaluateToGpuValues", found.evaluate)
        .get("cuptiPmSamplingGetCounterAvailability", found.availability)
        .get("cuptiPmSamplingEnable", found.enable)
        .get("cuptiPmSamplingDisable", found.disable)
        .get("cuptiPmSamplingSetConfig", found.set_config)
        .get("cuptiPmSamplingStart", found.start)
        .get("cuptiPmSamplingStop", found.stop)
        .get("cuptiPmSamplingGetCounterDataSize", found.counter_data_size)
        .get("cuptiPmSamplingCounterDataImageInitialize", found.counter_data_initialize)
        .get("cuptiPmSamplingDecodeData", found.decode)
        .get("cuptiPmSamplingGetCounterDataInfo", found.counter_data_info)
        .get("cuptiPmSamplingCounterDataGetSampleInfo", found.sample_info)
        .complete();
}

}  // namespace

Library find(const std::string& folders) {
    void* handle = opened(folders);
    Library found{};
    if (!Symbols(handle).get("cuptiGetVersion", found.get_version).complete()) {
        throw Trouble("libcupti does not report its version");
    }
    // CUDA 13.5's fails without a driver: it has all that we need.
    if (found.get_version(&found.version) != SUCCESS) found.version = NEWEST;
    if (found.version < OLDEST || !look_up(handle, found)) {
        throw Trouble("CUPTI is version " + std::to_string(found.version) +
                      ", which cannot sample counters: at least 24 (CUDA 12.6) is needed");
    }
    open_evaluator(reinterpret_cast<void*>(found.get_version));
    return found;
}

void start_driver() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    Result (*initialize)(unsigned) = nullptr;
    if (driver == nullptr || !Symbols(driver).get("cuInit", initialize).complete()) {
        throw Trouble("there is no NVIDIA driver (libcuda.so.1)");
    }
    const Result said = initialize(0);
    if (said != SUCCESS) {
        throw Trouble("CUDA did not start: cuInit returned " + std::to_string(said));
    }
}

void check(Result result, const char* call) {
    switch (result) {
        case SUCCESS: return;
        case INSUFFICIENT_PRIVILEGES:
            throw Trouble(
                "this user may not read counters: start the processor as root, with CAP_SYS_ADMIN "
                "or CAP_PERFMON (driver 565 on), or load the driver with "
                "NVreg_RestrictProfilingToAdminUsers=0");
        case HARDWARE_BUSY:
        case INVALID_OPERATION:
            throw Trouble(
                std::string("another profiler has the counters (") + call + " says " +
                std::to_string(result) +
                "): `dcgmi profile --pause` makes DCGM release them, Nsight does when it ends");
        default: throw Trouble(std::string(call) + " says " + std::to_string(result));
    }
}

}  // namespace stepscope::pm
