// ARGUS' first two levels: `peer_medians`, `wide_windows`, `largest_rise` and `imbalances` of
// stepscope._native.
#pragma once

#include "python.hpp"

namespace stepscope {

// Adds them to the module; -1 with a Python error set if that failed.
int add_levels(PyObject* module);

}  // namespace stepscope
