// EROICA (Guan et al., 2026), section 4.3: how many sampled workers behave unlike each worker.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepscope {

// For each of `workers` points, how many of the peers are at a Manhattan distance of `limit` or
// more. `values` is [3, workers], `peers` is [3, number]; a value that is not finite is a mistake
// of the caller and counts as unlike nobody.
void unlike(const float* values, std::size_t workers, const float* peers, std::size_t number,
            float limit, std::int32_t* counts);

}  // namespace stepscope
