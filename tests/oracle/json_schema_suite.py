"""JSON-Schema-Test-Suite against the grammars that schemas become.

json_schema_suite.py write FILE    writes its cases, one JSON object a line: draft, file, description,
                                   schema, and tests with a text and whether it is valid
json_schema_suite.py check FILE    checks lines of draft, schema and text by Python's jsonschema;
                                   exits with 1 if any text is not valid by its schema

The suite comes with the sources of the package jsonschema on PyPI, which pip downloads to
build/json_schema_suite; or it lies in the folder that the environment variable
JSON_SCHEMA_TEST_SUITE names, which holds tests/draft7. Exits with 77 where there is neither, or no
package jsonschema. tests/api/grammar/json/json_schema_suite_test.cpp calls this.
"""

import json
import os
import pathlib
import subprocess
import sys
import tarfile

try:
    import jsonschema
except ImportError:
    sys.exit(77)

RELEASE = "jsonschema-4.26.0"
VALIDATORS = {"draft7": jsonschema.Draft7Validator, "draft2020-12": jsonschema.Draft202012Validator}
FORMATS = ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer",
           "time", "uri", "uuid", "unknown"]


def suite_folder():
    if "JSON_SCHEMA_TEST_SUITE" in os.environ:
        return pathlib.Path(os.environ["JSON_SCHEMA_TEST_SUITE"])
    folder = pathlib.Path("build/json_schema_suite")
    if not (folder / RELEASE).is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary",
                        ":all:", "--dest", str(folder), RELEASE.replace("-", "==")],
                       timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if not (folder / f"{RELEASE}.tar.gz").is_file():
            sys.exit(77)
        with tarfile.open(folder / f"{RELEASE}.tar.gz") as archive:
            archive.extractall(folder)
    return folder / RELEASE / "json"


def write(path):
    tests = suite_folder() / "tests"
    if not tests.is_dir():
        sys.exit(77)
    with open(path, "w", encoding="utf-8") as out:
        for draft in VALIDATORS:
            files = sorted((tests / draft).glob("*.json"))
            files += [tests / draft / "optional" / "format" / f"{name}.json" for name in FORMATS]
            files.append(tests / draft / "optional" / "ecmascript-regex.json")
            for file in files:
                if not file.is_file():
                    continue
                for group in json.loads(file.read_text(encoding="utf-8")):
                    cases = [{"text": json.dumps(case["data"], ensure_ascii=False),
                              "valid": case["valid"]} for case in group["tests"]]
                    line = {"draft": draft, "file": file.name, "description": group["description"],
                            "schema": group["schema"], "tests": cases}
                    text = json.dumps(line, ensure_ascii=False)
                    try:
                        text.encode("utf-8")
                    except UnicodeEncodeError:  # half of a surrogate pair
                        continue
                    out.write(text + "\n")


def check(path):
    num_texts = num_wrong = 0
    with open(path, encoding="utf-8") as file:
        for line in file:
            case = json.loads(line)
            num_texts += 1
            validator = VALIDATORS[case["draft"]](case["schema"])
            try:
                validator.validate(json.loads(case["text"]))
            except (ValueError, jsonschema.ValidationError) as error:
                num_wrong += 1
                print(f"schema {json.dumps(case['schema'])}\n  text {case['text']!r}\n"
                      f"  {error.args[0]}")
    print(f"{num_texts} generations, {num_wrong} of them wrong")
    sys.exit(1 if num_wrong or not num_texts else 0)


{"write": write, "check": check}[sys.argv[1]](sys.argv[2])
