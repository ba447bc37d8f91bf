// Durations of kernels to their modes: `Keys`, `Histograms` and `published` of stepscope._native.
#pragma once

#include "python.hpp"

namespace stepscope {

// Adds them to the module; -1 with Python's error where that failed.
int add_compression(PyObject* module);

}  // namespace stepscope
