# Puts page.html into a header, with the Content-Security-Policy that allows its one style and its
# one script, by their hashes, and nothing else but requests to the server it came from.
#
#   cmake -DPAGE=page.html -DHEADER=page.hpp -P embed_page.cmake
#
# The header declares kPage and kPagePolicy, both std::string_view, in namespace nanovllm::examples.

# The text between <tag> and </tag>, which the page has once.
function(text_of tag out)
  string(FIND "${page}" "<${tag}>" begin)
  string(FIND "${page}" "</${tag}>" end)
  string(FIND "${page}" "<${tag}>" last REVERSE)
  if(begin EQUAL -1 OR end EQUAL -1 OR NOT begin EQUAL last)
    message(FATAL_ERROR "${PAGE}: expected <${tag}>…</${tag}> once, without attributes")
  endif()
  string(LENGTH "<${tag}>" length)
  math(EXPR begin "${begin} + ${length}")
  math(EXPR length "${end} - ${begin}")
  string(SUBSTRING "${page}" ${begin} ${length} text)
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

# SHA-256 of a text in base64: three bytes of the hexadecimal digest are four characters.
function(hash_of text out)
  set(alphabet "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  string(SHA256 digest "${text}")
  string(APPEND digest "00")  # 32 bytes and one more; its character becomes the padding
  set(base64 "")
  foreach(at RANGE 0 60 6)
    string(SUBSTRING "${digest}" ${at} 6 bytes)
    foreach(shift IN ITEMS 18 12 6 0)
      math(EXPR index "(0x${bytes} >> ${shift}) & 63")
      string(SUBSTRING "${alphabet}" ${index} 1 character)
      string(APPEND base64 "${character}")
    endforeach()
  endforeach()
  string(SUBSTRING "${base64}" 0 43 base64)
  set(${out} "sha256-${base64}=" PARENT_SCOPE)
endfunction()

file(READ "${PAGE}" page)
text_of(style style)
text_of(script script)
hash_of("${style}" style_hash)
hash_of("${script}" script_hash)
string(CONCAT policy
  "default-src 'none'; style-src '${style_hash}'; script-src '${script_hash}'; "
  "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
  "frame-ancestors 'none'")
file(WRITE "${HEADER}.new" "#pragma once
// Made of page.html by embed_page.cmake.
#include <string_view>

namespace nanovllm::examples {

inline constexpr std::string_view kPagePolicy = R\"policy(${policy})policy\";

inline constexpr std::string_view kPage = R\"page(${page})page\";

}  // namespace nanovllm::examples
")
configure_file("${HEADER}.new" "${HEADER}" COPYONLY)
file(REMOVE "${HEADER}.new")
