// The small subset of JSON that we write and read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stepscope {

// Appends a JSON string. Bytes that are not UTF-8 become lone surrogates, as in Python's
// `os.environ`.
void append_string(std::string& out, std::string_view text);

// The number after `"key":` in a JSON object; `otherwise` if there is none.
std::int64_t number_in(std::string_view json, std::string_view key, std::int64_t otherwise);

}  // namespace stepscope
