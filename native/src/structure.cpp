#include "structure.hpp"

#include <cstddef>

namespace stepscope {

Structure structure(std::string_view bytes) {
    std::size_t depth = 0, slashes = 0;
    bool quoted = false;
    for (const char& byte : bytes) {
        if (byte == '"' && slashes % 2 == 0) {
            quoted = !quoted;
        } else if (!quoted && (byte == '{' || byte == '[')) {
            ++depth;
        } else if (!quoted && (byte == '}' || byte == ']')) {
            if (depth == 0) return {Structure::array, &byte};
            if (--depth == 0) return {Structure::element, &byte + 1};
        }
        slashes = byte == '\\' ? slashes + 1 : 0;
    }
    return {Structure::nothing, nullptr};
}

}  // namespace stepscope
