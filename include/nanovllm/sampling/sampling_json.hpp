#pragma once
/// SamplingParams in JSON: the fields by their names.

#include <string>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm {

/// Reads `value`, which is not null, into the member that `field` names. `stop` and `bad_words` may
/// be one text or a list, `logit_bias` is an object from token ids to numbers, `seed` any integer
/// of 64 bits, `early_stopping` true, false or "never" as in transformers. Throws FieldError for
/// another type or range; `path` says where the value lies.
void read_sampling_field(const SamplingField& field, const Json& value, const std::string& path,
                         SamplingParams& params);

/// Reads an object whose members are fields of SamplingParams; one that is null counts as absent.
/// Throws FieldError for a value that a field cannot have and for an unknown name, and RequestError
/// where `validate` does.
[[nodiscard]] SamplingParams parse_sampling_params(const Json& object);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <system_error>
#include <variant>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/io/json_values.hpp"

namespace nanovllm {

namespace detail {

/// Reads a value into a member, one overload a type of member.
struct SamplingReader {
  const SamplingField& field;
  const Json& value;
  const std::string& path;

  void read(bool& out) const {
    if (!value.is_boolean()) wrong_field(path, "true or false", value);
    out = value.boolean();
  }
  void read(float& out) const { out = number_at(value, path, field.range); }
  void read(std::int32_t& out) const {
    out = static_cast<std::int32_t>(integer_at(value, path,
                                               static_cast<std::int64_t>(field.range.low),
                                               static_cast<std::int64_t>(field.range.high)));
  }
  /// Any integer of 64 bits, signed or not, as its bits.
  void read(std::uint64_t& out) const {
    if (value.is_number_unsigned()) {
      out = value.get<std::uint64_t>();
      return;
    }
    const auto number = JsonFields::as_integer(value);
    if (!number) wrong_field(path, "an integer of 64 bits", value);
    out = static_cast<std::uint64_t>(*number);
  }
  void read(std::vector<TokenId>& out) const { out = token_ids_at(value, path); }
  void read(std::vector<std::string>& out) const;
  void read(std::vector<TokenBias>& out) const;
  void read(EarlyStopping& out) const;

  template <class T>
  void read(std::optional<T>& out) const {
    read(out.emplace());
  }

 private:
  void check_size(const char* what) const {
    if (value.size() > field.max_size)
      refuse_field(path,
                   concat("must have at most ", field.max_size, ' ', what, ", got ", value.size()));
  }
};

NANOVLLM_INLINE void SamplingReader::read(std::vector<std::string>& out) const {
  const auto add = [&](const Json& element, const std::string& where) {
    const std::string& text = string_at(element, where);
    if (text.empty()) refuse_field(where, "must not be empty");
    if (text.size() > kMaxStopStringBytes)
      refuse_field(where,
                   concat("must have at most ", kMaxStopStringBytes, " bytes, got ", text.size()));
    out.push_back(text);
  };
  out.clear();
  if (value.is_string()) return add(value, path);
  if (!value.is_array()) wrong_field(path, "a string or a list of strings", value);
  check_size("strings");
  for (const Json& element : value) add(element, element_path(path, out.size()));
}

NANOVLLM_INLINE void SamplingReader::read(std::vector<TokenBias>& out) const {
  if (!value.is_object()) wrong_field(path, "an object from token ids to numbers", value);
  check_size("tokens");
  out.clear();
  for (const auto& [key, bias] : value.items()) {
    TokenBias one;
    const char* const end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, one.token);
    if (error != std::errc{} || stop != end || one.token < 0)
      wrong_field(path, "an object whose keys are token ids", key);
    if (!bias.is_number()) wrong_field(path, "an object from token ids to numbers", bias);
    one.bias = number_at(bias, path, field.range);
    out.push_back(one);
  }
}

NANOVLLM_INLINE void SamplingReader::read(EarlyStopping& out) const {
  if (value.is_boolean()) {
    out = value.boolean() ? EarlyStopping::yes : EarlyStopping::no;
  } else if (value.is_string() && value.string() == "never") {
    out = EarlyStopping::never;
  } else {
    wrong_field(path, "true, false or \"never\"", value);
  }
}

}  // namespace detail

NANOVLLM_INLINE void read_sampling_field(const SamplingField& field, const Json& value,
                                         const std::string& path, SamplingParams& params) {
  const detail::SamplingReader reader{field, value, path};
  std::visit([&](auto member) { reader.read(params.*member); }, field.member);
}

NANOVLLM_INLINE SamplingParams parse_sampling_params(const Json& object) {
  if (!object.is_object()) wrong_field("sampling", "an object", object);
  SamplingParams params;
  for (const auto& [key, value] : object.items()) {
    const SamplingField* field = find_sampling_field(key);
    if (field == nullptr)
      throw FieldError(concat("sampling has no field ", detail::shown(Json(key)),
                              "; its fields are ", sampling_field_names()),
                       key);
    if (!value.is_null()) read_sampling_field(*field, value, key, params);
  }
  validate(params);
  return params;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
