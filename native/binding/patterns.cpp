#include "patterns.hpp"

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "../src/busiest.hpp"
#include "../src/critical.hpp"
#include "numbers.hpp"

namespace stepscope {
namespace {

Spans to_spans(PyObject* start, PyObject* end, PyObject* of) {
    const Numbers<std::int64_t> starts(start), ends(end);
    const Numbers<std::int32_t> functions(of);
    return {starts.data, ends.data, functions.data,
            same(same(starts.size, ends.size), functions.size)};
}

PyObject* to_pair(PyObject* one, PyObject* other) {
    Owned first(one), second(other);
    return checked(PyTuple_Pack(2, first.get(), second.get()));
}

PyObject* innermost(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *start = nullptr, *end = nullptr, *of = nullptr;
        if (!PyArg_ParseTuple(arguments, "OOO", &start, &end, &of)) throw Failed{};
        const Innermost found(to_spans(start, end, of));
        return to_pair(bytes_of(found.segments()), bytes_of(found.stacks()));
    });
}

PyObject* critical_ns(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject* classes = nullptr;
        Py_ssize_t functions = 0;
        long long from = 0, until = 0;
        if (!PyArg_ParseTuple(arguments, "O!nLL", &PyTuple_Type, &classes, &functions, &from,
                              &until))
            throw Failed{};
        if (functions < 0) throw std::invalid_argument("fewer than no functions");
        Critical critical(static_cast<std::size_t>(functions), from, until);
        for (Py_ssize_t at = 0; at < PyTuple_Size(classes); ++at) {
            PyObject *start = nullptr, *end = nullptr, *of = nullptr;
            if (!PyArg_ParseTuple(checked(PyTuple_GetItem(classes, at)), "OOO", &start, &end, &of))
                throw Failed{};
            critical.add(to_spans(start, end, of));
        }
        return bytes_of(critical.times());
    });
}

struct Measured {
    double mean, deviation;
};

Measured measured(const double* use, std::size_t samples) {
    if (samples == 0) return {NAN, NAN};
    const auto count = static_cast<double>(samples);
    double total = 0, squares = 0;
    for (std::size_t at = 0; at < samples; ++at) total += use[at];
    const double mean = total / count;
    for (std::size_t at = 0; at < samples; ++at) squares += (use[at] - mean) * (use[at] - mean);
    return {mean, std::sqrt(squares / count)};
}

PyObject* busiest(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *use = nullptr, *begin = nullptr, *end = nullptr;
        double share = 0, least = 0;
        if (!PyArg_ParseTuple(arguments, "OOOdd", &use, &begin, &end, &share, &least))
            throw Failed{};
        if (!(share > 0.5 && share <= 1)) throw std::invalid_argument("not a share above a half");
        const Numbers<double> samples(use);
        const Numbers<std::int64_t> begins(begin), ends(end);
        BusiestFinder finder(share, least);
        std::vector<std::int64_t> spans;
        std::vector<Measured> found;
        for (std::size_t at = 0; at < same(begins.size, ends.size); ++at) {
            const std::int64_t first = begins.data[at], last = ends.data[at];
            if (first < 0 || last < first || static_cast<std::size_t>(last) > samples.size)
                throw std::invalid_argument("an execution outside the samples");
            const double* own = samples.data + first;
            const Busiest part = finder.find(own, static_cast<std::size_t>(last - first));
            spans.push_back(first + static_cast<std::int64_t>(part.begin));
            spans.push_back(first + static_cast<std::int64_t>(part.end));
            found.push_back(measured(own + part.begin, part.end - part.begin));
        }
        return to_pair(bytes_of(spans), bytes_of(found));
    });
}

PyMethodDef FUNCTIONS[] = {
    {"innermost", innermost, METH_VARARGS, nullptr},
    {"critical_ns", critical_ns, METH_VARARGS, nullptr},
    {"busiest", busiest, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_patterns(PyObject* module) { return PyModule_AddFunctions(module, FUNCTIONS); }

}  // namespace stepscope
