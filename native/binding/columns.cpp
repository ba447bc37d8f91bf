#include "columns.hpp"

#include <cstdint>
#include <stdexcept>

#include "../src/clocks.hpp"
#include "../src/gather.hpp"
#include "../src/intervals.hpp"
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

// A column of int64.
struct Longs {
    explicit Longs(PyObject* array) {
        const auto memory = read(array);
        if (memory.size % sizeof(std::int64_t) != 0) throw std::invalid_argument("half a number");
        data = static_cast<const std::int64_t*>(memory.data);
        size = memory.size / sizeof(std::int64_t);
    }
    const std::int64_t* data;
    std::size_t size;
};

// Room for so many int64.
std::int64_t* room_for(PyObject* array, std::size_t numbers) {
    const auto memory = written(array);
    if (memory.size != numbers * sizeof(std::int64_t))
        throw std::invalid_argument("not as much room as numbers");
    return static_cast<std::int64_t*>(memory.data);
}

std::size_t same(const Longs& one, const Longs& other) {
    if (one.size != other.size) throw std::invalid_argument("columns differ in length");
    return one.size;
}

PyObject* rows_of(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *column = nullptr, *rows = nullptr, *room = nullptr;
        Py_ssize_t bytes = 0;
        if (!PyArg_ParseTuple(arguments, "OnOO", &column, &bytes, &rows, &room)) throw Failed{};
        const auto from = read(column);
        const Longs chosen(rows);
        const auto out = written(room);
        const auto width = static_cast<std::size_t>(bytes);
        if (bytes < 1 || out.size != chosen.size * width)
            throw std::invalid_argument("not as much room as rows");
        return checked(PyBool_FromLong(
            gather(from.data, from.size / width, width, chosen.data, chosen.size, out.data)));
    });
}

PyObject* order_of(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *column = nullptr, *room = nullptr;
        if (!PyArg_ParseTuple(arguments, "OO", &column, &room)) throw Failed{};
        const Longs values(column);
        return checked(
            PyBool_FromLong(stable_order(values.data, values.size, room_for(room, values.size))));
    });
}

PyObject* merged(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *starts = nullptr, *ends = nullptr, *first = nullptr, *last = nullptr;
        if (!PyArg_ParseTuple(arguments, "OOOO", &starts, &ends, &first, &last)) throw Failed{};
        const Longs start(starts), end(ends);
        const std::size_t count = same(start, end);
        return checked(PyLong_FromLongLong(
            merge(start.data, end.data, count, room_for(first, count), room_for(last, count))));
    });
}

PyObject* counted(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *numbers = nullptr, *limits = nullptr, *room = nullptr;
        if (!PyArg_ParseTuple(arguments, "OOO", &numbers, &limits, &room)) throw Failed{};
        const Longs ordered(numbers), limit(limits);
        count_until(ordered.data, ordered.size, limit.data, limit.size, room_for(room, limit.size));
        return Py_NewRef(Py_None);
    });
}

PyObject* on_clock(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *times = nullptr, *of_rows = nullptr, *offsets = nullptr, *drifts = nullptr,
                 *room = nullptr;
        long long origin = 0;
        if (!PyArg_ParseTuple(arguments, "OOLOOO", &times, &of_rows, &origin, &offsets, &drifts,
                              &room))
            throw Failed{};
        const Longs time(times), clock(of_rows);
        const auto offset = read(offsets), drift = read(drifts);
        if (offset.size != drift.size) throw std::invalid_argument("columns differ in length");
        const Clocks clocks{origin, static_cast<const double*>(offset.data),
                            static_cast<const double*>(drift.data), offset.size / sizeof(double)};
        return checked(PyBool_FromLong(on_one_clock(clocks, time.data, clock.data,
                                                    same(time, clock), room_for(room, time.size))));
    });
}

PyObject* covered_before(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *starts = nullptr, *ends = nullptr, *sums = nullptr, *places = nullptr,
                 *room = nullptr;
        if (!PyArg_ParseTuple(arguments, "OOOOO", &starts, &ends, &sums, &places, &room))
            throw Failed{};
        const Longs start(starts), end(ends), before(sums), position(places);
        same(start, before);
        covered({start.data, end.data, before.data, same(start, end)}, position.data, position.size,
                room_for(room, position.size));
        return Py_NewRef(Py_None);
    });
}

PyMethodDef FUNCTIONS[] = {
    {"stable_order", order_of, METH_VARARGS, nullptr},
    {"merge", merged, METH_VARARGS, nullptr},
    {"on_one_clock", on_clock, METH_VARARGS, nullptr},
    {"count_until", counted, METH_VARARGS, nullptr},
    {"covered", covered_before, METH_VARARGS, nullptr},
    {"gather", rows_of, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_columns(PyObject* module) { return PyModule_AddFunctions(module, FUNCTIONS); }

}  // namespace stepscope
