// Atomic minimum and maximum over several threads.
#pragma once

#include <atomic>

namespace stepscope::nccl {

template <class T>
void raise(std::atomic<T>& to, T value) {
    T before = to.load(std::memory_order_relaxed);
    while (before < value && !to.compare_exchange_weak(before, value)) {
    }
}

// 0 means no value yet.
template <class T>
void lower(std::atomic<T>& to, T value) {
    T before = to.load(std::memory_order_relaxed);
    while ((before == 0 || before > value) && !to.compare_exchange_weak(before, value)) {
    }
}

}  // namespace stepscope::nccl
