// One event of a trace: all fields that any PyTorch since 1.8 may write and that we use.
//
// Numbers may be written as texts, and anything may be missing. A value of a wrong kind makes its
// event malformed, but no other event. If a name occurs twice, the last value counts.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "json.hpp"

namespace stepscope {

struct Event {
    enum Field { ph, cat, name, ts, dur, tid, pid, FIELDS };
    // The fields from `collective` on are arguments of communication calls.
    enum Argument {
        external,
        correlation,
        stream,
        python_id,
        python_parent,
        sequence,
        collective,
        elements_in,
        elements_out,
        dtype,
        group_size,
        group_name,
        group_words,
        group_ranks,
        group_first,
        group_stride,
        source,
        target,
        shapes,
        types,
        values,
        ARGUMENTS
    };

    json::Outcome read(json::Cursor& in);

    // A text with its escapes resolved; empty for all other values.
    std::string_view text(Field field) const { return texts_[field]; }
    const json::Token& operator[](Field field) const { return fields_[field]; }
    const json::Token& operator[](Argument argument) const {
        return said_ >> argument & 1 ? arguments_[argument] : MISSING;
    }
    // The arguments of a communication call as one JSON object; empty if there are none.
    void call(std::string& to) const;

 private:
    json::Outcome read_field(const json::Token& key, json::Cursor& in);
    json::Outcome read_arguments(json::Cursor& in);
    json::Outcome read_argument(const json::Token& key, json::Cursor& in);
    json::Outcome keep_text(std::size_t field);

    static constexpr json::Token MISSING{};

    std::array<json::Token, FIELDS> fields_;
    std::array<json::Token, ARGUMENTS> arguments_;
    std::uint32_t said_ = 0;  // which arguments are there, one bit each: cheaper than clearing all
    std::array<std::string_view, FIELDS> texts_;
    std::array<std::string, FIELDS> unescaped_;
};

}  // namespace stepscope
