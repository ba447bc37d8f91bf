// Work on columns where they are, without copies: `gather`, `stable_order`, `merge`, `covered`,
// `count_until` and `on_one_clock` of stepscope._native.
#pragma once

#include "python.hpp"

namespace stepscope {

// Adds them to the module; -1 with a Python error set if that failed.
int add_columns(PyObject* module);

}  // namespace stepscope
