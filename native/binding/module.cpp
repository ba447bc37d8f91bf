// stepscope._native: its scanner, and the module itself.
//
// Plain C API, limited to that of 3.10: one binary works with every later Python, and importing it
// takes 0.3 ms and 150 KB (a nanobind module: 0.8 ms and 320 KB). Types and documentation are in
// src/stepscope/_native.pyi.
#include <algorithm>
#include <stdexcept>

#include "../src/scanner.hpp"
#include "columns.hpp"
#include "compression.hpp"
#include "distances.hpp"
#include "encoding.hpp"
#include "levels.hpp"
#include "passes.hpp"
#include "patterns.hpp"
#include "python.hpp"

namespace {

using namespace stepscope;

constexpr std::array<const char*, KINDS> KIND_NAMES = {
    "cpu", "mark", "runtime", "device", "python", "calls",
};

Kind to_kind(const std::string& name) {
    for (std::size_t at = 0; at < KINDS; ++at)
        if (name == KIND_NAMES[at]) return static_cast<Kind>(at);
    throw std::invalid_argument("no table is called " + name);
}

std::vector<std::string> to_texts(PyObject* tuple) {
    std::vector<std::string> texts;
    for (Py_ssize_t at = 0; at < PyTuple_Size(tuple); ++at)
        texts.push_back(to_text(checked(PyTuple_GetItem(tuple, at))));
    return texts;
}

std::vector<std::pair<std::string, Kind>> to_categories(PyObject* dict) {
    std::vector<std::pair<std::string, Kind>> categories;
    PyObject *category = nullptr, *kind = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &category, &kind);)
        categories.emplace_back(to_text(category), to_kind(to_text(kind)));
    return categories;
}

PyObject* to_list(const std::deque<std::string>& texts) {
    Owned list(PyList_New(static_cast<Py_ssize_t>(texts.size())));
    Py_ssize_t at = 0;
    for (const std::string& text : texts)
        if (PyList_SetItem(list.get(), at++, checked(to_bytes(text))) < 0) throw Failed{};
    return list.release();
}

struct ScannerObject {
    PyObject base;
    Scanner* scanner;
    bool busy;  // in a thread that has released the GIL
};

ScannerObject* object_of(PyObject* self) { return reinterpret_cast<ScannerObject*>(self); }

Scanner& scanner_of(PyObject* self) {
    if (object_of(self)->busy) throw std::logic_error("a scanner serves one thread at a time");
    return *object_of(self)->scanner;
}

PyObject* scanner_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
    return guarded([&]() -> PyObject* {
        PyObject *categories = nullptr, *calls = nullptr;
        if (!PyArg_ParseTuple(arguments, "O!O!", &PyDict_Type, &categories, &PyTuple_Type, &calls))
            throw Failed{};
        auto scanner = std::make_unique<Scanner>(to_categories(categories), to_texts(calls));
        Owned self(PyType_GenericAlloc(type, 0));
        object_of(self.get())->scanner = scanner.release();
        return self.release();
    });
}

void scanner_free(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    delete object_of(self)->scanner;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

// Runs work on the scanner without the GIL.
template <class Work>
auto unlocked(PyObject* self, Work&& work) {
    Scanner& scanner = scanner_of(self);
    object_of(self)->busy = true;
    struct Unlocked {
        explicit Unlocked(ScannerObject* object) : of(object), state(PyEval_SaveThread()) {}
        ~Unlocked() {
            PyEval_RestoreThread(state);
            of->busy = false;
        }
        ScannerObject* of;
        PyThreadState* state;
    } released(object_of(self));
    return work(scanner);
}

PyObject* scanner_feed(PyObject* self, PyObject* data) {
    return guarded([&] {
        const std::string_view bytes = viewed(data);
        return checked(PyBool_FromLong(
            unlocked(self, [bytes](Scanner& scanner) { return scanner.feed(bytes); })));
    });
}

PyObject* scanner_finish(PyObject* self, PyObject*) {
    return guarded([&] {
        unlocked(self, [](Scanner& scanner) { scanner.finish(); });
        return Py_NewRef(Py_None);
    });
}

// A column as bytes of numbers, in the given order.
template <class Number>
PyObject* ordered(const Column& column, const std::vector<std::uint32_t>& order) {
    const std::size_t size = order.size() * sizeof(Number);
    Owned bytes(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
    // aligned to eight bytes behind their header, and not shared with anyone yet
    auto* to = reinterpret_cast<Number*>(PyBytes_AsString(bytes.get()));
    for (const std::uint32_t row : order) *to++ = static_cast<Number>(column[row]);
    return bytes.release();
}

PyObject* scanner_take(PyObject* self, PyObject* name) {
    return guarded([&] {
        Table& table = scanner_of(self).table(to_kind(to_text(name)));
        const std::vector<std::uint32_t> order = in_order(table);
        Owned columns(PyDict_New());
        for (std::size_t at = 0; at < COLUMNS.size(); ++at) {
            if (table[at].size() != order.size()) continue;
            const bool codes = std::string_view(COLUMNS[at]) == "name";
            Owned bytes(codes ? ordered<std::int32_t>(table[at], order)
                              : ordered<std::int64_t>(table[at], order));
            table[at] = Column();
            if (PyDict_SetItemString(columns.get(), COLUMNS[at], bytes.get()) < 0) throw Failed{};
        }
        return columns.release();
    });
}

PyObject* scanner_names(PyObject* self, PyObject*) {
    return guarded([&] { return to_list(scanner_of(self).names().texts()); });
}

PyObject* scanner_threads(PyObject* self, PyObject*) {
    return guarded([&] { return to_list(scanner_of(self).threads().texts()); });
}

PyObject* scanner_calls(PyObject* self, PyObject*) {
    return guarded([&] { return to_list(scanner_of(self).calls().texts()); });
}

PyObject* scanner_rest(PyObject* self, PyObject*) {
    return guarded([&] { return checked(to_bytes(scanner_of(self).rest())); });
}

template <class Ask>
PyObject* counted(PyObject* self, Ask&& ask) {
    return guarded([&] {
        return checked(PyLong_FromLongLong(static_cast<long long>(ask(scanner_of(self)))));
    });
}

PyObject* get_closed(PyObject* self, void*) {
    return guarded([&] { return checked(PyBool_FromLong(scanner_of(self).closed())); });
}
PyObject* get_oversized(PyObject* self, void*) {
    return guarded([&] { return checked(PyBool_FromLong(scanner_of(self).oversized())); });
}
PyObject* get_full(PyObject* self, void*) {
    return guarded([&] { return checked(PyBool_FromLong(scanner_of(self).full())); });
}
PyObject* get_kept(PyObject* self, void*) {
    return counted(self, [](const Scanner& scanner) { return scanner.kept(); });
}
PyObject* get_unreadable(PyObject* self, void*) {
    return counted(self, [](const Scanner& scanner) { return scanner.unreadable(); });
}
PyObject* get_impossible(PyObject* self, void*) {
    return counted(self, [](const Scanner& scanner) { return scanner.impossible(); });
}
PyObject* get_first_thread(PyObject* self, void*) {
    return counted(self, [](const Scanner& scanner) { return scanner.first_thread(); });
}
PyObject* get_first_device(PyObject* self, void*) {
    return counted(self, [](const Scanner& scanner) { return scanner.first_device(); });
}

PyMethodDef SCANNER_METHODS[] = {
    {"feed", scanner_feed, METH_O, nullptr},
    {"finish", scanner_finish, METH_NOARGS, nullptr},
    {"take", scanner_take, METH_O, nullptr},
    {"names", scanner_names, METH_NOARGS, nullptr},
    {"threads", scanner_threads, METH_NOARGS, nullptr},
    {"calls", scanner_calls, METH_NOARGS, nullptr},
    {"rest", scanner_rest, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef SCANNER_VALUES[] = {
    {"closed", get_closed, nullptr, nullptr, nullptr},
    {"oversized", get_oversized, nullptr, nullptr, nullptr},
    {"full", get_full, nullptr, nullptr, nullptr},
    {"kept", get_kept, nullptr, nullptr, nullptr},
    {"unreadable", get_unreadable, nullptr, nullptr, nullptr},
    {"impossible", get_impossible, nullptr, nullptr, nullptr},
    {"first_thread", get_first_thread, nullptr, nullptr, nullptr},
    {"first_device", get_first_device, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot SCANNER_SLOTS[] = {
    {Py_tp_new, reinterpret_cast<void*>(scanner_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(scanner_free)},
    {Py_tp_methods, SCANNER_METHODS},
    {Py_tp_getset, SCANNER_VALUES},
    {0, nullptr},
};

PyType_Spec SCANNER_SPEC = {
    "stepscope._native.Scanner", sizeof(ScannerObject), 0, Py_TPFLAGS_DEFAULT, SCANNER_SLOTS,
};

// The raw values of some members of a text that must be one complete JSON object.
PyObject* members_of(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *text = nullptr, *names = nullptr;
        if (!PyArg_ParseTuple(arguments, "O!O!", &PyBytes_Type, &text, &PyTuple_Type, &names))
            throw Failed{};
        const std::vector<std::string> wanted = to_texts(names);
        Owned found(PyDict_New());
        json::Cursor in(viewed(text));
        const json::Outcome outcome =
            json::members(in, [&](const json::Token& key, json::Cursor& value) {
                json::Token token;
                const json::Outcome read = value.value(token);
                const auto at = std::find(wanted.begin(), wanted.end(), key.inside());
                if (read != json::Outcome::whole || at == wanted.end()) return read;
                Owned raw(to_bytes(token.raw));
                if (PyDict_SetItemString(found.get(), at->c_str(), raw.get()) < 0) throw Failed{};
                return read;
            });
        if (outcome != json::Outcome::whole || in.space())
            throw std::invalid_argument("no JSON object");
        return found.release();
    });
}

PyMethodDef FUNCTIONS[] = {
    {"members", members_of, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

int fill(PyObject* module) {
    const std::array<std::pair<const char*, std::size_t>, 5> limits = {{
        {"LONGEST_EVENT_BYTES", LONGEST_EVENT_BYTES},
        {"MOST_EVENTS", MOST_EVENTS},
        {"MOST_NAME_BYTES", MOST_NAME_BYTES},
        {"MOST_CALLS", MOST_CALLS},
        {"MOST_CALL_BYTES", MOST_CALL_BYTES},
    }};
    for (const auto& [name, limit] : limits)
        if (PyModule_AddIntConstant(module, name, static_cast<long>(limit)) < 0) return -1;
    PyObject* type = PyType_FromSpec(&SCANNER_SPEC);
    if (type == nullptr) return -1;
    const int failed = PyModule_AddObjectRef(module, "Scanner", type);
    Py_DECREF(type);
    if (failed != 0 || add_compression(module) < 0 || add_encoding(module) < 0) return -1;
    if (add_distances(module) < 0 || add_levels(module) < 0) return -1;
    if (add_passes(module) < 0 || add_columns(module) < 0) return -1;
    return add_patterns(module);
}

PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, reinterpret_cast<void*>(fill)},
    {0, nullptr},
};

PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    "stepscope._native",
    nullptr,
    0,
    FUNCTIONS,
    SLOTS,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&MODULE); }
