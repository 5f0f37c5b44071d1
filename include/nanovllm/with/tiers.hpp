#pragma once
/// Blocks outside of the device's pool: `Tiers = HostTier` keeps them in host memory, `Tiers =
/// DiskTier` in files, too.

#include "nanovllm/with/tiers/disk_tier.hpp"
#include "nanovllm/with/tiers/host_tier.hpp"
#include "nanovllm/with/tiers/options.hpp"
#include "nanovllm/with/tiers/swap_blocks.hpp"
#include "nanovllm/with/tiers/tiered_block_manager.hpp"
