// Distances between what a kernel takes on each rank: `mean_distances` of stepscope._native.
#pragma once

#include "python.hpp"

namespace stepscope {

// Adds it to the module; -1 with Python's error where that failed.
int add_distances(PyObject* module);

}  // namespace stepscope
