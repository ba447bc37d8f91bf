#include "distances.hpp"

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "../src/distances.hpp"
#include "numbers.hpp"

namespace stepscope {
namespace {

// Checks that the modes are where `begins` says.
Mixtures checked_mixtures(const Numbers<std::uint32_t>& begins, const Numbers<double>& log_p50,
                          const Numbers<double>& sigma, const Numbers<double>& weight) {
    const std::size_t modes = same(same(log_p50.size, sigma.size), weight.size);
    if (begins.size == 0 || begins.data[begins.size - 1] != modes ||
        !std::is_sorted(begins.data, begins.data + begins.size))
        throw std::invalid_argument("ranks begin where no modes are");
    const auto scaled = [](double value) { return value > 0; };
    if (!std::all_of(sigma.data, sigma.data + modes, scaled))
        throw std::invalid_argument("a mode without width");
    return {begins.data, begins.size - 1, log_p50.data, sigma.data, weight.data};
}

PyObject* distances(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *begins = nullptr, *log_p50 = nullptr, *sigma = nullptr, *weight = nullptr;
        PyObject *logs = nullptr, *weights = nullptr;
        if (!PyArg_ParseTuple(arguments, "OOOOOO", &begins, &log_p50, &sigma, &weight, &logs,
                              &weights))
            throw Failed{};
        const Numbers<double> log(logs), counts(weights);
        const Grid grid{log.data, counts.data, same(log.size, counts.size)};
        return bytes_of(mean_distances(
            checked_mixtures(Numbers<std::uint32_t>(begins), Numbers<double>(log_p50),
                             Numbers<double>(sigma), Numbers<double>(weight)),
            grid));
    });
}

PyMethodDef FUNCTIONS[] = {
    {"mean_distances", distances, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_distances(PyObject* module) { return PyModule_AddFunctions(module, FUNCTIONS); }

}  // namespace stepscope
