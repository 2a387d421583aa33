"""Makes a model fill in a form. Needs `pip install llguidance`.

Usage: python examples/structured.py MODEL.gguf "The captain of the ship:"
"""

import json
import sys

from trigraph import JsonSchema, load

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def main(model: str, prompt: str) -> None:
    engine = load(model)
    request = engine.generate(prompt, constraint=JsonSchema(SCHEMA), temperature=0.7, seed=1)
    print(json.loads(request.run()))


if __name__ == "__main__":
    main(*sys.argv[1:])
