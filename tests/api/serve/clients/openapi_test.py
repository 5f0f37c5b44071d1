#!/usr/bin/env python3
"""Schemathesis against a running server: what /openapi.json says of requests and replies holds, and
no request that can be made of it is an error of the server.

    python3 openapi_test.py --server PATH_TO_serve --model DIR [--seconds 40]
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

from server_process import ServerProcess

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_schema_conformance")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--seconds", type=int, default=40)
    options = parser.parse_args()
    program = pathlib.Path(sys.executable).with_name("schemathesis")
    if not program.exists():
        print("skipped: there is no schemathesis")
        return 77
    # Few tokens a request, so that there are many requests.
    with ServerProcess(options.server, options.model, "--max-model-len", "64",
                       "--kv-blocks", "2048") as server:
        with tempfile.TemporaryDirectory() as folder:  # it leaves its examples where it runs
            done = subprocess.run(
                [program, "run", server.url + "/openapi.json", "--checks", ",".join(CHECKS),
                 "--max-time", str(options.seconds), "--seed", "51", "--workers", "2",
                 "--phases", "fuzzing", "--max-examples", "40", "--no-color", "--request-timeout", "30"],
                cwd=folder, timeout=options.seconds + 120, check=False)
        status, _ = server.stop()
    return done.returncode or status


if __name__ == "__main__":
    sys.exit(main())
