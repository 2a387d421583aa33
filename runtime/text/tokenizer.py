"""Text to token ids, and ids back to text as they come."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache

from tokenizers import Tokenizer as HFTokenizer
from tokenizers.normalizers import Sequence

from trigraph.models.errors import TrigraphError
from trigraph.models.tokenizer import PRE_TOKENIZERS, byte_alphabet, pipeline

_BYTE_OF = {character: byte for byte, character in enumerate(byte_alphabet())}


class Tokenizer:
    """A byte-level BPE tokenizer. `stop_ids` end a text; `bos_id` starts one where the model asks for that."""

    def __init__(self, json_text: str, stop_ids: Iterable[int] = (), bos_id: int | None = None) -> None:
        """Raises TrigraphError when `json_text` is not a `tokenizers` description."""
        with _explained("tokenizer.json cannot be read"):
            self._tokenizer = HFTokenizer.from_str(json_text)
        _check_pipeline(self._tokenizer)
        self.stop_ids = frozenset(stop_ids)
        self.bos_id = bos_id
        self._added = self._tokenizer.get_added_tokens_decoder()
        self.token_bytes = lru_cache(maxsize=65536)(self._token_bytes)

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def control_ids(self) -> list[int]:
        """Ids of the tokens that mark parts of a text and are no part of it."""
        return sorted(token for token, added in self._added.items() if added.special)

    def as_json(self) -> str:
        """The description that the tokenizer was made of."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str, *, start: bool = True) -> list[int]:
        """Ids of `text`; special tokens written out in it become one id each. `start`: begin with any `bos_id`."""
        try:
            with _explained("tokenizer.json cannot be used"):
                ids = list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        except TypeError as error:  # the package's answer to lone surrogates
            raise TrigraphError("the text is not valid Unicode; was it read with the wrong encoding?") from error
        return [self.bos_id, *ids] if start and self.bos_id is not None else ids

    def encode_exactly(self, text: str) -> list[int]:
        """Ids whose bytes are those of `text`: it is not normalised, and no control token is seen in it."""
        return list(self._exact.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _exact(self) -> HFTokenizer:
        exact = HFTokenizer.from_str(self.as_json())
        exact.normalizer = Sequence([])
        exact.encode_special_tokens = True
        return exact

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids` without control tokens; bytes that are not UTF-8 become U+FFFD."""
        stream = Detokenizer(self)
        return "".join(map(stream.push, ids)) + stream.flush()

    def spell(self, ids: Iterable[int]) -> str:
        """Text that `encode` was given to make these ids, or could have been: control tokens are written out."""
        ids = list(ids)
        if self.bos_id is not None and ids[:1] == [self.bos_id]:
            del ids[0]
        parts = (self._added[i].content.encode() if i in self._added else self.token_bytes(i) for i in ids)
        return b"".join(parts).decode(errors="replace")

    def text_of(self, token: int) -> str:
        """The token as the vocabulary spells it."""
        text = self._tokenizer.id_to_token(token)
        if text is None:
            raise TrigraphError(f"token id {token} is not in the vocabulary of {self.size}")
        return str(text)

    def _token_bytes(self, token: int) -> bytes:
        added = self._added.get(token)
        if added is not None:
            return b"" if added.special else added.content.encode()
        text = self.text_of(token)
        # Texts with characters outside of the byte alphabet stand for themselves.
        return bytes(map(_BYTE_OF.__getitem__, text)) if all(c in _BYTE_OF for c in text) else text.encode()


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turns the package's errors into TrigraphError: bare Exception, and panics, which are no Exception at all."""
    try:
        yield
    except TypeError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TrigraphError(f"{what} ({error}); export the package again") from error


def _check_pipeline(tokenizer: HFTokenizer) -> None:
    """Refuses regular expressions and other steps that are not ours: a stranger's could take for ever."""
    names = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    parts = {name: getattr(tokenizer, name) for name in names}
    found = {name: None if part is None else json.loads(part.__getstate__()) for name, part in parts.items()}
    if tokenizer.truncation or tokenizer.padding or found not in map(pipeline, PRE_TOKENIZERS.values()):
        raise TrigraphError("tokenizer.json cuts text up in a way that no export does; export the package again")


class Detokenizer:
    """Text of a growing list of ids. A character that several tokens make up appears with the last of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that `token` completes."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """U+FFFD if the text ends within a character."""
        return self._decoder.decode(b"", final=True)
