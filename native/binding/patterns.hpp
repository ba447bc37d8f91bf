// Runtime behaviour patterns: `innermost`, `critical_ns` and `busiest` of stepscope._native.
#pragma once

#include "python.hpp"

namespace stepscope {

// Adds them to the module; -1 with a Python error set if that failed.
int add_patterns(PyObject* module);

}  // namespace stepscope
