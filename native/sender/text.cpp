#include "text.hpp"

#include <cstddef>
#include <cstdio>

namespace stepscope {
namespace {

unsigned byte_at(std::string_view text, std::size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
}

// The number of bytes that a lead byte announces; 0 if it is not a lead byte.
std::size_t announced(unsigned lead) {
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

// The second byte excludes overlong forms, surrogates, and code points beyond Unicode.
bool second_fits(unsigned lead, unsigned second) {
    if (lead == 0xE0) return second >= 0xA0;
    if (lead == 0xED) return second <= 0x9F;
    if (lead == 0xF0) return second >= 0x90;
    return lead != 0xF4 || second <= 0x8F;
}

// The number of bytes of the character that begins here; 0 if none does.
std::size_t character(std::string_view text, std::size_t at) {
    const unsigned lead = byte_at(text, at);
    const std::size_t size = announced(lead);
    if (size > 1 && !second_fits(lead, byte_at(text, at + 1))) return 0;
    for (std::size_t next = 1; next < size; ++next) {
        if ((byte_at(text, at + next) & 0xC0) != 0x80) return 0;
    }
    return size;
}

void append_escape(std::string& out, unsigned code) {
    char escape[8];
    std::snprintf(escape, sizeof escape, "\\u%04x", code & 0xFFFF);
    out += escape;
}

std::size_t behind_blanks(std::string_view json, std::size_t at) {
    while (at < json.size() && (json[at] == ' ' || json[at] == ':')) ++at;
    return at;
}

}  // namespace

void append_string(std::string& out, std::string_view text) {
    out += '"';
    for (std::size_t at = 0; at < text.size();) {
        const unsigned byte = byte_at(text, at);
        const std::size_t size = character(text, at);
        if (size == 0) {
            append_escape(out, 0xDC00 + byte);
        } else if (byte < 0x20) {
            append_escape(out, byte);
        } else {
            if (byte == '"' || byte == '\\') out += '\\';
            out.append(text, at, size);
        }
        at += size == 0 ? 1 : size;
    }
    out += '"';
}

std::int64_t number_in(std::string_view json, std::string_view key, std::int64_t otherwise) {
    std::string quoted;
    append_string(quoted, key);
    const std::size_t found = json.find(quoted);
    if (found == std::string_view::npos) return otherwise;
    std::size_t at = behind_blanks(json, found + quoted.size());
    const std::size_t first = at;
    std::int64_t value = 0;
    // eighteen digits fit
    for (; at < json.size() && at - first < 18 && json[at] >= '0' && json[at] <= '9'; ++at) {
        value = value * 10 + (json[at] - '0');
    }
    return at == first ? otherwise : value;
}

}  // namespace stepscope
