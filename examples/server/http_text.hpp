#pragma once
/// HTTP/1.1 in text: heads of replies, chunks, errors in OpenAI's shape, secrets. No sockets.

#include <nanovllm/api/serve/exchange.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nanovllm::examples {

[[nodiscard]] inline std::string_view reason_phrase(int status) {
  constexpr std::array<std::pair<int, std::string_view>, 19> kPhrases{
      {{200, "OK"},
       {204, "No Content"},
       {400, "Bad Request"},
       {401, "Unauthorized"},
       {403, "Forbidden"},
       {404, "Not Found"},
       {405, "Method Not Allowed"},
       {408, "Request Timeout"},
       {413, "Content Too Large"},
       {415, "Unsupported Media Type"},
       {417, "Expectation Failed"},
       {422, "Unprocessable Content"},
       {429, "Too Many Requests"},
       {431, "Request Header Fields Too Large"},
       {499, "Client Closed Request"},
       {500, "Internal Server Error"},
       {501, "Not Implemented"},
       {503, "Service Unavailable"},
       {505, "HTTP Version Not Supported"}}};
  const auto found =
      std::find_if(kPhrases.begin(), kPhrases.end(), [&](auto& p) { return p.first == status; });
  return found == kPhrases.end() ? "Unknown" : found->second;
}

/// How a reader knows where the body ends.
enum class BodyEnd : std::uint8_t { length, last_chunk, close };

/// Status line and headers of a reply, and the empty line.
/// @param body_bytes  stated for BodyEnd::length.
[[nodiscard]] inline std::string head_text(const serve::HttpHead& head, BodyEnd end,
                                           std::size_t body_bytes, bool keeps_alive,
                                           std::string_view further_headers) {
  std::array<char, 64> date{};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::strftime(date.data(), date.size(), "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &utc));

  std::string out;
  out.reserve(384);
  out.append("HTTP/1.1 ").append(std::to_string(head.status)).append(" ");
  out.append(reason_phrase(head.status)).append("\r\nServer: nanovllm\r\nDate: ");
  out.append(date.data());
  // Status 204 has neither a body nor a length.
  if (head.status != 204) {
    out.append("\r\nContent-Type: ").append(head.content_type);
    if (end == BodyEnd::length)
      out.append("\r\nContent-Length: ").append(std::to_string(body_bytes));
    if (end == BodyEnd::last_chunk) out.append("\r\nTransfer-Encoding: chunked");
  }
  if (head.is_stream) out.append("\r\nX-Accel-Buffering: no");  // proxies pass it on as it comes
  out.append(keeps_alive ? "\r\nConnection: keep-alive" : "\r\nConnection: close");
  out.append("\r\nX-Content-Type-Options: nosniff\r\n");
  for (const auto& [name, value] : head.headers)
    out.append(name).append(": ").append(value).append("\r\n");
  return out.append(further_headers).append("\r\n");
}

/// Appends `piece` to `out` as a chunk. An empty piece is none: it would be the end.
inline void append_chunk(std::string& out, std::string_view piece) {
  if (piece.empty()) return;
  std::array<char, 16> size{};
  const auto end = std::to_chars(size.data(), size.data() + size.size(), piece.size(), 16).ptr;
  out.append(size.data(), end).append("\r\n").append(piece).append("\r\n");
}

inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

/// Whether two secrets are equal, in a time that depends on the length of `given` alone.
[[nodiscard]] inline bool is_same_secret(std::string_view secret, std::string_view given) {
  volatile unsigned char differs = secret.size() == given.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char expected = secret.empty() ? '\0' : secret[i % secret.size()];
    differs = static_cast<unsigned char>(differs | (expected ^ given[i]));
  }
  return differs == 0;
}

/// Whether `given` is one of `keys`. All keys are looked at.
[[nodiscard]] inline bool is_key(const std::vector<std::string>& keys, std::string_view given) {
  bool found = false;
  for (const std::string& key : keys) found |= is_same_secret(key, given);
  return found;
}

/// Whether `authorization`, the value of that header, has one of `keys` as its bearer token.
[[nodiscard]] inline bool has_key(const std::vector<std::string>& keys,
                                  std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view scheme = authorization.substr(0, kScheme.size());
  if (!std::equal(scheme.begin(), scheme.end(), kScheme.begin(), kScheme.end(),
                  [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; }))
    return false;
  std::string_view given = authorization.substr(kScheme.size());
  given.remove_prefix(std::min(given.find_first_not_of(' '), given.size()));
  return is_key(keys, given);
}

}  // namespace nanovllm::examples
