// Which pages may ask a server, and by which names it may be called.

#include "../../../examples/server/access.hpp"

#include <string>

#include "catch.hpp"

using namespace nanovllm::examples;

TEST_CASE("the name of a Host header", "[server]") {
  CHECK(host_name("Example.COM:8000") == "example.com");
  CHECK(host_name("localhost.") == "localhost");
  CHECK(host_name("[::1]:8000") == "::1");
  CHECK(host_name("[2001:DB8::1]") == "2001:db8::1");
  CHECK(host_name("[::1") == "::1");
  CHECK(host_name("").empty());
  CHECK(host_name(":80").empty());
}

TEST_CASE("pages of other sites may not ask unless they are allowed", "[server]") {
  const AccessRules closed;
  CHECK(closed.allows_origin("http://127.0.0.1:8000", "127.0.0.1:8000"));
  CHECK(closed.allows_origin("http://localhost", "LOCALHOST:80"));
  CHECK(closed.allows_origin("https://ai.example:443", "ai.example"));  // TLS ends in a proxy
  CHECK(closed.allows_origin("HTTPS://AI.example", "ai.example:443"));
  for (const char* origin :
       {"https://evil.example", "http://127.0.0.1:8001", "http://127.0.0.1", "null", "",
        "file://127.0.0.1:8000", "http://127.0.0.1:8000.evil.example", "http://", "127.0.0.1:8000"})
    CHECK_FALSE(closed.allows_origin(origin, "127.0.0.1:8000"));
  CHECK_FALSE(closed.allows_origin("http://", ""));
  const AccessRules listed{.origins = {"https://a.example", "http://b.example:81"}};
  CHECK(listed.allows_origin("https://A.example", "127.0.0.1"));
  CHECK(listed.allows_origin("http://b.example:81", "127.0.0.1"));
  CHECK_FALSE(listed.allows_origin("http://a.example", "127.0.0.1"));
  CHECK_FALSE(listed.allows_origin("https://a.example.evil.example", "127.0.0.1"));
  const AccessRules open{.origins = {"*"}};
  CHECK(open.allows_origin("https://evil.example", "127.0.0.1"));
  CHECK(open.allows_origin("null", "127.0.0.1"));
}

TEST_CASE("names that others can make point to a server are refused", "[server]") {
  const AccessRules local{.hosts = {"127.0.0.1", "ai.example"}};
  for (const char* host : {"localhost", "LocalHost:8000", "a.localhost", "127.0.0.1:80", "[::1]:80",
                           "192.168.1.5", "ai.example:8000", "AI.example."})
    CHECK(local.allows_host(host));
  for (const char* host :
       {"evil.example", "evil.example:8000", "127.0.0.1.evil.example", "evil", "", ":8000",
        "localhost.evil.example", "x.ai.example", "[evil", "0x7f.1"})
    CHECK_FALSE(local.allows_host(host));
  const AccessRules reachable{.hosts = {"::"}, .is_local = false};
  CHECK(reachable.allows_host("gpu0:8000"));
  CHECK(reachable.allows_host("10.0.0.7:8000"));
  CHECK_FALSE(reachable.allows_host("gpu0.evil.example"));
  CHECK_FALSE(reachable.allows_host(""));
  CHECK(AccessRules{.hosts = {"*"}}.allows_host("any.example"));
  CHECK(AccessRules{.any_host = true}.allows_host("any.example"));
}

TEST_CASE("what is quoted of a client has no characters of JSON or of lines", "[server]") {
  CHECK(quotable("https://a.example:80/[x]_-") == "https://a.example:80/[x]_-");
  CHECK(quotable("a\"b\\c\r\n\xff") == "a?b?c???");
  CHECK(quotable(std::string(1000, 'a')).size() == 128);
}
