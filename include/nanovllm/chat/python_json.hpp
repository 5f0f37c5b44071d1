#pragma once
/// JSON as Python's `json` module writes it, and `str()` and truth of what it reads.
///
/// Chat templates print tools and arguments with `json.dumps(value, ensure_ascii=False)`, so a
/// prompt equals the one the model was trained on only if this text does, byte for byte.
/// Source: CPython Lib/json, Objects/unicodeobject.c, Python/pystrtod.c (format code 'r').

#include <string>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

/// `json.dumps(value, ensure_ascii=False)`; see Json::dump.
[[nodiscard]] inline std::string python_json(const Json& value) { return value.dump(); }

/// `str(value)`: what Jinja prints for `{{ value }}`. Throws like `python_json`.
[[nodiscard]] std::string python_str(const Json& value);

/// `bool(value)`: null, false, zero and everything empty is false.
[[nodiscard]] bool python_truth(const Json& value);

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/chat/python_json.inc"
#endif
