// Work on columns where they are, without copies: `gather`, `stable_order`, `merge`, `covered` and
// `count_until` of stepscope._native.
#pragma once

#include "python.hpp"

namespace stepscope {

// Adds them to the module; -1 with a Python error set if that failed.
int add_columns(PyObject* module);

}  // namespace stepscope
