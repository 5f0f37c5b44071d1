#include "nanovllm/api/serve/request/text_requests.hpp"

#include <cstddef>
#include <string>
#include <vector>

#include "api/serve/request/request_cases.hpp"
#include "catch.hpp"
#include "nanovllm/chat/chat_template.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using namespace nanovllm::test;

TEST_CASE("prompts of completions") {
  const auto prompts = [](const std::string& value) {
    return CompletionRequest::parse(with("\"prompt\": " + value, "")).prompts;
  };
  using Tokens = std::vector<TokenId>;
  CHECK(std::get<std::string>(prompts(R"("hi")").at(0)) == "hi");
  CHECK(std::get<Tokens>(prompts("[1, 2]").at(0)) == Tokens{1, 2});
  CHECK(prompts("[1, 2]").size() == 1);
  CHECK(std::get<std::string>(prompts(R"(["a", "b"])").at(1)) == "b");
  CHECK(std::get<Tokens>(prompts("[[1], [2, 3]]").at(1)) == Tokens{2, 3});

  std::string many = "\"a\"";
  for (std::size_t i = 0; i < kMaxPrompts; ++i) many += ", \"a\"";
  for (const auto& [value, param, says] : std::vector<Refusal>{
           {"null", "prompt", "is missing"},
           {R"("")", "prompt", "must not be empty"},
           {"[]", "prompt", "must not be empty"},
           {"1", "prompt", "a string, a list of token ids, or a list of those, got 1"},
           {R"(["a", ""])", "prompt[1]", "must not be empty"},
           {"[[1], []]", "prompt[1]", "must not be empty"},
           {R"(["a", [1]])", "prompt[1]", "the same type as the first prompt"},
           {R"([1, "a"])", "prompt[1]", "a token id"},
           {"[[1], [2, -3]]", "prompt[1][1]", "a token id, an integer from 0 on, got -3"},
           {"[1.5]", "prompt[0]", "got 1.5"},
           {"[{}]", "prompt[0]", "got an object of 0"},
           {"[" + many + "]", "prompt", "at most 128 prompts, got 129"}}) {
    INFO(value);
    const ApiError error = refusal([&, text = value] { (void)prompts(text); });
    CHECK(error.param == param);
    CHECK_THAT(error.what(), Catch::Matchers::Contains(says));
  }
}

TEST_CASE("what completions have of their own") {
  CHECK(completion("").sampling.max_tokens == 16);
  CHECK_FALSE(completion("").logprobs.has_value());

  const auto echoed = completion(R"("echo": true, "max_tokens": 0, "logprobs": 3)");
  CHECK((echoed.echo && echoed.prompt_only));
  CHECK(echoed.sampling.max_tokens == 1);
  CHECK(echoed.logprobs == 3);
  CHECK(echoed.sampling.logprobs == 3);
  CHECK(echoed.sampling.prompt_logprobs == 3);
  CHECK_FALSE(completion(R"("logprobs": 0)").sampling.prompt_logprobs.has_value());
  CHECK(completion(R"("prompt_logprobs": 2)").sampling.prompt_logprobs == 2);
  CHECK(completion(R"("suffix": "")").prompts.size() == 1);

  CHECK(completion(R"("n": 2, "best_of": 4)").sampling.best_of == 4);
  CHECK(completion(R"("stream": true, "n": 2, "best_of": 2)").stream);
  const auto beams = [](const std::string& fields) { return completion(fields).sampling; };
  CHECK(beams(R"("use_beam_search": true, "n": 3)").beam_width == 3);
  CHECK(beams(R"("use_beam_search": true, "best_of": 5)").beam_width == 5);
  CHECK_FALSE(beams(R"("use_beam_search": true, "best_of": 5)").best_of.has_value());
  CHECK(beams(R"("beam_width": 4, "n": 2)").beam_width == 4);
  CHECK(beams(R"("beam_width": 4, "length_penalty": 0.5)").length_penalty == 0.5f);
  CHECK(beams(R"("beam_width": 4, "early_stopping": true)").early_stopping == EarlyStopping::yes);
  CHECK(beams(R"("beam_width": 4, "early_stopping": "never")").early_stopping ==
        EarlyStopping::never);
  CHECK_FALSE(beams(R"("use_beam_search": false, "n": 3)").beam_width.has_value());

  check_refused<CompletionRequest>(
      kPrompt,
      {{R"("max_tokens": 0)", "max_tokens", "unless 'echo' is true"},
       {R"("echo": 1)", "echo", "true or false, got 1"},
       {R"("logprobs": 21)", "logprobs", "[0, 20], got 21"},
       {R"("logprobs": true)", "logprobs", "got true"},
       {R"("suffix": "x")", "suffix", "is not supported"},
       {R"("suffix": 1)", "suffix", "a string, got 1"},
       {R"("prompt_logprobs": -1)", "prompt_logprobs", "[0, 20], got -1"},
       {R"("prompt_logprobs": 1, "echo": true)", "prompt_logprobs", "combined with 'echo'"},
       {R"("best_of": 0)", "best_of", "[1, 128], got 0"},
       {R"("best_of": 2, "n": 3)", "best_of", "at least n = 3, got 2"},
       {R"("beam_width": 2, "n": 3)", "beam_width", "at least n = 3, got 2"},
       {R"("beam_width": 2, "top_p": 0.5)", "beam_width", "cannot be combined with top_p"},
       {R"("use_beam_search": true, "logprobs": 1)", "use_beam_search", "combined with logprobs"},
       {R"("beam_width": 2, "length_penalty": 1e39)", "length_penalty", "the range of a float"},
       {R"("beam_width": 2, "early_stopping": 1)", "early_stopping", R"("never", got 1)"},
       {R"("length_penalty": 2)", "length_penalty", "use_beam_search"},
       {R"("early_stopping": true)", "early_stopping", "use_beam_search"},
       {R"("use_beam_search": 1)", "use_beam_search", "true or false, got 1"},
       {R"("stream": true, "n": 1, "best_of": 2)", "stream", "best_of > n"},
       {R"("stream": true, "use_beam_search": true, "n": 2)", "stream", "a beam search"}});
  const std::string prompts = R"("prompt": ["a", "a", "a", "a", "a", "a", "a", "a", "a"])";
  check_refused<CompletionRequest>(prompts, {{R"("n": 128)", "prompt", "1024 prompts times"}});
}

TEST_CASE("tokenize and detokenize") {
  const auto tokenize = [](const std::string& fields) {
    return TokenizeRequest::parse(parse_request_body("{" + fields + "}"));
  };
  CHECK(std::get<std::string>(tokenize(R"("model": "m", "prompt": "")").prompt).empty());
  CHECK(tokenize(R"("model": "m", "prompt": "x")").model == "m");
  CHECK(tokenize(R"("prompt": "x", "return_token_strs": true)").return_token_strs);
  const auto request = tokenize(kMessages + ", " + kTools +
                                R"(, "add_generation_prompt": false,
                                   "chat_template_kwargs": {"enable_thinking": false})");
  const auto& prompt = std::get<ChatPrompt>(request.prompt);
  CHECK(prompt.messages.size() == 1);
  CHECK(prompt.options.tools.size() == 2);
  CHECK(prompt.options.enable_thinking == false);
  CHECK_FALSE(prompt.options.add_generation_prompt);
  check_refused<TokenizeRequest>(R"("model": "m")",
                                 {{"", "prompt", "is missing"},
                                  {R"("prompt": ["a"])", "prompt", "a string, got an array of 1"},
                                  {kPrompt + ", " + kMessages, "prompt", "cannot be combined"},
                                  {R"("messages": [])", "messages", "must not be empty"}});

  const auto ids = DetokenizeRequest::parse(parse_request_body(R"({"tokens": [3, 1]})")).tokens;
  CHECK(ids == std::vector<TokenId>{3, 1});
  check_refused<DetokenizeRequest>(R"("model": "m")",
                                   {{"", "tokens", "is missing"},
                                    {R"("tokens": "a")", "tokens", "a list of token ids"},
                                    {R"("tokens": [1, "a"])", "tokens[1]", "a token id"}});
}
