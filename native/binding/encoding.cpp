#include "encoding.hpp"

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "../src/deflate.hpp"
#include "../src/records.hpp"
#include "../src/rows.hpp"

namespace stepscope {
namespace {

// Parses `(at, width, values)`; the tuple must outlive the result.
Hole to_hole(PyObject* tuple, std::size_t rows, std::size_t length) {
    Py_ssize_t at = 0, width = 0;
    PyObject* values = nullptr;
    if (!PyArg_ParseTuple(tuple, "nnO", &at, &width, &values)) throw Failed{};
    if (at < 0 || width < 0 || static_cast<std::size_t>(width) > WIDEST)
        throw std::invalid_argument("no such hole");
    const std::string_view bytes = viewed(values);
    if (bytes.size() != rows * sizeof(std::int64_t))
        throw std::invalid_argument("columns differ in length");
    // aligned to eight bytes behind their header
    const Hole hole{static_cast<std::size_t>(at), static_cast<std::size_t>(width),
                    reinterpret_cast<const std::int64_t*>(bytes.data())};
    if (hole.end() > length) throw std::invalid_argument("a hole beyond the row");
    return hole;
}

PyObject* rows(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *shared = nullptr, *holes = nullptr;
        Py_ssize_t count = 0;
        if (!PyArg_ParseTuple(arguments, "OnO!", &shared, &count, &PyTuple_Type, &holes))
            throw Failed{};
        const std::string_view row = viewed(shared);
        if (count < 0) throw std::invalid_argument("less than no rows");
        const auto number = static_cast<std::size_t>(count);
        std::vector<Hole> found;
        for (Py_ssize_t at = 0; at < PyTuple_Size(holes); ++at)
            found.push_back(to_hole(checked(PyTuple_GetItem(holes, at)), number, row.size()));
        const auto size = static_cast<Py_ssize_t>(number * row.size());
        Owned bytes(PyBytes_FromStringAndSize(nullptr, size));
        write_rows(row, found, number,
                   reinterpret_cast<unsigned char*>(PyBytes_AsString(bytes.get())));
        return bytes.release();
    });
}

PyObject* deflated_rows(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject* bytes = nullptr;
        Py_ssize_t length = 0;
        if (!PyArg_ParseTuple(arguments, "On", &bytes, &length)) throw Failed{};
        const std::string_view data = viewed(bytes);
        const auto row = static_cast<std::size_t>(length);
        if (length < 1 || row > FARTHEST) throw std::invalid_argument("no row is as long");
        if (data.empty() || data.size() % row != 0) throw std::invalid_argument("no whole rows");
        const std::vector<unsigned char> packed = deflate_rows(data, row);
        return to_bytes({reinterpret_cast<const char*>(packed.data()), packed.size()});
    });
}

PyObject* record_kinds(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject* packet = nullptr;
        Py_ssize_t offset = 0;
        long long limit = 0;
        if (!PyArg_ParseTuple(arguments, "OnL", &packet, &offset, &limit)) throw Failed{};
        std::string_view records = viewed(packet);
        if (offset < 0 || static_cast<std::size_t>(offset) > records.size())
            throw std::invalid_argument("records begin behind the packet");
        records.remove_prefix(static_cast<std::size_t>(offset));
        const Survey found = survey(records, limit);
        return checked(
            PyLong_FromLongLong(found.beyond ? -1 : static_cast<long long>(found.kinds)));
    });
}

PyMethodDef FUNCTIONS[] = {
    {"deflated_rows", deflated_rows, METH_VARARGS, nullptr},
    {"record_kinds", record_kinds, METH_VARARGS, nullptr},
    {"rows", rows, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_encoding(PyObject* module) { return PyModule_AddFunctions(module, FUNCTIONS); }

}  // namespace stepscope
