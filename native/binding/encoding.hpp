// Rows of equal length: written for Perfetto, and read from packets. `rows` and `record_kinds` of
// stepscope._native.
#pragma once

#include "python.hpp"

namespace stepscope {

// Adds it to the module; -1 with a Python error set if that failed.
int add_encoding(PyObject* module);

}  // namespace stepscope
