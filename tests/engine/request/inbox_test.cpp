#include "nanovllm/engine/request/inbox.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <stop_token>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "sched/faults.hpp"

using namespace nanovllm;

namespace {

std::shared_ptr<Request> make_request(RequestId id) {
  return std::make_shared<Request>(id, SequenceTerms{.params = {}}, std::vector<TokenId>{1, 2},
                                   nullptr, TokenCallback());
}

}  // namespace

TEST_CASE("a request is taken, aborted and retired once", "[inbox]") {
  Inbox inbox;
  CHECK(inbox.empty());
  CHECK_FALSE(inbox.abort(1));
  inbox.submit(make_request(1));
  inbox.submit(make_request(2));
  CHECK(inbox.stats().num_waiting == 2);
  CHECK(inbox.abort(1));
  CHECK_FALSE(inbox.abort(1));
  inbox.retire(2);
  CHECK_FALSE(inbox.abort(2));
  Inbox::Content content;
  inbox.take(content);
  CHECK(inbox.empty());
  REQUIRE(content.submitted.size() == 2);
  REQUIRE(content.aborted.size() == 1);
  CHECK(content.aborted.front()->id() == 1);
  CHECK(content.aborted.front() == content.submitted.front());
  inbox.close();
  CHECK_THROWS_AS(inbox.submit(make_request(3)), RequestError);
  CHECK_FALSE(inbox.abort(3));
}

TEST_CASE("a wait ends while there is anything to do, here or in the engine", "[inbox]") {
  Inbox inbox;
  Inbox::Content content;
  const auto sleeps = [&] {  // until it is stopped
    std::atomic<bool> has_woken = false;
    std::jthread waiter([&](const std::stop_token& stop) {
      inbox.wait(stop);
      has_woken = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return !has_woken;
  };
  inbox.take(content);
  CHECK(sleeps());
  inbox.submit(make_request(1));
  CHECK_FALSE(sleeps());
  inbox.take(content);
  CHECK_FALSE(sleeps());  // who took it may not come back
  inbox.publish({}, true);
  CHECK_FALSE(sleeps());
  inbox.publish({}, false);
  CHECK(sleeps());
}

TEST_CASE("what comes wakes all that wait", "[inbox]") {
  Inbox inbox;
  std::atomic<int> num_awake = 0;
  std::vector<std::jthread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&](const std::stop_token& stop) {
      inbox.wait(stop);
      ++num_awake;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(num_awake == 0);
  inbox.submit(make_request(1));
  for (int i = 0; i < 5000 && num_awake < 3; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(num_awake == 3);
}

TEST_CASE("an abort needs no memory: it is made where sessions end", "[inbox]") {
  Inbox inbox;
  inbox.submit(make_request(1));
  bool is_aborted = false;
  {
    const faults::Armed armed(1);
    is_aborted = inbox.abort(1);
  }
  CHECK(is_aborted);
  Inbox::Content content;
  inbox.take(content);
  CHECK(content.aborted.size() == 1);
}

TEST_CASE("a request for which there is no memory was not submitted", "[inbox]") {
  Inbox inbox;
  const auto request = make_request(1);
  for (int n = 1;; ++n) {
    try {
      const faults::Armed armed(n);
      inbox.submit(request);
      break;
    } catch (const std::bad_alloc&) {
    }
    CHECK(inbox.empty());
    CHECK_FALSE(inbox.abort(1));
  }
  CHECK(inbox.stats().num_waiting == 1);
  CHECK(inbox.abort(1));
}
