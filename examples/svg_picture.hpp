#pragma once
/// A picture of boxes, words and arrows as SVG. Boxes have fills of their own with dark text; what
/// stands outside them is a grey that is readable on white and on black.

#include <nanovllm/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace nanovllm::examples {

inline constexpr const char *kOutside = "#768390", *kInk = "#1f2328", *kEdge = "#57606a";
inline constexpr const char *kBlue = "#a8d1ff", *kGreen = "#a6e3b0", *kOrange = "#ffcf8f",
                            *kGrey = "#d5dae0", *kPurple = "#d9c2ff";
/// Of the first, second and third sequence.
inline constexpr const char* kFills[] = {kBlue, kGreen, kOrange};

/// A position as an index of a vector.
[[nodiscard]] constexpr std::size_t position_of(std::int32_t position) {
  return static_cast<std::size_t>(position);
}

/// Of a text.
struct SvgStyle {
  const char* colour = kOutside;
  const char* anchor = "start";
  int size = 13;
};

class SvgPicture {
 public:
  SvgPicture(int width, int height, std::string_view title) {
    out_ = concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, ' ', height,
                  "\" width=\"", width, "\" height=\"", height,
                  "\" font-family=\"Helvetica, Arial, sans-serif\" role=\"img\">\n<title>", title,
                  "</title>\n<defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" "
                  "markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 "
                  "z\" fill=\"",
                  kOutside, "\"/></marker></defs>\n");
  }

  void box(int x, int y, int width, int height, const char* fill, bool is_dashed = false) {
    out_ += concat("<rect x=\"", x, "\" y=\"", y, "\" width=\"", width, "\" height=\"", height,
                   "\" rx=\"4\" fill=\"", fill, "\" stroke=\"", kEdge, '"',
                   is_dashed ? " stroke-dasharray=\"4 3\"" : "", "/>\n");
  }
  void text(int x, int y, std::string_view words, const SvgStyle& style = {}) {
    out_ += concat("<text x=\"", x, "\" y=\"", y, "\" fill=\"", style.colour, "\" text-anchor=\"",
                   style.anchor, "\" font-size=\"", style.size, "\">", words, "</text>\n");
  }
  /// A box with a word in it.
  void word(int x, int y, int width, std::string_view word, const char* fill) {
    box(x, y, width, 30, fill);
    text(x + width / 2, y + 20, word, {.colour = kInk, .anchor = "middle"});
  }
  /// A line along the points, with an arrow at its end.
  void arrow(std::initializer_list<std::pair<int, int>> points) {
    std::string path;
    for (const auto& [x, y] : points) path += concat(path.empty() ? "M" : " L", x, ' ', y);
    out_ += concat("<path d=\"", path, "\" fill=\"none\" stroke=\"", kOutside,
                   "\" stroke-width=\"1.5\" marker-end=\"url(#arrow)\"/>\n");
  }

  [[nodiscard]] std::string str() const { return out_ + "</svg>\n"; }

 private:
  std::string out_;
};

}  // namespace nanovllm::examples
