// libcupti and libnvperf_host, loaded at run time.
#pragma once

#include <string>

#include "abi.hpp"
#include "trouble.hpp"

namespace stepscope::pm {

struct Library {
    Result (*get_version)(std::uint32_t*);
    Result (*get_timestamp)(std::uint64_t*);
    Result (*profiler_initialize)(ProfilerInitialize*);
    Result (*chip_name)(ChipName*);
    Result (*host_initialize)(HostInitialize*);
    Result (*host_deinitialize)(HostDeinitialize*);
    Result (*add_metrics)(ConfigAddMetrics*);
    Result (*config_image_size)(ConfigImageSize*);
    Result (*config_image)(ConfigImage*);
    Result (*num_of_passes)(NumOfPasses*);
    Result (*evaluate)(Evaluate*);
    Result (*availability)(CounterAvailability*);
    Result (*enable)(Enable*);
    Result (*disable)(OfSampling*);
    Result (*set_config)(SetConfig*);
    Result (*start)(OfSampling*);
    Result (*stop)(OfSampling*);
    Result (*counter_data_size)(CounterDataSize*);
    Result (*counter_data_initialize)(CounterDataInitialize*);
    Result (*decode)(Decode*);
    Result (*counter_data_info)(CounterDataInfo*);
    Result (*sample_info)(SampleInfo*);
    std::uint32_t version;
};

// Looks in `folders`, separated by colons, then where the dynamic linker looks. Throws Trouble if
// there is none, or one that is too old.
Library find(const std::string& folders);

// Initialises CUDA's driver, which CUPTI does not do itself. Throws Trouble.
void start_driver();

// Throws Trouble unless the call succeeded.
void check(Result result, const char* call);

}  // namespace stepscope::pm
