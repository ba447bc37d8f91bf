// The parts of Python's C API that binding/ needs, limited to 3.10: ownership, errors, bytes.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

namespace stepscope {

struct Failed {};  // a Python error is set

inline PyObject* checked(PyObject* made) {
    if (made == nullptr) throw Failed{};
    return made;
}

class Owned {
 public:
    explicit Owned(PyObject* made) : object_(checked(made)) {}
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    ~Owned() { Py_XDECREF(object_); }
    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }

 private:
    PyObject* object_;
};

// Runs a body that may throw; turns an exception into a Python error.
template <class Body>
PyObject* guarded(Body&& body) noexcept {
    try {
        return body();
    } catch (const Failed&) {
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    }
    return nullptr;
}

inline PyObject* to_bytes(std::string_view text) {
    return PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

inline std::string_view viewed(PyObject* bytes) {
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(bytes, &data, &size) < 0) throw Failed{};
    return {data, static_cast<std::size_t>(size)};
}

inline std::string to_text(PyObject* object) {
    Owned bytes(PyUnicode_AsUTF8String(object));
    return std::string(viewed(bytes.get()));
}

}  // namespace stepscope
