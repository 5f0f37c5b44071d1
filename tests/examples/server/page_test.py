#!/usr/bin/env python3
"""The page of examples/server in a headless Chromium, against a scripted server.

    python3 page_test.py [SERVE MODEL_DIR]

With the program `serve` and a checkpoint also against that. Without a Chromium it says so and exits
with 77.
"""

import re
import subprocess
import sys
import time
import unittest
import urllib.request

from browser import Browser, find_chromium
from mock_server import EVIL, PAGE, MockServer, stats

# What a page's JavaScript would be told by a person's eyes.
LAST = "document.querySelector('#log > li:last-child')"
IDLE = "document.getElementById('stop').hidden"

SERVE = None  # the command that starts the real server


class PageCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser(find_chromium())

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def check_page(self, server):
        """What holds whatever was done."""
        self.assertEqual(self.browser.problems(), [])
        for url in self.browser.requests():
            self.assertTrue(url.startswith((server, "data:image/svg+xml")), url)
        self.assertIsNone(self.browser.run("window.pwned ?? null"))

    def focus(self, selector):
        self.browser.run(f"document.querySelector({selector!r}).focus()")

    def click(self, selector):
        self.browser.run(f"document.querySelector({selector!r}).click()")

    def click_named(self, name, within="document"):
        self.browser.wait(f"[...{within}.querySelectorAll('button')].some(b => b.textContent === {name!r})")
        self.browser.run(f"[...{within}.querySelectorAll('button')].filter(b => b.textContent === {name!r}).at(-1).click()")

    def set(self, field, value):
        self.browser.run(f"(f => {{ f.value = {value!r}; f.dispatchEvent(new Event('input', {{bubbles: true}}));"
                         f"f.dispatchEvent(new Event('change', {{bubbles: true}})); }})(document.getElementById({field!r}))")

    def text(self, selector):
        return self.browser.run(f"document.querySelector({selector!r})?.innerText ?? null")

    def last(self, selector):
        return self.browser.run(f"{LAST}.querySelector({selector!r})?.innerText ?? null")

    def send(self, text):
        self.focus("#prompt")
        self.browser.type(text)
        self.browser.press("Enter")

    def ask(self, text):
        self.send(text)
        self.wait_answer()

    def wait_answer(self):
        self.browser.wait(f"{IDLE} && {LAST}?.getAttribute('aria-busy') === 'false'")


class PageTest(PageCase):
    """Against the scripted server, each with one of its own."""

    def start(self, width=1280, height=800, ready=True, phone=False, **server):
        self.server = MockServer(**server)
        self.addCleanup(self.server.close)
        self.browser.view(width, height, phone=phone)
        self.browser.open(self.server.url)
        self.browser.run("sessionStorage.clear()")
        self.browser.open(self.server.url)
        if ready:
            self.browser.wait("document.getElementById('empty-name').textContent === 'mock-model'")
        self.addCleanup(self.check_page, self.server.url)

    # ---- The engine ----

    def figure(self, name):
        return self.browser.run(f"document.getElementById({name!r}).textContent")

    def wait_figure(self, name, text):
        self.browser.wait(f"document.getElementById({name!r}).textContent === {text!r}")

    def pool_colours(self, cell, height):
        """The colours at the middle, from below, of `height` shares of a cell."""
        return self.browser.run(
            f"""(() => {{
              const canvas = document.getElementById('pool'), columns = Math.max(Math.ceil(Math.sqrt(pool.held.length)), Math.floor(canvas.parentNode.clientWidth / 16));
              const size = canvas.width / columns, inner = size - Math.max(1, Math.round(size / 10));
              const at = {height}.map(share => canvas.getContext('2d').getImageData(
                {cell} % columns * size + Math.floor(inner / 2),
                Math.floor({cell} / columns) * size + Math.floor(inner * (1 - share)), 1, 1).data);
              const keys = Object.fromEntries(['held', 'cached', 'free'].map(state =>
                [getComputedStyle(document.getElementById('key-' + state)).backgroundColor, state]));
              return at.map(([r, g, b]) => keys[`rgb(${{r}}, ${{g}}, ${{b}})`]);
            }})()""")

    def test_figures_of_the_engine_are_shown_and_change(self):
        self.start()
        self.server.stats = stats("hccf" + "f" * 96, num_running=3, num_waiting=1, num_preparing=2,
                                  num_queried_tokens=400, num_hit_tokens=100)
        self.wait_figure("num-running", "3")
        self.assertEqual(self.figure("num-waiting"), "3")
        self.assertEqual(self.text("#engine-state"), "Serving.")
        self.assertEqual([self.figure("num-" + s) for s in ("held", "cached", "free")], ["1", "2", "97"])
        self.assertEqual([self.pool_colours(i, [.5])[0] for i in range(5)],
                         ["held", "cached", "cached", "free", "free"])
        self.assertEqual(self.browser.run("document.getElementById('pool').ariaLabel"),
                         "Of 100 blocks 1 are held, 2 are cached and in no use, 97 are free")
        begin = time.monotonic()
        while time.monotonic() - begin < 3:  # a hundred tokens a second, of which half were found
            time.sleep(0.02)
            now = time.monotonic() - begin
            self.server.stats = stats("h" * 100, num_generated_tokens=int(100 * now), num_prefill_tokens=int(1000 * now),
                                      num_queried_tokens=400 + int(200 * now), num_hit_tokens=100 + int(100 * now))
        self.assertAlmostEqual(float(self.figure("generated-rate").replace(",", "")), 100, delta=40)
        self.assertAlmostEqual(float(self.figure("prompt-rate").replace(",", "")), 1000, delta=400)
        self.assertEqual(self.figure("hit-text"), "in the last minute")
        self.assertRegex(self.figure("hit-rate"), r"^(3[5-9]|4\d|5[0-5]) %$")
        self.assertEqual(self.figure("num-held"), "100")

    def test_cells_of_large_pools_are_filled_in_part(self):
        self.start()
        self.server.stats = stats("hhcf" * 3 + "ffff" * 1000, per_cell=4)
        self.wait_figure("num-held", "6")
        self.assertEqual(self.text("#pool-text"), "4,012 blocks, 4 in a cell.")
        self.assertEqual(self.pool_colours(1, [.2, .65, .95]), ["held", "cached", "free"])
        self.assertEqual(self.pool_colours(3, [.2, .95]), ["free", "free"])
        width, height = self.browser.run("[pool_.width, pool_.height]".replace("pool_", "document.getElementById('pool')"))
        self.assertLess(height, 1.2 * width)

    def test_a_server_that_goes_is_told_of_and_so_is_that_it_is_back(self):
        self.start()
        self.wait_figure("num-running", "0")
        self.assertTrue(self.browser.run("document.getElementById('gone').hidden"))
        self.server.is_down = True
        self.browser.wait("!document.getElementById('gone').hidden")
        self.assertTrue(self.text("#gone").startswith("The server has not answered since "))
        self.assertEqual(self.browser.run("document.getElementById('gone').role"), "alert")
        self.assertEqual(self.text("#engine-state"), "No answer from the server.")
        self.assertEqual(self.figure("num-running"), "–")
        self.server.is_down = False
        self.browser.wait("document.getElementById('gone').hidden")
        self.wait_figure("num-running", "0")
        self.ask("hello")
        self.assertEqual(self.last(".text"), "You said: hello")

    def test_a_server_that_comes_is_noticed(self):
        self.start()
        self.server.is_down = True
        self.browser.open(self.server.url)
        self.browser.wait("!document.getElementById('gone').hidden")
        self.assertEqual(self.text("#empty-name"), "No answer from the server")
        self.server.is_down = False
        self.wait_figure("empty-name", "mock-model")

    def test_a_closed_panel_asks_seldom_but_notices_a_server_that_goes(self):
        self.start()
        self.wait_figure("num-running", "0")
        self.focus("#close-engine")
        self.browser.press("Enter")
        self.assertTrue(self.browser.run("document.getElementById('engine').hidden"))
        self.assertEqual(self.browser.run("document.activeElement.id"), "open-engine")
        time.sleep(0.3)
        before = len(self.browser.requests())
        time.sleep(2)
        self.assertEqual(len(self.browser.requests()), before)
        self.server.is_down = True
        self.browser.wait("!document.getElementById('gone').hidden")
        self.browser.press("Enter")
        self.assertFalse(self.browser.run("document.getElementById('engine').hidden"))

    def test_states_of_the_engine_are_told_in_words(self):
        self.start()
        self.server.stats = stats(status="draining")
        self.wait_figure("engine-state", "It ends: it takes no more requests.")
        old = stats("h" * 10)
        old["kv_blocks"]["age_seconds"] = 12.2
        self.server.stats = old
        self.browser.wait("document.getElementById('pool-text').textContent.endsWith('this was 12 s ago.')")
        self.server.stats = None
        self.wait_figure("engine-state", "This server has no statistics.")
        self.assertTrue(self.browser.run("document.getElementById('gone').hidden"))

    # ---- Answers ----

    def test_thoughts_are_open_while_they_come_and_folded_behind_them(self):
        self.start()
        self.send("think of 2 + 2")
        self.browser.wait(f"{LAST}.querySelector('details')?.open && {LAST}.innerText.includes('are four.')")
        self.assertEqual(self.last("summary"), "Thinking …")
        self.assertEqual(self.browser.run(f"{LAST}.getAttribute('aria-busy')"), "true")
        self.assertFalse(self.browser.run(IDLE))
        self.server.gate.set()
        self.wait_answer()
        self.assertFalse(self.browser.run(f"{LAST}.querySelector('details').open"))
        self.assertTrue(self.last("summary").startswith("Thought for "))
        self.assertEqual(self.last(".text"), "It is four.")
        self.assertEqual(self.last("strong"), "four")
        self.assertRegex(self.last(".facts").replace("\n", ""),
                         r"8 tokens.*[\d.]+ tokens/s.*first after [\d.]+ m?s.*1,210 in the prompt, 1,024 cached")
        self.assertEqual(self.text("#context"), "1,218 of 40,960 tokens")
        body = self.server.bodies[0]
        self.assertEqual(body["messages"], [{"role": "user", "content": "think of 2 + 2"}])
        self.assertEqual(body["model"], "mock-model")
        self.assertTrue(body["stream"] and body["stream_options"]["include_usage"])
        self.assertEqual(set(body), {"model", "messages", "stream", "stream_options"})
        # The next request has the answer, and its thought apart.
        self.ask("hello")
        self.assertEqual(self.server.bodies[1]["messages"][1], {
            "role": "assistant", "content": "It is **four**.",
            "reasoning_content": "Let me see.\nTwo and two are four."})

    def test_tool_calls_are_shown_and_their_results_sent(self):
        self.start()
        self.ask("tool please")
        self.assertEqual(self.browser.run(f"[...{LAST}.querySelectorAll('figcaption span')].map(s => s.innerText)"),
                         ["Calls get_weather", "Calls get_time"])
        self.assertIn('"city": "Bath"', self.last("figure pre"))
        for i, result in enumerate(("rain", "noon")):
            self.focus(f"#result-call_{i}")
            self.browser.type(result)
        self.click_named("Send results")
        self.browser.wait("document.querySelectorAll('#log > li').length === 3")
        self.wait_answer()
        self.assertEqual(self.last(".text"), "So it rains.")
        user, assistant, *results = self.server.bodies[1]["messages"]
        self.assertEqual(assistant["tool_calls"][1], {
            "id": "call_1", "type": "function",
            "function": {"name": "get_time", "arguments": '{"city": "Lyon"}'}})
        self.assertEqual(results, [{"role": "tool", "tool_call_id": "call_0", "content": "rain"},
                                   {"role": "tool", "tool_call_id": "call_1", "content": "noon"}])
        # What answers to the calls goes with them.
        self.click_named("Edit", "document.getElementById('log')")
        self.click_named("Send", "document.getElementById('log')")
        self.wait_answer()
        self.assertEqual(self.server.bodies[2]["messages"], [user])

    def test_text_is_never_html(self):
        self.start()
        self.ask("evil <img src=x onerror=window.pwned=9>")
        self.assertEqual(self.browser.run(
            "document.querySelectorAll('#log img, #log script, #log iframe, #log b, #log [onerror]').length"), 0)
        self.assertEqual(self.browser.run("document.querySelectorAll('#log a').length"), 0)
        self.assertEqual(self.browser.run(f"{LAST}.querySelector('details div').textContent"), EVIL.strip())
        self.assertIn("<script>window.pwned=2</script>", self.last(".text"))
        self.assertIn("</pre><iframe", self.last("pre"))
        self.assertIn("<img src=x onerror=window.pwned=9>", self.text(".user .body"))

    def test_markdown(self):
        self.start()
        self.ask("markdown")
        def shape(node):
            return self.browser.run("(function shape(n) { return n.nodeType === 3 ? n.data : "
                                    "[n.localName, ...[...n.childNodes].map(shape)]; })"
                                    f"({LAST}.querySelector({node!r}))")
        self.assertEqual(shape(".text h4"), ["h4", "Heading ", ["em", "one"]])
        self.assertEqual(shape(".text p"), [
            "p", "A paragraph with ", ["strong", "bold"], ", ", ["em", "italic"], ", ", ["code", "code"],
            " and a ", ["a", "link"], ".", "\n", "snake_case_name and 2 * 3 * 4 stay as they are."])
        self.assertEqual(shape(".text > ol"), [
            "ol", ["li", "one"],
            ["li", "two", ["ul", ["li", "inner ", ["strong", "a"]], ["li", "inner b"]], "more of two"],
            ["li", "three"]])
        self.assertEqual(shape(".text > ul"), ["ul", ["li", "[x] open"], ["li", ["strong", "b"], ": c"]])
        self.assertEqual(shape("blockquote"), ["blockquote", ["p", "quoted", "\n", "text"]])
        self.assertEqual(shape("tbody"), ["tbody", ["tr", ["td", "1"], ["td", ["code", "x"]]]])
        self.assertEqual(shape("figure pre"), ["pre", ["code", "int main() { return 0; }  // **not bold**"]])
        self.assertEqual(shape("figure:last-child pre"), ["pre", ["code", "a < b && c > d"]])
        self.assertEqual(self.browser.run(f"{LAST}.querySelectorAll('hr').length"), 1)
        self.assertEqual(self.browser.run(f"{LAST}.querySelector('a').rel"), "noopener noreferrer")

    def test_events_in_any_form_and_pieces(self):
        self.start()
        self.ask("odd")
        self.assertEqual(self.last(".text"), "né 😀!né 😀!")
        self.assertIsNone(self.last(".notice:not([hidden])"))

    # ---- What goes wrong ----

    def test_errors_are_shown_and_can_be_tried_again(self):
        self.start()
        self.ask("refused")
        self.assertEqual(self.last(".notice"), "temperature: expected a number in [0, 2], got <b>9</b>")
        self.click_named("Try again", LAST)
        self.wait_answer()
        self.assertEqual(len(self.server.bodies), 2)
        self.assertEqual(self.browser.run("document.querySelectorAll('#log > li').length"), 2)
        for word, notice in (("failing", "the machine is on fire"), ("short", "The connection ended before the answer did."),
                             ("cut", "The connection")):
            with self.subTest(word):
                self.ask(word)
                self.assertTrue(self.last(".text").startswith("It begins"))
                self.assertTrue(self.last(".notice").startswith(notice), self.last(".notice"))
                self.assertEqual(self.text("#status"), "The answer failed.")
        self.ask("long")
        self.assertIn("cut off at the limit of tokens", self.last(".facts"))

    def test_a_server_that_is_not_there(self):
        self.start()
        self.server.is_down = True
        self.send("hello")
        self.wait_answer()
        self.assertIn("cannot be reached", self.last(".notice"))
        self.click("#new")
        self.browser.run("findModels()")
        self.assertEqual(self.text("#empty-name"), "No answer from the server")
        self.assertFalse(self.browser.run("document.getElementById('again').hidden"))

    def test_an_api_key_is_asked_for_and_kept_for_the_tab(self):
        self.start(ready=False, api_key="secret")
        self.browser.wait("document.activeElement.id === 'key'")
        self.assertEqual(self.text("#empty-name"), "An API key is needed")
        self.browser.type("secret")
        self.browser.press("Tab")
        self.browser.wait("document.getElementById('empty-name').textContent === 'mock-model'")
        self.ask("hello")
        self.assertEqual(self.last(".text"), "You said: hello")
        self.browser.open(self.server.url)
        self.browser.wait("document.getElementById('empty-name').textContent === 'mock-model'")
        self.assertEqual(self.browser.run("[localStorage.length, sessionStorage.getItem('key')]"), [0, "secret"])
        self.assertEqual(self.browser.run("document.getElementById('log').children.length"), 0)

    # ---- Stopping, and going back ----

    def test_escape_and_the_button_stop(self):
        self.start()
        for i, stop in enumerate((lambda: self.browser.press("Escape"), lambda: self.click("#stop"))):
            self.send("slow")
            self.browser.wait(f"{LAST}?.querySelector('.text')?.innerText.includes('3 ')")
            stop()
            self.wait_answer()
            self.assertIn("stopped", self.last(".facts"))
            self.assertIn(" tokens", self.last(".facts"))
            self.assertTrue(self.last(".text").startswith("0 1 2 3"))
            end = time.monotonic() + 5
            while len(self.server.disconnects) <= i and time.monotonic() < end:
                time.sleep(0.01)
            self.assertEqual(self.server.disconnects, ["slow"] * (i + 1))
        self.send("slow")
        self.browser.wait(f"{LAST}?.querySelector('.text')?.innerText.includes('3 ')")
        self.click("#new")
        self.browser.wait(IDLE)
        self.assertEqual(self.browser.run("document.getElementById('log').children.length"), 0)
        self.ask("hello")
        self.assertEqual(len(self.server.bodies[-1]["messages"]), 1)

    def test_edit_regenerate_and_copy(self):
        self.start()
        self.ask("one")
        self.ask("two")
        self.click_named("Regenerate", LAST)
        self.wait_answer()
        self.assertEqual([m["content"] for m in self.server.bodies[2]["messages"]], ["one", "You said: one", "two"])
        self.click_named("Edit", "document.querySelector('#log > li')")
        self.assertEqual(self.browser.run("document.activeElement.value"), "one")
        self.browser.press("Escape")
        self.assertEqual(self.text(".user .body"), "one")
        self.assertEqual(self.browser.run("document.activeElement.textContent"), "Edit")
        self.click_named("Edit", "document.querySelector('#log > li')")
        self.browser.type(" more")
        self.browser.press("Enter")
        self.browser.wait("document.querySelectorAll('#log > li').length === 2")
        self.wait_answer()
        sent = self.server.bodies[3]["messages"][0]["content"]
        self.assertIn(sent, ("one more", " moreone"))  # wherever the caret was
        self.assertEqual(self.last(".text").split(), ("You said: " + sent).split())
        self.browser.run("navigator.clipboard.writeText = async text => { window.copied = text; }")
        self.click_named("Copy", LAST)
        self.browser.wait("window.copied !== undefined")
        self.assertEqual(self.browser.run("window.copied"), "You said: " + sent.strip())
        # Where the browser has no clipboard for the page.
        self.browser.run("navigator.clipboard.writeText = async () => { throw new Error('no'); };"
                         "document.addEventListener('copy', () => window.copied = String(document.activeElement.value))")
        self.click("#log .user .under button")
        self.browser.wait(f"window.copied === {sent.strip()!r}")

    # ---- Settings ----

    def test_settings_are_fields_of_the_request(self):
        self.start()
        self.click("#open-settings")
        for field, value in (("system", "Be brief."), ("thinking", "false"), ("temperature", "0.65"), ("top_p", "0.9"),
                             ("top_k", "20"), ("min_p", "0.05"), ("max_completion_tokens", "99"), ("seed", "-7"),
                             ("format", "json_schema"), ("schema", '{"type": "object"}'),
                             ("choice", "required"), ("tools", '[{"type": "function", "function": {"name": "f"}}]')):
            self.set(field, value)
        self.ask("hello")
        body = self.server.bodies[0]
        self.assertEqual(body["messages"][0], {"role": "system", "content": "Be brief."})
        for name, value in (("temperature", 0.65), ("top_p", 0.9), ("top_k", 20), ("min_p", 0.05),
                            ("max_completion_tokens", 99), ("seed", -7), ("tool_choice", "required"),
                            ("chat_template_kwargs", {"enable_thinking": False}),
                            ("tools", [{"type": "function", "function": {"name": "f"}}]),
                            ("response_format", {"type": "json_schema", "json_schema": {
                                "name": "answer", "schema": {"type": "object"}, "strict": True}})):
            self.assertEqual(body[name], value, name)
        self.click("#form button[type=reset]")
        self.browser.wait("document.getElementById('schema-field').hidden && document.getElementById('seed').value === ''")
        self.ask("hello")
        self.assertEqual(set(self.server.bodies[1]), {"model", "messages", "stream", "stream_options"})

    def test_wrong_settings_are_not_sent(self):
        self.start()
        for choice, field, value in (("", "top_p", "1.5"), ("", "top_k", "1.5"), ("auto", "tools", "[{]"), ("auto", "tools", "{}")):
            with self.subTest(field + value):
                self.set("choice", choice)
                self.set(field, value)
                self.send("hello")
                self.browser.wait(f"document.activeElement.id === {field!r}")
                self.assertEqual(self.browser.run("document.activeElement.getAttribute('aria-invalid')"), "true")
                self.assertEqual(self.server.bodies, [])
                self.assertEqual(self.browser.run("document.getElementById('prompt').value"), "hello")
                if field == "tools":
                    self.assertNotEqual(self.text("#tools-error"), "")
                self.browser.run("document.getElementById('prompt').value = ''; document.getElementById('form').reset()")
                self.browser.wait("document.getElementById('top_p').value === ''")

    def test_one_of_several_models(self):
        self.start(models=("first", "second"), ready=False)
        self.browser.wait("document.getElementById('empty-name').textContent === 'first'")
        self.set("model", "second")
        self.ask("hello")
        self.assertEqual(self.server.bodies[0]["model"], "second")

    # ---- Hands and eyes ----

    def test_the_keyboard_reaches_everything_and_everything_has_a_name(self):
        self.start()
        self.assertEqual(self.browser.run("document.activeElement.id"), "prompt")
        self.browser.type("one")
        self.browser.press("Enter", shift=True)
        self.browser.type("two")
        self.assertEqual(self.browser.run("document.getElementById('prompt').value"), "one\ntwo")
        self.browser.press("Enter")
        self.wait_answer()
        self.assertEqual(self.server.bodies[0]["messages"][0]["content"], "one\ntwo")
        self.assertEqual(self.browser.run("document.activeElement.id"), "prompt")
        self.set("choice", "auto")
        self.set("format", "json_schema")
        self.click("#open-settings")
        self.ask("tool")
        for node in self.browser.call("Accessibility.getFullAXTree")["nodes"]:
            properties = {p["name"]: p["value"].get("value") for p in node.get("properties", [])}
            if not node.get("ignored") and properties.get("focusable") and node["role"]["value"] not in ("RootWebArea", "main"):
                self.assertTrue(node["name"]["value"] or node["role"]["value"] in ("generic", "code"), node)
        # From the top, Tab goes through all that can be reached, in the order of the page.
        self.browser.run("document.activeElement.blur(); window.getSelection().removeAllRanges(); document.getElementById('new').focus()")
        seen = []
        for _ in range(60):
            seen.append(self.browser.run("(e => (window.order ??= [...document.querySelectorAll('*')]).indexOf(e))(document.activeElement)"))
            self.assertNotEqual(self.browser.run("getComputedStyle(document.activeElement).outlineStyle"
                                                 " + getComputedStyle(document.activeElement.closest('#composer') ?? document.body).boxShadow"),
                                "nonenone")
            self.browser.press("Tab")
            if self.browser.run("document.activeElement === document.body || document.activeElement.id === 'new'"):
                break
        self.assertEqual(seen, sorted(seen))
        reached = self.browser.run(f"{seen}.map(i => window.order[i].id || window.order[i].textContent)")
        for name in ("theme", "open-settings", "result-call_0", "Send results", "Regenerate", "prompt", "send",
                     "system", "temperature", "schema", "tools", "key"):
            self.assertIn(name, reached)

    def test_it_follows_the_end_unless_one_reads_above(self):
        self.start(height=500)
        self.ask("long")
        at_end = "isAtEnd() && document.getElementById('latest').hidden"
        self.browser.wait(at_end)
        self.browser.run("document.getElementById('main').scrollTop = 0")
        self.browser.wait("!document.getElementById('latest').hidden")
        self.click("#latest")
        self.browser.wait(at_end)
        self.send("slow")
        self.browser.wait(f"{LAST}?.querySelector('.text')?.innerText.includes('3 ')")
        self.browser.run("document.getElementById('main').scrollTop = 100")
        self.browser.wait(f"{LAST}.querySelector('.text').innerText.includes('12 ')")
        self.assertEqual(self.browser.run("document.getElementById('main').scrollTop"), 100)
        self.browser.press("Escape")
        self.wait_answer()

    def test_a_phone(self):
        self.start(width=360, height=640, phone=True)
        self.server.gate.set()
        for word in ("markdown", "tool", "think", "long"):
            self.ask(word + " " + "w" * 200)
        wide = "[...document.querySelectorAll('body *')].filter(e => e.getClientRects().length && !e.closest('pre, .wide, .hidden-text, h1') && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
        self.assertEqual(self.browser.run(wide), [])
        small = "[...document.querySelectorAll('button, input, select')].filter(e => e.getClientRects().length && e.getBoundingClientRect().height < %d).map(e => e.textContent)"
        self.assertEqual(self.browser.run(small % 30), [])
        self.click("#open-settings")
        self.assertEqual(self.browser.run(wide), [])
        self.assertEqual(self.browser.run("['header', 'main', '#foot'].map(s => document.querySelector(s).inert)"), [True] * 3)
        # Below 16 px phones zoom into a field that has the focus.
        self.assertTrue(self.browser.run("[...document.querySelectorAll('input, select, textarea')].every(e => parseFloat(getComputedStyle(e).fontSize) >= 16)"))
        self.browser.press("Escape")
        self.assertEqual(self.browser.run("[document.activeElement.id, document.querySelector('main').inert]"), ["open-settings", False])

    def test_light_and_dark(self):
        self.start()
        for dark in (False, True):
            self.browser.view(1280, 800, dark=dark)
            self.browser.run("sessionStorage.clear()")
            self.browser.open(self.server.url)
            theme = "document.documentElement.dataset.theme"
            first, other = ("dark", "light") if dark else ("light", "dark")
            self.assertEqual(self.browser.run(theme), first)
            self.click("#theme")
            self.assertEqual(self.browser.run(theme), other)
            self.browser.open(self.server.url)
            self.assertEqual(self.browser.run(theme), other)


class ServerTest(PageCase):
    """Against the program itself."""

    @classmethod
    def setUpClass(cls):
        if SERVE is None:
            raise unittest.SkipTest("no server was named")
        super().setUpClass()

    def start(self, *arguments):
        process = subprocess.Popen([*SERVE, "--port", "0", *arguments], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        self.process = process
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait, 60)
        self.addCleanup(process.terminate)
        self.url = process.stdout.readline().split()[-1] + "/"
        self.browser.view(1280, 800)
        self.browser.open(self.url)
        self.addCleanup(self.check_page, self.url)

    def metrics(self):
        with urllib.request.urlopen(self.url + "metrics", timeout=10) as reply:
            self.assertEqual(reply.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
            return reply.read().decode()

    def count(self, name):
        return float(re.search(rf"^{name}{{[^}}]*}} (\S+)$", self.metrics(), re.M).group(1))

    def test_a_conversation(self):
        self.start()
        self.browser.wait("models.length === 1")
        self.set("max_completion_tokens", "30")
        self.set("temperature", "0")
        for turn in (1, 2):
            self.ask("Tell me of the fox.")
            self.assertIsNone(self.last(".notice:not([hidden])"))
            self.assertGreater(len(self.last(".text")), 20)
            self.assertRegex(self.last(".facts"), r"\b30 tokens[^z]*tokens/s")
        self.assertIn(" cached", self.last(".facts"))
        self.click_named("Regenerate", LAST)
        self.wait_answer()
        self.assertEqual(self.count("vllm:e2e_request_latency_seconds_count"), 3)
        try:
            from prometheus_client.parser import text_string_to_metric_families
        except ImportError:
            return
        families = {family.name: family for family in text_string_to_metric_families(self.metrics())}
        self.assertEqual(families["vllm:generation_tokens"].samples[0].value, 90)
        self.assertEqual(families["vllm:inter_token_latency_seconds"].type, "histogram")

    def test_stop_ends_the_request_on_the_server(self):
        self.start()
        self.browser.wait("models.length === 1")
        self.browser.run("{ const old = readSettings; readSettings = () => ({...old(), ignore_eos: true, min_tokens: 3000}); }")
        self.send("Tell me of the fox.")
        self.browser.wait(f"{LAST}?.querySelector('.text')?.innerText.length > 20")
        self.assertEqual(self.count("vllm:num_requests_running"), 1)
        self.browser.press("Escape")
        self.wait_answer()
        end = time.monotonic() + 10
        while self.count("vllm:num_requests_running") > 0:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        self.assertIn("stopped", self.last(".facts"))

    def test_the_engine_is_shown_while_it_answers_and_when_it_has_gone(self):
        self.start("--kv-blocks", "300")
        figure = lambda name: self.browser.run(f"document.getElementById({name!r}).textContent")
        self.browser.wait("models.length === 1 && pool !== null")
        self.assertEqual([figure("num-" + s) for s in ("held", "cached", "free")], ["0", "0", "300"])
        self.browser.run("{ const old = readSettings; readSettings = () => ({...old(), ignore_eos: true, min_tokens: 3000}); }")
        self.send("Tell me of the fox.")
        self.browser.wait("document.getElementById('num-running').textContent === '1' && pool.num_held > 3 && "
                          "Number(document.getElementById('generated-rate').textContent.replace(',', '')) > 0")
        self.browser.press("Escape")
        self.wait_answer()
        self.browser.wait("pool.num_held === 0 && pool.num_cached > 3 && document.getElementById('num-running').textContent === '0'")
        self.assertEqual(int(figure("num-cached")) + int(figure("num-free")), 300)
        self.process.terminate()
        self.process.wait(60)
        self.browser.wait("!document.getElementById('gone').hidden")
        self.assertEqual(figure("engine-state"), "No answer from the server.")

    def test_a_key_and_an_error(self):
        self.start("--api-key", "secret")
        self.browser.wait("document.activeElement.id === 'key'")
        self.browser.type("secret")
        self.browser.press("Tab")
        self.browser.wait("models.length === 1")
        self.set("max_completion_tokens", "1000000")
        self.ask("hello")
        self.assertIn("1000000", self.last(".notice"))
        self.browser.run("showPanel('engine')")
        self.browser.wait("document.getElementById('engine-state').textContent === 'Serving.'")


class SourceTest(unittest.TestCase):
    """What can be seen without a browser."""

    def test_one_small_file_without_a_way_to_make_html_of_text(self):
        page = PAGE.read_text(encoding="utf-8")
        self.assertLessEqual(len(page.encode()), 60 * 1024)
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage", "http://", "setAttribute(\"style"):
            self.assertNotIn(word, page.replace("http://www.w3.org/2000/svg", ""), word)
        self.assertIsNone(re.search(r"<[^>]+\son\w+=", page))
        self.assertIsNone(re.search(r"<[^>]+\sstyle=", page))

    def test_contrast_is_that_of_wcag_aa(self):
        def luminance(colour):
            parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
            parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
            return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

        def contrast(one, other):
            low, high = sorted((luminance(one), luminance(other)))
            return (high + 0.05) / (low + 0.05)

        page = PAGE.read_text(encoding="utf-8")
        for selector in (r":root \{", r':root\[data-theme="dark"\] \{'):
            colours = dict(re.findall(r"--([\w-]+): (#\w{6});", re.search(selector + "[^}]*", page).group()))
            for ground in ("paper", "raised", "sunk"):
                for text in ("ink", "soft", "accent", "bad"):
                    self.assertGreaterEqual(contrast(colours[text], colours[ground]), 4.5, (selector, text, ground))
                self.assertGreaterEqual(contrast(colours["edge"], colours[ground]), 3, (selector, ground))
            self.assertGreaterEqual(contrast(colours["on-accent"], colours["accent"]), 4.5)


if __name__ == "__main__":
    if find_chromium() is None:
        print("skipped: there is no chromium")
        sys.exit(77)
    if len(sys.argv) > 2:
        SERVE = [sys.argv[1], "--model", sys.argv[2]]
        del sys.argv[1:3]
    unittest.main()
