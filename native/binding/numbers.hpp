// Converts columns of numbers from and to Python's bytes.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <vector>

#include "python.hpp"

namespace stepscope {

// Numbers in Python's bytes, which must outlive them.
template <class Number>
struct Numbers {
    explicit Numbers(PyObject* bytes) {
        const std::string_view view = viewed(bytes);
        if (view.size() % sizeof(Number) != 0) throw std::invalid_argument("half a number");
        // aligned to eight bytes behind their header
        data = reinterpret_cast<const Number*>(view.data());
        size = view.size() / sizeof(Number);
    }
    const Number* data;
    std::size_t size;
};

template <class Value>
PyObject* bytes_of(const std::vector<Value>& values) {
    const auto* data = reinterpret_cast<const char*>(values.data());
    return checked(to_bytes({data, values.size() * sizeof(Value)}));
}

inline std::size_t same(std::size_t one, std::size_t other) {
    if (one != other) throw std::invalid_argument("columns differ in length");
    return one;
}

}  // namespace stepscope
