#pragma once
/// The OpenAI API on an engine: requests in, replies out, over any transport.
///
/// ```cpp
/// nvllm::EngineAdapter any(engine);
/// nvllm::serve::OpenAiService service(any, {.model_names = {"Qwen3-0.6B"}});
/// nvllm::serve::HttpReply reply = service.answer(
///     {.method = "POST", .target = "/v1/chat/completions", .body = R"({"messages": …})"});
/// ```
///
/// docs/serving.md lists the paths, the fields of requests, and the differences from other servers.

#include <cstdint>
#include <memory>
#include <string>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/serve/exchange.hpp"
#include "nanovllm/serve/http.hpp"
#include "nanovllm/serve/service_config.hpp"

namespace nanovllm::serve {

/// A whole reply.
struct HttpReply {
  HttpHead head{};
  std::string body{};
};

/// Answers requests of the OpenAI API, and vLLM's /score, /rerank, /tokenize, /detokenize, /health,
/// /version and /metrics. Every member may be called from any thread. The engine must outlive the
/// service, and the service its exchanges.
class OpenAiService {
 public:
  /// Throws ConfigError that names the setting which is out of range.
  explicit OpenAiService(AnyEngine& engine, ServiceConfig config = {});
  ~OpenAiService();

  OpenAiService(const OpenAiService&) = delete;
  OpenAiService& operator=(const OpenAiService&) = delete;

  /// Begins to answer `request`. Parses it, encodes its text, compiles its constraint and submits
  /// it, all on this thread: that takes milliseconds, and with a new grammar perhaps seconds. A
  /// request that cannot be answered gives an exchange with the error's status and body. Never
  /// null. Throws std::bad_alloc only.
  [[nodiscard]] std::shared_ptr<Exchange> handle(const HttpRequest& request);

  /// The whole reply; of a stream, all chunks in order. Waits for it, so another thread must be in
  /// `engine.run`.
  [[nodiscard]] HttpReply answer(const HttpRequest& request);

  /// From now on, new requests for tokens are refused with status 503, and /health answers 503.
  /// Requests under way continue.
  void drain() noexcept;

  /// Sequences that were submitted and have not ended.
  [[nodiscard]] std::int64_t num_unfinished() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <exception>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "nanovllm/serve/admission.hpp"
#include "nanovllm/serve/health_report.hpp"
#include "nanovllm/serve/pooling/pooled_exchange.hpp"
#include "nanovllm/serve/reply/generation.hpp"
#include "nanovllm/serve/token_replies.hpp"
#include "nanovllm/serve/request/api_error.hpp"
#include "nanovllm/serve/service_load.hpp"
#include "nanovllm/serve/whole_exchange.hpp"
#include "nanovllm/version.hpp"

namespace nanovllm::serve {

namespace detail {

using ExchangePtr = std::shared_ptr<Exchange>;

NANOVLLM_INLINE ExchangePtr error_reply(std::string kind, const ApiError& error) {
  HttpHead head{.status = error.status};
  if (error.status == 429 || error.status == 503) head.headers.emplace_back("Retry-After", "1");
  return std::make_shared<WholeExchange>(std::move(kind), std::move(head), error.body());
}

}  // namespace detail

struct OpenAiService::State {
  using ExchangePtr = detail::ExchangePtr;
  /// What answers requests for one path. A route's path that ends in '/' takes all paths that begin
  /// with it; `rest` is what follows.
  struct Route {
    std::string_view path, method, kind;
    ExchangePtr (State::*answer)(const HttpRequest& request, const std::string& rest);
  };
  static constexpr std::string_view kModels = "/v1/models/";

  State(AnyEngine& any_engine, ServiceConfig&& settings)
      : engine(any_engine),
        config(std::move(settings)),
        generation(engine, config, load),
        health_check(any_engine) {}

  ExchangePtr chat(const HttpRequest& request, const std::string&) {
    return generation.chat(request.body);
  }
  ExchangePtr complete(const HttpRequest& request, const std::string&) {
    return generation.complete(request.body);
  }
  ExchangePtr embed(const HttpRequest& request, const std::string&) {
    return start_embedding(engine, generation, request.body);
  }
  ExchangePtr score(const HttpRequest& request, const std::string&) {
    return start_scoring(engine, generation, config.score, false, request.body);
  }
  ExchangePtr rerank(const HttpRequest& request, const std::string&) {
    return start_scoring(engine, generation, config.score, true, request.body);
  }
  ExchangePtr tokenize(const HttpRequest& request, const std::string&) {
    return answer_tokenize(engine, generation, request.body);
  }
  ExchangePtr detokenize(const HttpRequest& request, const std::string&) {
    return answer_detokenize(engine, generation, request.body);
  }
  ExchangePtr list_models(const HttpRequest&, const std::string&);
  ExchangePtr show_model(const HttpRequest&, const std::string& rest);
  ExchangePtr health(const HttpRequest&, const std::string&);
  ExchangePtr version(const HttpRequest&, const std::string&);
  ExchangePtr metrics(const HttpRequest&, const std::string&);

  static constexpr std::size_t kNumRoutes = 18;
  [[nodiscard]] static std::array<Route, kNumRoutes> routes();
  [[nodiscard]] ExchangePtr route(const HttpRequest& request, std::string& kind);

  [[nodiscard]] Json model_json(const std::string& name) const;

  AnyEngine& engine;
  const ServiceConfig config;
  const std::int64_t created = unix_seconds();
  const std::shared_ptr<ServiceLoad> load = std::make_shared<ServiceLoad>();
  Generation generation;
  HealthCheck health_check;
};

NANOVLLM_INLINE std::array<OpenAiService::State::Route, OpenAiService::State::kNumRoutes>
OpenAiService::State::routes() {
  return {{{"/v1/chat/completions", "POST", "chat", &State::chat},
           {"/v1/completions", "POST", "completion", &State::complete},
           {"/v1/embeddings", "POST", "embedding", &State::embed},
           {"/score", "POST", "score", &State::score},
           {"/v1/score", "POST", "score", &State::score},
           {"/rerank", "POST", "rerank", &State::rerank},
           {"/v1/rerank", "POST", "rerank", &State::rerank},
           {"/v2/rerank", "POST", "rerank", &State::rerank},
           {"/tokenize", "POST", "tokenize", &State::tokenize},
           {"/v1/tokenize", "POST", "tokenize", &State::tokenize},
           {"/detokenize", "POST", "detokenize", &State::detokenize},
           {"/v1/detokenize", "POST", "detokenize", &State::detokenize},
           {"/v1/models", "GET", "models", &State::list_models},
           {kModels, "GET", "models", &State::show_model},
           {"/health", "GET", "health", &State::health},
           {"/ping", "GET", "health", &State::health},
           {"/version", "GET", "version", &State::version},
           {"/metrics", "GET", "metrics", &State::metrics}}};
}

NANOVLLM_INLINE detail::ExchangePtr OpenAiService::State::route(const HttpRequest& request,
                                                                std::string& kind) {
  const std::string path = path_of(request.target);
  for (const Route& route : routes()) {
    const bool has_rest = route.path.ends_with('/') && path.size() > route.path.size();
    if (has_rest ? !path.starts_with(route.path) : path != route.path) continue;
    kind = route.kind;
    const bool is_head = request.method == "HEAD" && route.method == "GET";
    if (request.method == route.method || is_head)
      return (this->*route.answer)(request, has_rest ? path.substr(route.path.size()) : "");
    const ApiError error(405, concat("expected ", route.method, ", got ", request.method));
    load->counters.refused.add(error.status);
    HttpHead head{.status = error.status};
    head.headers.emplace_back("Allow", route.method == "GET" ? "GET, HEAD" : "POST");
    return std::make_shared<WholeExchange>(kind, std::move(head), error.body());
  }
  throw ApiError(404, concat("there is nothing at ", path));
}

NANOVLLM_INLINE Json OpenAiService::State::model_json(const std::string& name) const {
  return Json::object({{"id", name},
                       {"object", "model"},
                       {"created", created},
                       {"owned_by", "nanovllm"},
                       {"root", config.model_names.front()},
                       {"parent", nullptr},
                       {"max_model_len", engine.max_total_tokens()}});
}

NANOVLLM_INLINE detail::ExchangePtr OpenAiService::State::list_models(const HttpRequest&,
                                                                      const std::string&) {
  Json models = Json::array();
  for (const std::string& name : config.model_names) models.push_back(model_json(name));
  return json_reply("models", Json::object({{"object", "list"}, {"data", std::move(models)}}));
}

NANOVLLM_INLINE detail::ExchangePtr OpenAiService::State::show_model(const HttpRequest&,
                                                                     const std::string& rest) {
  if (rest.empty()) throw ApiError(404, "expected the name of a model behind /v1/models/");
  return json_reply("models", model_json(generation.model_name(rest)));
}

NANOVLLM_INLINE detail::ExchangePtr OpenAiService::State::health(const HttpRequest&,
                                                                 const std::string&) {
  HealthReport report = health_check.report(generation.is_draining());
  return std::make_shared<WholeExchange>("health", HttpHead{.status = report.status},
                                         std::move(report.body));
}

NANOVLLM_INLINE detail::ExchangePtr OpenAiService::State::version(const HttpRequest&,
                                                                  const std::string&) {
  return json_reply(
      "version",
      Json::object({{"version", concat(NANOVLLM_VERSION_MAJOR, '.', NANOVLLM_VERSION_MINOR, '.',
                                       NANOVLLM_VERSION_PATCH)}}));
}

NANOVLLM_INLINE detail::ExchangePtr OpenAiService::State::metrics(const HttpRequest&,
                                                                  const std::string&) {
  return std::make_shared<WholeExchange>(
      "metrics", HttpHead{.content_type = std::string(kPrometheusContentType)},
      prometheus_text(engine, load->counters, config.model_names.front(),
                      config.http_counters.get()));
}

NANOVLLM_INLINE OpenAiService::OpenAiService(AnyEngine& engine, ServiceConfig config) {
  check<ConfigError>(!config.model_names.empty(), "model_names must have a name at least");
  for (const std::string& name : config.model_names)
    check<ConfigError>(!name.empty(), "a name of model_names must not be empty");
  check<ConfigError>(config.max_num_seqs >= 1, "max_num_seqs must be >= 1, got ",
                     config.max_num_seqs);
  check<ConfigError>(config.max_queue >= 0, "max_queue must be >= 0, got ", config.max_queue);
  state_ = std::make_unique<State>(engine, std::move(config));
}

NANOVLLM_INLINE OpenAiService::~OpenAiService() = default;

NANOVLLM_INLINE std::shared_ptr<Exchange> OpenAiService::handle(const HttpRequest& request) {
  std::string kind = "unknown";
  std::optional<ApiError> refusal;
  try {
    return state_->route(request, kind);
  } catch (const RequestError& error) {
    refusal = ApiError::of(error);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    refusal.emplace(500, error.what());
  }
  state_->load->counters.refused.add(refusal->status);
  return detail::error_reply(std::move(kind), *refusal);
}

NANOVLLM_INLINE HttpReply OpenAiService::answer(const HttpRequest& request) {
  const std::shared_ptr<Exchange> exchange = handle(request);
  HttpReply reply;
  const HttpHead* head = nullptr;
  while (true) {
    head = exchange->head();
    if (head != nullptr && !exchange->take(reply.body)) break;
    const auto has_update = std::make_shared<std::atomic<bool>>(false);
    exchange->notify([has_update] {
      *has_update = true;
      has_update->notify_one();
    });
    has_update->wait(false);
  }
  reply.head = *head;
  return reply;
}

NANOVLLM_INLINE void OpenAiService::drain() noexcept { state_->generation.drain(); }

NANOVLLM_INLINE std::int64_t OpenAiService::num_unfinished() const noexcept {
  return state_->load->num_unfinished;
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_BODIES
