#include "compression.hpp"

#include <cstdint>
#include <memory>
#include <vector>

#include "../src/grouping.hpp"
#include "../src/histograms.hpp"
#include "../src/keys.hpp"
#include "../src/published.hpp"
#include "numbers.hpp"

namespace stepscope {
namespace {

std::size_t to_size(PyObject* number) {
    const std::size_t size = PyLong_AsSize_t(number);
    if (PyErr_Occurred() != nullptr) throw Failed{};
    return size;
}

template <class Core>
struct Object {
    PyObject base;
    Core* core;
};

template <class Core>
Core& core_of(PyObject* self) {
    return *reinterpret_cast<Object<Core>*>(self)->core;
}

template <class Core>
PyObject* holding(PyTypeObject* type, std::unique_ptr<Core> core) {
    Owned self(PyType_GenericAlloc(type, 0));
    reinterpret_cast<Object<Core>*>(self.get())->core = core.release();
    return self.release();
}

template <class Core>
void freed(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    delete reinterpret_cast<Object<Core>*>(self)->core;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

PyObject* keys_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
    return guarded([&] {
        PyObject* most = nullptr;
        if (!PyArg_ParseTuple(arguments, "O", &most)) throw Failed{};
        return holding(type, std::make_unique<Keys>(to_size(most)));
    });
}

PyObject* keys_codes(PyObject* self, PyObject* arguments) {
    return guarded([&] {
        long long rank = 0;
        PyObject *kernels = nullptr, *streams = nullptr;
        if (!PyArg_ParseTuple(arguments, "LOO", &rank, &kernels, &streams)) throw Failed{};
        const Numbers<std::int64_t> kernel(kernels), stream(streams);
        std::vector<std::uint32_t> codes(same(kernel.size, stream.size));
        core_of<Keys>(self).codes(rank, kernel.data, stream.data, codes.size(), codes.data());
        return bytes_of(codes);
    });
}

PyObject* keys_known(PyObject* self, PyObject*) {
    return guarded([&] { return bytes_of(core_of<Keys>(self).keys()); });
}

PyObject* histograms_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
    return guarded([&] {
        PyObject *groups = nullptr, *blocks = nullptr;
        if (!PyArg_ParseTuple(arguments, "OO", &groups, &blocks)) throw Failed{};
        return holding(type, std::make_unique<Histograms>(to_size(groups), to_size(blocks)));
    });
}

PyObject* refused_counts(const Histograms::Refused& refused) {
    return checked(Py_BuildValue("nn", static_cast<Py_ssize_t>(refused.impossible),
                                 static_cast<Py_ssize_t>(refused.no_room)));
}

PyObject* histograms_add(PyObject* self, PyObject* arguments) {
    return guarded([&] {
        PyObject *groups = nullptr, *durations = nullptr;
        if (!PyArg_ParseTuple(arguments, "OO", &groups, &durations)) throw Failed{};
        const Numbers<std::uint32_t> group(groups);
        const Numbers<std::int64_t> duration(durations);
        return refused_counts(core_of<Histograms>(self).add(group.data, duration.data,
                                                            same(group.size, duration.size)));
    });
}

PyObject* histograms_modes(PyObject* self, PyObject*) {
    return guarded([&] { return bytes_of(core_of<Histograms>(self).modes()); });
}

PyObject* get_size_bytes(PyObject* self, void*) {
    return guarded(
        [&] { return checked(PyLong_FromSize_t(core_of<Histograms>(self).size_bytes())); });
}

PyObject* as_published(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *groups = nullptr, *durations = nullptr, *number = nullptr;
        if (!PyArg_ParseTuple(arguments, "OOO", &groups, &durations, &number)) throw Failed{};
        const Numbers<std::uint32_t> group(groups);
        const Numbers<std::int64_t> duration(durations);
        Grouping grouping(group.data, duration.data, same(group.size, duration.size),
                          to_size(number));
        Published published;
        std::vector<Row> found;
        for (std::size_t at = 0; at < grouping.groups(); ++at)
            if (const std::size_t samples = grouping.samples(at); samples > 0)
                published.add_rows(grouping.durations(at), samples, static_cast<std::int64_t>(at),
                                   found);
        Owned rows(bytes_of(found));
        return checked(
            Py_BuildValue("On", rows.get(), static_cast<Py_ssize_t>(grouping.impossible())));
    });
}

PyMethodDef KEYS_METHODS[] = {
    {"codes", keys_codes, METH_VARARGS, nullptr},
    {"known", keys_known, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef HISTOGRAMS_METHODS[] = {
    {"add", histograms_add, METH_VARARGS, nullptr},
    {"modes", histograms_modes, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef HISTOGRAMS_VALUES[] = {
    {"size_bytes", get_size_bytes, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot KEYS_SLOTS[] = {
    {Py_tp_new, reinterpret_cast<void*>(keys_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(freed<Keys>)},
    {Py_tp_methods, KEYS_METHODS},
    {0, nullptr},
};

PyType_Slot HISTOGRAMS_SLOTS[] = {
    {Py_tp_new, reinterpret_cast<void*>(histograms_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(freed<Histograms>)},
    {Py_tp_methods, HISTOGRAMS_METHODS},
    {Py_tp_getset, HISTOGRAMS_VALUES},
    {0, nullptr},
};

PyType_Spec KEYS_SPEC = {
    "stepscope._native.Keys", sizeof(Object<Keys>), 0, Py_TPFLAGS_DEFAULT, KEYS_SLOTS,
};
PyType_Spec HISTOGRAMS_SPEC = {
    "stepscope._native.Histograms",
    sizeof(Object<Histograms>),
    0,
    Py_TPFLAGS_DEFAULT,
    HISTOGRAMS_SLOTS,
};

PyMethodDef FUNCTIONS[] = {
    {"published", as_published, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

int add_type(PyObject* module, const char* name, PyType_Spec& spec) {
    PyObject* type = PyType_FromSpec(&spec);
    if (type == nullptr) return -1;
    const int failed = PyModule_AddObjectRef(module, name, type);
    Py_DECREF(type);
    return failed;
}

}  // namespace

int add_compression(PyObject* module) {
    if (add_type(module, "Keys", KEYS_SPEC) < 0) return -1;
    if (add_type(module, "Histograms", HISTOGRAMS_SPEC) < 0) return -1;
    return PyModule_AddFunctions(module, FUNCTIONS);
}

}  // namespace stepscope
