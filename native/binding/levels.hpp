// ARGUS' first two levels and EROICA's comparison of workers: `peer_medians`, `wide_windows`,
// `largest_rise`, `imbalances` and `unlike` of stepscope._native.
#pragma once

#include "python.hpp"

namespace stepscope {

// Adds them to the module; -1 with a Python error set if that failed.
int add_levels(PyObject* module);

}  // namespace stepscope
