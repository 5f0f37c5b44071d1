#pragma once
/// Whether a browser may have been made to send a request by a page that must not ask. No sockets.
///
/// A browser sends what any open page wants sent. `Origin` names the page's site. `Host` names the
/// server as the page knows it: with DNS rebinding, a name of the page's owner that resolves to
/// this server, whose answers the page may then read.

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nanovllm::examples {

[[nodiscard]] inline std::string to_lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

/// The name or address of a Host header's value, in lower case: without port, the brackets of an
/// IPv6 address and the dot at the end of a name.
[[nodiscard]] inline std::string host_name(std::string_view host) {
  if (host.starts_with('[')) {
    const std::size_t end = host.find(']');
    return to_lower(host.substr(1, end == host.npos ? host.npos : end - 1));
  }
  host = host.substr(0, host.find(':'));
  if (host.ends_with('.')) host.remove_suffix(1);
  return to_lower(host);
}

[[nodiscard]] inline bool is_ip_address(const std::string& name) {
  std::array<unsigned char, 16> ignored{};
  return inet_pton(AF_INET, name.c_str(), ignored.data()) == 1 ||
         inet_pton(AF_INET6, name.c_str(), ignored.data()) == 1;
}

/// Whether a page at `origin` comes from the server that it calls `host`. Of the scheme nothing is
/// asked but the default port: a proxy may have ended TLS.
[[nodiscard]] inline bool is_same_origin(std::string_view origin, std::string_view host) {
  const auto without = [](std::string_view text, std::string_view end) {
    return text.ends_with(end) ? text.substr(0, text.size() - end.size()) : text;
  };
  for (const auto& [scheme, port] :
       {std::pair<std::string_view, std::string_view>{"http://", ":80"}, {"https://", ":443"}}) {
    if (to_lower(origin.substr(0, scheme.size())) != scheme) continue;
    const std::string_view site = without(origin.substr(scheme.size()), port);
    return !site.empty() && to_lower(site) == to_lower(without(host, port));
  }
  return false;
}

/// Which pages and names are served.
struct AccessRules {
  std::vector<std::string> origins{};  ///< of pages on other sites; "*" for all
  std::vector<std::string> hosts{};    ///< names of this server; "*" for all
  /// Nobody but this machine reaches the server.
  bool is_local = true;
  /// The name is not looked at: a page that guesses it has no key, or no certificate.
  bool any_host = false;

  /// Whether a page at `origin`, which the browser says asks, may ask a server that it calls
  /// `host`.
  [[nodiscard]] bool allows_origin(std::string_view origin, std::string_view host) const {
    return contains(origins, "*") || is_same_origin(origin, host) ||
           std::ranges::any_of(origins, [&](const std::string& allowed) {
             return to_lower(allowed) == to_lower(origin);
           });
  }

  /// Whether `host` is a name of this server, or one that nobody can make point to it: an address,
  /// "localhost", or, on a server that others can reach anyway, a name without a dot, which no
  /// public name server resolves.
  [[nodiscard]] bool allows_host(std::string_view host) const {
    if (any_host || contains(hosts, "*")) return true;
    const std::string name = host_name(host);
    if (name.empty()) return false;
    if (name == "localhost" || name.ends_with(".localhost") || is_ip_address(name)) return true;
    if (!is_local && name.find('.') == name.npos) return true;
    return std::ranges::any_of(
        hosts, [&](const std::string& allowed) { return host_name(allowed) == name; });
  }

 private:
  [[nodiscard]] static bool contains(const std::vector<std::string>& list, std::string_view text) {
    return std::ranges::find(list, text) != list.end();
  }
};

/// `text` of a client, to be quoted in an error: no characters but those of names and addresses,
/// and 128 of them at most.
[[nodiscard]] inline std::string quotable(std::string_view text) {
  std::string out(text.substr(0, 128));
  for (char& c : out) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                          std::string_view("-._:/[]").find(c) != std::string_view::npos;
    if (!is_plain) c = '?';
  }
  return out;
}

}  // namespace nanovllm::examples
