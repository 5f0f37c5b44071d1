"""What docs/site/build.sh has made, and that its parts notice faults. site_test.sh runs it."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
sys.path.insert(0, str(ROOT / "docs" / "site"))

import api  # noqa: E402
import comments  # noqa: E402
import stage  # noqa: E402


def build_page(folder, text):
    """What a strict build says of a site of one page."""
    pages = pathlib.Path(folder) / "pages"
    (pages / "api").mkdir(parents=True)
    (pages / "README.md").write_text(text)
    (pages / "api" / "nav.json").write_text("[]")
    (pages / "site.css").write_text("")
    config = (ROOT / "docs" / "site" / "mkdocs.yml").read_text()
    config = re.sub(r"^nav:.*", "nav:\n  - README.md\n", config, flags=re.S | re.M)
    config = config.replace("../../build/site-pages", "pages").replace("../../build/site", "site")
    (pages.parent / "mkdocs.yml").write_text(config)
    (pages.parent / "hooks.py").write_text((ROOT / "docs" / "site" / "hooks.py").read_text())
    run = subprocess.run([sys.executable, "-B", "-m", "mkdocs", "build", "--strict",
                          "--config-file", str(pages.parent / "mkdocs.yml")],
                         capture_output=True, text=True)
    return run.returncode, run.stderr


class Faults(unittest.TestCase):
    def say(self, text):
        with tempfile.TemporaryDirectory() as folder:
            return build_page(folder, text)

    def test_a_sound_page_is_built(self):
        status, said = self.say("# Title\n\nText:\n\n- one\n- two\n\n## Next\n| a | b |\n|---|---|\n| 1 | 2 |\n")
        self.assertEqual(status, 0, said)

    def test_a_link_without_a_page_is_an_error(self):
        status, said = self.say("# Title\n\n[there](nowhere.md)\n")
        self.assertNotEqual(status, 0)
        self.assertIn("nowhere.md", said)

    def test_a_link_without_a_heading_is_an_error(self):
        status, said = self.say("# Title\n\n[there](#nowhere)\n")
        self.assertNotEqual(status, 0)
        self.assertIn("nowhere", said)

    def test_what_github_reads_otherwise_is_an_error(self):
        for text, tag in [("Text:\n- one\n- two\n", "<li>"), ("- one\n  - two\n", "<ul>"),
                          ("Text:\n| a |\n|---|\n| 1 |\n", "<table>")]:
            status, said = self.say(f"# Title\n\n{text}")
            self.assertNotEqual(status, 0, text)
            self.assertIn(f"{tag}, and", said)


class Links(unittest.TestCase):
    def setUp(self):
        self.site = stage.Site(ROOT, SITE)

    def test_pages_and_sources(self):
        for page, link, wanted in [
                ("docs/lab/cpu.md", "../performance.md#two-cpu-cores", "../performance.md#two-cpu-cores"),
                ("docs/lab/cpu.md", "../../README.md", "../overview.md"),
                ("README.md", "docs/lab/README.md", "lab/README.md"),
                ("README.md", "https://example.org/a.md", "https://example.org/a.md"),
                ("docs/reading.md", "../include/nanovllm/core/ids.hpp",
                 "source/include/nanovllm/core/ids.hpp.md"),
                ("docs/reading.md", "../nowhere.hpp", "../nowhere.hpp")]:
            self.assertEqual(self.site.link(self.site.place[page], page, link), wanted)

    def test_paths_in_backticks(self):
        text = "`sched/sequence.hpp`, `nowhere.hpp`, [`engine.hpp`](a.md)\n```\n`engine.hpp`\n```"
        self.assertEqual(self.site.rewrite("docs/a.md", "a.md", text),
                         "[`sched/sequence.hpp`](source/include/nanovllm/sched/sequence.hpp.md), "
                         "`nowhere.hpp`, [`engine.hpp`](a.md)\n```\n`engine.hpp`\n```")


class Result(unittest.TestCase):
    def text(self, page):
        return re.sub(r"<[^>]+>", "", (SITE / page / "index.html").read_text())

    def test_faces_have_their_names(self):
        for page, names in [("api/engine", ["Loads the checkpoint of", "generate_each", "EngineConfig"]),
                            ("api/sampling", ["SamplingParams", "top_k", "keep the k most likely"]),
                            ("api/policy", ["ContinuousBatching", "bfloat16 on the CPU"]),
                            ("api/c", ["nvllm_abi_version", "#define NVLLM_ABI_VERSION 0", "NVLLM_ERROR_UNSUPPORTED"]),
                            ("api/with_radix", ["RadixPrefixCache", "The longest prefix, to the token"])]:
            text = self.text(page)
            for name in names:
                self.assertTrue(name in text, f"{page} lacks {name!r}")

    def test_links_of_the_reference_lead_somewhere(self):
        ids = {}
        num_links = 0
        for path in sorted((SITE / "api").rglob("index.html")):
            for target, anchor in re.findall(r'<a href="([^"#:]*)(?:#([a-z0-9_-]+))?">', path.read_text()):
                page = (path.parent / target / "index.html").resolve() if target else path
                self.assertTrue(page.exists(), f"{path}: {target}")
                if page not in ids:
                    ids[page] = set(re.findall(r'id="([^"]+)"', page.read_text()))
                num_links += 1
                if anchor:
                    self.assertTrue(anchor in ids[page], f"{path}: {target}#{anchor}")
        self.assertGreater(num_links, 1000)

    def test_the_search_finds_pages_and_names(self):
        index = json.loads((SITE / "search" / "search_index.json").read_text())
        titles = {entry["title"] for entry in index["docs"]}
        self.assertLessEqual({"Block tables", "SamplingParams", "The radix tree"}, titles)
        self.assertFalse([e for e in index["docs"] if e["location"].startswith("source/")])

    def test_comments_are_text(self):
        for line, wanted in [("/// > 0 or <tag>", "/// \\> 0 or \\<tag>"), ("int x;  ///< `<a>` and \\n",
                                                                      "int x;  ///< `<a>` and \\\\n"),
                             ("///     <drawing>", "///     <drawing>"), ("a < b;  // <c>", "a < b;  // <c>"),
                             ("#pragma once", "/// \\file")]:
            self.assertEqual(comments.prepared(line, "#pragma once"), wanted)
        code = "/// ```cpp\n/// a<b>\n/// ```"
        self.assertEqual(comments.prepared(code, ""), code)
        self.assertIn("&gt; 0: positive logits", self.text("api/sampling"))

    def test_declarations(self):
        self.assertEqual(api.tidy("std::vector< int >  &"), "std::vector<int>&")
        self.assertEqual(api.wrapped("void f", ["int a", "int b"], ";"), "void f(int a, int b);")
        self.assertIn("\n    ", api.wrapped("void f", ["int a" * 20, "int b"], ";"))


if __name__ == "__main__":
    unittest.main()
