// Finds the end of an element of a JSON array by brackets alone, for elements that are malformed.
#pragma once

#include <string_view>

namespace stepscope {

struct Structure {
    enum Found { element, array, nothing } found;  // what ended first
    const char* end;  // after the element's closing bracket, or at the array's
};

// Brackets count outside strings only; a quote ends a string unless an odd run of backslashes
// precedes it.
Structure structure(std::string_view bytes);

}  // namespace stepscope
