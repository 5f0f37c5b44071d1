// Loads a server of the OpenAI API with streamed completions, and measures what its clients see.
//
//   http_load --port 8000 --concurrency 64 --requests 512 --input-tokens 512 --output-tokens 256
//
// Every client has a connection of its own and sends its next request when it has the last one's
// answer. Prompts are token ids, random and the same in every run, so no time goes into a tokeniser;
// answers have just as many tokens as asked for (ignore_eos). Times are those at the client: until
// the first event, between two events, until the end. A server may put several tokens into one
// event.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/asio.hpp>
#include <boost/beast.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/io/json.hpp"

namespace nv = nanovllm;
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Clock = std::chrono::steady_clock;

namespace {

struct Options {
  std::string host = "127.0.0.1", model, api_key, json;
  unsigned short port = 8000;
  int concurrency = 64, num_requests = 256;
  int num_input_tokens = 128, num_output_tokens = 128;
  int vocab_size = 4096;
  std::uint64_t seed = 0;
};

/// What all clients have seen. They run on one thread.
struct Totals {
  int next_request = 0, num_errors = 0;
  std::int64_t num_tokens = 0, num_events = 0;
  std::vector<double> first_event, between_events, whole;
  std::string first_error;

  void fail(const std::string& why) {
    if (num_errors++ == 0) first_error = why;
  }
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

http::request<http::string_body> make_request(const Options& options, int index) {
  std::mt19937_64 random(options.seed + static_cast<std::uint64_t>(index));
  std::vector<int> prompt(static_cast<std::size_t>(options.num_input_tokens));
  for (int& token : prompt)
    token = static_cast<int>(random() % static_cast<std::uint64_t>(options.vocab_size));
  nv::Json body =
      nv::Json::object({{"prompt", prompt},
                        {"max_tokens", options.num_output_tokens},
                        {"ignore_eos", true},
                        {"temperature", 1},
                        {"seed", index},
                        {"stream", true},
                        {"stream_options", nv::Json::object({{"include_usage", true}})}});
  if (!options.model.empty()) body["model"] = options.model;

  http::request<http::string_body> request(http::verb::post, "/v1/completions", 11);
  request.set(http::field::host, options.host);
  request.set(http::field::content_type, "application/json");
  if (!options.api_key.empty())
    request.set(http::field::authorization, "Bearer " + options.api_key);
  request.body() = body.dump();
  request.prepare_payload();
  return request;
}

/// The events of one answer, and when they came.
class Answer {
 public:
  explicit Answer(Totals& totals) : totals_(totals) {}

  /// Takes the next bytes of the body.
  void push(std::string_view bytes) {
    text_ += bytes;
    std::size_t begin = 0;
    for (std::size_t end; (end = text_.find("\n\n", begin)) != text_.npos; begin = end + 2)
      event(std::string_view(text_).substr(begin, end - begin));
    text_.erase(0, begin);
  }

  /// Adds it up. The last event but for [DONE] has the usage.
  void finish(int status) {
    if (status != 200) return totals_.fail(nv::concat("status ", status, ": ", text_));
    try {
      const nv::Json usage = nv::parse_json(last_)["usage"];
      totals_.num_tokens += usage["completion_tokens"].get<std::int64_t>();
      totals_.whole.push_back(seconds_since(begin_));
    } catch (const nv::Error& error) {
      totals_.fail(nv::concat("the last event is '", last_, "': ", error.what()));
    }
  }

 private:
  void event(std::string_view text) {
    constexpr std::string_view kData = "data: ";
    if (!text.starts_with(kData)) return;
    text.remove_prefix(kData.size());
    if (text == "[DONE]") return;
    last_ = text;
    const Clock::time_point now = Clock::now();
    const bool is_first = num_events_++ == 0;
    (is_first ? totals_.first_event : totals_.between_events)
        .push_back(std::chrono::duration<double>(now - last_at_).count());
    last_at_ = now;
    ++totals_.num_events;
  }

  Totals& totals_;
  std::string text_, last_;
  int num_events_ = 0;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_at_ = begin_;
};

asio::awaitable<void> client(const Options& options, Totals& totals) {
  asio::ip::tcp::socket socket(co_await asio::this_coro::executor);
  co_await socket.async_connect({asio::ip::make_address(options.host), options.port},
                                asio::use_awaitable);
  socket.set_option(asio::ip::tcp::no_delay(true));
  beast::flat_buffer buffer;
  std::vector<char> bytes(1 << 16);
  while (totals.next_request < options.num_requests) {
    const auto request = make_request(options, totals.next_request++);
    Answer answer(totals);
    co_await http::async_write(socket, request, asio::use_awaitable);
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    co_await http::async_read_header(socket, buffer, parser, asio::use_awaitable);
    while (!parser.is_done()) {
      parser.get().body().data = bytes.data();
      parser.get().body().size = bytes.size();
      const auto [error, count] = co_await http::async_read_some(
          socket, buffer, parser, asio::as_tuple(asio::use_awaitable));
      if (error && error != http::error::need_buffer) throw beast::system_error(error);
      answer.push({bytes.data(), bytes.size() - parser.get().body().size});
    }
    answer.finish(static_cast<int>(parser.get().result_int()));
    if (!parser.keep_alive()) throw nv::Error("the server has closed the connection");
  }
}

nv::Json percentiles(std::vector<double>& seconds) {
  if (seconds.empty()) return nullptr;
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double share) {
    return seconds[static_cast<std::size_t>(share * static_cast<double>(seconds.size() - 1))];
  };
  return nv::Json::object({{"p50", at(0.5)}, {"p90", at(0.9)}, {"p99", at(0.99)}, {"max", at(1)}});
}

void print(const char* name, const nv::Json& times) {
  if (times.is_null()) return;
  std::printf("%-16s p50 %8.2f  p90 %8.2f  p99 %8.2f  max %8.2f ms\n", name,
              1e3 * times["p50"].get<double>(), 1e3 * times["p90"].get<double>(),
              1e3 * times["p99"].get<double>(), 1e3 * times["max"].get<double>());
}

int run(const Options& options) {
  asio::io_context context(1);
  Totals totals;
  for (int i = 0; i < options.concurrency; ++i) {
    asio::co_spawn(context, client(options, totals), [&totals](const std::exception_ptr& error) {
      if (error) totals.fail(nv::message_of(error));
    });
  }
  const Clock::time_point begin = Clock::now();
  context.run();
  const double seconds = seconds_since(begin);
  const auto num_done = static_cast<std::int64_t>(totals.whole.size());
  const nv::Json result =
      nv::Json::object({{"concurrency", options.concurrency},
                        {"input_tokens", options.num_input_tokens},
                        {"output_tokens", options.num_output_tokens},
                        {"requests", num_done},
                        {"errors", totals.num_errors},
                        {"seconds", seconds},
                        {"tokens_per_second", static_cast<double>(totals.num_tokens) / seconds},
                        {"events_per_second", static_cast<double>(totals.num_events) / seconds},
                        {"first_event_seconds", percentiles(totals.first_event)},
                        {"between_events_seconds", percentiles(totals.between_events)},
                        {"whole_seconds", percentiles(totals.whole)}});

  std::printf("%lld requests, %d errors, %.2f s: %.0f tokens/s in %.0f events/s\n",
              static_cast<long long>(num_done), totals.num_errors, seconds,
              result["tokens_per_second"].get<double>(), result["events_per_second"].get<double>());
  print("first event", result["first_event_seconds"]);
  print("between events", result["between_events_seconds"]);
  print("whole", result["whole_seconds"]);
  if (totals.num_errors > 0) std::printf("first error: %s\n", totals.first_error.c_str());
  if (!options.json.empty()) std::ofstream(options.json) << result.dump() << '\n';
  return totals.num_errors == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Loads a server of the OpenAI API with streamed completions."};
  app.add_option("--host", options.host, "IP address")->capture_default_str();
  app.add_option("--port", options.port)->capture_default_str();
  app.add_option("--model", options.model, "unset: the server's own");
  app.add_option("--api-key", options.api_key);
  app.add_option("--concurrency", options.concurrency, "clients")->capture_default_str();
  app.add_option("--requests", options.num_requests, "of all clients")->capture_default_str();
  app.add_option("--input-tokens", options.num_input_tokens)->capture_default_str();
  app.add_option("--output-tokens", options.num_output_tokens)->capture_default_str();
  app.add_option("--vocab-size", options.vocab_size, "prompts have ids below")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of the prompts")->capture_default_str();
  app.add_option("--json", options.json, "file for the result");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "http_load: %s\n", error.what());
    return 1;
  }
}
