// Columns of numbers in Python's bytes, both ways.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <vector>

#include "python.hpp"

namespace stepscope {

// Numbers in bytes of Python's; the bytes outlive them.
template <class Number>
struct Numbers {
    explicit Numbers(PyObject* bytes) {
        const std::string_view view = viewed(bytes);
        if (view.size() % sizeof(Number) != 0) throw std::invalid_argument("half a number");
        // they lie at a multiple of eight behind their header
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
