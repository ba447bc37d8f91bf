#include "columns.hpp"

#include <cstdint>
#include <stdexcept>

#include "../src/gather.hpp"
#include "../src/radix.hpp"

// The only functions of the limited API of 3.10 that show an array's memory; those with views came
// with 3.11. The memory stays while the caller holds the array, and with it the GIL.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace stepscope {
namespace {

// The memory of an array.
template <class Bytes>
struct Memory {
    Bytes* data;
    std::size_t size;
};

Memory<const void> read(PyObject* array) {
    const void* data = nullptr;
    Py_ssize_t size = 0;
    if (PyObject_AsReadBuffer(array, &data, &size) < 0) throw Failed{};
    return {data, static_cast<std::size_t>(size)};
}

Memory<void> written(PyObject* array) {
    void* data = nullptr;
    Py_ssize_t size = 0;
    if (PyObject_AsWriteBuffer(array, &data, &size) < 0) throw Failed{};
    return {data, static_cast<std::size_t>(size)};
}

PyObject* rows_of(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *column = nullptr, *rows = nullptr, *room = nullptr;
        Py_ssize_t bytes = 0;
        if (!PyArg_ParseTuple(arguments, "OnOO", &column, &bytes, &rows, &room)) throw Failed{};
        const auto from = read(column), chosen = read(rows);
        const auto out = written(room);
        const auto width = static_cast<std::size_t>(bytes);
        const std::size_t count = chosen.size / sizeof(std::int64_t);
        if (bytes < 1 || out.size != count * width)
            throw std::invalid_argument("not as much room as rows");
        return checked(PyBool_FromLong(gather(from.data, from.size / width, width,
                                              static_cast<const std::int64_t*>(chosen.data), count,
                                              out.data)));
    });
}

PyObject* order_of(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *column = nullptr, *room = nullptr;
        if (!PyArg_ParseTuple(arguments, "OO", &column, &room)) throw Failed{};
        const auto values = read(column);
        const auto out = written(room);
        if (out.size != values.size || values.size % sizeof(std::int64_t) != 0)
            throw std::invalid_argument("not as much room as values");
        return checked(PyBool_FromLong(stable_order(static_cast<const std::int64_t*>(values.data),
                                                    values.size / sizeof(std::int64_t),
                                                    static_cast<std::int64_t*>(out.data))));
    });
}

PyMethodDef FUNCTIONS[] = {
    {"stable_order", order_of, METH_VARARGS, nullptr},
    {"gather", rows_of, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_columns(PyObject* module) { return PyModule_AddFunctions(module, FUNCTIONS); }

}  // namespace stepscope
