// Distances between the ranks' durations of a kernel: `mean_distances` of stepscope._native.
#pragma once

#include "python.hpp"

namespace stepscope {

// Adds it to the module; -1 with a Python error set if that failed.
int add_distances(PyObject* module);

}  // namespace stepscope
