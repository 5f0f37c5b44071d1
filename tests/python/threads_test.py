"""Several threads, Ctrl-C and ends of engines."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import weakref
from pathlib import Path

from fairytale import PROMPTS, FairytaleTest, endless, greedy, make
from nanovllm import BusyError


class ThreadsTest(FairytaleTest):
    def test_threads_share_steps(self):
        expected = [one.outputs for one in self.llm.generate(PROMPTS, greedy())]
        steps = self.llm.stats().num_steps
        found = [None] * 8

        def generate(i):
            found[i] = [self.llm.generate(PROMPTS, greedy()) for _ in range(4)]

        threads = [threading.Thread(target=generate, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for outputs in found:
            for batch in outputs:
                self.assertEqual([one.outputs for one in batch], expected)
        self.assertLess(self.llm.stats().num_steps - steps, 8 * 4 * 24)

    def test_streams_side_by_side(self):
        streams = [self.llm.stream(prompt, greedy()) for prompt in PROMPTS]
        texts = ["".join(map(str, stream)) for stream in reversed(streams)]
        self.assertEqual(texts[::-1],
                         [one["text"] for one in self.llm.generate(PROMPTS, greedy())])

    def test_closed_while_others_generate(self):
        llm = make()
        reasons = []

        def generate():
            reasons.append(llm.generate(PROMPTS[0], endless())[0].outputs[0].finish_reason)

        thread = threading.Thread(target=generate)
        thread.start()
        while llm.stats().num_running == 0:
            time.sleep(0.001)
        llm.close()
        thread.join()
        self.assertEqual(reasons, ["abort"])

    def test_an_engine_ends_with_its_last_reference(self):
        llm = make()
        engine = weakref.ref(llm._engine)
        pieces = [str(piece) for piece in llm.stream(PROMPTS[0], greedy(4))]
        self.assertTrue(pieces)
        del llm
        gc.collect()
        self.assertIsNone(engine())
        names = [thread.name for thread in threading.enumerate()]
        self.assertEqual(names.count("nanovllm"), 1)  # the one of setUpClass


class InterruptTest(FairytaleTest):
    def interrupt(self, function, *arguments):
        """Ctrl-C, once a request runs."""
        def press():
            while self.llm.stats().num_running == 0:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        presser = threading.Thread(target=press)
        presser.start()
        begun = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            function(*arguments)
        presser.join()
        self.assertLess(time.monotonic() - begun, 30)

    def test_generate(self):
        finished = self.llm.stats().num_finished
        self.interrupt(self.llm.generate, PROMPTS, endless(4000))
        stats = self.llm.stats()
        self.assertEqual((stats.num_running, stats.num_waiting), (0, 0))
        self.assertEqual(stats.num_finished - finished, 3)
        self.assertLess(stats.num_sampled_tokens, 3 * 4000)
        self.assertTrue(self.llm.generate(PROMPTS[0], greedy())[0]["text"])

    def test_stream(self):
        self.interrupt(lambda: list(self.llm.stream(PROMPTS[0], endless(4000))))
        gc.collect()  # the stream of the traceback
        self.llm.generate(PROMPTS[0], greedy())
        self.assertEqual(self.llm.stats().num_running, 0)


    def test_embed(self):
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.skipTest("numpy is not installed")
        # What other threads wait for is not disturbed, though an embedding serves them, too.
        reasons = []
        others = [threading.Thread(target=lambda: reasons.append(
            self.llm.generate(PROMPTS[0], endless(200))[0].outputs[0].finish_reason))
            for _ in range(4)]
        for other in others:
            other.start()
        self.interrupt(lambda: [self.llm.embed([text] * 8) for text in "abcdefgh" * 200])
        for other in others:
            other.join()
        self.assertEqual(reasons, ["length"] * 4)

    def test_other_processes(self):
        pid = os.fork()
        if pid == 0:
            try:
                self.llm.stats()
            except BusyError:
                self.llm.close()
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)


class ProcessTest(unittest.TestCase):
    def run_program(self, text):
        return subprocess.run([sys.executable, "-c", "from fairytale import *\n" + text],
                              cwd=Path(__file__).parent, capture_output=True, text=True,
                              timeout=120)

    def test_programs_end(self):
        """Without close, with a stream that has not ended, and by an exception."""
        for text, status in (("llm = make(); print(llm.generate('A king', greedy())[0]['text'])", 0),
                             ("s = make().stream('A king', endless()); print(next(s))", 0),
                             ("llm = make(); s = llm.stream('A', endless()); next(s); 1 / 0", 1)):
            result = self.run_program(text)
            self.assertEqual(result.returncode, status, result.stderr)
            self.assertNotIn("Fatal", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
