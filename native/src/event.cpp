#include "event.hpp"

namespace stepscope {
namespace {

using json::Outcome;

struct Named {
    std::string_view key;
    int kinds;  // the kinds that a value may have
};

constexpr int NUMBER = json::number | json::text | json::null;
constexpr int TIME = json::number | json::null;
constexpr int TEXT = json::text | json::null;
constexpr int ANYTHING = 0xFF;

constexpr std::array<Named, Event::FIELDS> FIELD_NAMES{{
    {"ph", json::text},
    {"cat", TEXT},
    {"name", TEXT},
    {"ts", TIME},
    {"dur", TIME},
    {"tid", NUMBER},
    {"pid", NUMBER},
}};

constexpr std::array<Named, Event::ARGUMENTS> ARGUMENT_NAMES{{
    {"External id", NUMBER},
    {"correlation", NUMBER},
    {"stream", NUMBER},
    {"Python id", NUMBER},
    {"Python parent id", NUMBER},
    {"Seq", NUMBER},
    {"Collective name", TEXT},
    {"In msg nelems", NUMBER},
    {"Out msg nelems", NUMBER},
    {"dtype", TEXT},
    {"Group size", NUMBER},
    {"Process Group Name", NUMBER},
    {"Process Group Description", TEXT},
    {"Process Group Ranks", TEXT},
    {"Global rank start", NUMBER},
    {"Global rank stride", NUMBER},
    {"Src Rank", NUMBER},
    {"Dst Rank", NUMBER},
    {"Input Dims", ANYTHING},
    {"Input type", ANYTHING},
    {"Concrete Inputs", ANYTHING},
}};

// The index of a key among the names, N if it is none of them: most keys differ in length or first
// letter.
template <std::size_t N>
std::size_t place(const std::array<Named, N>& names, std::string_view key) {
    for (std::size_t at = 0; at < N && !key.empty(); ++at) {
        const std::string_view name = names[at].key;
        if (name.size() == key.size() && name[0] == key[0] && name == key) return at;
    }
    return N;
}

// Calls `take(key)` with the key's escapes resolved: they are allowed, but rare.
template <class Take>
Outcome resolved(const json::Token& key, Take&& take) {
    if (!key.escaped) return take(key.inside());
    std::string plain;
    return json::unescape(key.inside(), plain) ? take(plain) : Outcome::malformed;
}

}  // namespace

Outcome Event::read(json::Cursor& in) {
    fields_.fill({});
    texts_.fill({});
    said_ = 0;
    return json::members(
        in, [this](const json::Token& key, json::Cursor& value) { return read_field(key, value); });
}

Outcome Event::read_field(const json::Token& key, json::Cursor& in) {
    return resolved(key, [&](std::string_view word) {
        if (word == "args") return read_arguments(in);
        const std::size_t at = place(FIELD_NAMES, word);
        json::Token ignored;
        json::Token& token = at < FIELDS ? fields_[at] : ignored;
        const Outcome outcome = in.value(token);
        if (outcome != Outcome::whole || at == FIELDS) return outcome;
        return token.kind & FIELD_NAMES[at].kinds ? keep_text(at) : Outcome::malformed;
    });
}

Outcome Event::keep_text(std::size_t field) {
    const json::Token& token = fields_[field];
    texts_[field] = {};
    if (token.kind != json::text) return Outcome::whole;
    texts_[field] = token.inside();
    if (!token.escaped) return Outcome::whole;
    if (!json::unescape(token.inside(), unescaped_[field])) return Outcome::malformed;
    texts_[field] = unescaped_[field];
    return Outcome::whole;
}

Outcome Event::read_arguments(json::Cursor& in) {
    said_ = 0;
    if (!in.space()) return Outcome::cut;
    if (*in.at() != '{') {
        json::Token other;
        const Outcome outcome = in.value(other);
        return outcome != Outcome::whole || other.kind == json::null ? outcome : Outcome::malformed;
    }
    return json::members(in, [this](const json::Token& key, json::Cursor& value) {
        return read_argument(key, value);
    });
}

Outcome Event::read_argument(const json::Token& key, json::Cursor& in) {
    return resolved(key, [&](std::string_view word) {
        const std::size_t at = place(ARGUMENT_NAMES, word);
        json::Token ignored;
        json::Token& token = at < ARGUMENTS ? arguments_[at] : ignored;
        const Outcome outcome = in.value(token);
        if (outcome != Outcome::whole || at == ARGUMENTS) return outcome;
        said_ |= std::uint32_t{1} << at;
        std::string unused;
        const bool broken = token.kind == json::text && token.escaped && at < shapes &&
                            !json::unescape(token.inside(), unused);
        return broken || !(token.kind & ARGUMENT_NAMES[at].kinds) ? Outcome::malformed : outcome;
    });
}

void Event::call(std::string& to) const {
    to.clear();
    const auto said = [this](std::size_t at) { return (said_ >> at & 1) != 0; };
    if ((*this)[collective].kind != json::text && !said(types) && !said(values)) return;
    for (std::size_t at = collective; at < ARGUMENTS; ++at) {
        const json::Token& token = arguments_[at];
        if (!said(at)) continue;
        to.append(to.empty() ? "{\"" : ",\"").append(ARGUMENT_NAMES[at].key).append("\":");
        to.append(token.raw);
    }
    to.push_back('}');
}

}  // namespace stepscope
