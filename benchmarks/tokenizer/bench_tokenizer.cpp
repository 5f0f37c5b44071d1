// Speed of the tokeniser on a text of your choice, one thread:
//
//   bench_tokenizer TOKENIZER TEXT [--document BYTES] [--repeats N] [--json]
//
// TOKENIZER is a tokenizer.json or a model's directory. TEXT is cut into documents of the given
// size, which are encoded one by one; all figures are the best of the repeats. compare.py runs
// Hugging Face's `tokenizers` on the same documents.

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/io/mapped_file.hpp"
#include "nanovllm/text/detokenizer.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nv = nanovllm;

namespace {

struct Options {
  std::string tokenizer;
  std::string text;
  std::size_t document_bytes = 16384;
  int repeats = 5;
  bool json = false;
};

struct Result {
  double load_seconds;
  double encode_seconds;
  double decode_seconds;
  double stream_seconds;
  std::size_t bytes = 0, documents = 0, tokens = 0;
};

template <class Number>
bool parse_number(const char* text, Number& number) {
  const char* end = text + std::strlen(text);
  return std::from_chars(text, end, number).ptr == end && number > 0;
}

bool parse(int argc, char** argv, Options& options) {
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--document" && i + 1 < argc) {
      if (!parse_number(argv[++i], options.document_bytes)) return false;
    } else if (argument == "--repeats" && i + 1 < argc) {
      if (!parse_number(argv[++i], options.repeats)) return false;
    } else if (argument.starts_with("-")) {
      return false;
    } else {
      files.emplace_back(argument);
    }
  }
  if (files.size() != 2) return false;
  options.tokenizer = files[0];
  options.text = files[1];
  return true;
}

/// Cuts where a line ends after at least `size` bytes, as compare.py does.
std::vector<std::string_view> documents(std::string_view text, std::size_t size) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    std::size_t end = text.size() > size ? text.find('\n', size) : text.npos;
    end = end == text.npos ? text.size() : end + 1;
    out.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return out;
}

/// Seconds of processor time, which other programs on the machine disturb less than the clock's.
template <class Run>
double best_seconds(int repeats, Run&& run) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repeats; ++i) {
    const std::clock_t start = std::clock();
    run();
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return best;
}

Result measure(const Options& options) {
  Result result{};
  result.load_seconds =
      best_seconds(options.repeats, [&] { (void)nv::Tokenizer::from_file(options.tokenizer); });
  const nv::Tokenizer tokenizer = nv::Tokenizer::from_file(options.tokenizer);
  const nv::MappedFile file(options.text);
  const auto texts = documents(file.text(), options.document_bytes);
  std::vector<std::vector<nv::TokenId>> ids(texts.size());
  result.encode_seconds = best_seconds(options.repeats, [&] {
    for (std::size_t i = 0; i < texts.size(); ++i) ids[i] = tokenizer.encode(texts[i]);
  });
  std::size_t decoded = 0, streamed = 0;
  result.decode_seconds = best_seconds(options.repeats, [&] {
    for (const auto& list : ids) decoded += tokenizer.decode(list, false).size();
  });
  result.stream_seconds = best_seconds(options.repeats, [&] {
    nv::Detokenizer stream(tokenizer, false);
    for (const auto& list : ids) {
      for (nv::TokenId id : list) streamed += stream.push(id).size();
      streamed += stream.flush().size();
    }
  });
  nv::check(decoded == streamed, "decode() and Detokenizer disagree on the length of the text");
  result.bytes = file.text().size();
  result.documents = texts.size();
  for (const auto& list : ids) result.tokens += list.size();
  return result;
}

void print(const Options& options, const Result& r) {
  const double megabytes = static_cast<double>(r.bytes) / 1e6;
  const double encode = megabytes / r.encode_seconds;
  const double decode = megabytes / r.decode_seconds;
  const double push_ns = r.stream_seconds * 1e9 / static_cast<double>(r.tokens);
  if (options.json) {
    std::printf(
        "{\"bytes\": %zu, \"documents\": %zu, \"tokens\": %zu, \"load_seconds\": %.4f, "
        "\"encode_mb_per_s\": %.2f, \"decode_mb_per_s\": %.2f, \"push_ns\": %.1f}\n",
        r.bytes, r.documents, r.tokens, r.load_seconds, encode, decode, push_ns);
    return;
  }
  std::printf("text          %12.3f MB in %zu documents, %zu tokens\n", megabytes, r.documents,
              r.tokens);
  std::printf("load          %12.3f s\n", r.load_seconds);
  std::printf("encode        %12.2f MB/s\n", encode);
  std::printf("decode        %12.2f MB/s\n", decode);
  std::printf("stream        %12.1f ns a token\n", push_ns);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fputs("usage: bench_tokenizer TOKENIZER TEXT [--document BYTES] [--repeats N] [--json]\n",
               stderr);
    return 2;
  }
  try {
    print(options, measure(options));
  } catch (const nv::Error& error) {
    std::fprintf(stderr, "bench_tokenizer: %s\n", error.what());
    return 1;
  }
}
