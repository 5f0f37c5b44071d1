#pragma once
/// The radix tree of tokens, a prefix cache that finds prefixes within a block: `PrefixCache =
/// RadixPrefixCache` in a policy.

#include "nanovllm/with/radix/radix_prefix_cache.hpp"
