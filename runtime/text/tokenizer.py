"""Text to token ids, and ids back to text, one token at a time."""

from __future__ import annotations

import codecs
import json
import weakref
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.normalizers import Normalizer, Sequence

from trigraph.models.errors import TrigraphError
from trigraph.models.tokenizer import PRE_TOKENIZERS, byte_alphabet, pipeline
from trigraph.runtime.text.control_names import MARK, ControlNames
from trigraph.runtime.text.cuts import Cuts
from trigraph.runtime.text.kept_ids import KeptIds

# The byte as a character of Latin-1 for each that stands for one, and one that Latin-1 does not have for others.
_LATIN_1 = dict.fromkeys(range(256), "\uffff") | {ord(c): chr(byte) for byte, c in enumerate(byte_alphabet())}

# The same by the character's number; -1 for those that stand for none, as the last does.
_BYTE_OF = np.full(max(map(ord, byte_alphabet())) + 2, -1, np.int16)
_BYTE_OF[[ord(c) for c in byte_alphabet()]] = range(256)


class Tokenizer:
    """A byte-level BPE tokenizer. `stop_ids` end a completion; `bos_id`, if any, starts a sequence."""

    def __init__(self, json_text: str, stop_ids: Iterable[int] = (), bos_id: int | None = None) -> None:
        """Raises TrigraphError when `json_text` is not a `tokenizers` description."""
        with _explained("tokenizer.json cannot be read"):
            self._tokenizer = HFTokenizer.from_str(json_text)
        _check_pipeline(self._tokenizer)
        self.stop_ids = frozenset(stop_ids)
        self.bos_id = bos_id
        self._added = self._tokenizer.get_added_tokens_decoder()
        self._kept = {True: KeptIds(), False: KeptIds()}  # with control tokens, and without
        # Weak, or a tokenizer that nobody needs would stay until the collector comes.
        self.token_bytes = lru_cache(maxsize=65536)(partial(Tokenizer._token_bytes, weakref.proxy(self)))

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[str, frozenset[int], int | None]]:
        """Pickles what it is made of."""
        return Tokenizer, (self.as_json(), self.stop_ids, self.bos_id)

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def control_ids(self) -> list[int]:
        """Ids of the tokens that structure a text without being part of it."""
        return sorted(token for token, added in self._added.items() if added.special)

    @property
    def control_texts(self) -> set[str]:
        """The names of the control tokens, as the vocabulary spells them."""
        return {self._added[token].content for token in self.control_ids}

    def as_json(self) -> str:
        """The `tokenizers` description of this tokenizer."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str, *, start: bool = True, most: int | None = None) -> list[int]:
        """Ids of `text`; special tokens that are written out become ids, unless marked as text (see ControlNames).

        `start`: begin with `bos_id`, if any. `most`: how many ids to stop at, or a few thousand later. Raises
        TrigraphError for a text that is no Unicode, or that has no place to cut it at for 262,144 characters.
        """
        ids = [self.bos_id] if start and self.bos_id is not None else []
        pieces = self.control_names.pieces(text) if MARK in text else [(text, True)]
        try:
            for piece, control in pieces:
                tokenizer, kept = self._tokenizer if control else self._plain, self._kept[control]
                for part in self._cuts.parts(piece):
                    if most is not None and len(ids) > most:
                        return ids
                    with _explained("tokenizer.json cannot be used"):
                        ids += kept.of(part, partial(_ids, tokenizer))
        except TypeError as error:  # how the package refuses lone surrogates
            raise TrigraphError("the text is not valid Unicode; was it read with the wrong encoding?") from error
        return ids

    def encode_exactly(self, text: str) -> list[int]:
        """Ids with exactly the bytes of `text`: without normalisation, and without control tokens."""
        return _ids(self._exact, text)

    @cached_property
    def control_names(self) -> ControlNames:
        """The names of the control tokens."""
        return ControlNames(self.control_texts)

    @cached_property
    def _cuts(self) -> Cuts:
        return Cuts(token.content for token in self._added.values())

    @cached_property
    def _plain(self) -> HFTokenizer:
        """Makes no control tokens."""
        return self._without_control_tokens(self._tokenizer.normalizer)

    @cached_property
    def _exact(self) -> HFTokenizer:
        return self._without_control_tokens(Sequence([]))

    def _without_control_tokens(self, normalizer: Normalizer) -> HFTokenizer:
        made = HFTokenizer(self._tokenizer.model)  # shared, not copied
        made.normalizer = normalizer
        made.pre_tokenizer = self._tokenizer.pre_tokenizer
        added = [self._added[token] for token in sorted(self._added)]
        made.add_tokens([token for token in added if not token.special])
        return made

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids` without control tokens; bytes that are not UTF-8 become U+FFFD."""
        stream = Detokenizer(self)
        return "".join(map(stream.push, ids)) + stream.flush()

    def spell(self, ids: Iterable[int]) -> str:
        """A text that `encode` turns into these ids: control tokens are written out, and their names as text marked."""
        ids = list(ids)
        if self.bos_id is not None and ids[:1] == [self.bos_id]:
            del ids[0]
        parts = []
        for control, run in groupby(ids, lambda token: token in self._added and self._added[token].special):
            if control:
                parts += [self._added[token].content for token in run]
            else:
                text = b"".join(map(self.token_bytes, run)).decode(errors="replace")
                parts.append(self.control_names.marked(text))
        return "".join(parts)

    def text_of(self, token: int) -> str:
        """The token in the spelling of the vocabulary."""
        text = self._tokenizer.id_to_token(token)
        if text is None:
            raise TrigraphError(f"token id {token} is not in the vocabulary of {self.size}")
        return str(text)

    def id_of(self, text: str) -> int | None:
        """The token in the spelling of the vocabulary, as an id; None when there is none."""
        return self._tokenizer.token_to_id(text)

    def sizes(self, ids: SequenceOf[int]) -> NDArray[np.int64]:
        """Bytes of each token as `spell` writes it."""
        tokens = np.array(ids, np.int64)
        for token in np.unique(tokens[self._sizes[tokens] < 0]).tolist():
            self._sizes[token] = len(self.token_bytes(token)) or len(self.spell([token]).encode())
        return self._sizes[tokens]

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        """By token; -1 for those that nobody has asked for."""
        return np.full(self.size, -1, np.int64)

    def _token_bytes(self, token: int) -> bytes:
        added = self._added.get(token)
        if added is not None:
            return b"" if added.special else added.content.encode()
        return _bytes_of(self.text_of(token))

    def all_bytes(self) -> list[bytes]:
        """For each token the bytes that it stands for; the names of control tokens."""
        texts = [self.text_of(token) for token in range(self.size)]
        found = _bytes_of_all(texts)
        for token in self._added:
            found[token] = texts[token].encode()
        return found


def _ids(tokenizer: HFTokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def _bytes_of(text: str) -> bytes:
    """What a token in the vocabulary's spelling stands for; one with a character that is no byte's is plain text."""
    try:
        return text.translate(_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _bytes_of_all(texts: list[str]) -> list[bytes]:
    """As _bytes_of, of a whole vocabulary at once: the time until the first constrained token."""
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4")
    values = _BYTE_OF[np.minimum(codes, len(_BYTE_OF) - 1)]
    ends = np.cumsum([len(text) for text in texts])
    joined = values.astype(np.uint8).tobytes()
    found = [joined[start:end] for start, end in pairwise([0, *ends.tolist()])]
    for token in np.searchsorted(ends, np.flatnonzero(values < 0), "right").tolist():
        found[token] = texts[token].encode()
    return found


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turns errors of the package into TrigraphError: bare Exception, and panics, which are not even Exceptions."""
    try:
        yield
    except TypeError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TrigraphError(f"{what} ({error}); export the package again") from error


def _check_pipeline(tokenizer: HFTokenizer) -> None:
    """Refuses regular expressions and other steps that no export writes: untrusted ones could run forever."""
    names = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    parts = {name: getattr(tokenizer, name) for name in names}
    found = {name: None if part is None else json.loads(part.__getstate__()) for name, part in parts.items()}
    if tokenizer.truncation or tokenizer.padding or found not in map(pipeline, PRE_TOKENIZERS.values()):
        raise TrigraphError("tokenizer.json splits text in a way that no export does; export the package again")


class Detokenizer:
    """Text of a growing list of ids. A character that spans several tokens appears with the last of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that `token` completes."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """U+FFFD if the text ends within a character."""
        return self._decoder.decode(b"", final=True)
