#include "levels.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <stdexcept>

#include "../src/levels.hpp"
#include "../src/unlike.hpp"
#include "numbers.hpp"

namespace stepscope {
namespace {

std::size_t positive(Py_ssize_t number) {
    if (number < 1) throw std::invalid_argument("less than one");
    return static_cast<std::size_t>(number);
}

// A bytes object with room for this many numbers, which nobody else uses yet.
template <class Number>
class Room {
 public:
    explicit Room(std::size_t numbers)
        : bytes_(PyBytes_FromStringAndSize(nullptr,
                                           static_cast<Py_ssize_t>(numbers * sizeof(Number)))) {}
    // aligned to eight bytes behind their header
    Number* data() { return reinterpret_cast<Number*>(PyBytes_AsString(bytes_.get())); }
    PyObject* release() { return bytes_.release(); }

 private:
    Owned bytes_;
};

PyObject* medians(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject* bytes = nullptr;
        Py_ssize_t members = 0, columns = 0;
        if (!PyArg_ParseTuple(arguments, "Onn", &bytes, &members, &columns)) throw Failed{};
        const Numbers<double> values(bytes);
        const std::size_t rows = positive(members), width = positive(columns);
        if (values.size % rows != 0 || values.size / rows % width != 0)
            throw std::invalid_argument("no whole groups");
        Room<double> out(values.size);
        peer_medians(values.data, values.size / rows / width, rows, width, out.data());
        return out.release();
    });
}

PyObject* windows(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject* bytes = nullptr;
        Py_ssize_t width = 0;
        double ratio = 0;
        if (!PyArg_ParseTuple(arguments, "Ond", &bytes, &width, &ratio)) throw Failed{};
        const Numbers<double> series(bytes);
        const std::size_t of = positive(width);
        if (of > series.size) throw std::invalid_argument("wider than the series is long");
        Room<std::uint8_t> wide(series.size + 1 - of);
        wide_windows(series.data, series.size, of, ratio, wide.data());
        return wide.release();
    });
}

PyObject* rise(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject* bytes = nullptr;
        double least = 0, spread = 0;
        if (!PyArg_ParseTuple(arguments, "Odd", &bytes, &least, &spread)) throw Failed{};
        const Numbers<double> series(bytes);
        const Rise found = largest_rise(series.data, series.size, least, spread);
        return checked(Py_BuildValue("nd", static_cast<Py_ssize_t>(found.split), found.ratio));
    });
}

// Checks that all ranks are there, and that the groups follow one another.
Groups checked_groups(const Numbers<std::uint32_t>& order, const Numbers<std::uint32_t>& bounds,
                      std::size_t ranks) {
    if (bounds.size == 0 || bounds.data[bounds.size - 1] != order.size ||
        std::adjacent_find(bounds.data, bounds.data + bounds.size, std::greater_equal<>()) !=
            bounds.data + bounds.size)
        throw std::invalid_argument("groups begin where no ranks are");
    const auto known = [ranks](std::uint32_t rank) { return rank < ranks; };
    if (!std::all_of(order.data, order.data + order.size, known))
        throw std::invalid_argument("a rank that is none");
    return {order.data, bounds.data, bounds.size - 1};
}

PyObject* deviations(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *bytes = nullptr, *order = nullptr, *bounds = nullptr;
        Py_ssize_t count = 0;
        if (!PyArg_ParseTuple(arguments, "OnOO", &bytes, &count, &order, &bounds)) throw Failed{};
        const Numbers<float> values(bytes);
        const std::size_t ranks = positive(count);
        if (values.size % ranks != 0) throw std::invalid_argument("half a row");
        const Numbers<std::uint32_t> ranks_of(order), begins(bounds);
        const Groups groups = checked_groups(ranks_of, begins, ranks);
        const std::size_t rows = values.size / ranks;
        Room<float> cv(rows * groups.number), z(values.size);
        std::fill(z.data(), z.data() + values.size, 0.0f);
        imbalances(values.data, rows, ranks, groups, cv.data(), z.data());
        Owned both(PyTuple_New(2));
        if (PyTuple_SetItem(both.get(), 0, cv.release()) < 0 ||
            PyTuple_SetItem(both.get(), 1, z.release()) < 0)
            throw Failed{};
        return both.release();
    });
}

PyObject* unlike_peers(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *bytes = nullptr, *sample = nullptr;
        double limit = 0;
        if (!PyArg_ParseTuple(arguments, "OOd", &bytes, &sample, &limit)) throw Failed{};
        const Numbers<float> values(bytes), peers(sample);
        if (values.size % 3 != 0 || peers.size % 3 != 0)
            throw std::invalid_argument("not three coordinates each");
        Room<std::int32_t> counts(values.size / 3);
        unlike(values.data, values.size / 3, peers.data, peers.size / 3, static_cast<float>(limit),
               counts.data());
        return counts.release();
    });
}

PyMethodDef FUNCTIONS[] = {
    {"unlike", unlike_peers, METH_VARARGS, nullptr},
    {"peer_medians", medians, METH_VARARGS, nullptr},
    {"wide_windows", windows, METH_VARARGS, nullptr},
    {"largest_rise", rise, METH_VARARGS, nullptr},
    {"imbalances", deviations, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_levels(PyObject* module) { return PyModule_AddFunctions(module, FUNCTIONS); }

}  // namespace stepscope
