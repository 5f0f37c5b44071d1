"""Checks texts against JSON Schemas: validate_json_schema.py FILE

FILE has one JSON object a line, with a `schema` and a `text` that is to be JSON and valid by it.
The draft is that of `$schema`, else 2020-12; formats are checked. Prints what is not, and exits with
1 if there is any; with 77 where the package jsonschema is missing. Tests in tests/api/grammar/json write
such files and call this.
"""

import json
import sys

try:
    import jsonschema
except ImportError:
    sys.exit(77)

num_texts = num_wrong = 0
with open(sys.argv[1], encoding="utf-8") as file:
    for line in file:
        case = json.loads(line)
        num_texts += 1
        schema = case["schema"]
        validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        try:
            value = json.loads(case["text"])
            validator(schema, format_checker=validator.FORMAT_CHECKER).validate(value)
        except (ValueError, jsonschema.ValidationError) as error:
            num_wrong += 1
            if num_wrong <= 20:
                print(f"schema {json.dumps(case['schema'])}\n  text {case['text']!r}\n  {error.args[0]}")
print(f"{num_texts} texts, {num_wrong} of them wrong")
sys.exit(1 if num_wrong or not num_texts else 0)
