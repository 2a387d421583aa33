"""Makes a model fill in a form. Needs `pip install llguidance`.

Usage: python examples/structured.py MODEL.gguf "The captain of the ship:"
"""

import json
import sys

from trigraph.runtime import JsonSchema, Options, Sampling, load

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def main(model: str, prompt: str) -> None:
    engine = load(model)
    options = Options(Sampling(temperature=0.7, seed=1), constraint=JsonSchema(json.dumps(SCHEMA)))
    print(json.loads(engine.generate(prompt, options).run()))


if __name__ == "__main__":
    main(*sys.argv[1:])
