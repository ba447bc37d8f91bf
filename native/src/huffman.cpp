#include "huffman.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace stepscope {
namespace {

using Weights = std::array<std::uint64_t, SYMBOLS>;
using Lengths = std::array<unsigned, SYMBOLS>;

constexpr std::size_t NODES = 2 * SYMBOLS - 1;

// Joins the two lightest nodes until one is left. The leaves by weight, and the joined nodes, whose
// weights increase, are two queues in one array.
Lengths depths(const Weights& weights) {
    std::array<std::size_t, SYMBOLS> order{};
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t one, std::size_t other) {
        return weights[one] != weights[other] ? weights[one] < weights[other] : one < other;
    });
    std::array<std::uint64_t, NODES> weight{};
    for (std::size_t leaf = 0; leaf < SYMBOLS; ++leaf) weight[leaf] = weights[order[leaf]];

    std::array<std::size_t, NODES> parent{};
    std::size_t leaf = 0, joined = SYMBOLS;
    for (std::size_t node = SYMBOLS; node < NODES; ++node) {
        for (int child = 0; child < 2; ++child) {
            const bool is_leaf =
                leaf < SYMBOLS && (joined == node || weight[leaf] <= weight[joined]);
            const std::size_t lightest = is_leaf ? leaf++ : joined++;
            weight[node] += weight[lightest];
            parent[lightest] = node;
        }
    }

    std::array<unsigned, NODES> depth{};
    for (std::size_t node = NODES - 1; node-- > 0;) depth[node] = depth[parent[node]] + 1;
    Lengths lengths{};
    for (std::size_t at = 0; at < SYMBOLS; ++at) lengths[order[at]] = depth[at];
    return lengths;
}

std::uint32_t reversed(std::uint32_t bits, unsigned length) {
    std::uint32_t out = 0;
    for (unsigned at = 0; at < length; ++at) out |= (bits >> at & 1) << (length - 1 - at);
    return out;
}

// RFC 1951, section 3.2.2: codes of the same length are consecutive, and shorter ones come first.
Codes canonical(const Lengths& lengths) {
    Codes codes{};
    std::uint32_t next = 0;
    for (unsigned length = 1; length <= LONGEST_CODE; ++length, next <<= 1)
        for (std::size_t symbol = 0; symbol < SYMBOLS; ++symbol)
            if (lengths[symbol] == length) codes[symbol] = {reversed(next++, length), length};
    return codes;
}

}  // namespace

Codes huffman(const std::array<std::uint32_t, SYMBOLS>& counts) {
    Weights weights{};
    for (std::size_t at = 0; at < SYMBOLS; ++at) weights[at] = std::uint64_t{counts[at]} + 1;
    Lengths lengths = depths(weights);
    while (*std::max_element(lengths.begin(), lengths.end()) > LONGEST_CODE) {
        for (std::uint64_t& weight : weights) weight = weight / 2 + 1;  // more alike each time
        lengths = depths(weights);
    }
    return canonical(lengths);
}

}  // namespace stepscope
