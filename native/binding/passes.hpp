// Critical paths of pipelines, and distances of rhythms: `pass_slacks` and `mean_divergences` of
// stepscope._native.
#pragma once

#include "python.hpp"

namespace stepscope {

// Adds them to the module; -1 with a Python error set if that failed.
int add_passes(PyObject* module);

}  // namespace stepscope
