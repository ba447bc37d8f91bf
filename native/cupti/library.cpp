#include "library.hpp"

#include <dlfcn.h>

#include <initializer_list>

namespace stepscope::cupti {
namespace {

// Prefers the copy that is already mapped (torch brings one): two copies would clash.
void* opened() {
    for (const char* name : {"libcupti.so.13", "libcupti.so.12"}) {
        if (void* mapped = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return mapped;
    }
    for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"}) {
        if (void* found = dlopen(name, RTLD_NOW)) return found;
    }
    return nullptr;
}

template <class Function>
bool look_up(void* handle, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(handle, name));
    return function != nullptr;
}

}  // namespace

bool find(Library& library) {
    void* handle = opened();
    if (handle == nullptr) return false;
    look_up(handle, "cuptiActivityFlushPeriod", library.flush_period);
    look_up(handle, "cuptiActivityEnableAllSyncRecords", library.all_sync_records);
    look_up(handle, "cuptiGetTimestamp", library.timestamp);
    look_up(handle, "cuptiSubscribe", library.subscribe);
    look_up(handle, "cuptiUnsubscribe", library.unsubscribe);
    look_up(handle, "cuptiEnableDomain", library.enable_domain);
    look_up(handle, "cuptiFinalize", library.finalize);
    return look_up(handle, "cuptiActivityEnable", library.enable) &&
           look_up(handle, "cuptiActivityDisable", library.disable) &&
           look_up(handle, "cuptiActivityRegisterCallbacks", library.register_callbacks) &&
           look_up(handle, "cuptiActivityGetNextRecord", library.next_record) &&
           look_up(handle, "cuptiActivityFlushAll", library.flush_all) &&
           look_up(handle, "cuptiActivityGetNumDroppedRecords", library.dropped_records) &&
           look_up(handle, "cuptiGetVersion", library.get_version) &&
           library.get_version(&library.version) == SUCCESS;
}

}  // namespace stepscope::cupti
