#pragma once
/// Follows the paths by which errors name fields: "messages[2].content".

#include <charconv>
#include <cstddef>
#include <string_view>

#include "nanovllm/io/json.hpp"

namespace nanovllm::testing {

/// What is at `path`, or null pointer. With `may_be_absent` the last member need not be there, and
/// the object that lacks it is returned.
inline const Json* find_path(const Json& body, std::string_view path, bool may_be_absent = false) {
  const Json* at = &body;
  while (!path.empty()) {
    if (path[0] == '[') {
      std::size_t index = 0;
      std::from_chars(path.data() + 1, path.data() + path.size(), index);
      if (!at->is_array() || index >= at->size()) return nullptr;
      at = &(*at)[index];
      path.remove_prefix(path.find(']') + 1);
    } else {
      if (path[0] == '.') path.remove_prefix(1);
      const std::string_view key = path.substr(0, path.find_first_of(".["));
      path.remove_prefix(key.size());
      const Json* next = at->find(key);
      if (next == nullptr) return may_be_absent && path.empty() && at->is_object() ? at : nullptr;
      at = next;
    }
  }
  return at;
}

}  // namespace nanovllm::testing
