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
/// Longer than 400 lines: a fifth is the table of paths, next to what follows it.

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

/// Answers requests of the OpenAI API, Anthropic's /v1/messages, and vLLM's /score, /rerank,
/// /tokenize, /detokenize, /health, /version and /metrics; /openapi.json lists all. Every member
/// may be called from any thread. The engine must outlive the service, and the service its
/// exchanges.
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
#include "nanovllm/api/serve/translated_chats.hpp"
#include "nanovllm/version.hpp"

namespace nanovllm::serve {

namespace detail {

using ExchangePtr = std::shared_ptr<Exchange>;

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
  /// with it and end with RouteInfo::after_name; Call::rest is what is between.
  struct Route {
    RouteInfo info;
    ExchangePtr (State::*answer)(const Call& call);
    bool is_queued = false;  ///< submits to the engine

    [[nodiscard]] bool takes(std::string_view path) const;
    [[nodiscard]] bool allows(std::string_view method) const {
      return method == info.method || (method == "HEAD" && info.method == "GET");
    }
  };

  State(AnyEngine& any_engine, ServiceConfig&& settings)
      : engine(any_engine),
        config(std::move(settings)),
        generation(engine, config, load),
        responses(config),
        health_check(any_engine) {}

  ExchangePtr chat(const Call& call) {
    return generation.chat(ChatCompletionRequest::parse(call.json()), call.effort);
  }
  ExchangePtr message(const Call& call) {
    return answer_message(generation, call.json(), call.effort);
  }
  ExchangePtr count(const Call& call) {
    return count_tokens(engine, generation, call.json(), call.effort);
  }
  ExchangePtr respond(const Call& call) {
    return responses.answer(generation, call.json(), call.effort);
  }
  ExchangePtr show_response(const Call& call) {
    return responses.show(call.rest, call.request.target);
  }
  ExchangePtr delete_response(const Call& call) { return responses.erase(call.rest); }
  ExchangePtr cancel_response(const Call& call) { return responses.cancel(call.rest); }
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
  /// The route of a path and, where several have it, of the method; or null.
  [[nodiscard]] static const Route* find_route(std::string_view path, std::string_view method);
  /// "GET, HEAD, DELETE": what a path may be asked with.
  [[nodiscard]] static std::string methods_of(std::string_view path);
  [[nodiscard]] ExchangePtr answer(const HttpRequest& request, const Effort& effort);
  /// @param route  may be null.
  [[nodiscard]] ExchangePtr refuse(const Route* route, const std::string& path,
                                   const ApiError& error);

  [[nodiscard]] Json model_json(const std::string& name) const;

  AnyEngine& engine;
  const ServiceConfig config;
  const std::int64_t created = unix_seconds();
  const std::shared_ptr<ServiceLoad> load = std::make_shared<ServiceLoad>();
  Generation generation;
  const Responses responses;
  HealthCheck health_check;
};

inline constexpr OpenAiService::State::Route OpenAiService::State::kRoutes[] = {
    {{"/v1/chat/completions", "POST", "chat", "answers a conversation", BodyKind::chat},
     &State::chat,
     true},
    {{"/v1/completions", "POST", "completion", "continues texts", BodyKind::completion},
     &State::complete,
     true},
    {{"/v1/messages", "POST", "messages", "answers a conversation in Anthropic's form",
      BodyKind::messages},
     &State::message,
     true},
    {{"/v1/messages/count_tokens", "POST", "messages", "how many tokens a conversation has",
      BodyKind::count_tokens},
     &State::count},
    {{"/v1/responses", "POST", "responses", "answers in the form of OpenAI's Responses",
      BodyKind::responses},
     &State::respond,
     true},
    {{"/v1/responses/", "GET", "responses", "a response that was kept"}, &State::show_response},
    {{"/v1/responses/", "DELETE", "responses", "forgets a response"}, &State::delete_response},
    {{"/v1/responses/", "POST", "responses", "refused: a response cannot be cancelled",
      BodyKind::none, "application/json", "/cancel"},
     &State::cancel_response},
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

NANOVLLM_SERVE_INLINE bool OpenAiService::State::Route::takes(std::string_view path) const {
  const std::string_view known = info.path, ending = info.after_name;
  if (!known.ends_with('/')) return path == known;
  return path.size() >= known.size() + ending.size() && path.starts_with(known) &&
         path.ends_with(ending);
}

NANOVLLM_SERVE_INLINE const OpenAiService::State::Route* OpenAiService::State::find_route(
    std::string_view path, std::string_view method) {
  const Route* found = nullptr;
  for (const Route& route : kRoutes) {
    if (!route.takes(path)) continue;
    if (route.allows(method)) return &route;
    if (found == nullptr) found = &route;
  }
  return found;
}

NANOVLLM_SERVE_INLINE std::string OpenAiService::State::methods_of(std::string_view path) {
  std::string methods;
  for (const Route& route : kRoutes) {
    if (!route.takes(path)) continue;
    methods += concat(methods.empty() ? "" : ", ", route.info.method);
    if (route.info.method == "GET") methods += ", HEAD";
  }
  return methods;
}

NANOVLLM_SERVE_INLINE detail::ExchangePtr OpenAiService::State::refuse(const Route* route,
                                                                       const std::string& path,
                                                                       const ApiError& error) {
  load->counters.refused.add(error.status);
  HttpHead head{.status = error.status};
  if (error.status == 405) head.headers.emplace_back("Allow", methods_of(path));
  if (error.status == 429 || error.status == 503) head.headers.emplace_back("Retry-After", "1");
  return std::make_shared<WholeExchange>(
      std::string(route != nullptr ? route->info.kind : "unknown"), std::move(head),
      error.body(error_form_of(path)));
}

NANOVLLM_SERVE_INLINE detail::ExchangePtr OpenAiService::State::answer(const HttpRequest& request,
                                                                       const Effort& effort) {
  if (effort.is_short && request.body.size() > kShortBytes) return nullptr;
  const std::string path = path_of(request.target);
  const Route* route = find_route(path, request.method);
  try {
    if (route == nullptr) throw ApiError(404, concat("there is nothing at ", path));
    effort.check_stop();
    if (!route->allows(request.method))
      throw ApiError(405, concat("expected ", methods_of(path), ", got ", request.method));
    std::string rest = path.substr(route->info.path.size());
    rest.resize(rest.size() - route->info.after_name.size());
    return (this->*route->answer)({request, std::move(rest), effort});
  } catch (const RequestError& error) {
    return refuse(route, path, ApiError::of(error));
  } catch (const Cancelled&) {
    return refuse(route, path, Effort::given_up());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return refuse(route, path, ApiError(500, error.what()));
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
  const std::string path = path_of(request.target);
  const State::Route* route = State::find_route(path, request.method);
  if (route == nullptr || route->info.method != "POST" || request.method != "POST")
    return {.exchange = handle(request)};
  try {
    if (route->is_queued) state_->generation.check_queue();
  } catch (const ApiError& error) {
    return {.exchange = state_->refuse(route, path, error)};
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
