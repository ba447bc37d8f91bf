// Rows of equal length, written for Perfetto and read of packets: `rows` and `record_kinds` of
// stepscope._native.
#pragma once

#include "python.hpp"

namespace stepscope {

// Adds it to the module; -1 with Python's error where that failed.
int add_encoding(PyObject* module);

}  // namespace stepscope
