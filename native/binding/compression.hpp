// The modes of kernel durations: `Keys`, `Histograms` and `published` of stepscope._native.
#pragma once

#include "python.hpp"

namespace stepscope {

// Adds them to the module; -1 with a Python error set if that failed.
int add_compression(PyObject* module);

}  // namespace stepscope
