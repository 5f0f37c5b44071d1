#pragma once
/// Elements, errors, ids and views: the words that every other module uses.

#include "nanovllm/core/config.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/finish_reason.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/core/token_source.hpp"
#include "nanovllm/core/type_name.hpp"
