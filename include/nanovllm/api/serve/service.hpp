#pragma once
/// The OpenAI API on an engine: requests in, replies out, over any transport.
///
/// ```cpp
/// nvllm::serve::OpenAiService service(engine, {.model_names = {"Qwen3-0.6B"}});
/// nvllm::serve::HttpReply reply = service.answer(
///     {.method = "POST", .target = "/v1/chat/completions", .body = R"({"messages": …})"});
/// ```
///
/// docs/serving.md lists the paths, the fields of requests, and the differences from other servers.

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include "nanovllm/api/serve/exchange.hpp"
#include "nanovllm/api/serve/service_config.hpp"
#include "nanovllm/api/serve/service_load.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/any_engine.hpp"

namespace nanovllm::serve {

/// A whole reply.
struct HttpReply {
  HttpHead head{};
  std::string body{};
};

/// Answers requests of the OpenAI API, and vLLM's /score, /rerank, /tokenize, /detokenize, /health,
/// /version and /metrics; /openapi.json lists all. Every member may be called from any thread. The
/// engine must outlive the service, and the service its exchanges.
class OpenAiService {
 public:
  /// Throws ConfigError that names the setting which is out of range.
  explicit OpenAiService(AnyEngine& engine, ServiceConfig config = {});
  ~OpenAiService();

  OpenAiService(const OpenAiService&) = delete;
  OpenAiService& operator=(const OpenAiService&) = delete;

  /// Begins to answer `request`. Parses it, encodes its text, compiles its constraint and submits
  /// it, all on this thread: that takes milliseconds, and with long texts or a new constraint
  /// perhaps a second. A request that cannot be answered gives an exchange with the error's status
  /// and body. Never null. Throws std::bad_alloc only.
  /// @param stop  gives work up that takes long; the answer is 503 then.
  [[nodiscard]] std::shared_ptr<Exchange> handle(const HttpRequest& request,
                                                 const std::stop_token& stop = {});

  // A transport that serves many clients takes three steps, on threads of different kinds, so that
  // no request waits behind the long work of others.

  /// A request has come. This takes microseconds: its body is not looked at.
  [[nodiscard]] Arrival arrive(const HttpRequest& request);

  /// As `handle`; null, and nothing was done, if that may take longer than some milliseconds: the
  /// body or its texts have more than kShortBytes, or a constraint has to be compiled. `handle`
  /// does it then, on a thread that may take long.
  [[nodiscard]] std::shared_ptr<Exchange> try_handle(const HttpRequest& request);

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

#if NANOVLLM_SERVE_BODIES

#include <atomic>
#include <exception>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/serve/health_report.hpp"
#include "nanovllm/api/serve/openapi.hpp"
#include "nanovllm/api/serve/reply/generation.hpp"
#include "nanovllm/api/serve/reply/pooled_reply.hpp"
#include "nanovllm/api/serve/request/api_error.hpp"
#include "nanovllm/api/serve/stats_report.hpp"
#include "nanovllm/version.hpp"

namespace nanovllm::serve {

namespace detail {

using ExchangePtr = std::shared_ptr<Exchange>;

NANOVLLM_SERVE_INLINE ExchangePtr error_reply(std::string kind, const ApiError& error) {
  HttpHead head{.status = error.status};
  if (error.status == 429 || error.status == 503) head.headers.emplace_back("Retry-After", "1");
  return std::make_shared<WholeExchange>(std::move(kind), std::move(head), error.body());
}

}  // namespace detail

struct OpenAiService::State {
  using ExchangePtr = detail::ExchangePtr;
  struct Call {
    const HttpRequest& request;
    std::string rest;  ///< of the path
    const Effort& effort;

    [[nodiscard]] Json json() const { return parse_request_body(request.body); }
  };
  /// What answers requests for one path. A route's path that ends in '/' takes all paths that begin
  /// with it; Call::rest is what follows.
  struct Route {
    RouteInfo info;
    ExchangePtr (State::*answer)(const Call& call);
    bool is_queued = false;  ///< submits to the engine
  };

  State(AnyEngine& any_engine, ServiceConfig&& settings)
      : engine(any_engine),
        config(std::move(settings)),
        generation(engine, config, load),
        health_check(any_engine) {}

  ExchangePtr chat(const Call& call) {
    return generation.chat(ChatCompletionRequest::parse(call.json()), call.effort);
  }
  ExchangePtr complete(const Call& call) {
    return generation.complete(CompletionRequest::parse(call.json()), call.effort);
  }
  ExchangePtr embed(const Call& call) {
    return start_embedding(engine, generation, EmbeddingRequest::parse(call.json()), call.effort);
  }
  ExchangePtr score(const Call& call) {
    return start_scoring(engine, generation, config.score, false,
                         ScoreRequest::parse_score(call.json()), call.effort);
  }
  ExchangePtr rerank(const Call& call) {
    return start_scoring(engine, generation, config.score, true,
                         ScoreRequest::parse_rerank(call.json()), call.effort);
  }
  ExchangePtr tokenize(const Call& call) {
    return answer_tokenize(engine, generation, TokenizeRequest::parse(call.json()), call.effort);
  }
  ExchangePtr detokenize(const Call& call) {
    return answer_detokenize(engine, generation, DetokenizeRequest::parse(call.json()));
  }
  ExchangePtr list_models(const Call&);
  ExchangePtr show_model(const Call& call);
  ExchangePtr health(const Call&);
  ExchangePtr version(const Call&);
  ExchangePtr metrics(const Call&);
  ExchangePtr stats(const Call&);
  ExchangePtr describe(const Call&);

  static const Route kRoutes[];
  /// The route of a path, or null.
  [[nodiscard]] static const Route* find_route(std::string_view path);
  [[nodiscard]] ExchangePtr follow(const Route& route, const Call& call);
  [[nodiscard]] ExchangePtr answer(const HttpRequest& request, const Effort& effort);
  [[nodiscard]] ExchangePtr refuse(std::string_view kind, const ApiError& error);

  [[nodiscard]] Json model_json(const std::string& name) const;

  AnyEngine& engine;
  const ServiceConfig config;
  const std::int64_t created = unix_seconds();
  const std::shared_ptr<ServiceLoad> load = std::make_shared<ServiceLoad>();
  Generation generation;
  HealthCheck health_check;
};

inline constexpr OpenAiService::State::Route OpenAiService::State::kRoutes[] = {
    {{"/v1/chat/completions", "POST", "chat", "answers a conversation", BodyKind::chat},
     &State::chat,
     true},
    {{"/v1/completions", "POST", "completion", "continues texts", BodyKind::completion},
     &State::complete,
     true},
    {{"/v1/embeddings", "POST", "embedding", "vectors of texts", BodyKind::embedding},
     &State::embed,
     true},
    {{"/score", "POST", "score", "how well texts answer queries", BodyKind::score},
     &State::score,
     true},
    {{"/v1/score", "POST", "score", "the same", BodyKind::score}, &State::score, true},
    {{"/rerank", "POST", "rerank", "documents, the best answer first", BodyKind::rerank},
     &State::rerank,
     true},
    {{"/v1/rerank", "POST", "rerank", "the same", BodyKind::rerank}, &State::rerank, true},
    {{"/v2/rerank", "POST", "rerank", "the same, as Cohere's client asks", BodyKind::rerank},
     &State::rerank,
     true},
    {{"/tokenize", "POST", "tokenize", "the tokens of a text or a conversation",
      BodyKind::tokenize},
     &State::tokenize},
    {{"/v1/tokenize", "POST", "tokenize", "the same", BodyKind::tokenize}, &State::tokenize},
    {{"/detokenize", "POST", "detokenize", "the text of tokens", BodyKind::detokenize},
     &State::detokenize},
    {{"/v1/detokenize", "POST", "detokenize", "the same", BodyKind::detokenize},
     &State::detokenize},
    {{"/v1/models", "GET", "models", "the names of the model"}, &State::list_models},
    {{"/v1/models/", "GET", "models", "the model of a name"}, &State::show_model},
    {{"/health", "GET", "health", "whether requests are served"}, &State::health},
    {{"/ping", "GET", "health", "the same"}, &State::health},
    {{"/version", "GET", "version", "the version of the server"}, &State::version},
    {{"/metrics", "GET", "metrics", "counters for Prometheus", BodyKind::none, "text/plain"},
     &State::metrics},
    {{"/stats", "GET", "stats", "counters and the KV pool, for a page"}, &State::stats},
    {{"/openapi.json", "GET", "openapi", "this document"}, &State::describe}};

NANOVLLM_SERVE_INLINE const OpenAiService::State::Route* OpenAiService::State::find_route(
    std::string_view path) {
  for (const Route& route : kRoutes) {
    const std::string_view known = route.info.path;
    if (known.ends_with('/') ? path.starts_with(known) : path == known) return &route;
  }
  return nullptr;
}

NANOVLLM_SERVE_INLINE detail::ExchangePtr OpenAiService::State::refuse(std::string_view kind,
                                                                       const ApiError& error) {
  load->counters.refused.add(error.status);
  return detail::error_reply(std::string(kind), error);
}

NANOVLLM_SERVE_INLINE detail::ExchangePtr OpenAiService::State::follow(const Route& route,
                                                                       const Call& call) {
  const std::string_view method = call.request.method;
  const std::string_view expected = route.info.method;
  const bool is_head = method == "HEAD" && expected == "GET";
  if (method == expected || is_head) return (this->*route.answer)(call);
  const ApiError error(405, concat("expected ", expected, ", got ", method));
  load->counters.refused.add(error.status);
  HttpHead head{.status = error.status};
  head.headers.emplace_back("Allow", expected == "GET" ? "GET, HEAD" : "POST");
  return std::make_shared<WholeExchange>(std::string(route.info.kind), std::move(head),
                                         error.body());
}

NANOVLLM_SERVE_INLINE detail::ExchangePtr OpenAiService::State::answer(const HttpRequest& request,
                                                                       const Effort& effort) {
  if (effort.is_short && request.body.size() > kShortBytes) return nullptr;
  const std::string path = path_of(request.target);
  const Route* route = find_route(path);
  const std::string_view kind = route != nullptr ? route->info.kind : "unknown";
  try {
    if (route == nullptr) throw ApiError(404, concat("there is nothing at ", path));
    effort.check_stop();
    return follow(*route, {request, path.substr(route->info.path.size()), effort});
  } catch (const RequestError& error) {
    return refuse(kind, ApiError::of(error));
  } catch (const Cancelled&) {
    return refuse(kind, Effort::given_up());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return refuse(kind, ApiError(500, error.what()));
  }
}

NANOVLLM_SERVE_INLINE Json OpenAiService::State::model_json(const std::string& name) const {
  return Json::object({{"id", name},
                       {"object", "model"},
                       {"created", created},
                       {"owned_by", "nanovllm"},
                       {"root", config.model_names.front()},
                       {"parent", nullptr},
                       {"max_model_len", engine.max_total_tokens()}});
}

NANOVLLM_SERVE_INLINE detail::ExchangePtr OpenAiService::State::list_models(const Call&) {
  Json models = Json::array();
  for (const std::string& name : config.model_names) models.push_back(model_json(name));
  return json_reply("models", Json::object({{"object", "list"}, {"data", std::move(models)}}));
}

NANOVLLM_SERVE_INLINE detail::ExchangePtr OpenAiService::State::show_model(const Call& call) {
  if (call.rest.empty()) throw ApiError(404, "expected the name of a model after /v1/models/");
  return json_reply("models", model_json(generation.model_name(call.rest)));
}

NANOVLLM_SERVE_INLINE detail::ExchangePtr OpenAiService::State::health(const Call&) {
  const HealthReport report = health_check.report(generation.is_draining());
  const EngineStats stats = engine.stats();
  Json body = parse_json(report.body);
  body["num_running"] = stats.num_running;
  body["num_waiting"] = stats.num_waiting;
  body["num_preparing"] = load->counters.num_preparing.load();
  return std::make_shared<WholeExchange>("health", HttpHead{.status = report.status}, body.dump());
}

NANOVLLM_SERVE_INLINE detail::ExchangePtr OpenAiService::State::version(const Call&) {
  return json_reply(
      "version",
      Json::object({{"version", concat(NANOVLLM_VERSION_MAJOR, '.', NANOVLLM_VERSION_MINOR, '.',
                                       NANOVLLM_VERSION_PATCH)}}));
}

NANOVLLM_SERVE_INLINE detail::ExchangePtr OpenAiService::State::metrics(const Call&) {
  return std::make_shared<WholeExchange>(
      "metrics", HttpHead{.content_type = std::string(kPrometheusContentType)},
      prometheus_text(engine, load->counters, config.model_names.front(),
                      config.http_counters.get()));
}

NANOVLLM_SERVE_INLINE detail::ExchangePtr OpenAiService::State::stats(const Call&) {
  Json body = stats_json(engine);
  body["num_preparing"] = load->counters.num_preparing.load();
  body["status"] = parse_json(health_report(engine, generation.is_draining()).body)["status"];
  return json_reply("stats", body);
}

NANOVLLM_SERVE_INLINE detail::ExchangePtr OpenAiService::State::describe(const Call&) {
  std::vector<RouteInfo> routes;
  for (const Route& route : kRoutes) routes.push_back(route.info);
  return json_reply("openapi", openapi_document(routes, config.model_names));
}

NANOVLLM_SERVE_INLINE OpenAiService::OpenAiService(AnyEngine& engine, ServiceConfig config) {
  check<ConfigError>(!config.model_names.empty(), "model_names must have a name at least");
  for (const std::string& name : config.model_names)
    check<ConfigError>(!name.empty(), "a name of model_names must not be empty");
  check<ConfigError>(config.max_num_seqs >= 1, "max_num_seqs must be >= 1, got ",
                     config.max_num_seqs);
  check<ConfigError>(config.max_queue >= 0, "max_queue must be >= 0, got ", config.max_queue);
  state_ = std::make_unique<State>(engine, std::move(config));
}

NANOVLLM_SERVE_INLINE OpenAiService::~OpenAiService() = default;

NANOVLLM_SERVE_INLINE std::shared_ptr<Exchange> OpenAiService::handle(const HttpRequest& request,
                                                                      const std::stop_token& stop) {
  return state_->answer(request, {.stop = stop});
}

NANOVLLM_SERVE_INLINE std::shared_ptr<Exchange> OpenAiService::try_handle(
    const HttpRequest& request) {
  return state_->answer(request, {.is_short = true});
}

NANOVLLM_SERVE_INLINE Arrival OpenAiService::arrive(const HttpRequest& request) {
  const State::Route* route = State::find_route(path_of(request.target));
  if (route == nullptr || route->info.method == "GET" || request.method != route->info.method)
    return {.exchange = handle(request)};
  try {
    if (route->is_queued) state_->generation.check_queue();
  } catch (const ApiError& error) {
    return {.exchange = state_->refuse(route->info.kind, error)};
  }
  return {.share = PreparingShare(state_->load)};
}

NANOVLLM_SERVE_INLINE HttpReply OpenAiService::answer(const HttpRequest& request) {
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

NANOVLLM_SERVE_INLINE void OpenAiService::drain() noexcept { state_->generation.drain(); }

NANOVLLM_SERVE_INLINE std::int64_t OpenAiService::num_unfinished() const noexcept {
  return state_->load->num_unfinished;
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
