// Loads a server of the OpenAI API with streamed completions, or with embeddings, and measures what
// its clients see.
//
//   http_load --port 8000 --concurrency 64 --requests 512 --input-tokens 512 --output-tokens 256
//   http_load --port 8000 --concurrency 32 --requests 125 --input-tokens 512 --texts 8
//
// Every client has its own connection and sends its next request when it has the last one's
// answer. Prompts are token ids, random and the same in every run, so no time goes into a tokeniser;
// answers have just as many tokens as asked for (ignore_eos). Times are those at the client: until
// the first event, between two events, until the end. A server may put several tokens into one
// event. Vectors come in base64; tokens are then those of the texts. `engine_load` makes the
// completions of a result without a server.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast.hpp>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <list>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "../../examples/command_line.hpp"
#include "load.hpp"
#include "nanovllm/io/json.hpp"

namespace nv = nanovllm;
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using http_load::AnswerClock;
using http_load::Clock;
using http_load::Load;
using http_load::Times;

namespace {

struct Options {
  Load load;
  std::string host = "127.0.0.1", model, api_key, json;
  unsigned short port = 8000;
  int num_threads = 1;
};

/// A thread, and what its clients have seen.
struct ClientThread {
  asio::io_context context{1};
  Times times;
  int num_errors = 0;
  std::string first_error;
  std::thread thread;

  void fail(const std::string& why) {
    if (num_errors++ == 0) first_error = why;
  }
};

nv::Json completion_body(const Load& load, int index) {
  return nv::Json::object({{"prompt", make_prompt(load, index)},
                           {"max_tokens", load.num_output_tokens},
                           {"ignore_eos", true},
                           {"temperature", 1},
                           {"seed", index},
                           {"stream", true},
                           {"stream_options", nv::Json::object({{"include_usage", true}})}});
}

nv::Json embedding_body(const Load& load, int index) {
  nv::Json texts = nv::Json::array();
  for (int i = 0; i < load.num_texts; ++i)
    texts.push_back(make_prompt(load, index * load.num_texts + i));
  return nv::Json::object({{"input", std::move(texts)}, {"encoding_format", "base64"}});
}

http::request<http::string_body> make_request(const Options& options, int index) {
  const bool embeds = options.load.num_texts > 0;
  nv::Json body =
      embeds ? embedding_body(options.load, index) : completion_body(options.load, index);
  if (!options.model.empty()) body["model"] = options.model;

  http::request<http::string_body> request(http::verb::post,
                                           embeds ? "/v1/embeddings" : "/v1/completions", 11);
  request.set(http::field::host, options.host);
  request.set(http::field::content_type, "application/json");
  if (!options.api_key.empty())
    request.set(http::field::authorization, "Bearer " + options.api_key);
  request.body() = body.dump();
  request.prepare_payload();
  return request;
}

/// The events of one answer, or its vectors.
class Answer {
 public:
  Answer(const Load& load, ClientThread& thread)
      : load_(load), thread_(thread), clock_(thread.times) {}

  /// Takes the next bytes of the body.
  void push(std::string_view bytes) {
    text_ += bytes;
    if (load_.num_texts > 0) return;
    std::size_t begin = 0;
    for (std::size_t end; (end = text_.find("\n\n", begin)) != text_.npos; begin = end + 2)
      event(std::string_view(text_).substr(begin, end - begin));
    text_.erase(0, begin);
  }

  /// Adds it up. The last event before [DONE] has the usage, as vectors have.
  void finish(int status) {
    if (status != 200) return thread_.fail(nv::concat("status ", status, ": ", text_));
    const bool embeds = load_.num_texts > 0;
    try {
      clock_.end(embeds ? num_embedded(nv::parse_json(text_))
                        : nv::parse_json(last_)["usage"]["completion_tokens"].get<std::int64_t>());
    } catch (const nv::Error& error) {
      thread_.fail(nv::concat(embeds ? "the answer is '" : "the last event is '",
                              embeds ? text_.substr(0, 200) : last_, "': ", error.what()));
    }
  }

 private:
  void event(std::string_view text) {
    constexpr std::string_view kData = "data: ";
    if (!text.starts_with(kData)) return;
    text.remove_prefix(kData.size());
    if (text == "[DONE]") return;
    last_ = text;
    clock_.event();
  }

  /// Tokens of the texts. Throws Error unless there is a vector for each text.
  std::int64_t num_embedded(const nv::Json& answer) const {
    const nv::Json& vectors = answer["data"];
    nv::check(std::cmp_equal(vectors.size(), load_.num_texts), "expected ", load_.num_texts,
              " vectors, got ", vectors.size());
    for (const nv::Json& vector : vectors) {
      nv::check(vector["embedding"].is_string() && !vector["embedding"].string().empty(),
                "expected vectors in base64");
    }
    return answer["usage"]["prompt_tokens"].get<std::int64_t>();
  }

  const Load& load_;
  ClientThread& thread_;
  AnswerClock clock_;
  std::string text_, last_;
};

asio::awaitable<void> client(const Options& options, std::atomic<int>& next_request,
                             ClientThread& thread) {
  asio::ip::tcp::socket socket(co_await asio::this_coro::executor);
  co_await socket.async_connect({asio::ip::make_address(options.host), options.port},
                                asio::use_awaitable);
  socket.set_option(asio::ip::tcp::no_delay(true));
  beast::flat_buffer buffer;
  std::vector<char> bytes(1 << 16);
  for (int index; (index = next_request++) < options.load.num_requests;) {
    const auto request = make_request(options, index);
    Answer answer(options.load, thread);
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

int run(const Options& options) {
  std::atomic<int> next_request = 0;
  std::list<ClientThread> threads(
      static_cast<std::size_t>(std::min(options.num_threads, options.load.concurrency)));
  auto next = threads.begin();
  for (int i = 0; i < options.load.concurrency; ++i) {
    ClientThread& thread = *next;
    if (++next == threads.end()) next = threads.begin();
    asio::co_spawn(thread.context, client(options, next_request, thread),
                   [&thread](const std::exception_ptr& error) {
                     if (error) thread.fail(nv::message_of(error));
                   });
  }
  const Clock::time_point begin = Clock::now();
  for (ClientThread& thread : threads)
    thread.thread = std::thread([&thread] { thread.context.run(); });
  for (ClientThread& thread : threads) thread.thread.join();
  const double seconds = http_load::seconds_between(begin, Clock::now());

  Times times;
  int num_errors = 0;
  std::string first_error;
  for (const ClientThread& thread : threads) {
    times.add(thread.times);
    num_errors += thread.num_errors;
    if (first_error.empty()) first_error = thread.first_error;
  }
  nv::Json result = result_json(options.load, times, seconds);
  result["threads"] = threads.size();
  result["errors"] = num_errors;
  http_load::print_result(result);
  if (num_errors > 0) std::printf("%d errors, the first: %s\n", num_errors, first_error.c_str());
  if (!options.json.empty()) std::ofstream(options.json) << result.dump() << '\n';
  return num_errors == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Loads a server of the OpenAI API with streamed completions, or with embeddings."};
  app.add_option("--host", options.host, "IP address")->capture_default_str();
  app.add_option("--port", options.port)->capture_default_str();
  app.add_option("--model", options.model, "unset: the server's own");
  app.add_option("--api-key", options.api_key);
  const auto number = [&](const char* name, int& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  Load& load = options.load;
  number("--concurrency", load.concurrency, "clients");
  number("--requests", load.num_requests, "of all clients");
  number("--input-tokens", load.num_input_tokens, "of each, or of each text");
  number("--output-tokens", load.num_output_tokens, "of each");
  number("--texts", load.num_texts, "of each: embeddings of so many texts, no completions");
  number("--vocab-size", load.vocab_size, "prompts have ids below");
  number("--threads", options.num_threads, "that the clients share");
  app.add_option("--seed", load.seed, "of the prompts")->capture_default_str();
  app.add_option("--json", options.json, "file for the result");
  if (const auto status = nv::examples::parse_command_line(app, argc, argv)) return *status;
  if (load.num_texts > 0) load.num_output_tokens = 0;
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "http_load: %s\n", error.what());
    return 1;
  }
}
