#pragma once
/// Conversations that keep their blocks from turn to turn, and files of them and of prefix caches.

#include "nanovllm/with/sessions/cache_file.hpp"
#include "nanovllm/with/sessions/options.hpp"
#include "nanovllm/with/sessions/session.hpp"
