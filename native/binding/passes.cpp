#include "passes.hpp"

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "../src/divergence.hpp"
#include "../src/passes.hpp"
#include "numbers.hpp"

namespace stepscope {
namespace {

std::size_t at_least_one(Py_ssize_t number) {
    if (number < 1) throw std::invalid_argument("less than one");
    return static_cast<std::size_t>(number);
}

// Checks that each pass is in the order once, after those that it waits for.
PassOrder checked_order(const Numbers<std::uint32_t>& order, const Numbers<std::int32_t>& before) {
    const std::size_t passes = order.size;
    if (before.size != passes * BEFORE) throw std::invalid_argument("columns differ in length");
    std::vector<bool> done(passes, false);
    for (std::size_t at = 0; at < passes; ++at) {
        const std::uint32_t pass = order.data[at];
        if (pass >= passes || done[pass]) throw std::invalid_argument("no order of these passes");
        for (std::size_t which = 0; which < BEFORE; ++which) {
            const std::int32_t one = before.data[pass * BEFORE + which];
            if (one >= 0 && (static_cast<std::size_t>(one) >= passes || !done[one]))
                throw std::invalid_argument("a pass comes before one that it waits for");
        }
        done[pass] = true;
    }
    return {order.data, before.data, passes};
}

PyObject* slacks(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *order = nullptr, *before = nullptr, *durations = nullptr, *leads = nullptr;
        Py_ssize_t members = 0, lanes = 0;
        if (!PyArg_ParseTuple(arguments, "OOOOnn", &order, &before, &durations, &leads, &members,
                              &lanes))
            throw Failed{};
        const Numbers<std::uint32_t> ordered(order);
        const Numbers<std::int32_t> waits(before);
        const Numbers<std::int64_t> lasted(durations), late(leads);
        const std::size_t of_each = at_least_one(members), wide = at_least_one(lanes);
        if (lasted.size % of_each != 0 || lasted.size / of_each % wide != 0)
            throw std::invalid_argument("no whole lanes");
        same(lasted.size / of_each / wide, ordered.size);
        if (late.size != 0) same(late.size, ordered.size * wide);
        const PassTimes times{lasted.data, late.size == 0 ? nullptr : late.data, of_each, wide};
        const Slacks found = slacks_of(checked_order(ordered, waits), times);
        Owned starts(bytes_of(found.starts)), slack(bytes_of(found.slacks));
        Owned ends(bytes_of(found.ends));
        return checked(PyTuple_Pack(3, starts.get(), slack.get(), ends.get()));
    });
}

Rows rows_of(const Numbers<std::int16_t>& values, std::size_t points) {
    if (values.size % points != 0) throw std::invalid_argument("no whole rows");
    for (std::size_t at = 0; at < values.size; ++at)
        if (values.data[at] < 0) throw std::invalid_argument("below zero");
    return {values.data, values.size / points};
}

PyObject* divergences(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *values = nullptr, *some = nullptr;
        Py_ssize_t wide = 0;
        if (!PyArg_ParseTuple(arguments, "On|O", &values, &wide, &some)) throw Failed{};
        const std::size_t points = at_least_one(wide);
        const Rows rows = rows_of(Numbers<std::int16_t>(values), points);
        if (some == nullptr) return bytes_of(mean_divergences(rows, points));
        const Rows from = rows_of(Numbers<std::int16_t>(some), points);
        return bytes_of(mean_divergences_from(rows, from, points));
    });
}

PyMethodDef FUNCTIONS[] = {
    {"pass_slacks", slacks, METH_VARARGS, nullptr},
    {"mean_divergences", divergences, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_passes(PyObject* module) { return PyModule_AddFunctions(module, FUNCTIONS); }

}  // namespace stepscope
